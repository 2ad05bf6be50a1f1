"""advise(): the gain of each technique for a model on a device, alone and combined, and what bounds it then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import field
from itertools import combinations
from math import comb
from typing import Any, ClassVar, Final, Unpack

from .. import __version__
from ..arguments import as_values, check_options, enum_member
from ..devices.hardware import Hardware
from ..errors import InputError
from ..model import Model
from ..options import ServedOptions, document_options
from ..records import frozen
from ..rows import Rows
from ..setting import Setting, check_countable, setting_of, whole_number
from ..techniques import Requirement
from ..variants.changes import (
    DEGREES,
    drafting,
    flash_attention,
    further_techniques,
    larger_batches,
    more_devices,
    offloading,
    precisions,
    techniques_to_choose,
)  # fmt: skip
from ..variants.evaluation import Evaluation, Objective
from ..variants.variant import EQUAL, Change, Variant, evaluate

SCHEMA_VERSION: Final = 1  # of to_dict()
TOGETHER: Final = 3  # changes in the largest combination
_COMBINED: Final = 8  # changes that are combined: the best, of each group no more than two
_OF_A_GROUP: Final = 2
_COMBINATIONS: Final = sum(comb(_COMBINED, count) for count in range(2, TOGETHER + 1))
_EXPECTED: Final = 24  # combinations with the largest gains at the bound, whose expected times are evaluated
_TIMES: Final = ("ttft_s", "tpot_s", "latency_s", "tokens_per_s")


@frozen(kw_only=True, repr=False)
class Advice(Rows):
    """The result of advise(). `alone` and `together` are in groups: changes for the same weights that leave outputs
    as they are, those that change them, changes that need a draft, and changes that need other weights; each group has
    the best first, by expected times if known.

    idle     changes that would not help, or make it worse
    large    changes with which it does not fit the memory
    refused  changes that are not possible, with the reason
    """

    report: ClassVar = "advice"

    wanted: Objective
    batch: int
    prompt: int
    gen: int
    given: tuple[str, ...]
    without: tuple[Requirement, ...]
    base: Evaluation
    alone: tuple[Variant, ...] = field(repr=False)
    together: tuple[Variant, ...] = field(repr=False)
    idle: tuple[Variant, ...] = field(repr=False)
    large: tuple[Variant, ...] = field(repr=False)
    refused: tuple[tuple[Change, str], ...] = field(repr=False)

    @property
    def inputs(self) -> dict[str, Any]:
        """The inputs of the JSON document."""
        setting = self.base.setting
        return {
            "for": str(self.wanted), "batch": self.batch, "prompt": self.prompt, "gen": self.gen,
            "quant": str(setting.quantization), "attention": str(setting.attention),
            "layout": str(setting.layout), "techniques": list(self.given), "without": list(map(str, self.without)),
            "library": setting.kernels.library if setting.kernels and self.base.expected else None,
            "engine": setting.engine.name if setting.engine else None,
        }  # fmt: skip

    def rows(self) -> Iterator[dict[str, Any]]:
        """One for each line, with what kind of lines it is among."""
        document = self.to_dict()
        for kind in ("alone", "together", "no_help", "too_large"):
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
            "no_help": [_row(one) for one in self.idle],
            "too_large": [_row(one) for one in self.large],
            "refused": [{"technique": change.name, "reason": reason} for change, reason in self.refused],
        }  # fmt: skip


@document_options(ServedOptions)
def advise(
    model: str | Model | Setting,
    hardware: str | Hardware | None = None,
    *,
    wanted: str = "latency",
    batch: int = 1,
    prompt: int = 1024,
    gen: int = 128,
    max_devices: int = 1,
    without: Sequence[str] = (),
    progress: Callable[[int, int], object] = lambda done, steps: None,
    **options: Unpack[ServedOptions],
) -> Advice:
    """The gain of each technique with its usual parameters, of precisions, and of degrees of parallelism.

    wanted       what to improve: "latency", "ttft", "tpot" or "throughput"
    max_devices  most devices for tensor parallelism
    without      "answers" leaves out techniques that change the answers, "draft" those that need a draft model or draft
                 heads, "model" those that need other weights
    progress     called with the number of finished options and combinations, and of all at most

    The options describe the setting that changes are compared with: `techniques` are those already in use. A Setting
    may stand in place of model, hardware and options.

    Raises InputError if an argument is invalid, or the model does not generate.
    """
    objective = enum_member("wanted", wanted, Objective)
    check_options(options, ServedOptions)
    left_out = tuple(enum_member("without", one, Requirement) for one in as_values("without", without))
    size = {name: whole_number(name, value) for name, value in (("batch", batch), ("prompt", prompt), ("gen", gen))}
    most = whole_number("max_devices", max_devices)
    setting = setting_of(model, hardware, **options)
    used = tuple(map(str, options.get("techniques", setting.techniques)))
    check_countable(batch, prompt + gen)
    if gen < 2:
        raise InputError("gen must be at least 2, as techniques are weighed by a whole answer; got 1")
    if not setting.model.generates:
        raise InputError(f"{setting.model.name} does not generate: techniques are weighed by a whole answer")
    base = Evaluation(setting=setting, batch=size["batch"], prompt=size["prompt"], gen=size["gen"])
    names = [one.name for one in setting.techniques]
    tried = [
        change
        for change in _changes(base, names, max_devices=most, larger=objective is Objective.THROUGHPUT)
        if change.requires not in left_out
    ]
    steps = len(tried) + _COMBINATIONS
    trial = _Trial(base=base, objective=objective, tell=lambda done: progress(done, steps))
    variants, refused = trial.alone(tried)
    fitting = [one for one in variants if one.fits]
    together = trial.together(variants, len(tried))
    progress(steps, steps)
    helps = {id(one): one.likely_gain > EQUAL or not base.fits for one in fitting}
    order = list(Requirement)
    return Advice(
        wanted=objective, given=used, without=left_out, base=base,
        together=tuple(sorted(together, key=lambda one: order.index(one.requires))),
        alone=tuple(sorted((one for one in fitting if helps[id(one)]), key=lambda one: order.index(one.requires))),
        idle=tuple(one for one in fitting if not helps[id(one)]),
        large=tuple(one for one in variants if not one.fits),
        refused=(*(pair for pair in techniques_to_choose(names) if pair[0].requires not in left_out), *refused),
        **size,
    )  # fmt: skip


def _changes(base: Evaluation, used: Sequence[str], *, max_devices: int, larger: bool) -> Iterator[Change]:
    """All changes that could be made, except those in use.

    max_devices  devices up to which tensor parallelism is tried
    larger       whether larger batches are tried
    """
    yield from precisions(base.setting)
    yield from flash_attention(base.setting)
    if base.setting.layout.devices == 1:
        yield from more_devices(degree for degree in DEGREES if degree <= max_devices)
    if larger:
        yield from larger_batches(base)
    yield from offloading(base)
    yield from further_techniques(used)
    if "speculative" not in used:
        yield from drafting(base.setting.model)


@frozen(kw_only=True)
class _Trial:
    """Changes to `base` and their gains.

    tell  called with the number of changes and combinations done
    """

    base: Evaluation
    objective: Objective
    tell: Callable[[int], object]

    def alone(self, changes: Sequence[Change]) -> tuple[list[Variant], list[tuple[Change, str]]]:
        """Each change by itself, the best first; and those that are not possible, with the reason."""
        variants: list[Variant] = []
        refused: list[tuple[Change, str]] = []
        for done, change in enumerate(changes, 1):
            try:
                variants.append(evaluate(change, self.base, self.objective))
            except InputError as error:
                refused.append((change, str(error)))
            self.tell(done)
        return sorted(variants, key=lambda one: -one.likely_gain), refused

    def together(self, variants: Sequence[Variant], done: int) -> tuple[Variant, ...]:
        """Combinations of changes that help, which fit and are better than each of their parts, the best first.

        variants  each change by itself, the best first
        done      changes that `tell` was told of
        """
        helping = [one for one in variants if one.likely_gain > EQUAL and (one.fits or not self.base.fits)]
        joined: list[Variant] = []
        for place, variant in enumerate(self._combined(helping), done + 1):
            joined += [variant] if variant and variant.fits else []
            self.tell(place)
        joined.sort(key=lambda one: -one.gain)
        best = {one.name: one.likely_gain * one.fits for one in variants}
        better = [one for one in joined[:_EXPECTED] if one.likely_gain > max(best[c.name] for c in one.changes)]
        return tuple(sorted(better, key=lambda one: -one.likely_gain))

    def _combined(self, variants: Sequence[Variant]) -> Iterator[Variant | None]:
        """Two and three of the best changes together; None if they are not possible."""
        best: list[Change] = []
        for variant in variants:
            (change,) = variant.changes
            if sum(other.group == change.group for other in best) < _OF_A_GROUP:
                best.append(change)
        for count in range(2, TOGETHER + 1):
            for changes in combinations(best[:_COMBINED], count):
                exclusive = [change.group for change in changes if "techniques" not in change.options]
                together = None
                if len(set(exclusive)) == len(exclusive):
                    with suppress(InputError):
                        together = evaluate(changes, self.base, self.objective)
                yield together


def _numbers(one: Evaluation) -> dict[str, Any]:
    expected = one.expected.numbers() if one.expected else dict.fromkeys(_TIMES)
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
