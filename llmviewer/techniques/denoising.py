"""Denoising: the passes of a model that refines its whole output step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..operators.linear import LMHead
from ..records import frozen
from ..workload import Spans, Workload
from . import technique
from ._parameters import parameter
from ._schedule import Run, Schedule, each
from ._technique import Kind, Requirement, SettingView, Technique


@technique("denoising")
@frozen(kw_only=True)
class Denoising(Technique):
    """Denoising: a diffusion model processes the same tokens repeatedly until no noise is left.

    Effect: the one pass of the model runs `steps` times. A language model has `tokens` masked tokens after its prompt,
    and every pass processes both; a block of them is final after its share of the passes. Classifier-free guidance
    takes a second sequence for each request. A step-distilled student takes few steps where its `teacher` takes many,
    and one sequence if it was taught what guidance does; the effect shown is that of the distillation.
    Formula: time = steps x pass of batch x (1 + guidance) sequences of prompt + tokens; the first block is final after
    steps x block / tokens passes.
    Source: arXiv:2502.09992, section 2.4 (masked diffusion of text, by blocks); arXiv:2207.12598 (guidance);
    arXiv:2202.00512, arXiv:2210.03142 (distillation of steps and of guidance).
    Use when: the model is a diffusion model of images (Stable Diffusion, SDXL, FLUX, PixArt, DiT) or a diffusion
    language model (LLaDA, Dream): a single pass is one step.
    Not modeled: decoders that are not autoregressive beside an encoder (mask-predict), encoders of text, the
    autoencoder, the choice of tokens between passes, and caches of finished blocks (arXiv:2505.22618).
    """

    kind = Kind.DECODING
    requires = Requirement.NOTHING
    one_pass = True

    steps: int = parameter("passes", 50, least=1, most=100_000)
    tokens: int = parameter("masked tokens after the prompt; 0 for images", 0, unit="tokens", least=0, most=1_000_000)
    block: int = parameter(
        "tokens that become final together; 0: all of them", 0, unit="tokens", least=0, most=1_000_000
    )
    guidance: bool = parameter("whether classifier-free guidance doubles the sequences", default=False)
    teacher: int = parameter(
        "passes of the teacher, if the model is its step-distilled student; 0: it is none", 0, least=0, most=100_000
    )
    guided_teacher: bool = parameter("whether the teacher has guidance and the student was taught it", default=False)

    @property
    def blocks(self) -> int:
        return self.tokens // self.block if self.block else 1

    def baseline(self) -> Denoising:
        if not self.teacher:
            return self
        guided = self.guidance or self.guided_teacher
        return replace(self, steps=self.teacher, guidance=guided, teacher=0, guided_teacher=False)

    def prefill(self, workload: Workload) -> Workload:
        def longer(s: Spans) -> Spans:
            return replace(
                s, batch=s.batch * (1 + self.guidance), q_len=s.q_len + self.tokens, kv_len=s.kv_len + self.tokens
            )

        return each(workload, longer)

    def schedule(self, schedule: Schedule, setting: SettingView) -> Schedule:  # noqa: ARG002
        (run,) = schedule.first
        return replace(
            schedule,
            first=(self._passes(run, self.steps / self.blocks),),
            rest=(self._passes(run, self.steps - self.steps / self.blocks),) if self.blocks > 1 else (),
            answer=schedule.answer * (self.tokens or run.workload.groups[0].q_len),
            steps=self.tokens - self.block if self.blocks > 1 else 0,
        )

    def _passes(self, run: Run, times: float) -> Run:
        return replace(run, name="denoising", workload=self.prefill(run.workload), times=times)

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:  # noqa: ARG002
        model = setting.model
        if model.generates:
            return f"{model.name} generates token by token; denoising is for models without a KV cache"
        if self.tokens and not any(isinstance(op, LMHead) for _, op in model.graph):
            return f"tokens must be 0: {model.name} has no prediction head"
        return next(self._contradictions(), "")

    def _contradictions(self) -> Iterator[str]:
        """Reasons why the parameters contradict each other."""
        if self.block and (not self.tokens or self.tokens % self.block):
            yield f"block must divide the {self.tokens} tokens; got {self.block}"
        if self.teacher and self.teacher <= self.steps:
            yield f"teacher must take more than the {self.steps} steps of its student; got {self.teacher}"
        if self.guided_teacher and (self.guidance or not self.teacher):
            yield "guided_teacher needs a teacher, and no guidance of the student; give teacher=50"
        if self.steps % self.blocks:
            yield f"steps must be a multiple of the {self.blocks} blocks; got {self.steps}"
