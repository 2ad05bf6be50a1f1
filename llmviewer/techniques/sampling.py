"""Several answers to one prompt at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..workload import Spans, Workload
from . import technique
from ._parameters import parameter
from ._schedule import each
from ._spans import shared
from ._technique import Kind, Machine, Technique, Touches

_PROMPT = ("shared", "read-once", "copied")


@dataclass(frozen=True, kw_only=True)
class Several(Technique):
    """Decode steps of as many sequences as `copies` for each prompt."""

    kind = Kind.DECODING
    touches = Touches.ANSWERS

    prompt: str = parameter(
        "the cache of the prompt: held once and read by each answer, read once by all, or copied", "shared",
        choices=_PROMPT,
    )  # fmt: skip

    @property
    def copies(self) -> int:
        """Answers that go on from one prompt."""
        raise NotImplementedError

    def step(self, workload: Workload) -> Workload:
        return each(workload, lambda s: self._many(s, common=self.prompt == "read-once"))

    def kept(self, workload: Workload) -> Workload:
        return each(workload, lambda s: self._many(s, common=self.prompt != "copied"))

    def _many(self, s: Spans, *, common: bool) -> Spans:
        return shared(s, copies=self.copies, prefix=s.source, common=common)

    def refuses(self, machine: Machine, others: Sequence[Technique]) -> str:
        other = next((other for other in others if isinstance(other, Several)), None)
        if other:
            return f"{other.name} writes several answers to a prompt too; give the number of all to one of them"
        if machine.model.crosses and self.prompt != "copied":
            return f"what the encoder of {machine.model.name} has read is held for each answer; give prompt=copied"
        return ""


@technique("best-of")
@dataclass(frozen=True, kw_only=True)
class BestOf(Several):
    """Best-of-N, self-consistency, parallel sampling: n answers are written, and one is chosen or voted for.

    Changes: decode steps have n sequences for each prompt, which is read once; the prompt's cache is held once
    (`shared`, as paged caches do), also read once by all n (`read-once`, as cascaded attention does), or copied.
    Formula: cache = prompt + n x generated tokens, or n x (prompt + generated). Tokens per second count one answer.
    Source: arXiv:2203.11171; arXiv:2309.06180, section 4.4; prompts read once: arXiv:2402.05099.
    Helps: answers become better; while decode waits for weights, n of them take little longer than one.
    Cannot: be free once the cache or the matrix units set the time. Choosing (votes, a reward model) is not counted.
    """

    n: int = parameter("answers to each prompt", 4, least=1, most=4096)

    @property
    def copies(self) -> int:
        return self.n


@technique("beam")
@dataclass(frozen=True, kw_only=True)
class Beam(Several):
    """Beam search: the `width` best continuations go on together.

    Changes: as best-of with n = width; all beams read the prompt's cache.
    Formula: cache = prompt + width x generated tokens at most, or width x (prompt + generated) where copied.
    Source: arXiv:2309.06180, section 4.4.
    Helps: tasks whose best answer is the most probable one, such as translation.
    Cannot: be free once the cache sets the time, and steps cannot be taken ahead of the others.
    Left out: sorting width x vocabulary scores, and moving caches when beams are dropped (copied caches are gathered
    anew, shared ones change tables); beams that share more than the prompt take less memory.
    """

    width: int = parameter("beams", 4, least=1, most=4096)

    @property
    def copies(self) -> int:
        return self.width
