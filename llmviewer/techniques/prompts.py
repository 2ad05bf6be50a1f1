"""Prompts that are shortened, lengthened, cached, or processed in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from ..architectures.blocks.parts import Parts
from ..errors import InputError
from ..forms import LOGITS, Num
from ..graph import Block, Graph
from ..model import Model
from ..model_files import load_model
from ..records import frozen
from ..workload import Sequences, Spans, Workload
from . import technique
from ._parameters import parameter
from ._schedule import Run, Schedule, each
from ._spans import shared
from ._technique import Finding, Kind, Requirement, SettingView, Technique
from .drafts import auxiliary_model

_LENGTHS = 2.0 ** np.arange(4, 21)
_SCORER_QUANT = "W16A16"
_DIM = 768  # elements of a vector of DPR
_MAX_CHUNKS = 1 << 20  # of a prompt; each is evaluated as a pass


class Rewritten(Technique):
    """Changes the length of prompts."""

    kind = Kind.INPUT
    requires = Requirement.OTHER_OUTPUT
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

    def retained_cache(self, workload: Workload) -> Workload:
        return self.step(workload)

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:  # noqa: ARG002
        conflicting = next((other for other in others if isinstance(other, Rewritten)), None)
        return f"{conflicting.name} also changes the length of prompts; give one of the two" if conflicting else ""


@technique("prompt-compression")
@frozen(kw_only=True)
class Compression(Rewritten):
    """Prompt compression (LLMLingua, Selective Context, DYNAICL): a small model scores tokens; only some are kept.

    Effect: the prompt has the fraction `ratio` of its tokens in every phase, or at most `budget`. Before, the scorer
    processes all of it, several times if it first chooses among examples (LLMLingua: passes=2).
    Formula: TTFT = passes x prefill of the scorer(n) + prefill(min(ratio x n, budget)).
    Source: arXiv:2310.05736, section 3 (budget, two passes); arXiv:2305.11170 (DYNAICL); arXiv:2404.14294, section 4.1.
    Use when: prompts are long, as attention is quadratic in their length, or decode is bound by the cache.
    Limits: no gain for decode steps bound by weights, nor for short prompts, for which the scorer costs more than it
    saves.
    """

    ratio: float = parameter("fraction of the tokens that is kept", 0.5, least=0, most=1, open=True)
    scorer: str = parameter("model that scores the tokens; its time is not counted if not given", "")
    scorer_quant: str = parameter(f"precision of the scorer, {_SCORER_QUANT} if not given", "")
    passes: int = parameter("passes of the scorer over the prompt", 1, least=1, most=64)
    budget: int = parameter("tokens that are kept at most; 0: no limit [tokens]", 0, least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scorer_quant and not self.scorer:
            raise InputError(f"{self.name}: scorer_quant needs a scorer; give scorer=MODEL or leave it out")

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        if self.passes > 1 and not self.scorer:
            return f"passes={self.passes} needs a scorer; give scorer=MODEL or leave it out"
        return super().incompatibility(setting, others)

    def length(self, prompt: Num) -> Num:
        shortened = np.ceil(self.ratio * np.asarray(prompt, dtype=np.float64))
        return np.minimum(shortened, self.budget or np.inf)[()]

    def schedule(self, schedule: Schedule, setting: SettingView) -> Schedule:
        shorter = super().schedule(schedule, setting)
        if not self.scorer:
            return shorter
        scoring = schedule.passes_over_prompts(f"scoring by {self.scorer}", self._scorer(setting).plan)
        repeated = (replace(run, times=np.multiply(run.times, self.passes)) for run in scoring)
        return replace(shorter, first=(*repeated, *shorter.first))

    def auxiliary_graphs(self, setting: SettingView) -> tuple[Graph, ...]:
        return (self._scorer(setting).decode_graph,) if self.scorer else ()

    def findings(self, setting: SettingView, step: Workload) -> tuple[Finding, ...]:
        if not self.scorer:
            return ()
        (s,) = step.groups
        original, compressed = (
            Workload((Sequences(batch=s.batch, q_len=n, kv_len=n),)) for n in (_LENGTHS, self.length(_LENGTHS))
        )
        plan, scorer = setting.plan, self._scorer(setting).plan
        pays = plan.time_s(compressed) + self.passes * scorer.time_s(original) < plan.time_s(original)
        shortest = int(_LENGTHS[np.argmax(pays)]) if np.any(pays) else None
        range_text = (
            f"from prompts of about {shortest} tokens" if shortest else f"at no length up to {_LENGTHS[-1]:.0f} tokens"
        )
        return (Finding(key="pays_from_prompt", value=shortest, text=f"the first token comes sooner {range_text}"),)

    @cached_property
    def model(self) -> Model:
        """The scorer."""
        return load_model(self.scorer)

    def _scorer(self, setting: SettingView) -> SettingView:
        return setting.helper(self.model, self.scorer_quant or _SCORER_QUANT)


@technique("rag")
@frozen(kw_only=True)
class Retrieved(Rewritten):
    """Retrieval-augmented generation: passages that a search of an index finds are prepended to each prompt.

    Effect: before the prefill the embedder encodes the question, and a search compares it with the vectors of all
    passages, which the device holds in 16 bits. The prompt is longer in every phase.
    Formula: n becomes n + passages x tokens; search: 2 x vectors x dim OPs per question, and vectors x dim x 2 bytes
    for all questions of a batch.
    Source: arXiv:2005.11401, section 2.2 (vectors of 768); exhaustive search: arXiv:1702.08734; arXiv:2404.14294,
    section 4.1.4.
    Use when: you want to compare the cost of retrieval with the corpus as the prompt or with no retrieval.
    Limits: an approximate search (IVF, HNSW) reads a part of the vectors, for which give fewer. vectors=0 leaves the
    search out, as where another machine does it.
    Not modeled: choosing the best of the scores.
    """

    passages: int = parameter("passages per prompt", 5, least=1, most=1_000_000)
    tokens: int = parameter("tokens per passage", 200, unit="tokens", least=1, most=1_000_000)
    vectors: int = parameter("vectors that the search reads, one for each passage of the corpus", 1_000_000, least=0)
    dim: int = parameter("elements of a vector", _DIM, least=1, most=1_000_000)
    embedder: str = parameter("model that encodes the question; its time is not counted if not given", "")

    def length(self, prompt: Num) -> Num:
        return prompt + self.passages * self.tokens

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        if self.dim != _DIM and not self.vectors:
            return "dim has no effect with vectors=0; leave one of the two out"
        return super().incompatibility(setting, others)

    def schedule(self, schedule: Schedule, setting: SettingView) -> Schedule:
        longer = super().schedule(schedule, setting)
        retrieval: list[Run] = []
        if self.embedder:
            plan = setting.helper(self.model, _SCORER_QUANT).plan
            retrieval += schedule.passes_over_prompts(f"embedding by {self.embedder}", plan)
        if self.vectors:
            retrieval += schedule.passes_over_prompts("search", self._index(setting).plan)
        return replace(longer, first=(*retrieval, *longer.first))

    def auxiliary_graphs(self, setting: SettingView) -> tuple[Graph, ...]:
        embedder = (setting.helper(self.model, _SCORER_QUANT).graph,) if self.embedder else ()
        return (*embedder, *((self._index(setting).graph,) if self.vectors else ()))

    @cached_property
    def model(self) -> Model:
        """The embedder."""
        return load_model(self.embedder)

    def _index(self, setting: SettingView) -> SettingView:
        """The search as a network: a product of questions with all vectors."""
        parts = Parts(format=setting.model.format)
        product = parts.project("search", parts.tensor("question", self.dim), self.vectors)
        once = product.with_tensors(lambda t: replace(t, rows=LOGITS))  # a question of each sequence
        block = Block(name="index", operators=(once,), input="question", output="search")
        return setting.helper(auxiliary_model(setting.model, (block,)), _SCORER_QUANT)


@technique("prefix-cache")
@frozen(kw_only=True)
class PrefixCaching(Technique):
    """Prefix caching (RadixAttention, system prompts): keys and values of the prefix of a prompt are cached.

    Effect: the prefill processes only the rest of the prompt, which attends to all of it. A prefix that all prompts of
    a batch share is stored once.
    Formula: new tokens of the prefill = n - floor(hit x n), or n - tokens, at least one; they attend to n.
    Source: arXiv:2312.07104, section 3; arXiv:2309.06180, section 4.4.
    Use when: prompts have common prefixes: TTFT is shorter, and less memory is needed if all share one.
    Limits: no gain for decode steps, which read the cache of the whole prompt.
    """

    kind = Kind.INPUT
    requires = Requirement.NOTHING
    assumption = "prompts half of which are cached"
    simulatable = True
    order = -8
    default_hit: ClassVar[float] = 0.5  # hit rate if neither hit nor tokens is given

    hit: float | None = parameter(
        f"fraction of the prompt that is cached; {default_hit} if tokens is not given", None, least=0, most=1
    )
    tokens: int | None = parameter(
        "cached prefix tokens of each prompt, such as a system prompt; instead of hit", None,
        unit="tokens", least=0,
    )  # fmt: skip
    common: bool = parameter("whether all prompts of a batch share the cached prefix", True)

    def prefill(self, workload: Workload) -> Workload:
        return each(workload, lambda s: replace(s, q_len=s.kv_len - self.cached_prefix_tokens(s.kv_len), images=0))

    def retained_cache(self, workload: Workload) -> Workload:
        if not self.common:
            return workload

        return each(
            workload,
            lambda s: shared(s, copies=1, among=s.batch, prefix=self.cached_prefix_tokens(s.source), common=True),
        )

    def cached_prefix_tokens(self, prompt: Num) -> Num:
        length = np.asarray(prompt, dtype=np.float64)
        fraction = self.default_hit if self.hit is None else self.hit
        cached: Num = np.minimum(np.floor(fraction * length) if self.tokens is None else self.tokens, length - 1)[()]
        return cached

    def shared_prefix_tokens(self, prompt: Num) -> Num:
        return self.cached_prefix_tokens(prompt) if self.common else 0.0

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:  # noqa: ARG002
        if self.hit is not None and self.tokens is not None:
            return "give hit (a fraction of each prompt) or tokens (of each prompt), not both"
        if setting.model.is_encoder_decoder:
            return f"the encoder of {setting.model.name} is bidirectional: no part of its prompt can be cached"
        return ""


@technique("chunked-prefill")
@frozen(kw_only=True)
class ChunkedPrefill(Technique):
    """Chunked prefill: a prompt is processed in chunks; each attends to those before it.

    Effect: one prefill becomes ceil(n / tokens) passes, each of which reads the weights and the cache so far.
    Formula: keys read = sum over chunks of what is cached after them, about n^2 / (2 x tokens) instead of n.
    Source: arXiv:2308.16369, section 4; arXiv:2403.02310.
    Use when: activations must take less memory, or decode steps of other requests run between chunks (`simulate`).
    Limits: a prompt alone gets no faster: small chunks are bound by weights.
    """

    kind = Kind.INPUT
    requires = Requirement.NOTHING
    order = -7

    tokens: int = parameter("tokens of a sequence per chunk", 512, unit="tokens", least=1)

    def prefill(self, workload: Workload) -> Workload:
        return each(workload, lambda s: replace(s, q_len=np.minimum(s.q_len, self.tokens)))

    def schedule(self, schedule: Schedule, setting: SettingView) -> Schedule:  # noqa: ARG002
        return schedule.map(first=lambda run: self._chunks(run) if run.main else (run,))

    def _chunks(self, run: Run) -> Iterator[Run]:
        (s,) = run.workload.groups
        yield replace(run, name="chunks of the prefill", workload=Workload((self._cut(s),)))

    def _cut(self, s: Spans) -> Spans:
        """A pass over new tokens as passes over its chunks, along the last axis.

        Raises InputError where there are more than _MAX_CHUNKS.
        """
        new = int(s.q_len)
        if new > _MAX_CHUNKS * self.tokens:
            raise InputError(
                f"{self.name}: a prompt must have at most {_MAX_CHUNKS} chunks of {self.tokens} tokens, because each "
                f"is evaluated; got {new} tokens"
            )
        ends = np.append(np.arange(self.tokens, new, self.tokens), new)
        sizes = np.diff(ends, prepend=0)
        first, last = ends == ends[0], ends == new
        return replace(s, q_len=sizes, kv_len=s.past + ends, logits=last * s.logits, images=first * s.images)

    def findings(self, setting: SettingView, step: Workload) -> tuple[Finding, ...]:
        (s,) = step.groups
        full_prefill = Spans(batch=s.batch, q_len=s.source, kv_len=s.source, source=s.source)
        chunked_bytes, single_pass_bytes = (
            float(np.sum(setting.plan.estimate(Workload((each,))).sum("kv_bytes")))
            for each in (self._cut(full_prefill), full_prefill)
        )
        if not single_pass_bytes:
            return ()
        text = f"chunks read and write {chunked_bytes / single_pass_bytes:.3g} times the cache bytes of a single pass"
        return (Finding(key="cache_again", value=chunked_bytes / single_pass_bytes, text=text),)

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:  # noqa: ARG002
        if setting.model.is_encoder_decoder:
            return f"the encoder of {setting.model.name} is bidirectional: its prompt cannot be processed in chunks"
        return ""
