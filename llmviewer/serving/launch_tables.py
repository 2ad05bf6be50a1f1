"""Lower bounds of launches in single steps, tabulated; equal to those of Plan.time_s() to the last bit.

A simulation evaluates ten thousands of steps, one after the other. Most launches depend only on the totals of a step
(sequences, tokens, logits), of which few are different. Attention sums features over groups of sequences, and most
groups that prefill recur.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from operator import add, itemgetter
from typing import Any, Final

from ..forms import ADDITIVE, BATCH_SHARE, Feature, Form, Num, evaluate
from ..roofline import Plan
from ..workload import Spans, Workload

_MAX_ENTRIES: Final = 1 << 16  # of a table, which is emptied when it is full
_SEQUENCES, _TOKENS, _LOGITS = range(3)  # places in the totals of a step
_TOTALS: Final[Mapping[str, tuple[int, ...]]] = {  # totals that a feature of the whole pass depends on
    "one": (), "sequences": (_SEQUENCES,), "tokens": (_TOKENS,), "table_rows": (_TOKENS,), "with_logits": (_LOGITS,),
    "distinct_experts": (_TOKENS,), "busiest_experts": (_TOKENS,), "expert_rows": (_TOKENS,), "logits": (_LOGITS,),
}  # fmt: skip
# parts of a pass with proportional totals
_SCALING_STREAMS: Final = ("replicas", "sampled", "sampled_sequences", "pass_fraction")

Launches = Sequence[tuple[Sequence[Form], int]]  # busy times of a launch by resource, and the number of such launches


class TabulatedPlan:
    """A plan whose single steps are tabulated."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    @cached_property
    def _table(self) -> LaunchTable:
        return LaunchTable(self.plan.equal_launches)

    def time_s(self, groups: Sequence[Spans]) -> Num:
        """Plan.time_s() of these groups of sequences, whose fields may be arrays. [s]"""
        if self.plan.fetches or not is_single(groups):
            return self.plan.time_s(Workload(tuple(groups)))
        return self._table.time_s(groups)


class TabulatedForm:
    """A form whose single steps are tabulated."""

    def __init__(self, form: Form) -> None:
        self._form = form

    @cached_property
    def _table(self) -> LaunchTable:
        return LaunchTable([((self._form,), 1)])

    def amount(self, groups: Sequence[Spans]) -> Num:
        """The amount of the form in a step with these groups of sequences, whose fields may be arrays."""
        return self._table.time_s(groups) if is_single(groups) else evaluate(self._form, Workload(tuple(groups)))


def is_single(groups: Sequence[Spans]) -> bool:
    """Whether these are groups of one step, with numbers instead of arrays."""
    for group in groups:
        if not type(group.batch) is type(group.q_len) is type(group.kv_len) is type(group.logits) is float:
            return False
    return True


class LaunchTable:
    """Time of launches that follow each other, each of which takes the largest of its busy times."""

    def __init__(self, launches: Launches) -> None:
        totals = [_totals(forms) for forms, _ in launches]
        self._steady = [
            _TotalsTable(key, [launch for launch, one in zip(launches, totals, strict=True) if one == key])
            for key in sorted({key for key in totals if key is not None})
        ]
        varying = [launch for launch, key in zip(launches, totals, strict=True) if key is None]
        keys = sorted({key for key in totals if key is not None})
        places = [i for key in (*keys, None) for i, one in enumerate(totals) if one == key]
        self._order = sorted(range(len(places)), key=places.__getitem__)  # the order of summation of Plan.time_s()
        self._steady_times: dict[object, list[float]] = {}
        features = sorted(frozenset(f for forms, _ in varying for form in forms for f in form.features()))
        self._summed = [feature for feature in features if _is_additive(feature)]
        self._group_amounts = list(map(_group_amount, self._summed))
        self._other = [feature for feature in features if feature not in self._summed]
        numbers = {feature: number for number, feature in enumerate((*self._summed, *self._other))}
        self._varying = [
            ([[(numbers[feature], c) for feature, c in form.terms] for form in forms], count)
            for forms, count in varying
        ]  # features by their numbers, which are found faster than their names
        other_totals = _totals([Form(tuple((feature, 1.0) for feature in self._other))])
        self._other_key = None if other_totals is None else _picked(other_totals)
        self._other_values: dict[object, list[float]] = {}
        self._by_group: dict[object, list[float]] = {}

    def time_s(self, groups: Sequence[Spans]) -> float:
        """The launches of a step with these groups of sequences, whose fields are floats. [s]"""
        sequences = tokens = logits = 0.0
        group: Any  # with numbers, not arrays
        for group in groups:
            sequences += group.batch
            tokens += group.batch * group.q_len
            logits += group.batch * group.logits
        step_totals = sequences, tokens, logits
        times = self._steady_times.get(step_totals)
        if times is None:
            times = [time_s for table in self._steady for time_s in table.times_s(step_totals, groups)]
            remember(self._steady_times, step_totals, times)
        if self._varying:
            values, times = self._feature_values(groups, step_totals), times.copy()
            for forms, count in self._varying:
                longest_s = 0.0
                for terms in forms:
                    busy_s = 0.0
                    for number, c in terms:
                        busy_s += c * values[number]
                    longest_s = max(longest_s, busy_s)
                times.append(count * longest_s)
        total_s = 0.0
        for i in self._order:
            total_s += times[i]
        return total_s

    def _feature_values(self, groups: Sequence[Spans], step_totals: tuple[float, ...]) -> Sequence[float]:
        """Values of the features of launches that do not only depend on totals."""
        values = self._group_values(groups[0])
        for group in groups[1:]:
            values = list(map(add, values, self._group_values(group)))
        return [*values, *self._other_features(groups, step_totals)] if self._other else values

    def _other_features(self, groups: Sequence[Spans], step_totals: tuple[float, ...]) -> list[float]:
        """Features of varying launches that are not summed, which mostly depend on totals."""
        key = self._other_key(step_totals) if self._other_key else None
        values = self._other_values.get(key) if self._other_key else None
        if values is None:
            workload = Workload(tuple(groups))
            values = [float(feature.of(workload)) for feature in self._other]
            remember(self._other_values, key, values)
        return values

    def _group_values(self, group: Spans) -> list[float]:
        """Summands of a group of sequences, by summed feature; chunks of prompts recur, mean contexts do not."""
        kv_len: Any = group.kv_len
        if not kv_len.is_integer():
            return [amount(group) for amount in self._group_amounts]
        key = group.batch, group.q_len, kv_len, group.logits
        values = self._by_group.get(key)
        if values is None:
            values = [amount(group) for amount in self._group_amounts]
            remember(self._by_group, key, values)
        return values


class _TotalsTable:
    """Times of launches that depend on some totals of a step, by these totals."""

    def __init__(self, indices: tuple[int, ...], launches: Launches) -> None:
        self._launches = launches
        self._key = _picked(indices)
        self._features = {feature for forms, _ in launches for form in forms for feature in form.features()}
        self._entries: dict[object, list[float]] = {}

    def times_s(self, step_totals: tuple[float, ...], groups: Sequence[Spans]) -> list[float]:
        """Time of each launch. [s]"""
        key = self._key(step_totals)
        times = self._entries.get(key)
        if times is None:
            workload = Workload(tuple(groups))
            times = _times(self._launches, {feature: float(feature.of(workload)) for feature in self._features})
            remember(self._entries, key, times)
        return times


def _is_additive(feature: Feature) -> bool:
    """Whether the value of a feature is the sum of those of groups: the largest share of a batch is not."""
    return feature.name in ADDITIVE and feature.stream.name != BATCH_SHARE and not feature.device_arguments


def _group_amount(feature: Feature) -> Callable[[Spans], float]:
    """The value of a feature for one group of sequences."""
    of_sequence: Callable[..., Num] | None = getattr(Spans, feature.name, None)
    if feature.stream.name or not callable(of_sequence):
        return lambda group: float(feature.of(Workload((group,))))
    arguments = feature.arguments  # Workload sums this method over the groups
    return lambda group: float(group.batch * of_sequence(group, *arguments))


def _picked(indices: tuple[int, ...]) -> Callable[[tuple[float, ...]], object]:
    """Selection of some totals of a step."""
    return itemgetter(*indices) if indices else len


def _times(launches: Launches, values: Mapping[Feature, float]) -> list[float]:
    times: list[Any] = [count * max([form(values) for form in forms]) for forms, count in launches]
    return times


def remember(table: dict[object, Any], key: object, value: object) -> None:
    """Adds an entry to a table of limited size."""
    if len(table) >= _MAX_ENTRIES:
        table.clear()
    table[key] = value


def _totals(forms: Sequence[Form]) -> tuple[int, ...] | None:
    """The totals that a launch depends on; None if it depends on anything else."""
    indices: set[int] = set()
    for feature in {feature for form in forms for feature in form.features()}:
        is_known = feature.name in _TOTALS and feature.stream.name in ("", *_SCALING_STREAMS)
        if feature.device_arguments or not is_known:
            return None
        indices.update(_TOTALS[feature.name])
        if feature.stream.name:  # `one` counts the passes of this part with any token
            indices.update((_SEQUENCES, _TOKENS))
    return tuple(sorted(indices))
