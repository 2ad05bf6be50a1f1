"""Expert routing: popularity of experts, their placement on devices, and the devices that each token is sent to."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import chain
from math import comb, log, log1p, prod
from typing import Final, NamedTuple

from ..records import frozen
from ..workload import popularity
from .replicas import rebalanced


class Groups(NamedTuple):
    """Consecutive groups of equally many experts (arXiv:2405.04434, section 2.2.2).

    number   groups
    reached  groups from which a token chooses its experts
    """

    number: int
    reached: int


UNGROUPED: Final = Groups(1, 1)


@frozen(kw_only=True)
class ExpertChoice:
    """Each token chooses `top_k` of `experts`.

    skew       popularity of experts falls with their rank as rank^-skew
    redundant  copies of experts; each copy gets an equal part of its expert's tokens
    """

    experts: int
    top_k: int
    groups: Groups = UNGROUPED
    skew: float = 0.0
    redundant: int = 0

    @property
    def even(self) -> bool:
        """Whether all experts are equally popular and none is replicated."""
        return not (self.skew or self.redundant)

    def popularity(self) -> tuple[float, ...]:
        """The fraction of all tokens that each expert gets, the most popular first."""
        return popularity(self.experts, self.top_k, self.skew)

    def shares(self, ranks: int, domains: int = 1) -> tuple[tuple[float, ...], ...]:
        """The fractions of all tokens that go to each expert of each rank."""
        popularities, experts_of_ranks = self.popularity(), _experts_of_ranks(self, ranks, domains)
        copies = Counter(chain(*experts_of_ranks))
        return tuple(tuple(popularities[expert] / copies[expert] for expert in rank) for rank in experts_of_ranks)

    def needed(self, members: int, *, ranks: int, domains: int = 1) -> tuple[float, ...]:
        """The fraction of all tokens with an expert on any of `members` consecutive ranks, for each such run of ranks.

        `of` ranks in `domains` share the experts. Where experts are not equally popular, they are treated as chosen
        independently, raised to the power that is exact where they are.
        """
        runs = ranks // members
        experts_of_runs = _experts_by_group(self, runs, domains)
        miss_probability = sum(_miss_probability(self, run) for run in experts_of_runs) / len(experts_of_runs)
        if self.even or not miss_probability:
            return (1 - miss_probability,) * runs
        power = log(miss_probability) * runs / (self.experts * log1p(-self.top_k / self.experts))
        popularities, experts_of_ranks = self.popularity(), _experts_of_ranks(self, ranks, domains)
        copies = Counter(chain(*experts_of_ranks))
        copies_of_runs = (
            Counter(chain(*experts_of_ranks[first_rank : first_rank + members]))
            for first_rank in range(0, ranks, members)
        )
        return tuple(
            1 - prod(1 - popularities[e] * n / copies[e] for e, n in run.items()) ** power for run in copies_of_runs
        )


@cache
def _experts_of_ranks(choice: ExpertChoice, ranks: int, domains: int) -> tuple[tuple[int, ...], ...]:
    """The experts of each rank, numbered by popularity.

    Ranks take experts in turn; with copies, groups do, and EPLB places their experts.
    """
    if not choice.redundant:
        return tuple(tuple(range(rank, choice.experts, ranks)) for rank in range(ranks))
    groups, popularities = choice.groups.number, choice.popularity()
    order = [expert for group in range(groups) for expert in range(group, choice.experts, groups)]
    loads = [popularities[expert] for expert in order]
    placement = rebalanced(loads, redundant=choice.redundant, ranks=ranks, groups=groups, domains=domains)
    return tuple(tuple(order[place] for place in rank) for rank in placement)


def _experts_by_group(choice: ExpertChoice, runs: int, domains: int) -> list[tuple[float, ...]]:
    """The number of experts of each group in each of `runs` equal runs of ranks: consecutive experts; with copies, the
    same number of each group of the run's domain.
    """
    groups, size = choice.groups.number, choice.experts / choice.groups.number
    if choice.redundant:
        domain_groups = groups if groups % domains else groups // domains
        return [(choice.experts / runs / domain_groups,) * domain_groups + (0.0,) * (groups - domain_groups)]
    run_size = choice.experts / runs
    return [
        tuple(
            max(min((index + 1) * run_size, (group + 1) * size) - max(index * run_size, group * size), 0)
            for group in range(groups)
        )
        for index in range(runs)
    ]


@cache
def _miss_probability(choice: ExpertChoice, experts_by_group: tuple[float, ...]) -> float:
    """Probability that a token uses none of a set of experts, if all experts are equally likely.

    experts_by_group  size of the set in each group

    A token chooses from `reached` of the groups and takes at least one expert of each of these, as they are the groups
    with the best experts (arXiv:2405.04434, section 2.2.2); its other experts are any of these groups'. With one group
    this is the hypergeometric distribution.
    """
    size, groups_chosen = choice.experts // choice.groups.number, min(choice.groups.reached, choice.top_k)
    ways: dict[tuple[int, float], float] = {(0, 0.0): 1.0}  # by (groups chosen, experts of the set in these)
    for experts in experts_by_group:
        extended_ways = dict(ways)
        for (number, before), way in ways.items():
            place = number + 1, before + experts
            missed = way * (1 - experts / size)  # the best expert of the group is not in the set
            extended_ways[place] = extended_ways.get(place, 0.0) + missed
        ways = extended_ways
    rest, others = groups_chosen * (size - 1), choice.top_k - groups_chosen
    weighted_misses = (
        way * prod(max(rest - experts - one, 0) / (rest - one) for one in range(others))
        for (number, experts), way in ways.items()
        if number == groups_chosen
    )
    return sum(weighted_misses) / comb(len(experts_by_group), groups_chosen)
