"""`Drafting`, the base of speculative decoding: cheap drafts, verified in one pass of the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import mul
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from ..forms import Num
from ..graph import Graph
from ..model import vocabulary
from ..records import frozen
from ..roofline import Plan
from ..workload import Spans, Workload
from ._parameters import parameter
from ._schedule import Run, Schedule, each
from ._technique import Drafter, Finding, Kind, Requirement, SettingView, Technique

FREE_RATIO: Final = 1.1  # time of a verification over that of a decode step, up to which verification counts as free
NUM_TOKENS: Final = ("num_speculative_tokens",)  # vLLM's name of the tokens drafted before each verification
_BATCHES: Final = np.arange(1, 4097)
_BISECTION_STEPS: Final = 53  # to the last bit of a float


@frozen(kw_only=True)
class Drafting(Technique):
    """A pass verifies several drafted tokens of each sequence and keeps those accepted."""

    kind = Kind.DECODING
    requires = Requirement.NOTHING
    simulatable = True
    order = 9  # after techniques that change the passes, whose decode steps become verifications
    default_tokens_per_pass: ClassVar[float | None] = None  # tokens per pass if neither alpha nor tau is given
    default_acceptance: ClassVar[float | None] = None  # acceptance rate instead of them

    alpha: float | None = parameter(
        "acceptance rate: the probability that a drafted token is accepted", None, least=0, most=1
    )
    tau: float | None = parameter("measured mean tokens per pass, instead of alpha", None, least=1)

    @property
    def proposed(self) -> int:
        """Drafted tokens in a pass."""
        return self.depth

    @property
    def depth(self) -> int:
        """Drafted tokens that a pass can accept at most."""
        raise NotImplementedError

    @property
    def tokens(self) -> float:
        """Mean tokens per pass: those accepted and the one that the pass adds."""
        alpha = self._acceptance
        if alpha is None:
            return self.tau or self._published_tokens or 1.0
        return sum(self.reached(alpha))

    @property
    def acceptance_probabilities(self) -> tuple[float, ...]:
        """Probabilities that a pass yields at least 1, 2, ... tokens; `tau` sets the acceptance rate with this mean."""
        if self._acceptance is not None:
            return self.reached(self._acceptance)
        low, high = 0.0, 1.0
        for _ in range(_BISECTION_STEPS):
            alpha = (low + high) / 2
            low, high = (alpha, high) if sum(self.reached(alpha)) < self.tokens else (low, alpha)
        return self.reached(high)

    @property
    def _acceptance(self) -> float | None:
        """The acceptance rate; None if tokens per pass are known instead."""
        return self.alpha if self.alpha is not None or self.tau else self._published_acceptance

    @property
    def _published_acceptance(self) -> float | None:
        """The acceptance rate if neither alpha nor tau is given; None if it is unknown."""
        return self.default_acceptance

    @property
    def _published_tokens(self) -> float | None:
        """Tokens per pass if neither alpha nor tau is given; None if they are unknown."""
        return self.default_tokens_per_pass

    def reached(self, alpha: float) -> tuple[float, ...]:
        """Probabilities that a pass yields at least 1, 2, ... tokens at acceptance rate `alpha`.

        Their sum is (1 - alpha^(depth+1)) / (1 - alpha) (arXiv:2211.17192, equation 1).
        """
        return tuple(accumulate([alpha] * self.depth, mul, initial=1.0))

    def auxiliary_graphs(self, setting: SettingView) -> tuple[Graph, ...]:
        drafter = self.drafter(setting)
        return (drafter.network.decode_graph,) if drafter else ()

    def step(self, workload: Workload) -> Workload:
        return each(workload, self._verified)

    def _verified(self, s: Spans) -> Spans:
        new = s.q_len + self.proposed
        return replace(s, q_len=new, kv_len=s.kv_len + self.proposed, logits=new)

    def schedule(self, schedule: Schedule, setting: SettingView) -> Schedule:
        tokens = np.minimum(self.tokens, schedule.steps)  # at least one whole pass

        drafter = self.drafter(setting)

        def verified(run: Run) -> Iterator[Run]:
            if not (run.main and all(np.all(np.equal(s.q_len, 1)) for s in run.workload.groups)):
                yield run
                return
            verification = replace(run, name="verification", workload=self.step(run.workload))
            for new_run in (*((_draft_run(drafter, run),) if drafter else ()), verification):
                yield replace(new_run, times=np.divide(new_run.times, tokens))

        decoding = schedule.map(rest=verified)
        if not drafter or not drafter.reads:
            return decoding
        draft_prefills = (_draft_prefill(drafter, run) for run in schedule.first if run.main)
        return replace(decoding, first=(*schedule.first, *draft_prefills))

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        if self.alpha is not None and self.tau is not None:
            return "give alpha (acceptance rate) or tau (mean tokens per pass), not both"
        if self._acceptance is None and not (self.tau or self._published_tokens):
            return "give alpha (acceptance rate) or tau (mean tokens per pass)"
        if self.tokens > self.depth + 1:
            max_tokens = self.depth + 1
            must = f"tokens per pass must be at most {max_tokens}"
            return f"{must}; got {self.tokens:g}; give alpha, or tau up to {max_tokens}"
        for other in others:
            if other is not self and isinstance(other, Drafting):
                return f"{other.name} also drafts tokens; give one of the two"
        if not vocabulary(setting.model):
            return f"{setting.model.name} has no prediction head to verify tokens with"
        return ""

    def findings(self, setting: SettingView, step: Workload) -> tuple[Finding, ...]:
        plan, (group,) = setting.decode_plan, step.groups
        plain = replace(group, q_len=1, kv_len=group.kv_len - self.proposed, logits=1)
        ratio = float(self._over(plan, plain))
        free = np.asarray(self._over(plan, replace(plain, batch=_BATCHES))) <= FREE_RATIO
        first, last = _free_batches(free, setting.layout.dp)
        where = _batch_range_text(first, last)
        return (
            Finding(
                key="verification_over_step",
                value=ratio,
                text=f"a verification of {self.proposed + 1} tokens takes {ratio:.2f} times as long as a decode step",
            ),
            Finding(key="free_from_batch", value=first, text=""),
            Finding(
                key="free_up_to_batch",
                value=last,
                text=f"verification is free (within {FREE_RATIO - 1:.0%} of a decode step) {where} at this context",
            ),
        )

    def _over(self, plan: Plan, plain: Spans) -> Num:
        return plan.time_s(Workload((self._verified(plain),))) / plan.time_s(Workload((plain,)))


def drafted_tokens(default: int) -> Any:
    """The parameter `gamma` of techniques that draft tokens one after another."""
    return parameter("tokens drafted before each verification", default, least=1, most=64, aliases=NUM_TOKENS)


@frozen(kw_only=True)
class ChainDrafting(Drafting):
    """`gamma` tokens are drafted one after another."""

    gamma: int = drafted_tokens(1)

    @property
    def depth(self) -> int:
        return self.gamma


def _free_batches(free: npt.NDArray[np.bool_], replicas: int) -> tuple[int | None, int | None]:
    """The first and last batch, over `replicas` data-parallel replicas, at which verification is free.

    None and 0 if there is none; None as the last if all from the first on are free. The first may exceed 1 because
    one sequence reads more experts to verify several tokens, and large batches read all of them anyway.
    """
    if not np.any(free):
        return None, 0
    first = int(np.argmax(free))
    after = np.flatnonzero(~free[first:])
    return int(_BATCHES[first] - 1) * replicas + 1, int(
        _BATCHES[first] + after[0] - 1
    ) * replicas if after.size else None


def _batch_range_text(first: int | None, last: int | None) -> str:
    if first is None:
        return "at no batch"
    if first == 1 and last:
        return f"up to batch {last}"
    return f"from batch {first} to {last or _BATCHES[-1]}"


def _draft_run(drafter: Drafter, run: Run) -> Run:
    """The passes of the drafter before a verification for each step of `run`."""
    times = np.repeat(run.times, len(drafter.widths), axis=-1) if np.ndim(run.times) else run.times
    passes = drafter.passes(run.workload)
    drafts = Run(
        name=drafter.name, plan=drafter.network.decode_plan, workload=passes, times=times, parts=run.parts, main=False
    )
    return _merge_equal_passes(drafts)


def _merge_equal_passes(run: Run) -> Run:
    """Merges equal passes of a run into one that is repeated.

    The drafts of consecutive steps have nearly the same lengths: gamma times as many passes as lengths.
    """
    group, *others = run.workload.groups
    if others or np.ndim(group.kv_len) != 1 or np.ndim(group.batch) or np.ndim(run.times) > 1:
        return run
    lengths = np.asarray(group.kv_len - np.min(group.kv_len), dtype=np.intp)
    width, width_indices = np.unique(group.q_len, return_inverse=True)
    span = int(np.max(lengths)) + 1
    if np.any(lengths + np.min(group.kv_len) != group.kv_len) or span > len(lengths):  # few passes are equal
        return run
    pass_indices = lengths + span * width_indices
    counts = np.bincount(pass_indices)
    nonempty = np.flatnonzero(counts)
    new_widths = width[nonempty // span] if np.ndim(group.q_len) else group.q_len
    merged = replace(group, q_len=new_widths, kv_len=np.min(group.kv_len) + nonempty % span, logits=new_widths)
    times = np.bincount(pass_indices, weights=np.broadcast_to(run.times, pass_indices.shape))[nonempty]
    return replace(run, workload=Workload((merged,)), times=times)


def _draft_prefill(drafter: Drafter, run: Run) -> Run:
    """The drafter's own prefill, once after the prefill `run`. It belongs to the same step, after which engines return
    the first token.
    """
    workload = each(run.workload, lambda s: replace(s, images=0))
    return Run(
        name=f"prompt of {drafter.name}", plan=drafter.network.plan, workload=workload, times=float(drafter.models),
        parts=run.parts, main=False,
    )  # fmt: skip
