"""Times, calls and cache hits of whole sessions and tasks."""

from __future__ import annotations

import numpy as np

from ..records import frozen
from .lengths import Tokens
from .traffic import Calls, Times


@frozen(kw_only=True)
class TaskTimes:
    """Sessions or tasks of a run, each one entry.

    latency_s  from its first arrival to its last output token, with think times and waits for tools [s]
    serving_s  the longest chain of its requests, each from its arrival to its last output token [s]
    calls      its requests
    prompt     input tokens of all its requests, `cached` of which were in the prefix cache
    """

    kind: str
    latency_s: Times
    serving_s: Times
    calls: Tokens
    prompt: Tokens
    cached: Tokens

    @classmethod
    def of(
        cls, calls: Calls, *, arrival_s: Times, finish_s: Times, prompt: Tokens, cached: Tokens
    ) -> TaskTimes:  # fmt: skip
        first, last, longest = np.full(calls.count, np.inf), np.zeros(calls.count), np.zeros(calls.count)
        np.minimum.at(first, calls.task, arrival_s)
        np.maximum.at(last, calls.task, finish_s)
        chain_s: list[float] = []
        for parents, latency_s in zip(calls.parents, (finish_s - arrival_s).tolist(), strict=True):
            chain_s.append(latency_s + max((chain_s[parent] for parent in parents), default=0.0))
        np.maximum.at(longest, calls.task, chain_s)
        count, all_prompt, all_cached = (
            np.bincount(calls.task, each, calls.count).astype(np.int64)
            for each in (np.ones(len(chain_s)), prompt, cached)
        )
        return cls(
            kind=calls.kind, latency_s=last - first, serving_s=longest, calls=count, prompt=all_prompt,
            cached=all_cached,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.calls)

    @property
    def metrics(self) -> dict[str, Times]:
        """Numbers of each session or task by name."""
        counts = {"calls": self.calls, "prompt": self.prompt, "cached": self.cached}
        return {
            "latency_s": self.latency_s, "serving_s": self.serving_s,
            **{name: each.astype(float) for name, each in counts.items()},
        }  # fmt: skip
