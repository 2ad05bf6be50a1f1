"""How tokens choose experts, and which devices need a token for its experts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import comb, log, log1p, prod
from typing import Final, NamedTuple

from ..workload import popularity


class Groups(NamedTuple):
    """Consecutive groups of equally many experts (arXiv:2405.04434, section 2.2.2).

    number   groups
    reached  groups from which a token chooses its experts
    """

    number: int
    reached: int


UNGROUPED: Final = Groups(1, 1)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Each token chooses `chosen` of `experts`.

    skew  popularity of experts falls with their rank as rank^-skew
    """

    experts: int
    chosen: int
    groups: Groups = UNGROUPED
    skew: float = 0.0

    def popularity(self) -> tuple[float, ...]:
        """The fraction of all tokens that each expert gets, the most popular first."""
        return popularity(self.experts, self.chosen, self.skew)

    def needed(self, members: int, *, of: int, first: int = 0) -> float:
        """The fraction of all tokens with an expert on any of `members` consecutive devices.

        `of` devices share the experts. With skew, the devices start at `first`, and devices take experts in turn by
        popularity; experts are then treated as chosen independently, raised to the power that is exact without skew.
        """
        run = self.experts // of * members
        none = chance_of_none(self.experts, self.chosen, run, *self.groups)
        if not self.skew or not none:
            return 1 - none
        apart = prod(1 - share for at, share in enumerate(self.popularity()) if first <= at % of < first + members)
        return 1 - apart ** (log(none) / (run * log1p(-self.chosen / self.experts)))


@cache
def chance_of_none(experts: int, chosen: int, run: int, groups: int = 1, reached: int = 1) -> float:
    """Probability that none of a token's experts is in a run of `run` consecutive experts, if all are equally likely.

    It is the mean over all disjoint runs. A token chooses from `reached` of the `groups` and takes at least one expert
    of each of these, as they are the groups with the best experts (arXiv:2405.04434, section 2.2.2); its other experts
    are any of these groups'. With one group this is the hypergeometric distribution.
    """
    runs = experts // run
    return (
        sum(_chance_of_none(experts, chosen, range(at * run, (at + 1) * run), groups, reached) for at in range(runs))
        / runs
    )


def _chance_of_none(experts: int, chosen: int, run: range, groups: int, reached: int) -> float:
    size, taken = experts // groups, min(reached, chosen)
    ways: dict[tuple[int, int], float] = {(0, 0): 1.0}  # by (groups taken, experts of the run in them)
    for start in range(0, experts, size):
        own = max(min(run.stop, start + size) - max(run.start, start), 0)
        more = dict(ways)
        for (number, inside), way in ways.items():
            place = number + 1, inside + own
            more[place] = more.get(place, 0.0) + way * (1 - own / size)  # its best expert is not in the run
        ways = more
    rest, others = taken * (size - 1), chosen - taken
    missed = (way * comb(max(rest - inside, 0), others) for (number, inside), way in ways.items() if number == taken)
    return sum(missed) / comb(rest, others) / comb(groups, taken)
