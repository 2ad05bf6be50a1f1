"""Speculative decoding with a smaller model as the draft."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from math import ceil
from operator import mul
from typing import Final

import numpy as np

from ..forms import evaluate
from ..graph import Graph
from ..model import Model, vocabulary
from ..model_files import load_model
from ..records import frozen
from ..resource import matrix
from ..workload import Workload
from . import technique
from ._drafting import Drafting, drafted_tokens
from ._parameters import parameter
from ._technique import Drafter, Finding, Requirement, SettingView, Technique

_GAMMA: Final = 4
_TRAINING_OPS: Final = 6  # of a token, for each parameter: forward and backward pass


@technique("speculative")
@frozen(kw_only=True)
class Speculative(Drafting):
    """Speculative decoding: a small model drafts gamma tokens, and one pass of the large model verifies them.

    Effect: gamma steps of the draft model run before each pass, which takes gamma + 1 tokens of each sequence and
    yields several. Weights and cache of the draft model are held in memory. The output distribution is unchanged.
    Formula: tokens per pass = (1 - alpha^(gamma+1)) / (1 - alpha), or `tau` if measured; time per token = (gamma x
    draft step + verification) / tokens per pass. A tree of k1 x k2 x ... candidates is drafted depth by depth, verified
    in one pass, and yields 1 + sum over depths of the product of 1 - (1 - alpha)^k, as if candidates were independent.
    A group of `drafts` models, each trained on what the others miss, drafts gamma tokens each, one model after the
    other; a pass verifies all and yields 1 + sum over depths d of 1 - (1 - alpha^d)^drafts. With `staged`, n-grams
    draft for the draft model, whose passes yield so many tokens: gamma / staged passes, rounded up.
    Source: arXiv:2211.17192, equation 1; arXiv:2302.01318; trees and boost-tuned groups: arXiv:2305.09781; staged:
    arXiv:2308.04623, section 3.2.
    Use when: decode is memory-bound, so that gamma + 1 tokens take as long as one: small batches, large models.
    Limits: verification time grows with gamma once batch x (gamma + 1) tokens saturate the compute units. A draft model
    whose tokens are rarely accepted, or that is not much smaller, costs more than it saves. The gain never exceeds the
    tokens per pass.
    Not modeled: the draft model's pass over the last token if all were accepted; sampling from the distributions;
    n-grams, which take no device time, and those that the draft rejects; equal tokens of several drafts. A simulation
    prefills prompts for one draft of a group.
    """

    requires = Requirement.DRAFT_MODEL

    draft: str = parameter("draft model: any MODEL that `llmviewer analyze` accepts")
    gamma: int = drafted_tokens(_GAMMA)
    draft_quant: str = parameter("precision of the draft model", "W16A16")

    tree: str = parameter("candidates after each token, by depth, such as 4x2x2; instead of gamma", "")
    drafts: int = parameter("draft models of a boost-tuned group, each as large as `draft`", 1, least=1, most=64)
    staged: float = parameter(
        "mean tokens that a pass of the draft yields, as n-grams draft for it; 1: none do", 1, least=1, most=64
    )

    @property
    def widths(self) -> tuple[int, ...]:
        """Candidates after each token of the depth before, by depth."""
        return tuple(map(int, self.tree.split("x"))) if self.tree else (1,) * self.gamma

    @property
    def depth(self) -> int:
        return len(self.widths)

    @property
    def proposed(self) -> int:
        return self.drafts * sum(self._nodes)

    @property
    def _nodes(self) -> tuple[int, ...]:
        """Candidates at each depth."""
        return tuple(accumulate(self.widths, mul))

    def reached(self, alpha: float) -> tuple[float, ...]:
        """Probabilities of tokens: a depth is reached if a candidate is accepted at each depth before it."""
        one = accumulate((1 - (1 - alpha) ** width for width in self.widths), mul, initial=1.0)
        return tuple(1 - (1 - reached) ** self.drafts for reached in one)

    def drafter(self, setting: SettingView) -> Drafter:
        network = setting.helper(self.model, self.draft_quant)
        widths = (1, *self._nodes[:-1])
        if self.staged > 1:
            widths = tuple(map(len, np.array_split(range(self.gamma), self._staged_passes)))
        return Drafter(name=f"draft {self.draft}", network=network, widths=widths * self.drafts, models=self.drafts)

    @property
    def _staged_passes(self) -> int:
        """Passes of a draft model that yield `staged` tokens each."""
        return ceil(self.gamma / self.staged)

    def auxiliary_graphs(self, setting: SettingView) -> tuple[Graph, ...]:
        return super().auxiliary_graphs(setting) * self.drafts

    def _tree_problem(self) -> str:
        """The reason why the tree cannot be drafted; "" if it can."""
        if not re.fullmatch(r"[1-9]\d{0,2}(x[1-9]\d{0,2}){0,15}", self.tree):
            return f"tree must be candidates after each token, by depth, such as 4x2x2; got {self.tree!r}"
        if self.gamma != _GAMMA:
            return f"tree has the candidates of each depth, instead of gamma; leave out tree or gamma={self.gamma}"
        if self.drafts > 1 or self.staged > 1:
            other = f"drafts={self.drafts}" if self.drafts > 1 else f"staged={self.staged:g}"
            return f"a tree is drafted by one model, one depth in each pass; leave out tree or {other}"
        return ""

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        if self.tree and (problem := self._tree_problem()):
            return problem
        if self.staged > self.gamma:
            return f"staged must be at most gamma={self.gamma}, the tokens of a draft; got {self.staged:g}"
        if self.staged > 1 and self._staged_passes == self.gamma:
            return f"staged={self.staged:g} saves none of {self.gamma} passes of a draft; give more, or leave it out"
        draft = self.model
        if not draft.generates or draft.is_encoder_decoder != setting.model.is_encoder_decoder:
            return (
                f"{draft.name} cannot draft for {setting.model.name}: both must generate, and have an encoder or none"
            )
        return super().incompatibility(setting, others)

    def findings(self, setting: SettingView, step: Workload) -> tuple[Finding, ...]:
        """Also the tokens that idle matrix units could train the draft on (OSD, arXiv:2310.07177): 6 OPs each."""
        plan = setting.decode_plan
        rate = max(setting.hardware.rates.get(matrix(half), 0.0) for half in ("bf16", "fp16"))
        idle_ops = max(rate * float(plan.time_s(step)) - float(evaluate(plan.ops, step)), 0.0)
        trained = idle_ops / (_TRAINING_OPS * self.model.parameters)
        text = f"a verification leaves matrix units idle, enough to train the draft online on {trained:,.0f} tokens"
        training = Finding(key="idle_training_tokens", value=trained, text=text)
        return (*super().findings(setting, step), *((training,) if rate else ()))

    def notes(self, setting: SettingView) -> tuple[str, ...]:
        draft, target = vocabulary(self.model), vocabulary(setting.model)
        if draft == target:
            return ()
        where = f"{self.draft} has a vocabulary of {draft} and {setting.model.name} of {target}"
        return (f"{where}: unless one is padded, tokens must be converted, which is not counted",)

    @cached_property
    def model(self) -> Model:
        """The draft model."""
        return load_model(self.draft)
