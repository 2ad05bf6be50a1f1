"""Expert parallelism: experts shared out among ranks, and tokens that go to them and come back (arXiv:2006.16668).

Where ranks have the same tokens, as those of tensor parallelism do, each runs its own experts and the sum over experts
is a sum over ranks. Where experts lie on more ranks than that, tokens travel: each rank sends those that it has, or its
share of them, to the ranks of their experts: once to a rank however many experts it has there, and once from one domain
to another however many of its ranks have any, which pass it on (arXiv:2412.19437, section 3.2.2).

What is here is the busiest rank. Where some experts are more popular than others, ranks take turns in order of
popularity, so that it is the one with the first, the one after a whole turn, and so on; or popular experts have copies
on other ranks, which even that out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from ..errors import InputError
from ..forms import Form, any_of, replicas, total
from ..operators.base import Operator, Tensor, Weight
from ..operators.collectives import AllToAll, Group
from ..operators.elementwise import Permute
from ..operators.routing import Choice
from .layout import nearest_divisors

_NONE: Final = Choice(experts=0, chosen=0)


@dataclass(frozen=True, kw_only=True)
class ExpertPlaces:
    """`group` are the ranks that experts are shared out among, `tensor` those that have the same tokens; `choice` is of
    the experts of the block at hand.
    """

    group: Group
    tensor: int
    choice: Choice = _NONE

    @property
    def degree(self) -> int:
        return self.group.size

    @property
    def travels(self) -> bool:
        """Whether tokens go to the experts of ranks that do not have them."""
        return self.degree > self.tensor

    def check(self) -> ExpertPlaces:
        """Itself, if experts can be shared out evenly."""
        experts, redundant, degree = self.choice.experts, self.choice.redundant, self.degree
        if redundant > experts * (degree - 1):
            raise InputError(
                f"redundant_experts={redundant} is more than a copy of each of the {experts} experts on every rank",
                hint=f"try at most {experts * (degree - 1)}",
            )
        if not (experts + redundant) % degree:
            return self
        if not redundant:
            near = nearest_divisors(experts, degree)
            raise InputError(f"ep={degree} does not divide the {experts} experts", hint=f"try ep={near}")
        fewer = redundant - (experts + redundant) % degree
        near = " or ".join(str(number) for number in (fewer, fewer + degree) if number >= 0)
        raise InputError(
            f"the {experts} experts and {redundant} redundant ones do not divide among {degree} ranks",
            hint=f"try redundant_experts={near}",
        )

    @cached_property
    def busiest(self) -> tuple[float, ...]:
        """The parts of all tokens that go to each of its experts."""
        return max(self.choice.shares(self.degree, self.group.outer), key=sum)

    @property
    def load(self) -> float:
        """Copies of tokens that come to it, over those that would if all experts were alike popular."""
        return 1.0 if self.choice.even else sum(self.busiest) * self.degree / self.choice.chosen

    @property
    def own(self) -> float:
        """Of the copies of tokens that are made, those that its sum over experts reads."""
        return 1 / self.tensor if self.travels else self.load / self.degree

    @property
    def share(self) -> float:
        """Of the copies of tokens that are made, those that its experts work on."""
        return self.load / (self.tensor if self.travels else self.degree)

    def held(self, weight: Weight) -> Weight:
        """Its experts of all, of which it reads those that a token of any rank reaches."""
        shape = ((weight.shape[0] + self.choice.redundant) // self.degree, *weight.shape[1:])
        tokens = max(self.degree // self.tensor, 1)  # ranks that have tokens of their own
        rows = self._reached(weight.rows).on(replicas(tokens)) if weight.rows else None
        return replace(weight, shape=shape, rows=rows)

    def _reached(self, rows: Form) -> Form:
        """Of the experts that are reached, those that are its own."""
        if self.choice.even:
            return rows / self.degree
        return total(c * total(any_of(q) for q in self.busiest).on(feature.stream) for feature, c in rows.terms)

    def _way(self, name: str, inputs: Tensor, outputs: Tensor, copies: float) -> Operator:
        """Between where tokens are and where their experts are; `copies` of each are among the inputs."""
        return AllToAll(
            name=name, inputs=(inputs,), outputs=(outputs,), group=self.group, choice=self.choice, copies=copies
        )  # fmt: skip

    def dispatched(self, op: Permute) -> tuple[Permute, tuple[Operator, ...]]:
        """The copies as one rank makes them, and their way to the experts."""
        out = replace(op.outputs[0], rows=op.outputs[0].rows * self.share)
        if not self.travels:
            return replace(op, outputs=(out,)), ()
        copies = replace(out, name=f"{out.name}_copies", rows=op.outputs[0].rows * self.own)
        return replace(op, outputs=(copies,)), (self._way("dispatch", copies, out, self.choice.chosen),)

    def combined(self, out: Tensor) -> tuple[Operator, ...]:
        """The way back."""
        if not self.travels:
            return ()
        back = replace(out, name=f"{out.name}_back", rows=out.rows / self.load)
        return (self._way("collect", out, back, self.choice.chosen * self.load),)

    def returned(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """What the sum over a token's experts reads on one rank."""
        experts, *others = inputs
        experts = replace(experts, rows=experts.rows * self.own)
        if self.travels:
            experts = replace(experts, name=f"{experts.name}_back")
            others = [replace(t, rows=t.rows / self.tensor) for t in others]
        return (experts, *others)
