"""Expert parallelism: experts divided among ranks, with dispatch and combine of tokens (arXiv:2006.16668).

Ranks of tensor parallelism have the same tokens: each runs its own experts, and the sum over experts is a sum over
ranks. With experts on more ranks, tokens are sent by all-to-all to the ranks of their experts: once to a rank with
several experts of a token, and once to a domain with several such ranks, which forward it (arXiv:2412.19437, section
3.2.2).

Work is that of the busiest rank. Chance sends few tokens to more experts of some ranks: a rank reads the weights of as
many experts as the busiest of all, in the mean over uniform choices. Experts of unequal popularity are assigned to
ranks round-robin in order of popularity, so the busiest rank has the first expert of every round; redundant copies of
popular experts even that out.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Final

from ..errors import InputError
from ..forms import Feature, Form, any_of, busiest_experts, replicas, total
from ..operators.base import Operator, Tensor, Weight
from ..operators.collectives import AllToAll, Group
from ..operators.elementwise import Permute
from ..operators.routing import ExpertChoice
from ..records import frozen
from .layout import nearest_divisors

_EVEN: Final = 2  # arguments of the number of distinct experts if all are equally popular
_NO_EXPERTS: Final = ExpertChoice(experts=0, top_k=0)


@frozen(kw_only=True)
class ExpertPlaces:
    """Placement of the experts of a block.

    group   ranks that experts are divided among
    tensor  degree of tensor parallelism: ranks with the same tokens
    choice  choice of experts by tokens
    """

    group: Group
    tensor: int
    choice: ExpertChoice = _NO_EXPERTS

    @property
    def degree(self) -> int:
        return self.group.size

    @property
    def sends_tokens(self) -> bool:
        """Whether tokens are sent to the ranks of their experts by all-to-all."""
        return self.degree > self.tensor

    def check(self) -> ExpertPlaces:
        """The placement itself. Raises InputError if experts cannot be divided evenly."""
        experts, redundant, degree = self.choice.experts, self.choice.redundant, self.degree
        if redundant > experts * (degree - 1):
            raise InputError(
                f"redundant_experts={redundant} exceeds one copy of each of the {experts} experts per rank",
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
            f"{experts} experts and {redundant} redundant ones cannot be divided evenly among {degree} ranks",
            hint=f"try redundant_experts={near}",
        )

    @cached_property
    def busiest(self) -> tuple[float, ...]:
        """Fraction of all tokens that each expert of the busiest rank gets."""
        return max(self.choice.shares(self.degree, self.group.outer), key=sum)

    @property
    def load(self) -> float:
        """Load of the busiest rank over the mean of all ranks."""
        return 1.0 if self.choice.even else sum(self.busiest) * self.degree / self.choice.top_k

    @property
    def combine_share(self) -> float:
        """Share of all copies of tokens that the combine of this rank reads."""
        return 1 / self.tensor if self.sends_tokens else self.load / self.degree

    @property
    def expert_share(self) -> float:
        """Share of all copies of tokens that the experts of this rank process."""
        return self.load / (self.tensor if self.sends_tokens else self.degree)

    def local_weight(self, weight: Weight) -> Weight:
        """The part of an expert weight on this rank; a pass reads the experts that tokens of any rank chose."""
        shape = ((weight.shape[0] + self.choice.redundant) // self.degree, *weight.shape[1:])
        tokens = max(self.degree // self.tensor, 1)  # ranks that have tokens of their own
        rows = self._reached(weight.rows).on(replicas(tokens)) if weight.rows else None
        return replace(weight, shape=shape, rows=rows)

    def _reached(self, rows: Form) -> Form:
        """The experts of the busiest rank among those that tokens chose."""
        return total(c * self._reached_by(feature) for feature, c in rows.terms)

    def _reached_by(self, feature: Feature) -> Form:
        if not self.choice.even:
            return total(any_of(q) for q in self.busiest).on(feature.stream)
        if feature.name != "distinct_experts" or len(feature.arguments) > _EVEN or self.degree == 1:
            return Form(((feature, 1 / self.degree),))
        experts, chosen = map(int, feature.arguments)
        return busiest_experts(experts, chosen, self.degree).on(feature.stream)

    def _all_to_all(self, name: str, inputs: Tensor, outputs: Tensor, copies: float) -> Operator:
        """The all-to-all between tokens and experts; its inputs have `copies` copies of each token."""
        return AllToAll(
            name=name, inputs=(inputs,), outputs=(outputs,), group=self.group, choice=self.choice, copies=copies
        )  # fmt: skip

    def dispatched(self, op: Permute) -> tuple[Permute, tuple[Operator, ...]]:
        """The permutation of one rank, and the all-to-all to the experts if tokens are sent."""
        out = replace(op.outputs[0], rows=op.outputs[0].rows * self.expert_share)
        if not self.sends_tokens:
            return replace(op, outputs=(out,)), ()
        copies = replace(out, name=f"{out.name}_copies", rows=op.outputs[0].rows * self.combine_share)
        return replace(op, outputs=(copies,)), (self._all_to_all("dispatch", copies, out, self.choice.top_k),)

    def combined(self, out: Tensor) -> tuple[Operator, ...]:
        """The all-to-all back, if tokens are sent."""
        if not self.sends_tokens:
            return ()
        back = replace(out, name=f"{out.name}_back", rows=out.rows / self.load)
        return (self._all_to_all("collect", out, back, self.choice.top_k * self.load),)

    def combine_inputs(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Inputs of the combine on one rank."""
        experts, *others = inputs
        experts = replace(experts, rows=experts.rows * self.combine_share)
        if self.sends_tokens:
            experts = replace(experts, name=f"{experts.name}_back")
            others = [replace(t, rows=t.rows / self.tensor) for t in others]
        return (experts, *others)
