"""Techniques that replace the passes of a generation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ..forms import Num
from ..records import frozen
from ..workload import Spans, Workload
from . import technique
from ._drafting import Drafting
from ._parameters import parameter
from ._schedule import Run, Schedule, each
from ._spans import shared
from ._technique import Kind, Requirement, SettingView, Technique, overrides
from .prompts import PrefixCaching


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


@technique("skeleton")
@frozen(kw_only=True)
class Skeleton(Technique):
    """Skeleton-of-Thought: a short outline first, then all of its points in parallel.

    Effect: the outline is decoded first. Then `points` sequences per prompt prefill an instruction each and generate
    their part of the output. They share prompt and outline, which are stored once.
    Formula: prefill + outline steps at batch B + a pass of points x B instructions + (m / points) steps at batch points
    x B.
    Source: arXiv:2307.15337, section 2.
    Use when: long outputs have independent parts and batches are small: m / points steps instead of m.
    Limits: no gain once the larger batch costs as much time as it saves, nor for short outputs, which take less time
    than outline and instructions.
    """

    kind = Kind.DECODING
    requires = Requirement.OTHER_OUTPUT

    points: int = parameter("parts of the output", 8, least=1, most=4096)
    outline: int = parameter("tokens in the outline", 40, unit="tokens", least=1, most=4096)
    instruction: int = parameter("tokens in the instruction for one point", 20, unit="tokens", least=1, most=4096)

    def step(self, workload: Workload) -> Workload:
        return each(workload, lambda s: self._points(replace(s, kv_len=s.kv_len + self._before), common=False))

    def retained_cache(self, workload: Workload) -> Workload:
        def cached(s: Spans) -> Spans:
            point_tokens = np.ceil((s.kv_len - s.source) / self.points)
            return self._points(replace(s, kv_len=s.source + self._before + point_tokens), common=True)

        return each(workload, cached)

    def schedule(self, schedule: Schedule, setting: SettingView) -> Schedule:  # noqa: ARG002
        return schedule.map(rest=lambda run: self._runs(run) if run.main else (run,))

    def _runs(self, run: Run) -> Iterator[Run]:
        (s,) = run.workload.groups
        steps = np.ceil(np.shape(s.kv_len)[-1] / self.points)
        outline = replace(s, kv_len=s.source + np.arange(1.0, self.outline + 1))
        instructions = replace(s, q_len=self.instruction, kv_len=s.source + self._before)
        points = replace(s, kv_len=s.source + np.arange(1.0, steps + 1))
        yield replace(run, name="outline", workload=Workload((outline,)))
        yield replace(run, name="instructions", workload=Workload((self._points(instructions, common=False),)))
        yield replace(run, name="points", workload=self.step(Workload((points,))))

    @property
    def _before(self) -> int:
        """Tokens between the prompt and each point."""
        return self.outline + self.instruction

    def _points(self, s: Spans, *, common: bool) -> Spans:
        prefix: Num = s.source + self.outline
        return shared(s, copies=self.points, prefix=prefix, common=common)

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        conflicting = next(
            (other for other in others if _changes_passes(other) and not isinstance(other, Drafting)),
            None,
        )
        if conflicting:
            return f"{conflicting.name} also changes the passes of a generation; give one of the two"
        if setting.model.is_encoder_decoder:
            return f"{setting.model.name} processes its prompt in an encoder, to which no outline can be added"
        return ""


def _changes_passes(technique: Technique) -> bool:
    """Whether a technique changes the passes of a generation."""
    return technique.kind is Kind.DECODING and overrides(technique, "step", "retained_cache", "schedule")
