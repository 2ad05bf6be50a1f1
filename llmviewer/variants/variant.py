"""Change: options and a batch that differ from those of a setting. Variant: what changes make of a generation."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Final

from ..records import frozen
from ..setting import ChangedOptions, Setting, changes_passes
from ..techniques import Requirement
from .evaluation import Evaluation, Objective, Times
from .quantization import merged_precision

MIN_GAIN: Final = 1.005  # smaller gains are none
MIN_OFFERED_GAIN: Final = 1.05  # a change with a smaller gain is not offered unless it makes the request fit
_MIN_RELIEF: Final = 0.02  # fraction of an amount by which it must fall to be what a change relieves


@frozen(kw_only=True)
class Change:
    """Options, or a batch, that differ from those of a setting.

    name      such as "W4A16g128"
    about     the name in words, such as "4-bit weights"
    group     changes of one group exclude each other, except techniques
    options   options that are given: "quant" replaces the formats that it names, "techniques" are added
    batch     sequences on all devices together; None: unchanged
    requires  whether it changes outputs, needs a draft model, or needs other weights
    """

    name: str
    about: str = ""
    group: str
    options: ChangedOptions = field(default_factory=ChangedOptions, hash=False)
    batch: int | None = None
    requires: Requirement = Requirement.NOTHING

    def merged(self, setting: Setting) -> ChangedOptions:
        """The options with which `setting` is the changed one.

        A precision replaces techniques that set one.
        """
        options = self.options.copy()
        if quant := options.get("quant"):
            options["quant"] = merged_precision(setting, quant)
            if any(one.quant for one in setting.techniques):
                options["techniques"] = tuple(one for one in setting.techniques if not one.quant)
        elif "techniques" in options:
            options["techniques"] = (*setting.techniques, *options["techniques"])
        return options

    def applied(self, setting: Setting) -> Setting:
        """The changed setting.

        Raises InputError if it is not possible.
        """
        return setting.having(**self.merged(setting)) if self.options else setting

    def typed(self, setting: Setting) -> str:
        """The change as options of the command line, such as "--quant W4A16g128"."""
        options_given = self.merged(setting) if "quant" in self.options else self.options
        replaced = [one.name for one in setting.techniques if one.quant] if "quant" in options_given else []
        values = [(name, value) for name, value in options_given.items() if name != "techniques"]
        values += [("with", value) for value in self.options.get("techniques", ())]
        options = [f"--{name.replace('_', '-')} {shlex.quote(str(value))}" for name, value in values]
        options += [f"--batch {self.batch}"] if self.batch else []
        return " ".join(options) + "".join(f" in place of {name}" for name in replaced)


@frozen(kw_only=True)
class Variant:
    """A generation with changes (`result`) beside that without (`base`); gains are in the objective."""

    changes: tuple[Change, ...]
    base: Evaluation = field(repr=False)
    result: Evaluation = field(repr=False)
    objective: Objective = Objective.LATENCY

    @property
    def name(self) -> str:
        return " + ".join(change.name for change in self.changes)

    @property
    def requires(self) -> Requirement:
        """The requirement of all changes together: the last in the order of Requirement."""
        return max((change.requires for change in self.changes), key=list(Requirement).index)

    @property
    def typed(self) -> str:
        """The changes as options of the command line."""
        setting, options = self.base.setting, []
        for change in self.changes:
            options.append(change.typed(setting))
            setting = change.applied(setting)
        return " ".join(options)

    @property
    def gain(self) -> float:
        """Factor by which the objective improves for all sequences together, at the bound, whether or not it fits."""
        return self._gain(self.base.bounds, self.result.bounds)

    @property
    def expected_gain(self) -> float | None:
        """The same of expected times; None if only bounds are known."""
        before, after = self.base.expected, self.result.expected
        return self._gain(before, after) if before and after else None

    def _gain(self, before: Times, after: Times) -> float:
        batch_ratio = 1.0 if self.objective is Objective.THROUGHPUT else self._batches
        return batch_ratio * float(after.rate(self.objective) / before.rate(self.objective))

    @property
    def likely_gain(self) -> float:
        """The expected gain, or that of bounds if only those are known."""
        return self.gain if self.expected_gain is None else self.expected_gain

    def pass_gain(self, phase: str) -> float:
        """Sequences per second of a pass over those without the changes, at the bound."""
        return float(self._batches * self.base.pass_s(phase) / self.result.pass_s(phase))

    def expected_pass_gain(self, phase: str) -> float | None:
        """The same of expected times; None if only bounds are known."""
        before, after = self.base.expected_pass_s(phase), self.result.expected_pass_s(phase)
        return float(self._batches * before.expected / after.expected) if before and after else None

    @property
    def _batches(self) -> float:
        return float(self.result.batch / self.base.batch)

    @property
    def fits(self) -> bool:
        return bool(self.result.fits)

    @property
    def mends(self) -> bool:
        """Whether it fits, and did not without the changes."""
        return self.fits and not self.base.fits

    @cached_property
    def work_ratios(self) -> Mapping[str, float]:
        """OPs, bytes, launches and passes per token over those without the changes."""
        before, after = self.base.per_token, self.result.per_token
        return {name: after[name] / before[name] for name in before}

    @property
    def relieves(self) -> str:
        """The resource of which less is used: passes where there are fewer, launches where that is what is expected to
        help, else what bounds the phase in which most of the time is saved.
        """
        ratios = self.work_ratios
        falls = {
            "passes": ratios["passes"], "memory traffic": ratios["bytes"], "OPs": ratios["ops"],
            "launches": ratios["launches"],
        }  # fmt: skip
        limit = 1 - _MIN_RELIEF
        if falls["passes"] < limit:
            name = "passes"
        elif self.gain <= MIN_GAIN < self.likely_gain and falls["launches"] < limit:
            name = "launches"
        else:
            first = "OPs" if self._relieved_bound == "compute" else "memory traffic"
            name = first if falls[first] < limit else min(falls, key=falls.__getitem__)
        return f"{name} {falls[name] - 1:+.0%}" if falls[name] < limit else "some of each"

    @property
    def _relieved_bound(self) -> str:
        """The bound, without the changes, of the phase in which most of the time is saved."""
        before, after = self.base.bounds, self.result.bounds
        saved, sooner = before.latency_s - after.latency_s, before.ttft_s - after.ttft_s
        in_prefill = sooner > saved / 2 > 0 or self.objective is Objective.TTFT
        return self.base.prefill_bound if in_prefill else self.base.decode_bound


def evaluate(changes: Change | Sequence[Change], base: Evaluation, objective: Objective = Objective.LATENCY) -> Variant:
    """The generation `base` with changes, one after another.

    Raises InputError if they are not possible.
    """
    each_change = (changes,) if isinstance(changes, Change) else tuple(changes)
    setting, batch = base.setting, base.batch
    for change in each_change:
        setting, batch = change.applied(setting), change.batch or batch
    result = base.changed(setting, batch)
    if changes_passes(setting.techniques):
        result.bounds  # noqa: B018  # raises what makes passes of techniques impossible
    setting.plan, setting.decode_plan  # noqa: B018  # raise what makes a layout or a format impossible
    return Variant(changes=each_change, base=base, result=result, objective=objective)
