"""advise(): the gain of changes that engines run, alone and combined, and the bound that remains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, field
from itertools import combinations
from math import comb, inf
from typing import Any, ClassVar, Final, Unpack

from .. import __version__
from ..analyzing.analysis import largest_request
from ..arguments import as_values, enum_member, with_defaults
from ..devices.hardware import Hardware
from ..errors import InputError
from ..model import Model
from ..options import AdviceArguments, BatchOptions, ServedOptions, document_options, only
from ..records import frozen
from ..request import Request, lengths_of
from ..rows import Rows
from ..setting import Setting, check_countable, setting_of, whole_number
from ..techniques import Requirement, techniques
from ..variants.changes import (
    DEGREES,
    deployed_precisions,
    drafting,
    expert_layouts,
    flash_attention,
    further_techniques,
    larger_batches,
    more_devices,
    offloading,
    precisions,
    techniques_to_choose,
)
from ..variants.evaluation import Evaluation, Objective
from ..variants.variant import MIN_GAIN, Change, Variant, evaluate
from .launch_commands import deployed_techniques
from .outcome import Goals

SCHEMA_VERSION: Final = 1  # of to_dict()
MAX_COMBINED_CHANGES: Final = 3  # changes in the largest combination
_MAX_CANDIDATE_CHANGES: Final = 8  # the best changes, at most two of a group, are combined
_MAX_CHANGES_OF_GROUP: Final = 2
_MAX_COMBINATIONS: Final = sum(comb(_MAX_CANDIDATE_CHANGES, count) for count in range(2, MAX_COMBINED_CHANGES + 1))
_MAX_EXPECTED_COMBINATIONS: Final = 24  # those with the largest gains at the bound are evaluated by expected times
_PAGED, _CHUNKED = "paged", "chunked-prefill"  # techniques that engines always run, and of whose size they decide
_TIME_NAMES: Final = ("ttft_s", "tpot_s", "latency_s", "tokens_per_s")


@frozen(kw_only=True, repr=False)
class Advice(Rows):
    """The result of advise(). `alone` and `together` are in groups: changes that keep weights and outputs, changes of
    the outputs, changes that need a draft model, and changes that need other weights; each group has the best first, by
    expected times if known.

    techniques  techniques already in use
    alone       single changes that help
    together    combinations that help more than each of their parts
    no_gain     changes without a gain
    too_large   changes with which the request does not fit
    too_slow    changes that help, but miss the targets
    refused     changes that are not possible, with the reason
    research    whether techniques that no engine runs were tried, too
    """

    report: ClassVar = "advice"

    wanted: Objective
    batch: int
    prompt: int
    gen: int
    techniques: tuple[str, ...]
    without: tuple[Requirement, ...]
    base: Evaluation
    alone: tuple[Variant, ...] = field(repr=False)
    together: tuple[Variant, ...] = field(repr=False)
    no_gain: tuple[Variant, ...] = field(repr=False)
    too_large: tuple[Variant, ...] = field(repr=False)
    too_slow: tuple[Variant, ...] = field(default=(), repr=False)
    targets: Goals = Goals()
    research: bool = False
    refused: tuple[tuple[Change, str], ...] = field(repr=False)

    @property
    def inputs(self) -> dict[str, Any]:
        """The inputs of the JSON document."""
        setting = self.base.setting
        return {
            "for": str(self.wanted), "batch": self.batch, "prompt": self.prompt, "gen": self.gen,
            "quant": str(setting.quantization), "attention": str(setting.attention),
            "layout": str(setting.layout), "techniques": list(self.techniques), "without": list(map(str, self.without)),
            "library": setting.kernels.library if setting.kernels and self.base.expected else None,
            "engine": setting.engine.name if setting.engine else None, "research": self.research,
            **{name: None if value == inf else value for name, value in asdict(self.targets).items()},
        }  # fmt: skip

    @property
    def recommended(self) -> Variant | None:
        """The best changes that need nothing, or that make the request fit, and assume nothing of the requests; None
        if there are none.
        """
        allowed = (Requirement.NOTHING,) if self.base.fits else (Requirement.NOTHING, Requirement.OTHER_OUTPUT)
        safe = [one for one in (*self.together, *self.alone) if one.requires in allowed and not assumptions(one)]
        return max(safe, key=lambda one: one.likely_gain, default=None)

    @property
    def recommended_setting(self) -> Setting:
        """The setting with the recommended changes."""
        return self.recommended.result.setting if self.recommended else self.base.setting

    @property
    def recommended_batch(self) -> int:
        """The batch of the recommended changes."""
        return int(self.recommended.result.batch) if self.recommended else self.batch

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each change or combination, with the list that has it."""
        document = self.to_dict()
        for kind in ("alone", "together", "no_help", "too_large", "too_slow"):
            for line in document[kind]:
                yield {"kind": kind, **line, "techniques": " + ".join(line["techniques"])}

    def to_dict(self) -> dict[str, Any]:
        """The JSON document; docs/serving.md has its keys."""
        return {
            "schema_version": SCHEMA_VERSION,
            "llmviewer_version": __version__,
            "model": self.base.setting.model.name,
            "hardware": self.base.setting.hardware.name,
            "inputs": self.inputs,
            "without": _numbers(self.base),
            "alone": [_row(one) for one in self.alone],
            "together": [_row(one) for one in self.together],
            "no_help": [_row(one) for one in self.no_gain],
            "too_large": [_row(one) for one in self.too_large],
            "too_slow": [_row(one) for one in self.too_slow],
            "refused": [{"technique": change.name, "reason": reason} for change, reason in self.refused],
        }  # fmt: skip


@document_options(AdviceArguments)
def advise(
    model: str | Model | Setting,
    hardware: str | Hardware | None = None,
    *,
    wanted: str = "latency",
    research: bool = False,
    without: Sequence[str] = (),
    progress: Callable[[int, int], object] = lambda finished, steps: None,
    **options: Unpack[AdviceArguments],
) -> Advice:
    """The gain of each change that engines run today: precisions, an 8-bit KV cache, layouts, batches, prefix caching,
    chunked prefill and speculative decoding.

    wanted       objective: "latency", "ttft", "tpot" or "throughput"
    research     whether to try all techniques and precisions, also those that no engine runs
    without      "answers" excludes techniques that change the outputs, "draft" those that need a draft model or draft
                 heads, "model" those that need other weights
    progress     called with the number of finished changes and combinations, and their maximum

    The options describe the setting that changes are compared with: `techniques` are those already in use. Changes that
    exceed `ttft` or `tpot`, as expected or else at the bound, are listed apart, and batches are as large as they allow.
    A Setting may stand in place of model, hardware and options.

    Raises InputError if an argument is invalid, or the model does not generate.
    """
    objective = enum_member("wanted", wanted, Objective)
    all_options = with_defaults(options, AdviceArguments)
    excluded = tuple(enum_member("without", one, Requirement) for one in as_values("without", without))
    batch = whole_number("batch", Request.of(**only(options, BatchOptions)).batch)
    prompt, gen = lengths_of(options)
    device_limit = whole_number("max_devices", all_options["max_devices"])
    setting = setting_of(model, hardware, **only(options, ServedOptions))
    in_use = tuple(map(str, options.get("techniques", setting.techniques)))
    check_countable(batch, prompt + gen)
    if gen < 2:
        raise InputError("gen must be at least 2, because techniques are compared over a whole generation; got 1")
    if not setting.model.generates:
        raise InputError(
            f"{setting.model.name} does not generate: techniques are compared over a whole generation; "
            "use llmviewer analyze --with TECHNIQUE"
        )
    if setting.engine:
        setting.engine.check_accepts(prompt + gen)
    base = Evaluation(setting=setting, batch=batch, prompt=prompt, gen=gen)
    names = [one.name for one in setting.techniques]
    targets = Goals.of(all_options)
    try_all = _all_changes if research else _deployed_changes
    larger = objective is Objective.THROUGHPUT
    changes = [
        *try_all(base, names, max_devices=device_limit),
        *(larger_batches(base, None if research else _batch_limit(base, targets.tpot_s)) if larger else ()),
    ]
    changes = [change for change in changes if change.requires not in excluded]
    steps = len(changes) + _MAX_COMBINATIONS
    trial = _Trial(targets=targets, base=base, objective=objective, report=lambda finished: progress(finished, steps))
    variants, refused = trial.alone(changes)
    fitting = [one for one in variants if one.fits]
    combined = trial.together(variants, len(changes))
    progress(steps, steps)
    slow = [one for one in fitting if trial.misses(one)]
    fitting = [one for one in fitting if not trial.misses(one)]
    helps = {id(one): one.likely_gain > MIN_GAIN or not base.fits for one in fitting}
    order = list(Requirement)
    return Advice(
        wanted=objective, techniques=in_use, without=excluded, base=base,
        together=tuple(sorted(combined, key=lambda one: order.index(one.requires))),
        alone=tuple(sorted((one for one in fitting if helps[id(one)]), key=lambda one: order.index(one.requires))),
        no_gain=tuple(one for one in fitting if not helps[id(one)]),
        too_large=tuple(one for one in variants if not one.fits), too_slow=tuple(slow), targets=targets,
        research=research,
        refused=(
            *(pair for pair in techniques_to_choose(names) if research and pair[0].requires not in excluded), *refused,
        ),
        batch=batch, prompt=prompt, gen=gen,
    )  # fmt: skip


def _all_changes(base: Evaluation, used: Sequence[str], *, max_devices: int) -> Iterator[Change]:
    """All changes that could be made, except those in use.

    max_devices  devices up to which tensor parallelism is tried
    """
    yield from precisions(base.setting)
    yield from flash_attention(base.setting)
    if base.setting.layout.devices == 1:
        yield from more_devices(degree for degree in DEGREES if degree <= max_devices)
    yield from offloading(base)
    yield from further_techniques(used)
    if "speculative" not in used:
        yield from drafting(base.setting.model)


def _deployed_changes(base: Evaluation, used: Sequence[str], *, max_devices: int) -> Iterator[Change]:
    """Changes that the engine, or without one any engine, runs; those of techniques in use are left out."""
    setting = base.setting
    deployed = deployed_techniques(setting.engine.name if setting.engine else "")
    yield from deployed_precisions(setting)
    yield from flash_attention(setting)
    if setting.layout.devices == 1:
        degrees = [degree for degree in DEGREES if degree <= max_devices]
        yield from more_devices(degrees)
        yield from expert_layouts(setting, degrees)
    yield from offloading(base)
    for change in further_techniques(used):
        (name,) = change.options["techniques"]
        if name in deployed and not (name == _PAGED or (setting.engine and name == _CHUNKED)):
            yield change
    if "speculative" in deployed and "speculative" not in used:
        yield from drafting(setting.model)


def _batch_limit(base: Evaluation, tpot: float) -> int | None:
    """The most sequences that a server runs, and with which a token takes at most `tpot`; None: no limit. [s]"""
    setting = base.setting
    engine_limit = setting.engine.default_on(setting.hardware).max_batch if setting.engine else None
    limits = [engine_limit * setting.layout.dp] if engine_limit else []
    if tpot < inf:
        request = Request(batch=1, prompt=base.prompt, gen=base.gen)
        with suppress(InputError):
            limits.append(int(largest_request(setting, request, tpot=tpot).batch))
    return min(limits, default=None)


def assumptions(variant: Variant) -> dict[str, str]:
    """Assumptions about the requests that the default parameters of its techniques make, by technique."""
    names = {str(one).partition(":")[0] for change in variant.changes for one in change.options.get("techniques", ())}
    return {name: text for name in sorted(names) if (text := techniques()[name].assumption)}


@frozen(kw_only=True)
class _Trial:
    """Changes to `base` and their gains.

    report  called with the number of changes and combinations done
    """

    base: Evaluation
    objective: Objective
    targets: Goals
    report: Callable[[int], object]

    def misses(self, variant: Variant) -> bool:
        """Whether a change misses the targets."""
        times = variant.result.likely
        return bool(times.ttft_s > self.targets.ttft_s or times.tpot_s > self.targets.tpot_s)

    def alone(self, changes: Sequence[Change]) -> tuple[list[Variant], list[tuple[Change, str]]]:
        """Each change by itself, the best first; and those that are not possible, with the reason."""
        variants: list[Variant] = []
        refused: list[tuple[Change, str]] = []
        for finished, change in enumerate(changes, 1):
            try:
                variants.append(evaluate(change, self.base, self.objective))
            except InputError as error:
                refused.append((change, str(error)))
            self.report(finished)
        return sorted(variants, key=lambda one: -one.likely_gain), refused

    def together(self, variants: Sequence[Variant], finished: int) -> tuple[Variant, ...]:
        """Combinations of changes that help, which fit and are better than each of their parts, the best first.

        variants  each change by itself, the best first
        finished  changes that were reported
        """
        helping = [
            one
            for one in variants
            if one.likely_gain > MIN_GAIN and (one.fits or not self.base.fits) and not self.misses(one)
        ]
        combined: list[Variant] = []
        for finished_now, variant in enumerate(self._combined(helping), finished + 1):
            combined += [variant] if variant and variant.fits and not self.misses(variant) else []
            self.report(finished_now)
        combined.sort(key=lambda one: -one.gain)
        best = {one.name: one.likely_gain * one.fits for one in variants}
        better = [
            one
            for one in combined[:_MAX_EXPECTED_COMBINATIONS]
            if one.likely_gain > max(best[c.name] for c in one.changes)
        ]
        return tuple(sorted(better, key=lambda one: -one.likely_gain))

    def _combined(self, variants: Sequence[Variant]) -> Iterator[Variant | None]:
        """Two and three of the best changes together; None if they are not possible."""
        best: list[Change] = []
        for variant in variants:
            (change,) = variant.changes
            if sum(other.group == change.group for other in best) < _MAX_CHANGES_OF_GROUP:
                best.append(change)
        for count in range(2, MAX_COMBINED_CHANGES + 1):
            for changes in combinations(best[:_MAX_CANDIDATE_CHANGES], count):
                exclusive = [change.group for change in changes if "techniques" not in change.options]
                combination = None
                if len(set(exclusive)) == len(exclusive):
                    with suppress(InputError):
                        combination = evaluate(changes, self.base, self.objective)
                yield combination


def _numbers(one: Evaluation) -> dict[str, Any]:
    expected = one.expected.numbers() if one.expected else dict.fromkeys(_TIME_NAMES)
    return {
        **one.bounds.numbers(), **{f"expected_{name}": value for name, value in expected.items()},
        "memory_bytes": float(one.memory_bytes), "fits": bool(one.fits), "bound": one.decode_bound,
    }  # fmt: skip


def _row(variant: Variant) -> dict[str, Any]:
    return {
        "techniques": [change.name for change in variant.changes], "gain": variant.gain,
        "expected_gain": variant.expected_gain, "touches": str(variant.requires),
        "relieves": variant.relieves,
        **{f"{name}_ratio": ratio for name, ratio in variant.work_ratios.items()}, **_numbers(variant.result),
    }  # fmt: skip
