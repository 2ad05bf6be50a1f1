"""Speculative decoding with a smaller model as the draft."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import mul

from ..model import Model
from ..model_files import load_model
from . import technique
from ._drafting import Drafting, vocabulary
from ._parameters import parameter
from ._technique import Drafter, Machine, Technique


@technique("speculative")
@dataclass(frozen=True, kw_only=True)
class Speculative(Drafting):
    """Speculative decoding: a small model drafts gamma tokens, one pass of the large one verifies them all.

    Changes: a decode step takes gamma + 1 tokens of each sequence and leaves several; gamma steps of the draft come
    before it. Weights and cache of the draft are held besides. What is written stays the same.
    Formula: tokens a pass = (1 - alpha^(gamma+1)) / (1 - alpha), or `tau` where that was measured; time a token =
    (gamma x draft step + verification) / tokens. A tree of k1 x k2 x ... candidates is verified whole, drafted by
    depth, and leaves 1 + sum over depths of the product of 1 - (1 - alpha)^k, as if candidates were independent.
    Source: arXiv:2211.17192, equation 1; arXiv:2302.01318; trees: arXiv:2305.09781.
    Helps: where decode waits for memory, as then gamma + 1 tokens cost what one does: small batches, large models.
    Cannot: once batch x (gamma + 1) tokens keep the matrix units busy, verification grows with gamma; a draft that is
    seldom right, or not much smaller, costs more than it saves. It never gains more than the tokens a pass.
    Left out: the draft's own pass over a last token that was accepted too, and drawing from the distributions.
    """

    draft: str = parameter("the model that drafts: anything that `llmviewer analyze` takes")
    gamma: int = parameter("tokens drafted before each verification", 4, least=1, most=64)
    draft_quant: str = parameter("precision of the draft", "W16A16")

    tree: str = parameter("candidates at each depth, such as 4x2x2, instead of gamma tokens in a row", "")

    @property
    def widths(self) -> tuple[int, ...]:
        """Candidates that follow each one of the depth before."""
        return tuple(map(int, self.tree.split("x"))) if self.tree else (1,) * self.gamma

    @property
    def depth(self) -> int:
        return len(self.widths)

    @property
    def proposed(self) -> int:
        return sum(self._nodes)

    @property
    def _nodes(self) -> tuple[int, ...]:
        """Candidates at each depth."""
        return tuple(accumulate(self.widths, mul))

    def reached(self, alpha: float) -> tuple[float, ...]:
        """A depth is reached where one of the candidates is right at each before it."""
        return tuple(accumulate((1 - (1 - alpha) ** width for width in self.widths), mul, initial=1.0))

    def drafter(self, machine: Machine) -> Drafter:
        network = machine.helper(self.model, self.draft_quant)
        return Drafter(name=f"draft {self.draft}", network=network, widths=(1, *self._nodes[:-1]))

    def refuses(self, machine: Machine, others: Sequence[Technique]) -> str:
        if self.tree and not re.fullmatch(r"[1-9]\d{0,2}(x[1-9]\d{0,2}){0,15}", self.tree):
            return f"tree must be candidates at each depth, such as 4x2x2; got {self.tree!r}"
        draft = self.model
        if not draft.generates or draft.encodes or machine.model.encodes:
            return f"{draft.name} cannot draft for {machine.model.name}: both must be decoders that generate"
        return super().refuses(machine, others)

    def notes(self, machine: Machine) -> tuple[str, ...]:
        draft, own = vocabulary(self.model), vocabulary(machine.model)
        if draft == own:
            return ()
        where = f"{self.draft} has a vocabulary of {draft} and {machine.model.name} of {own}"
        return (f"{where}: unless one pads the other, tokens have to be translated, which is not counted",)

    @cached_property
    def model(self) -> Model:
        """The draft."""
        return load_model(self.draft)
