"""Several samples per prompt."""

from __future__ import annotations

from collections.abc import Sequence

from ..records import frozen
from ..workload import Spans, Workload
from . import technique
from ._parameters import parameter
from ._schedule import each
from ._spans import shared
from ._technique import Kind, Requirement, SettingView, Technique

_PROMPT = ("shared", "read-once", "copied")


@frozen(kw_only=True)
class Several(Technique):
    """Decode with `copies` sequences per prompt."""

    kind = Kind.DECODING
    requires = Requirement.OTHER_OUTPUT

    prompt: str = parameter(
        "cache of the prompt: held once and read by each answer, read once for all, or copied", "shared",
        choices=_PROMPT,
    )  # fmt: skip

    @property
    def copies(self) -> int:
        """Answers per prompt."""
        raise NotImplementedError

    def step(self, workload: Workload) -> Workload:
        return each(workload, lambda s: self._many(s, common=self.prompt == "read-once"))

    def retained_cache(self, workload: Workload) -> Workload:
        return each(workload, lambda s: self._many(s, common=self.prompt != "copied"))

    def _many(self, s: Spans, *, common: bool) -> Spans:
        return shared(s, copies=self.copies, prefix=s.source, common=common)

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        other = next((other for other in others if isinstance(other, Several)), None)
        if other:
            return f"{other.name} also generates several answers per prompt; give one of the two"
        if setting.model.has_cross_attention and self.prompt != "copied":
            return f"the encoder output of {setting.model.name} is held per answer; give prompt=copied"
        return ""


@technique("best-of")
@frozen(kw_only=True)
class BestOf(Several):
    """Best-of-N, self-consistency, parallel sampling: n answers per prompt, of which one is chosen or voted for.

    Effect: the prompt is prefilled once, and decode steps have n sequences per prompt. The cache of the prompt is held
    once (`shared`, as in paged caches), held and read once by all n (`read-once`, as in cascade attention), or copied.
    Formula: cache = prompt + n x generated tokens, or n x (prompt + generated) if copied. Tokens per second count one
    answer.
    Source: arXiv:2203.11171; arXiv:2309.06180, section 4.4; prompts read once: arXiv:2402.05099.
    Use when: answers should be better, and decode is bound by weight traffic: n answers then take little longer than
    one.
    Limits: answers cost time once the cache or the compute units bound the step.
    Not modeled: choosing among the answers (votes, a reward model).
    """

    n: int = parameter("answers per prompt", 4, least=1, most=4096)

    @property
    def copies(self) -> int:
        return self.n


@technique("beam")
@frozen(kw_only=True)
class Beam(Several):
    """Beam search: the `width` best continuations are extended together.

    Effect: as `best-of` with n = width; every beam reads the cache of the prompt.
    Formula: cache = prompt + width x generated tokens at most, or width x (prompt + generated) if copied.
    Source: arXiv:2309.06180, section 4.4.
    Use when: the best answer is the most probable one, as in translation.
    Limits: beams cost time once the cache bounds the step, and all of them advance in lockstep.
    Not modeled: sorting width x vocabulary scores; moving caches when beams are dropped (copied caches are gathered
    again, shared ones change block tables). Beams that share more than the prompt take less memory than counted.
    """

    width: int = parameter("beams per prompt", 4, least=1, most=4096)

    @property
    def copies(self) -> int:
        return self.width
