"""Techniques that replace the passes of a generation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, cached_property
from math import ceil
from typing import Final

import numpy as np
import numpy.typing as npt

from ..forms import Num
from ..graph import Graph
from ..model import Model
from ..model_files import load_model
from ..records import frozen
from ..workload import Spans, Workload
from . import technique
from ._drafting import Drafting
from ._parameters import parameter
from ._schedule import Run, Schedule, each
from ._spans import shared
from ._technique import Finding, Kind, Requirement, SettingView, Technique, overrides
from .prompts import PrefixCaching

_ROUNDING: Final = 1e-9  # of a step: sums of fractions of an answer


@technique("no-cache")
@frozen(kw_only=True)
class NoCache(Technique):
    """Decoding without a KV cache: every token is computed from the whole text before it.

    Effect: a decode step becomes a pass over the prompt and the output so far. No cache is stored.
    Formula: time of m tokens = sum over i < m of a prefill of n + i tokens. The OPs of linears are quadratic in m; with
    a cache they are linear.
    Source: the baseline of arXiv:2404.14294, section 2.2.
    Use when: you want to quantify the gain of the cache, or memory cannot hold one.
    Limits: it makes nothing faster.
    """

    kind = Kind.DECODING
    requires = Requirement.NOTHING

    def step(self, workload: Workload) -> Workload:
        return each(workload, lambda s: replace(s, q_len=s.kv_len))

    def retained_cache(self, workload: Workload) -> Workload:
        return each(workload, lambda s: Spans(batch=s.batch, q_len=0, kv_len=0, logits=0))

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        cached = (other for other in others if other.kind is Kind.ATTENTION or isinstance(other, PrefixCaching))
        conflicting = next(cached, None) or next((other for other in others if _changes_passes(other)), None)
        if conflicting:
            return f"{conflicting.name} needs a cache"
        if setting.model.is_encoder_decoder:
            return f"{setting.model.name} caches the output of its encoder"
        return ""


class Parallel(Technique):
    """Parts of an answer that are generated side by side."""

    kind = Kind.DECODING

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        conflicting = next(
            (other for other in others if _changes_passes(other) and not isinstance(other, Drafting)),
            None,
        )
        if conflicting:
            return f"{conflicting.name} also changes the passes of a generation; give one of the two"
        if setting.model.is_encoder_decoder:
            return f"{setting.model.name} processes its prompt in an encoder; {self.name} is for models without one"
        return ""


@technique("skeleton")
@frozen(kw_only=True)
class Skeleton(Parallel):
    """Skeleton-of-Thought: a short outline first, then its points in parallel; by turns, skeleton graph decoding.

    Effect: the outline is decoded first. Then `points` sequences per prompt prefill an instruction each and generate
    their part of the output. They share prompt and outline, which are stored once. With `levels`, the points are the
    nodes of a graph and take as many turns: a point of a later turn first processes the answer that it depends on. A
    `router` reads the prompt and sends the fraction `suitable` of the requests this way, others as usual.
    Formula: router + prefill + outline steps at batch B + levels x (a pass of points / levels x B instructions + (m /
    points) steps at batch points / levels x B).
    Source: arXiv:2307.15337, section 2, and section 4 (router); graphs: arXiv:2402.12280.
    Use when: long outputs have independent parts and batches are small: levels x m / points steps instead of m.
    Limits: no gain once the larger batch costs as much time as it saves, nor for short outputs, which take less time
    than outline and instructions.
    Not modeled: smaller models for easy points.
    """

    requires = Requirement.OTHER_OUTPUT

    points: int = parameter("parts of the output", 8, least=1, most=4096)
    outline: int = parameter("tokens in the outline", 40, unit="tokens", least=1, most=4096)
    instruction: int = parameter("tokens in the instruction for one point", 20, unit="tokens", least=1, most=4096)
    levels: int = parameter("turns in which points are answered", 1, least=1, most=4096)
    router: str = parameter("model that reads the prompt first and chooses; its time is not counted if not given", "")
    suitable: float = parameter("fraction of the requests that are answered by points", 1.0, least=0.001, most=1)

    def step(self, workload: Workload) -> Workload:
        return each(workload, lambda s: self._points(replace(s, kv_len=s.kv_len + self._before), self._widest))

    def retained_cache(self, workload: Workload) -> Workload:
        def cached(s: Spans) -> Spans:
            answer = self._answer(s.kv_len - s.source)
            tokens = s.source + self._before + (answer if self.levels == 1 else 2 * answer)
            return self._points(replace(s, kv_len=tokens), self._widest, common=True)

        return each(workload, cached)

    def schedule(self, schedule: Schedule, setting: SettingView) -> Schedule:
        routed = schedule.map(rest=lambda run: self._runs(run) if run.main else (run,))
        if not self.router:
            return routed
        plan = setting.helper(self.router_model, None).plan
        choosing = schedule.passes_over_prompts(f"choice by {self.router}", plan)
        return replace(routed, first=(*choosing, *routed.first))

    def auxiliary_graphs(self, setting: SettingView) -> tuple[Graph, ...]:
        return (setting.helper(self.router_model, None).graph,) if self.router else ()

    @cached_property
    def router_model(self) -> Model:
        """The model that chooses the requests."""
        return load_model(self.router)

    def _runs(self, run: Run) -> Iterator[Run]:
        (s,) = run.workload.groups
        new = np.arange(1.0, float(self._answer(np.shape(s.kv_len)[-1])) + 1)
        outline = replace(s, kv_len=s.source + np.arange(1.0, self.outline + 1))
        outlined = replace(run, times=self.suitable * run.times)
        yield replace(outlined, name="outline", workload=Workload((outline,)))
        for (width, answered), levels in self._turns.items():
            read = self.instruction + answered * len(new)
            before = s.source + self.outline + read
            instructions = self._points(replace(s, q_len=read, kv_len=before), width)
            points = self._points(replace(s, kv_len=before + new), width)
            level = replace(outlined, times=levels * outlined.times)
            yield replace(level, name="instructions", workload=Workload((instructions,)))
            yield replace(level, name="points", workload=Workload((points,)))
        if self.suitable < 1:
            yield replace(run, times=(1 - self.suitable) * run.times)

    @property
    def _turns(self) -> Counter[tuple[int, int]]:
        """Number of turns by (points, answers that each of them depends on)."""
        least, more = divmod(self.points, self.levels)
        return Counter((least + (level < more), min(level, 1)) for level in range(self.levels))

    @property
    def _widest(self) -> int:
        """Points of the largest turn."""
        return -(-self.points // self.levels)

    @property
    def _before(self) -> int:
        """Tokens between the prompt and each point of the first turn."""
        return self.outline + self.instruction

    def _answer(self, tokens: Num) -> Num:
        """Tokens of one point."""
        answer: Num = np.ceil(tokens / self.points)
        return answer

    def _points(self, s: Spans, points: int, *, common: bool = False) -> Spans:
        prefix: Num = s.source + self.outline
        return shared(s, copies=points, prefix=prefix, common=common)

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        if self.levels > self.points:
            return f"levels must be at most points={self.points}; got {self.levels}"
        return super().incompatibility(setting, others)


@technique("fork")
@frozen(kw_only=True)
class Fork(Parallel):
    """Forked decoding (APAR): the model marks where its answer branches, and the branches are decoded side by side.

    Effect: an answer has `branches` equal branches. A sequence writes the fraction `lead` of each branch, forks the
    rest into a sequence of its own and goes on with the next branch; with depth=2, those sequences fork again. A step
    has the sequences that are running. Each sees the tokens on its own path alone, and the cache of a path is released
    with its last sequence.
    Formula: steps = m x (lead + (1 - lead) / branches), for one level; the context of a step is as long as without
    forks.
    Source: arXiv:2401.06761, sections 2 and 3. Defaults halve the steps, the largest gain in its abstract.
    Use when: answers are lists or have paragraphs, and batches are small; in large ones, contexts and cache shrink.
    Limits: the model must be trained to mark branches. No gain for answers in one piece.
    """

    requires = Requirement.NEW_WEIGHTS

    branches: int = parameter("branches of an answer", 4, least=2, most=32)
    lead: float = parameter("fraction of a branch that is written before its fork", 1 / 3, least=0, most=1, open=True)
    depth: int = parameter("levels of forks", 1, least=1, most=2)

    def step(self, workload: Workload) -> Workload:
        return each(workload, lambda s: s.times(1 / self.tree.end))

    def retained_cache(self, workload: Workload) -> Workload:
        return each(workload, lambda s: replace(s, kv_len=s.source + self.tree.peak * (s.kv_len - s.source)))

    def schedule(self, schedule: Schedule, setting: SettingView) -> Schedule:  # noqa: ARG002
        return schedule.map(rest=lambda run: (self._forked(run),) if run.main else (run,))

    def _forked(self, run: Run) -> Run:
        """The steps of a run of decode steps, with the sequences that run in each."""
        (s,) = run.workload.groups
        contexts = np.asarray(s.kv_len)
        tokens = contexts.shape[-1]
        steps = np.arange(ceil(tokens * self.tree.end - _ROUNDING) + 1.0)
        running = np.diff(tokens * self.tree.written(steps / tokens))
        branches = replace(s, kv_len=contexts[..., : len(running)]).times(running)
        return replace(run, name="branches", workload=Workload((branches,)))

    @property
    def tree(self) -> _Tree:
        """The sequences of an answer."""
        return _tree(self.branches, self.lead, self.depth)

    def findings(self, setting: SettingView, step: Workload) -> tuple[Finding, ...]:  # noqa: ARG002
        mean, most = 1 / self.tree.end, self.tree.most
        text = f"{mean:.3g} sequences of an answer run in a step, {most} at most"
        return (
            Finding(key="sequences_per_step", value=mean, text=text),
            Finding(key="most_sequences", value=most, text=""),
            Finding(
                key="cache_peak", value=self.tree.peak,
                text=f"at most {self.tree.peak:.0%} of an answer's tokens are in the cache at once",
            ),
        )  # fmt: skip


@frozen(kw_only=True)
class _Tree:
    """Sequences of an answer of length 1: when each starts and ends writing, and when its last descendant ends."""

    start: npt.NDArray[np.float64]
    stop: npt.NDArray[np.float64]
    released: npt.NDArray[np.float64]

    @property
    def end(self) -> float:
        """The time of the last token, in which all tokens one after another take 1."""
        return float(self.stop.max())

    def written(self, times: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Tokens of all sequences at each time."""
        new: npt.NDArray[np.float64] = self._tokens(times).sum(axis=-1)
        return new

    def _tokens(self, times: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Tokens of each sequence at each time."""
        return np.clip(times[:, None], self.start, self.stop) - self.start

    @property
    def most(self) -> int:
        """Sequences that write at once."""
        return int(((self.start[:, None] >= self.start) & (self.start[:, None] < self.stop)).sum(axis=-1).max())

    @property
    def peak(self) -> float:
        """Largest number of tokens in the cache: those of sequences that have unfinished descendants."""
        return float((self._tokens(self.released) * (self.released >= self.released[:, None])).sum(axis=-1).max())


@cache
def _tree(branches: int, lead: float, depth: int) -> _Tree:
    """Sequences of an answer that forks, by the parameters of `Fork`."""
    rows: list[tuple[float, float, float]] = []

    def grow(start: float, tokens: float, level: int) -> float:
        """Adds a sequence and those that it forks; returns the end of the last."""
        stop = start + (lead * tokens if level else tokens)
        rest = (1 - lead) * tokens / branches
        forks = (start + lead * tokens * (branch + 1) / branches for branch in range(branches if level else 0))
        released = max([stop, *[grow(fork, rest, level - 1) for fork in forks]])
        rows.append((start, stop, released))
        return released

    grow(0.0, 1.0, depth)
    return _Tree(**dict(zip(("start", "stop", "released"), np.array(rows).T, strict=True)))


def _changes_passes(technique: Technique) -> bool:
    """Whether a technique changes the passes of a generation."""
    return technique.kind is Kind.DECODING and overrides(technique, "step", "retained_cache", "schedule")
