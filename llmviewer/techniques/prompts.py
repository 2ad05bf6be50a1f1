"""Prompts that are shortened, lengthened, cached, or processed in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from ..errors import InputError
from ..forms import Num
from ..graph import Graph
from ..model import Model
from ..model_files import load_model
from ..records import frozen
from ..workload import Sequences, Spans, Workload
from . import technique
from ._parameters import parameter
from ._schedule import Run, Schedule, each
from ._spans import shared
from ._technique import Finding, Kind, SettingView, Technique, Touches

_LENGTHS = 2.0 ** np.arange(4, 21)
_SCORER_QUANT = "W16A16"
_MOST_CHUNKS = 1 << 20  # of a prompt, each of which is a pass that is looked at by itself


class Rewritten(Technique):
    """Changes the length of prompts."""

    kind = Kind.INPUT
    touches = Touches.ANSWERS
    order = -9  # before all others, which then see the new prompt

    def length(self, prompt: Num) -> Num:
        """Tokens of the new prompt."""
        raise NotImplementedError

    def prefill(self, workload: Workload) -> Workload:
        def read(s: Spans) -> Spans:
            new = self.length(s.kv_len)
            return replace(s, q_len=new, kv_len=new, source=new)

        return each(workload, read)

    def step(self, workload: Workload) -> Workload:
        def longer(s: Spans) -> Spans:
            return replace(s, kv_len=s.kv_len - s.source + self.length(s.source), source=self.length(s.source))

        return each(workload, longer)

    def kept(self, workload: Workload) -> Workload:
        return self.step(workload)

    def refuses(self, machine: SettingView, others: Sequence[Technique]) -> str:  # noqa: ARG002
        other = next((other for other in others if isinstance(other, Rewritten)), None)
        return f"{other.name} also changes the length of prompts; give one of the two" if other else ""


@technique("prompt-compression")
@frozen(kw_only=True)
class Compression(Rewritten):
    """Prompt compression (LLMLingua, Selective Context): a small model scores tokens, and only some are kept.

    Effect: the prompt has the fraction `ratio` of its tokens in every phase. The scorer reads all of it first, in a
    pass of its own.
    Formula: TTFT = prefill of the scorer(n) + prefill(ratio x n).
    Source: arXiv:2310.05736; arXiv:2404.14294, section 4.1.
    Use when: prompts are long, as attention is quadratic in their length, or decode is bound by the cache.
    Limits: no gain for steps bound by weights, nor for short prompts, for which the scorer costs more than it saves.
    """

    ratio: float = parameter("fraction of the tokens that is kept", 0.5, least=0, most=1, open=True)
    scorer: str = parameter("model that scores the tokens; its time is not counted if not given", "")
    scorer_quant: str = parameter(f"precision of the scorer, {_SCORER_QUANT} if not given", "")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scorer_quant and not self.scorer:
            raise InputError(f"{self.name}: scorer_quant needs a scorer; give scorer=MODEL or leave it out")

    def length(self, prompt: Num) -> Num:
        kept: Num = np.ceil(self.ratio * np.asarray(prompt, dtype=np.float64))[()]
        return kept

    def schedule(self, schedule: Schedule, machine: SettingView) -> Schedule:
        shorter = super().schedule(schedule, machine)
        if not self.scorer:
            return shorter
        plan = self._scorer(machine).plan
        scoring = (
            replace(r, name=f"scoring by {self.scorer}", plan=plan, main=False) for r in schedule.first if r.main
        )
        return replace(shorter, first=(*scoring, *shorter.first))

    def beside(self, machine: SettingView) -> tuple[Graph, ...]:
        return (self._scorer(machine).decode_graph,) if self.scorer else ()

    def findings(self, machine: SettingView, step: Workload) -> tuple[Finding, ...]:
        if not self.scorer:
            return ()
        (s,) = step.groups
        whole, kept = (
            Workload((Sequences(batch=s.batch, q_len=n, kv_len=n),)) for n in (_LENGTHS, self.length(_LENGTHS))
        )
        plan, scorer = machine.plan, self._scorer(machine).plan
        pays = plan.time_s(kept) + scorer.time_s(whole) < plan.time_s(whole)
        first = int(_LENGTHS[np.argmax(pays)]) if np.any(pays) else None
        word = f"from prompts of about {first} tokens" if first else f"at no length up to {_LENGTHS[-1]:.0f} tokens"
        return (Finding(key="pays_from_prompt", value=first, text=f"the first token comes sooner {word}"),)

    @cached_property
    def model(self) -> Model:
        """The scorer."""
        return load_model(self.scorer)

    def _scorer(self, machine: SettingView) -> SettingView:
        return machine.helper(self.model, self.scorer_quant or _SCORER_QUANT)


@technique("rag")
@frozen(kw_only=True)
class Retrieved(Rewritten):
    """Retrieval-augmented generation: passages that were found are put before each prompt.

    Effect: the prompt is longer in every phase.
    Formula: n becomes n + passages x tokens.
    Source: arXiv:2005.11401; arXiv:2404.14294, section 4.1.4.
    Use when: you want to compare the cost of retrieval with the corpus as the prompt or with no retrieval.
    Not modeled: the search.
    """

    passages: int = parameter("passages per prompt", 5, least=1, most=1_000_000)
    tokens: int = parameter("tokens per passage", 200, unit="tokens", least=1, most=1_000_000)

    def length(self, prompt: Num) -> Num:
        return prompt + self.passages * self.tokens


@technique("prefix-cache")
@frozen(kw_only=True)
class PrefixCaching(Technique):
    """Prefix caching (RadixAttention, system prompts): keys and values of the beginning of a prompt are cached.

    Effect: the prefill processes only the rest of the prompt, which attends to all of it. A beginning that all prompts
    of a batch share is held once.
    Formula: new tokens of the prefill = n - floor(hit x n), or n - tokens, at least one; they attend to n.
    Source: arXiv:2312.07104, section 3; arXiv:2309.06180, section 4.4.
    Use when: prompts begin alike: the first token comes sooner, and memory shrinks if all begin alike.
    Limits: no gain for decode steps, which read the cache of the whole prompt.
    """

    kind = Kind.INPUT
    touches = Touches.NOTHING
    scheduled = True
    order = -8
    usual: ClassVar[float] = 0.5  # hit rate if neither hit nor tokens is given

    hit: float | None = parameter(
        f"fraction of the prompt that is cached; {usual} if tokens is not given", None, least=0, most=1
    )
    tokens: int | None = parameter(
        "cached tokens at the beginning of prompts, such as a system prompt; instead of hit", None,
        unit="tokens", least=0,
    )  # fmt: skip
    common: bool = parameter("whether all prompts of a batch share the cached beginning", True)

    def prefill(self, workload: Workload) -> Workload:
        return each(workload, lambda s: replace(s, q_len=s.kv_len - self.known(s.kv_len), images=0))

    def kept(self, workload: Workload) -> Workload:
        if not self.common:
            return workload

        return each(workload, lambda s: shared(s, copies=1, among=s.batch, prefix=self.known(s.source), common=True))

    def known(self, prompt: Num) -> Num:
        whole = np.asarray(prompt, dtype=np.float64)
        part = self.usual if self.hit is None else self.hit
        found: Num = np.minimum(np.floor(part * whole) if self.tokens is None else self.tokens, whole - 1)[()]
        return found

    def in_common(self, prompt: Num) -> Num:
        return self.known(prompt) if self.common else 0.0

    def refuses(self, machine: SettingView, others: Sequence[Technique]) -> str:  # noqa: ARG002
        if self.hit is not None and self.tokens is not None:
            return "give hit (a fraction of each prompt) or tokens (of each prompt), not both"
        if machine.model.encodes:
            return f"the encoder of {machine.model.name} is bidirectional: no part of its prompt can be cached"
        return ""


@technique("chunked-prefill")
@frozen(kw_only=True)
class ChunkedPrefill(Technique):
    """Chunked prefill: a prompt is processed in chunks, each of which attends to those before it.

    Effect: one prefill becomes ceil(n / tokens) passes, each of which reads the weights and the cache so far.
    Formula: keys read = sum over chunks of what is cached after them, about n^2 / (2 x tokens) instead of n.
    Source: arXiv:2308.16369, section 4; arXiv:2403.02310.
    Use when: live activations must be smaller, or other requests wait for decode steps between chunks (`simulate`).
    Limits: a prompt by itself gets no faster: small chunks are bound by weights.
    """

    kind = Kind.INPUT
    touches = Touches.NOTHING
    order = -7

    tokens: int = parameter("tokens of a sequence per chunk", 512, unit="tokens", least=1)

    def prefill(self, workload: Workload) -> Workload:
        return each(workload, lambda s: replace(s, q_len=np.minimum(s.q_len, self.tokens)))

    def schedule(self, schedule: Schedule, machine: SettingView) -> Schedule:  # noqa: ARG002
        return schedule.map(first=lambda run: self._chunks(run) if run.main else (run,))

    def _chunks(self, run: Run) -> Iterator[Run]:
        (s,) = run.workload.groups
        yield replace(run, name="chunks of the prefill", workload=Workload((self._cut(s),)))

    def _cut(self, s: Spans) -> Spans:
        """A pass over new tokens as passes over its chunks, along the last axis.

        Raises InputError where there are more than _MOST_CHUNKS.
        """
        new = int(s.q_len)
        if new > _MOST_CHUNKS * self.tokens:
            raise InputError(
                f"{self.name}: a prompt must be at most {_MOST_CHUNKS} chunks of {self.tokens} tokens, as each is "
                f"looked at by itself; got {new} tokens"
            )
        ends = np.append(np.arange(self.tokens, new, self.tokens), new)
        sizes = np.diff(ends, prepend=0)
        first, last = ends == ends[0], ends == new
        return replace(s, q_len=sizes, kv_len=s.past + ends, logits=last * s.logits, images=first * s.images)

    def findings(self, machine: SettingView, step: Workload) -> tuple[Finding, ...]:
        (s,) = step.groups
        whole = Spans(batch=s.batch, q_len=s.source, kv_len=s.source, source=s.source)
        moved, once = (
            float(np.sum(machine.plan.estimate(Workload((each,))).sum("kv_bytes")))
            for each in (self._cut(whole), whole)
        )
        if not once:
            return ()
        text = f"chunks read and write {moved / once:.3g} times the cache bytes of a single pass"
        return (Finding(key="cache_again", value=moved / once, text=text),)

    def refuses(self, machine: SettingView, others: Sequence[Technique]) -> str:  # noqa: ARG002
        if machine.model.encodes:
            return f"the encoder of {machine.model.name} is bidirectional: its prompt cannot be processed in chunks"
        return ""
