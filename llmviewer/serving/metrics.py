"""Times of the requests that a copy served, and how its own time was spent."""

from __future__ import annotations

from dataclasses import dataclass

from .lengths import Tokens
from .traffic import Times


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Where the time of a copy went, and its work. [s], [tokens], [B]

    reading_s, mixed_s, decoding_s  steps that read prompts alone, that read and decode, that decode alone
    full_s                          the part of them in which the next request waits for memory
    crowded_s                       the part in which it waits for a place in the batch
    sequence_s                      sequences that are worked on, summed over time
    read, reread                    tokens of prompts, and of requests that had lost their cache
    known                           tokens of either that were there already, and are not read
    evicted                         tokens of prompts that were kept and had to go, as memory was full
    written                         tokens of answers
    padding                         tokens read or written that nobody asked for
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
    evicted: float = 0
    written: float = 0
    padding: float = 0

    @property
    def there(self) -> float:
        """The part of all prompts that was in a cache before it was read."""
        return self.known / max(self.known + self.read + self.reread, 1)

    @property
    def busy_s(self) -> float:
        return self.reading_s + self.mixed_s + self.decoding_s


@dataclass(frozen=True, kw_only=True)
class Served:
    """What became of every request, in the order of the traffic.

    arrival_s  when it came [s]
    start_s    when its prompt was taken up [s]
    first_s    when its first token was there [s]
    finish_s   when its answer was there: where batches are padded, with the last of its batch [s]
    gap_s      the longest wait between two of its tokens [s]
    preempted  times that it lost its cache, to be read again
    known      tokens of its prompt that were there when it was first taken up
    """

    arrival_s: Times
    start_s: Times
    first_s: Times
    finish_s: Times
    gap_s: Times
    preempted: Tokens
    known: Tokens
    usage: Usage


@dataclass(frozen=True, kw_only=True)
class Span:
    """What is served while somebody always waits.

    begun        requests whose first token was written in it
    answered     requests that were answered in it
    decoding_s   from the first token of those to the last, on average [s]
    tpot_s       times per token of those of more than one
    gap_s        the longest wait between two tokens of each of these
    preemptions  requests that lost their cache in it
    """

    begun: int
    answered: int
    decoding_s: float
    tpot_s: Times
    gap_s: Times
    preemptions: int
    usage: Usage
