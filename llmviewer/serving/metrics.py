"""Times of the requests that a replica served, and how its own time was spent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Self

from ..records import frozen
from .lengths import Tokens
from .traffic import Times


@frozen(kw_only=True)
class Usage:
    """Time and work of a replica. [s], [tokens], [B]

    reading_s, mixed_s, decoding_s  steps that only prefill, that prefill and decode, that only decode
    full_s                          part of that time in which the next request is blocked by KV memory
    crowded_s                       part of that time in which it is blocked by the batch limit
    sequence_s, paused_s            running sequences, and paused ones, summed over time
    read, reread                    prefilled tokens, and those recomputed after preemption
    known                           cached tokens of either, which are not computed
    known_at_most                   the same with an optimal eviction policy, for the same admissions and memory
    evicted                         cached prompt tokens evicted for lack of memory
    written                         output tokens
    padding                         tokens computed only as padding
    paused                          times that a running request gave its place to a waiting one, and kept its KV cache
    swapped                         KV cache moved to the host and back [B]
    """

    reading_s: float = 0.0
    mixed_s: float = 0.0
    decoding_s: float = 0.0
    full_s: float = 0.0
    crowded_s: float = 0.0
    sequence_s: float = 0.0
    peak_bytes: float = 0.0
    room_bytes: float = 0.0
    read: float = 0
    reread: float = 0
    known: float = 0
    known_at_most: float = 0
    evicted: float = 0
    written: float = 0
    padding: float = 0
    paused: float = 0
    paused_s: float = 0.0
    swapped: float = 0.0

    @classmethod
    def total(cls, usages: Sequence[Self]) -> Self:
        """Time and work of several servers together."""
        return cls(**{f.name: sum(getattr(usage, f.name) for usage in usages) for f in fields(cls)})

    @property
    def there(self) -> float:
        """Prefix-cache hit rate over all prompt tokens."""
        return self.known / max(self.known + self.read + self.reread, 1)

    @property
    def there_at_most(self) -> float:
        """Prefix-cache hit rate that no eviction policy exceeds, for the same admissions and memory."""
        return self.known_at_most / max(self.known + self.read + self.reread, 1)

    @property
    def busy_s(self) -> float:
        return self.reading_s + self.mixed_s + self.decoding_s


@frozen(kw_only=True)
class Served:
    """Times of every request, in the order of the traffic.

    arrival_s  arrival [s]
    start_s    first admission [s]
    first_s    first output token [s]
    finish_s   last output token; with the last of its batch, if batches are padded [s]
    gap_s      longest time between two output tokens [s]
    preempted  number of preemptions
    known      cached tokens of its prompt at its first admission
    """

    arrival_s: Times
    start_s: Times
    first_s: Times
    finish_s: Times
    gap_s: Times
    preempted: Tokens
    known: Tokens
    usage: Usage


@frozen(kw_only=True)
class Span:
    """Measurements of a time span in which a request always waits.

    begun        requests with their first output token in the span
    answered     requests that finished in the span
    decoding_s   their mean time from the first output token to the last [s]
    tpot_s       times per output token of those with more than one
    gap_s        longest time between two output tokens of each of these
    preemptions  preemptions in the span
    """

    begun: int
    answered: int
    decoding_s: float
    tpot_s: Times
    gap_s: Times
    preemptions: int
    usage: Usage
