"""Scheduling policies: the order in which a device runs prefills and decode steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..errors import InputError
from ..records import frozen
from .lengths import MAX_TOKENS, parse_count

_DEFAULT_TOKEN_BUDGET: Final = 2048  # prompt tokens of a step, unless a single prompt is longer
_STEP_COUNTS: Final = ("hold", "poll")  # numbers of steps in the notation of a policy


@frozen(kw_only=True)
class Policy:
    """A scheduling policy.

    mixes   a step may prefill and decode; else it does one of them, prefills first
    cuts    prefills are chunked
    drains  requests are admitted only when all running ones are finished
    padded  prompts and outputs are padded to the longest of the batch
    budget  maximum tokens of a step: of whole prompts, of which a single one may exceed it, or of chunks and the
            sequences that decode in the same step
    hold    where ranks wait for each other, prefills are held back until each rank has one, or one has nothing to
            decode, or for this many steps
    poll    the scheduler looks for new requests after a step with prefills, when idle, and after this many decode steps
    """

    name: str
    mixes: bool = False
    cuts: bool = False
    drains: bool = False
    padded: bool = False
    budget: int = _DEFAULT_TOKEN_BUDGET
    hold: int = 1
    poll: int = 1

    @property
    def shares(self) -> bool:
        """Whether chunks and decoding sequences share the token budget."""
        return self.cuts and self.mixes

    def most_read(self, longest: int) -> int:
        """Maximum prompt tokens of a step, by the longest prompt; padded batches have more."""
        return self.budget if self.cuts else max(self.budget, longest)

    def __str__(self) -> str:
        tokens = f":{self.budget}" if self.cuts or self.budget != _DEFAULT_TOKEN_BUDGET else ""
        steps = "".join(f",{key}={count}" for key in _STEP_COUNTS if (count := getattr(self, key)) > 1)
        return f"{self.name}{tokens}{steps}"


POLICIES: Final = {
    policy.name: policy
    for policy in (
        Policy(name="static", drains=True, padded=True),
        Policy(name="decode-first", drains=True),
        Policy(name="prefill-first"),  # vLLM until chunks were its default (arXiv:2309.06180)
        Policy(name="fcfs", mixes=True),  # steps of whole prompts and decoding sequences: Orca (OSDI 2022)
        Policy(name="chunked", mixes=True, cuts=True, budget=512),  # Sarathi-Serve (arXiv:2403.02310)
        Policy(name="prefill-chunks", cuts=True, budget=8192),  # SGLang
    )
}


def parse_policy(text: str) -> Policy:
    """Parses a policy, such as "chunked:512" with its token budget or "fcfs,hold=60" with its `hold`; `poll` likewise.

    Raises InputError for an unknown policy or an invalid number.
    """
    named, *assignments = (part.strip() for part in str(text).split(","))
    name, colon, budget = (part.strip() for part in named.partition(":"))
    if name not in POLICIES:
        raise InputError(f"policy must be one of {', '.join(POLICIES)}; got {text!r}")
    policy = POLICIES[name]
    steps = dict(_step_count(policy, one, text) for one in assignments)
    if len(steps) < len(assignments):
        raise InputError(f"policy {name} must give each of {', '.join(_STEP_COUNTS)} once at most; got {text!r}")
    policy = replace(policy, hold=steps.get("hold", policy.hold), poll=steps.get("poll", policy.poll))
    if not colon:
        return policy
    if policy.padded:
        raise InputError(f"policy {name} has no token budget, as it prefills a whole batch at once; got {text!r}")
    tokens = parse_count(budget)
    if tokens is None:
        raise InputError(f"policy {name}:TOKENS must give a whole number from 1 to {MAX_TOKENS}; got {text!r}")
    return replace(policy, budget=tokens)


def _step_count(policy: Policy, assignment: str, text: str) -> tuple[str, int]:
    """Name and value of an assignment such as "hold=60"."""
    key, _, value = (part.strip() for part in assignment.partition("="))
    if key not in _STEP_COUNTS:
        options = " and ".join(f"{name}=STEPS" for name in _STEP_COUNTS)
        raise InputError(f"policy {policy.name} takes {options} after a comma; got {text!r}")
    steps = parse_count(value)
    if steps is None:
        raise InputError(
            f"policy {policy.name},{key}=STEPS must give a whole number from 1 to {MAX_TOKENS}; got {text!r}"
        )
    if policy.drains:
        raise InputError(
            f"policy {policy.name} has no {key}, as it prefills only when no sequence decodes; got {text!r}"
        )
    return key, steps
