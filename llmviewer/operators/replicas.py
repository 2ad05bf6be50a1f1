"""Copies of popular experts, which even out what ranks have to do: DeepSeek's EPLB (github.com/deepseek-ai/EPLB;
arXiv:2412.19437, section 3.4.1).

The expert with most tokens for each of its copies gets the next copy; then experts are dealt out, those with most
tokens first, each to the rank that has fewest and room for one more. Where domains divide the groups that routers
choose from, groups are dealt out to domains before that, and copies stay in them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace


def rebalanced(
    loads: Sequence[float], *, redundant: int, ranks: int, groups: int = 1, domains: int = 1
) -> tuple[tuple[int, ...], ...]:
    """The experts that each rank holds, as many on each, neighbours in domains.

    loads      tokens of each expert, those of a group one after another
    redundant  copies besides
    """
    if groups % domains:
        groups = domains = 1
    size = len(loads) // groups
    held: list[tuple[int, ...]] = []
    for own in _packed([sum(loads[group * size : (group + 1) * size]) for group in range(groups)], domains):
        experts = [expert for group in own for expert in range(group * size, (group + 1) * size)]
        copied = _copied([loads[expert] for expert in experts], redundant // domains)
        copies = Counter(copied)
        shares = [loads[experts[place]] / copies[place] for place in copied]
        held += (tuple(experts[copied[copy]] for copy in rank) for rank in _packed(shares, ranks // domains))
    return tuple(held)


def _copied(loads: Sequence[float], redundant: int) -> list[int]:
    """Every expert, and those that have further copies."""
    further: list[int] = []
    most = [(-load, expert, 1) for expert, load in enumerate(loads)]  # for each copy
    heapify(most)
    for _ in range(redundant):
        _, expert, copies = most[0]
        heapreplace(most, (-loads[expert] / (copies + 1), expert, copies + 1))
        further.append(expert)
    return [*range(len(loads)), *further]


def _packed(loads: Sequence[float], packs: int) -> list[list[int]]:
    """As many in each pack: the heaviest first, each to the lightest pack with room for it."""
    room = len(loads) // packs
    if room == 1:
        return [[place] for place in range(packs)]
    held: list[list[int]] = [[] for _ in range(packs)]
    lightest = [(0.0, pack) for pack in range(packs)]
    for place in sorted(range(len(loads)), key=lambda place: -loads[place]):
        weight, pack = lightest[0]
        held[pack].append(place)
        if len(held[pack]) < room:
            heapreplace(lightest, (weight + loads[place], pack))
        else:
            heappop(lightest)
    return held
