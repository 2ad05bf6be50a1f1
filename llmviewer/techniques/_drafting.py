"""What all forms of speculative decoding share: tokens are proposed cheaply, and verified in one pass of the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from ..forms import Num
from ..graph import Graph
from ..model import Model
from ..operators.linear import LMHead
from ..roofline import Plan
from ..workload import Spans, Workload
from ._parameters import parameter
from ._schedule import Run, Schedule, each
from ._technique import Drafter, Finding, Kind, Machine, Technique, Touches

FREE: Final = 1.1  # a verification that takes so much longer than a decode step is no longer free
_BATCHES: Final = np.arange(1, 4097)
_HALVINGS: Final = 53  # of the probabilities among which one is looked for, down to the last bit


@dataclass(frozen=True, kw_only=True)
class Drafting(Technique):
    """A pass of the model takes several tokens of each sequence, of which some are kept."""

    kind = Kind.DECODING
    touches = Touches.NOTHING
    scheduled = True
    order = 9  # what verifies several tokens takes the steps that others have left
    usual: ClassVar[float | None] = None  # tokens of a pass where nothing is said

    alpha: float | None = parameter("probability that a proposed token is accepted", None, least=0, most=1)
    tau: float | None = parameter("tokens that a pass leaves, as measured; instead of alpha", None, least=1)

    @property
    def proposed(self) -> int:
        """Tokens that a pass verifies beside the one that it would take anyway."""
        return self.depth

    @property
    def depth(self) -> int:
        """Tokens that a pass can accept, its own apart."""
        raise NotImplementedError

    @property
    def tokens(self) -> float:
        """Those that a pass leaves on average, its own included."""
        if self.alpha is None:
            return self.tau or self.usual or 1.0
        return sum(self.reached(self.alpha))

    @property
    def leaves(self) -> tuple[float, ...]:
        """Where `tau` was measured, as with the probability that leaves so many on average."""
        if self.alpha is not None:
            return self.reached(self.alpha)
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS):
            alpha = (low + high) / 2
            low, high = (alpha, high) if sum(self.reached(alpha)) < self.tokens else (low, alpha)
        return self.reached(high)

    def reached(self, alpha: float) -> tuple[float, ...]:
        """How likely a pass leaves at least 1, 2, ... tokens, where each that is proposed is accepted with probability
        `alpha` (arXiv:2211.17192, equation 1: their sum is (1 - alpha^(depth+1)) / (1 - alpha)).
        """
        return tuple(accumulate([alpha] * self.depth, mul, initial=1.0))

    def beside(self, machine: Machine) -> tuple[Graph, ...]:
        drafter = self.drafter(machine)
        return (drafter.network.decode_graph,) if drafter else ()

    def step(self, workload: Workload) -> Workload:
        return each(workload, self._verified)

    def _verified(self, s: Spans) -> Spans:
        new = s.q_len + self.proposed
        return replace(s, q_len=new, kv_len=s.kv_len + self.proposed, logits=new)

    def schedule(self, schedule: Schedule, machine: Machine) -> Schedule:
        tokens = np.minimum(self.tokens, schedule.steps)  # a pass is whole where few tokens are wanted

        drafter = self.drafter(machine)

        def verified(run: Run) -> Iterator[Run]:
            if not (run.main and all(np.all(np.equal(s.q_len, 1)) for s in run.workload.groups)):
                yield run
                return
            verification = replace(run, name="verification", workload=self.step(run.workload))
            for each_time in (*((_drafts(drafter, run),) if drafter else ()), verification):
                yield replace(each_time, times=np.divide(each_time.times, tokens))

        decoding = schedule.map(rest=verified)
        if not schedule.rest or not drafter or not drafter.reads:
            return decoding
        once = (_reads(drafter, run) for run in schedule.first if run.main)
        return replace(decoding, rest=(*once, *decoding.rest))

    def refuses(self, machine: Machine, others: Sequence[Technique]) -> str:
        if self.alpha is not None and self.tau is not None:
            return "give one of alpha (a probability for each token) and tau (tokens of each pass)"
        if self.alpha is None and not (self.tau or self.usual):
            return "give alpha (a probability for each token) or tau (tokens of each pass)"
        if self.tokens > self.depth + 1:
            return f"a pass that can accept {self.depth} tokens leaves at most {self.depth + 1}; got {self.tokens:g}"
        for other in others:
            if other is not self and isinstance(other, Drafting):
                return f"{other.name} proposes tokens too, and a pass verifies those of one of them"
        if not vocabulary(machine.model):
            return f"{machine.model.name} has no prediction head that would verify tokens"
        return ""

    def findings(self, machine: Machine, step: Workload) -> tuple[Finding, ...]:
        plan, (group,) = machine.decode_plan, step.groups
        plain = replace(group, q_len=1, kv_len=group.kv_len - self.proposed, logits=1)
        ratio = float(self._over(plan, plain))
        free = np.asarray(self._over(plan, replace(plain, batch=_BATCHES))) <= FREE
        first, last = _stretch(free, machine.layout.dp)
        where = _at(first, last)
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
                text=f"verification is free (within {FREE - 1:.0%} of a decode step) {where} at this context",
            ),
        )

    def _over(self, plan: Plan, plain: Spans) -> Num:
        return plan.time_s(Workload((self._verified(plain),))) / plan.time_s(Workload((plain,)))


def _stretch(free: npt.NDArray[np.bool_], copies: int) -> tuple[int | None, int | None]:
    """The first and last number of sequences, on so many `copies` together, at which a pass is free: None and 0 where
    there is none, None as the last where all from the first on are. One sequence may read more experts to verify
    several tokens, and many all of them anyway.
    """
    if not np.any(free):
        return None, 0
    first = int(np.argmax(free))
    after = np.flatnonzero(~free[first:])
    return int(_BATCHES[first] - 1) * copies + 1, int(_BATCHES[first] + after[0] - 1) * copies if after.size else None


def _at(first: int | None, last: int | None) -> str:
    if first is None:
        return "at no number of sequences"
    if first == 1 and last:
        return f"up to {last} sequence{'s'[: last > 1]} at a time"
    return f"from {first} to {last or _BATCHES[-1]} sequences at a time"


def _drafts(drafter: Drafter, run: Run) -> Run:
    """What proposes tokens, before a verification for each step of `run`."""
    times = np.repeat(run.times, len(drafter.widths), axis=-1) if np.ndim(run.times) else run.times
    passes = drafter.passes(run.workload)
    return Run(
        name=drafter.name, plan=drafter.network.decode_plan, workload=passes, times=times, parts=run.parts, main=False
    )


def _reads(drafter: Drafter, run: Run) -> Run:
    """What has to be done once, after the prefill `run`."""
    read = each(run.workload, lambda s: replace(s, images=0))
    return Run(name=f"prompt of {drafter.name}", plan=drafter.network.plan, workload=read, parts=run.parts, main=False)


def vocabulary(model: Model) -> int:
    """Rows of the prediction head; 0 where there is none."""
    return next((op.weight.shape[0] for _, op in model.graph if isinstance(op, LMHead)), 0)
