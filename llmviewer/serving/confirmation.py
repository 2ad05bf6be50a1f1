"""Confirmation of a plan: candidates are simulated, cheapest first, until one meets its targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import count
from math import ceil
from typing import Any, Final

import numpy as np

from ..records import frozen
from .candidates import Candidate
from .outcome import Goals, Simulation, at_percentile

MAX_SIMULATIONS: Final = 8
_MORE_REPLICAS: Final = 0.1  # share of replicas that are added at a time, at least one


@frozen(kw_only=True)
class Confirmation:
    """A candidate as simulated: one replica with its share of the requests, or all with separate prefill workers.

    run        with steps at their expected times, or at the bound if only bounds are planned with
    ttft_s, tpot_s  times at the percentiles of the targets, or in the mean [s]
    within     whether they meet the targets
    """

    candidate: Candidate
    run: Simulation
    ttft_s: float
    tpot_s: float
    within: bool

    @classmethod
    def of(cls, candidate: Candidate, run: Simulation, goals: Goals) -> Confirmation:
        ttft_s = at_percentile(run.ttft_s, goals.ttft_percentile)
        tpot_s = at_percentile(run.tpot_s, goals.tpot_percentile)
        within = ttft_s <= goals.ttft_s and tpot_s <= goals.tpot_s
        return cls(candidate=candidate, run=run, ttft_s=ttft_s, tpot_s=tpot_s, within=within)


def confirmed(
    candidates: Sequence[Candidate],
    simulated: Callable[[Candidate], Simulation],
    goals: Goals,
    *,
    order: Callable[[Candidate], Any],
    max_devices: int,
    years: float | None,
) -> list[Confirmation]:
    """Simulations of candidates, in `order`, until one meets the targets, which is then the last of the list.

    A candidate that misses them comes again with more replicas. After MAX_SIMULATIONS none is known to meet them.
    """
    number = count()
    waiting = [(order(one), next(number), one) for one in candidates]
    heapify(waiting)
    tried: list[Confirmation] = []
    while waiting and len(tried) < MAX_SIMULATIONS:
        _, _, candidate = heappop(waiting)
        one = Confirmation.of(candidate, simulated(candidate), goals)
        tried.append(one)
        if one.within:
            break
        larger = _with_more_replicas(candidate, one, goals, years)
        if larger.devices <= max_devices:
            heappush(waiting, (order(larger), next(number), larger))
    return tried


def _with_more_replicas(candidate: Candidate, missed: Confirmation, goals: Goals, years: float | None) -> Candidate:
    """The candidate with more of the replicas for which a target was missed."""
    workers = candidate.prefill_workers
    if workers and missed.ttft_s / goals.ttft_s >= missed.tpot_s / goals.tpot_s:
        copies = _more(workers.copies)
        return replace(candidate, prefill_workers=replace(workers, copies=copies)).priced(years)
    copies = _more(candidate.copies)
    factor = copies / candidate.copies
    return replace(
        candidate, copies=copies, limit=max(1, ceil(candidate.limit / factor)),
        rate_within=candidate.rate_within * factor, max_rate=candidate.max_rate * factor,
    ).priced(years)  # fmt: skip


def _more(copies: int) -> int:
    return copies + max(1, round(_MORE_REPLICAS * copies))


def as_simulated(one: Confirmation) -> Candidate:
    """The candidate with the means of its simulation."""
    return replace(
        one.candidate, ttft_s=float(np.mean(one.run.ttft_s)),
        tpot_s=float(np.mean(one.run.tpot_s)) if len(one.run.tpot_s) else 0.0,
        ttft_quantile_s=one.ttft_s, tpot_quantile_s=one.tpot_s, batch=one.run.decoding,
    )  # fmt: skip
