"""Scheduling policies: the order in which a device runs prefills and decode steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..errors import InputError
from ..records import frozen
from .lengths import LONGEST, counted

_BUDGET: Final = 2048  # tokens of whole prompts in one step, if more than one waits


@frozen(kw_only=True)
class Policy:
    """A scheduling policy.

    mixes   a step may prefill and decode; else it does one of them, prefills first
    cuts    prefills are chunked
    drains  requests are admitted only when all running ones are finished
    padded  prompts and outputs are padded to the longest of the batch
    budget  tokens of a step: of whole prompts, one of which always runs; of chunks, and of the sequences that decode in
            the same step
    hold    where ranks wait for each other, prefills are held back until each rank has one, or one has nothing to
            decode, or for this many steps
    """

    name: str
    mixes: bool = False
    cuts: bool = False
    drains: bool = False
    padded: bool = False
    budget: int = _BUDGET
    hold: int = 1

    @property
    def shares(self) -> bool:
        """Whether chunks and decoding sequences share the token budget."""
        return self.cuts and self.mixes

    def most_read(self, longest: int) -> int:
        """Maximum prompt tokens of a step, by the longest prompt; padded batches have more."""
        return self.budget if self.cuts else max(self.budget, longest)

    def __str__(self) -> str:
        tokens = f":{self.budget}" if self.cuts or self.budget != _BUDGET else ""
        return f"{self.name}{tokens}{f',hold={self.hold}' if self.hold > 1 else ''}"


POLICIES: Final = {
    policy.name: policy
    for policy in (
        Policy(name="static", drains=True, padded=True),
        Policy(name="decode-first", drains=True),
        Policy(name="prefill-first"),  # vLLM until chunks were its default (arXiv:2309.06180)
        Policy(name="fcfs", mixes=True),  # iterations of whole prompts and decode steps: Orca (OSDI 2022)
        Policy(name="chunked", mixes=True, cuts=True, budget=512),  # Sarathi-Serve (arXiv:2403.02310)
        Policy(name="prefill-chunks", cuts=True, budget=8192),  # SGLang
    )
}


def parse_policy(text: str) -> Policy:
    """Read the name of a policy; "chunked:512" with the tokens of a step, "fcfs,hold=60" with its `hold`.

    Raises InputError where there is none such.
    """
    named, comma, hold = (part.strip() for part in str(text).partition(","))
    name, colon, budget = (part.strip() for part in named.partition(":"))
    if name not in POLICIES:
        raise InputError(f"policy must be one of {', '.join(POLICIES)}; got {text!r}")
    policy = POLICIES[name]
    if comma:
        policy = replace(policy, hold=_hold(policy, hold, text))
    if not colon:
        return policy
    if policy.padded:
        raise InputError(f"policy {name} has no tokens to give, as it reads a whole batch at once; got {text!r}")
    tokens = counted(budget)
    if tokens is None:
        raise InputError(f"policy {name}:TOKENS must give a whole number from 1 to {LONGEST}; got {text!r}")
    return replace(policy, budget=tokens)


def _hold(policy: Policy, given: str, text: str) -> int:
    key, _, value = (part.strip() for part in given.partition("="))
    steps = counted(value) if key == "hold" else None
    if steps is None:
        raise InputError(f"policy {policy.name},hold=STEPS must give a whole number from 1 to {LONGEST}; got {text!r}")
    if policy.drains:
        raise InputError(f"policy {policy.name} reads when nobody decodes, so there is nothing to hold; got {text!r}")
    return steps
