"""Scheduling policies: the order in which a device runs prefills and decode steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from ..errors import InputError
from ..records import frozen
from .lengths import MAX_TOKENS, parse_count

_DEFAULT_TOKEN_BUDGET: Final = 2048  # prompt tokens of a step, unless a single prompt is longer
_STEP_COUNTS: Final = ("hold", "poll")  # numbers of steps in the notation of a policy
FIRST_COME_FIRST_SERVED: Final = "arrival"
ORDERS: Final = (FIRST_COME_FIRST_SERVED, "sjf", "srpt", "mlfq", "vtc")  # of waiting requests; orders.py has the others
_PREEMPTING_ORDERS: Final = ("srpt", "mlfq")
_PREDICTING_ORDERS: Final = ("sjf", "srpt")


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
    fill    elsewhere, they are held back for `hold` steps at most, until the step has this share of the token budget,
            or nothing to decode; 0: they are not
    poll    the scheduler looks for new requests after a step with prefills, when idle, and after this many decode steps
    order   one of ORDERS, by which waiting requests are admitted
    bins    number of equal bins of output lengths in which they are predicted; 0: lengths are known
    """

    name: str
    mixes: bool = False
    cuts: bool = False
    drains: bool = False
    padded: bool = False
    budget: int = _DEFAULT_TOKEN_BUDGET
    hold: int = 1
    fill: float = 0.0
    poll: int = 1
    order: str = FIRST_COME_FIRST_SERVED
    bins: int = 0

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
        steps += f",fill={self.fill:g}" if self.fill else ""
        order = f",order={self.order}" if self.order != FIRST_COME_FIRST_SERVED else ""
        bins = f",bins={self.bins}" if self.bins else ""
        return f"{self.name}{tokens}{steps}{order}{bins}"


_FILL: Final = "fill"
_FIELDS: Final = {  # in the notation
    **dict.fromkeys(_STEP_COUNTS, "STEPS"), _FILL: "SHARE", "order": "ORDER", "bins": "N",
}  # fmt: skip

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
    """Parses a policy, such as "chunked:512" with its token budget or "fcfs,order=sjf,bins=10" with other fields.

    Raises InputError for an unknown policy or order, or an invalid number.
    """
    named, *assignments = (part.strip() for part in str(text).split(","))
    name, colon, budget = (part.strip() for part in named.partition(":"))
    if name not in POLICIES:
        raise InputError(f"policy must be one of {', '.join(POLICIES)}; got {text!r}")
    policy = POLICIES[name]
    values = dict(_assigned(policy, one, text) for one in assignments)
    if len(values) < len(assignments):
        raise InputError(f"policy {name} must give each of {', '.join(_FIELDS)} once at most; got {text!r}")
    policy = replace(policy, **values)
    if policy.bins and policy.order not in _PREDICTING_ORDERS:
        raise InputError(
            f"policy {name},bins=N needs order={' or order='.join(_PREDICTING_ORDERS)}, which know the output lengths; "
            f"got {text!r}"
        )
    if policy.fill and policy.hold == 1:
        raise InputError(f"policy {name},fill=SHARE needs hold=STEPS, for which it waits at most; got {text!r}")
    if not colon:
        return policy
    if policy.padded:
        raise InputError(f"policy {name} has no token budget, as it prefills a whole batch at once; got {text!r}")
    tokens = parse_count(budget)
    if tokens is None:
        raise InputError(f"policy {name}:TOKENS must give a whole number from 1 to {MAX_TOKENS}; got {text!r}")
    return replace(policy, budget=tokens)


def _assigned(policy: Policy, assignment: str, text: str) -> tuple[str, Any]:
    """Name and value of a field in an assignment such as "hold=60"."""
    key, _, value = (part.strip() for part in assignment.partition("="))
    if key not in _FIELDS:
        options = ", ".join(f"{name}={kind}" for name, kind in _FIELDS.items())
        raise InputError(f"policy {policy.name} takes {options} after a comma; got {text!r}")
    if key == "order":
        orders = [order for order in ORDERS if not (policy.drains and order in _PREEMPTING_ORDERS)]
        if value not in orders:
            raise InputError(f"policy {policy.name},order=ORDER must give one of {', '.join(orders)}; got {text!r}")
        return key, value
    if key == _FILL:
        share = _share(value)
        if share is None or policy.drains:
            raise InputError(
                f"policy {policy.name},fill=SHARE must give a share of the tokens of a step, above 0 and at most 1, of "
                f"a policy that prefills while sequences decode; got {text!r}"
            )
        return key, share
    count = parse_count(value)
    if count is None:
        raise InputError(
            f"policy {policy.name},{key}={_FIELDS[key]} must give a whole number from 1 to {MAX_TOKENS}; got {text!r}"
        )
    if policy.drains and key in _STEP_COUNTS:
        raise InputError(
            f"policy {policy.name} has no {key}, as it prefills only when no sequence decodes; got {text!r}"
        )
    return key, count


def _share(text: str) -> float | None:
    """A number above 0 and at most 1; None for other texts."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value <= 1 else None
