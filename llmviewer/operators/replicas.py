"""Copies of popular experts, which balance the load of ranks: DeepSeek's EPLB (github.com/deepseek-ai/EPLB;
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
    """The experts that each rank holds, equally many on each; consecutive ranks form domains.

    loads      tokens of each expert, those of a group one after another
    redundant  extra copies
    """
    if groups % domains:
        groups = domains = 1
    size = len(loads) // groups
    placement: list[tuple[int, ...]] = []
    for domain_groups in _balanced_packs(
        [sum(loads[group * size : (group + 1) * size]) for group in range(groups)], domains
    ):
        experts = [expert for group in domain_groups for expert in range(group * size, (group + 1) * size)]
        copied_experts = _with_copies([loads[expert] for expert in experts], redundant // domains)
        copies = Counter(copied_experts)
        shares = [loads[experts[place]] / copies[place] for place in copied_experts]
        placement += (
            tuple(experts[copied_experts[copy]] for copy in rank) for rank in _balanced_packs(shares, ranks // domains)
        )
    return tuple(placement)


def _with_copies(loads: Sequence[float], redundant: int) -> list[int]:
    """Every expert once, then the expert of each extra copy."""
    extra_copies: list[int] = []
    heaviest = [(-load, expert, 1) for expert, load in enumerate(loads)]  # for each copy
    heapify(heaviest)
    for _ in range(redundant):
        _, expert, copies = heaviest[0]
        heapreplace(heaviest, (-loads[expert] / (copies + 1), expert, copies + 1))
        extra_copies.append(expert)
    return [*range(len(loads)), *extra_copies]


def _balanced_packs(loads: Sequence[float], packs: int) -> list[list[int]]:
    """Indices of `loads` in packs of equal size: heaviest first, each to the lightest pack that is not full."""
    pack_size = len(loads) // packs
    if pack_size == 1:
        return [[place] for place in range(packs)]
    contents: list[list[int]] = [[] for _ in range(packs)]
    lightest = [(0.0, pack) for pack in range(packs)]
    for place in sorted(range(len(loads)), key=lambda place: -loads[place]):
        weight, pack = lightest[0]
        contents[pack].append(place)
        if len(contents[pack]) < pack_size:
            heapreplace(lightest, (weight + loads[place], pack))
        else:
            heappop(lightest)
    return contents
