"""How tokens choose experts, and who needs a token for any of those that it chose."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import comb, log, log1p, prod
from typing import Final, NamedTuple

from ..workload import popularity


class Groups(NamedTuple):
    """How experts are grouped, alike in size and one after another, where a token chooses among those of some groups
    (arXiv:2405.04434, section 2.2.2).

    number   of groups
    reached  of them, those that a token chooses its experts from
    """

    number: int
    reached: int


UNGROUPED: Final = Groups(1, 1)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Of so many `experts`, those that each token has `chosen`.

    skew  the power of their rank that popularities of experts fall with
    """

    experts: int
    chosen: int
    groups: Groups = UNGROUPED
    skew: float = 0.0

    def popularity(self) -> tuple[float, ...]:
        """The part of all tokens that each expert gets, in order of popularity."""
        return popularity(self.experts, self.chosen, self.skew)

    def needed(self, members: int, *, of: int, first: int = 0) -> float:
        """The part of all tokens that so many neighbours need, `of` all that share the experts out, as they have any of
        the token's; from the `first` of them on, where some experts are more popular, at which members take turns.

        That takes experts one by one, as if a token chose each apart from the others, to the power that makes it right
        where all are alike popular.
        """
        run = self.experts // of * members
        none = chance_of_none(self.experts, self.chosen, run, *self.groups)
        if not self.skew or not none:
            return 1 - none
        apart = prod(1 - share for at, share in enumerate(self.popularity()) if first <= at % of < first + members)
        return 1 - apart ** (log(none) / (run * log1p(-self.chosen / self.experts)))


@cache
def chance_of_none(experts: int, chosen: int, run: int, groups: int = 1, reached: int = 1) -> float:
    """How likely none of a token's experts is among `run` of them in a row, where all are alike likely: the mean over
    all runs that they are cut into.

    It chooses among the experts of as many of the `groups` as `reached` says, and takes at least one of each, as these
    are the groups with the best ones (arXiv:2405.04434, section 2.2.2); the others are any of theirs. Of one group that
    is the hypergeometric distribution.
    """
    runs = experts // run
    return (
        sum(_chance_of_none(experts, chosen, range(at * run, (at + 1) * run), groups, reached) for at in range(runs))
        / runs
    )


def _chance_of_none(experts: int, chosen: int, run: range, groups: int, reached: int) -> float:
    size, taken = experts // groups, min(reached, chosen)
    ways: dict[tuple[int, int], float] = {
        (0, 0): 1.0
    }  # by groups taken, and how many of the run they have between them
    for start in range(0, experts, size):
        own = max(min(run.stop, start + size) - max(run.start, start), 0)
        more = dict(ways)
        for (number, inside), way in ways.items():
            place = number + 1, inside + own
            more[place] = more.get(place, 0.0) + way * (1 - own / size)  # its best expert is none of the run
        ways = more
    rest, others = taken * (size - 1), chosen - taken
    missed = (way * comb(max(rest - inside, 0), others) for (number, inside), way in ways.items() if number == taken)
    return sum(missed) / comb(rest, others) / comb(groups, taken)
