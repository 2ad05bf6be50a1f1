"""How tokens choose experts, which device has which, and which devices need a token for its experts."""

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
    """Each token chooses `chosen` of `experts`.

    skew       popularity of experts falls with their rank as rank^-skew
    redundant  copies of experts; each copy gets an equal part of its expert's tokens
    """

    experts: int
    chosen: int
    groups: Groups = UNGROUPED
    skew: float = 0.0
    redundant: int = 0

    @property
    def even(self) -> bool:
        """Whether all experts are equally popular and none has copies."""
        return not (self.skew or self.redundant)

    def popularity(self) -> tuple[float, ...]:
        """The fraction of all tokens that each expert gets, the most popular first."""
        return popularity(self.experts, self.chosen, self.skew)

    def shares(self, ranks: int, domains: int = 1) -> tuple[tuple[float, ...], ...]:
        """The fractions of all tokens that go to each expert of each rank."""
        popular, held = self.popularity(), _held(self, ranks, domains)
        copies = Counter(chain(*held))
        return tuple(tuple(popular[expert] / copies[expert] for expert in rank) for rank in held)

    def needed(self, members: int, *, of: int, domains: int = 1) -> tuple[float, ...]:
        """The fraction of all tokens with an expert on any of `members` consecutive ranks, for each such run of ranks.

        `of` ranks in `domains` share the experts. Where experts are not equally popular, they are treated as chosen
        independently, raised to the power that is exact where they are.
        """
        runs = of // members
        inside = _inside(self, runs, domains)
        none = sum(_chance_of_none(self, run) for run in inside) / len(inside)
        if self.even or not none:
            return (1 - none,) * runs
        power = log(none) * runs / (self.experts * log1p(-self.chosen / self.experts))
        popular, held = self.popularity(), _held(self, of, domains)
        copies = Counter(chain(*held))
        here = (Counter(chain(*held[at : at + members])) for at in range(0, of, members))
        return tuple(1 - prod(1 - popular[e] * n / copies[e] for e, n in run.items()) ** power for run in here)


@cache
def _held(choice: ExpertChoice, ranks: int, domains: int) -> tuple[tuple[int, ...], ...]:
    """The experts of each rank, numbered by popularity.

    Ranks take experts in turn; with copies, groups do, and EPLB places their experts.
    """
    if not choice.redundant:
        return tuple(tuple(range(rank, choice.experts, ranks)) for rank in range(ranks))
    groups, popular = choice.groups.number, choice.popularity()
    order = [expert for group in range(groups) for expert in range(group, choice.experts, groups)]
    loads = [popular[expert] for expert in order]
    held = rebalanced(loads, redundant=choice.redundant, ranks=ranks, groups=groups, domains=domains)
    return tuple(tuple(order[place] for place in rank) for rank in held)


def _inside(choice: ExpertChoice, runs: int, domains: int) -> list[tuple[float, ...]]:
    """The number of experts of each group in each of `runs` equal runs of ranks: consecutive experts; with copies, the
    same number of each group of the run's domain.
    """
    groups, size = choice.groups.number, choice.experts / choice.groups.number
    if choice.redundant:
        near = groups if groups % domains else groups // domains
        return [(choice.experts / runs / near,) * near + (0.0,) * (groups - near)]
    run = choice.experts / runs
    return [
        tuple(max(min((at + 1) * run, (group + 1) * size) - max(at * run, group * size), 0) for group in range(groups))
        for at in range(runs)
    ]


@cache
def _chance_of_none(choice: ExpertChoice, inside: tuple[float, ...]) -> float:
    """Probability that none of a token's experts is among those `inside`, a number of each group, if all are equally
    likely.

    A token chooses from `reached` of the groups and takes at least one expert of each of these, as they are the groups
    with the best experts (arXiv:2405.04434, section 2.2.2); its other experts are any of these groups'. With one group
    this is the hypergeometric distribution.
    """
    size, taken = choice.experts // choice.groups.number, min(choice.groups.reached, choice.chosen)
    ways: dict[tuple[int, float], float] = {(0, 0.0): 1.0}  # by (groups taken, experts inside in them)
    for own in inside:
        more = dict(ways)
        for (number, before), way in ways.items():
            place = number + 1, before + own
            more[place] = more.get(place, 0.0) + way * (1 - own / size)  # its best expert is not inside
        ways = more
    rest, others = taken * (size - 1), choice.chosen - taken
    missed = (
        way * prod(max(rest - own - one, 0) / (rest - one) for one in range(others))
        for (number, own), way in ways.items()
        if number == taken
    )
    return sum(missed) / comb(len(inside), taken)
