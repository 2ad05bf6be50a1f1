"""Orders of waiting requests other than that of arrival: shortest first, feedback queues, fair shares of tenants.

`--policy POLICY,order=NAME` selects one of ORDERS; waiting_queue() makes it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import ceil, inf, log2
from typing import Final

from ..errors import InputError
from .policy import Policy
from .request_states import RequestStates
from .running_batch import RunningBatch
from .steps import Steps
from .traffic import Traffic

# Parameters of the queues are those of fastserve/scheduler.py (github.com/LLMServe/FastServe).
_QUANTUM_S: Final = 0.01  # of the first queue
_QUANTUM_GROWTH: Final = 2.0  # quantum of a queue over that of the one before
_STARVATION_S: Final = 3.0  # time without a step after which a request joins the first queue, at the next check
_STARVATION_STEPS: Final = 1000  # between two checks
_INPUT_WEIGHT, _OUTPUT_WEIGHT = 1.0, 2.0  # service of a token, as in the experiments of arXiv:2401.00588, section 5.1


class WaitingQueue(ABC):
    """Waiting requests by key; the first has the lowest key, and of equal ones arrived first."""

    def __init__(self, requests: RequestStates) -> None:
        self.requests = requests
        self._heap: list[tuple[float, int, int]] = []  # key, place in the order of arrivals, request

    @abstractmethod
    def key(self, request: int) -> float:
        """Key of a waiting request."""

    def append(self, request: int) -> None:
        """Adds a request that arrives."""
        heappush(self._heap, (self.key(request), self.requests.arrivals.place[request], request))

    def appendleft(self, request: int) -> None:
        """Adds a request that is preempted."""
        self.append(request)

    def popleft(self) -> int:
        """Removes the first request and returns it."""
        return heappop(self._heap)[2]

    def first(self) -> int:
        """The first request."""
        return self._heap[0][2]

    def __len__(self) -> int:
        return len(self._heap)

    # Events that change the keys of some orders:

    def update(self, now_s: float, steps: int) -> None:  # noqa: B027
        """Updates keys that change with time, after so many steps of the server."""

    def admitted(self, request: int, now_s: float) -> None:  # noqa: B027
        """Notes that a request starts to run."""

    def paused(self, request: int, now_s: float) -> None:  # noqa: B027
        """Notes that a request stops to run, before it waits again."""

    def decoded(self, batch: RunningBatch, tokens: int) -> None:  # noqa: B027
        """Notes that the sequences of a batch have `tokens` more output tokens together."""


class PreemptiveQueue(WaitingQueue):
    """Waiting requests, of which the first takes the place of a decoding one with a higher key."""

    @abstractmethod
    def running_keys(self, batch: RunningBatch, now_s: float) -> Sequence[float]:
        """Keys of the decoding sequences of a batch."""

    @abstractmethod
    def unchanged_s(self, batches: Sequence[RunningBatch], now_s: float) -> float:
        """Time until the key of a decoding sequence exceeds that of the first waiting request. [s]"""


class ShortestFirst(WaitingQueue):
    """Shortest output first, by its length, or by the bin of its length if a predictor tells no more."""

    def __init__(self, requests: RequestStates, bins: int) -> None:
        super().__init__(requests)
        self.predicted = _predicted(requests.gen, bins)

    def key(self, request: int) -> float:
        return self.predicted[request]


class ShortestRemaining(PreemptiveQueue):
    """Shortest remaining output first: with one request at a time, no order has a lower mean latency."""

    def __init__(self, requests: RequestStates, bins: int) -> None:
        super().__init__(requests)
        self.predicted = _predicted(requests.gen, bins)

    def key(self, request: int) -> float:
        return max(self.predicted[request] - self.requests.generated[request], 1)

    def running_keys(self, batch: RunningBatch, now_s: float) -> Sequence[float]:  # noqa: ARG002
        generated = batch.generated().tolist()
        return [max(self.predicted[i] - tokens, 1) for i, tokens in zip(batch.decoding, generated, strict=True)]

    def unchanged_s(self, batches: Sequence[RunningBatch], now_s: float) -> float:  # noqa: ARG002
        return inf


class FeedbackQueues(PreemptiveQueue):
    """Skip-join multi-level feedback queues (FastServe, arXiv:2305.05920): keys are numbers of queues.

    A request joins the first queue whose quantum covers its prefill, and moves to the next when it has run for the
    quantum. Every _STARVATION_STEPS, those that have waited for _STARVATION_S move to the first.

    joined    queue that each request joined
    served_s  time that it has run since [s]
    """

    def __init__(self, requests: RequestStates, prefill_s: Sequence[float]) -> None:
        super().__init__(requests)
        self.joined = [max(ceil(log2(time_s / _QUANTUM_S)), 0) for time_s in prefill_s]
        self.served_s = [0.0] * len(requests)
        self._admitted_s = [0.0] * len(requests)
        self._waits_since: dict[int, float] = {}
        self._checks = 0

    def key(self, request: int) -> float:
        return self._queue(request, self.served_s[request])

    def append(self, request: int) -> None:
        self._waits_since[request] = self.requests.arrivals.arrival_s[request]
        super().append(request)

    def appendleft(self, request: int) -> None:
        super().append(request)

    def popleft(self) -> int:
        request = super().popleft()
        del self._waits_since[request]
        return request

    def update(self, now_s: float, steps: int) -> None:
        if steps // _STARVATION_STEPS == self._checks:
            return
        self._checks = steps // _STARVATION_STEPS
        for request, since_s in self._waits_since.items():
            if since_s <= now_s - _STARVATION_S:
                self.joined[request], self.served_s[request] = 0, 0.0
        self._heap = [(self.key(request), place, request) for _, place, request in self._heap]
        heapify(self._heap)

    def admitted(self, request: int, now_s: float) -> None:
        self._admitted_s[request] = now_s

    def paused(self, request: int, now_s: float) -> None:
        self.served_s[request] += now_s - self._admitted_s[request]
        self._waits_since[request] = now_s

    def running_keys(self, batch: RunningBatch, now_s: float) -> Sequence[float]:
        return [self._queue(request, self._run_s(request, now_s)) for request in batch.decoding]

    def unchanged_s(self, batches: Sequence[RunningBatch], now_s: float) -> float:
        if not self:
            return inf
        lowest = self._heap[0][0]
        demotions_s = [
            self._quanta_s(request, lowest) - self._run_s(request, now_s)
            for batch in batches
            for request in batch.decoding
        ]
        return max(min(demotions_s, default=inf), 0.0)

    def _run_s(self, request: int, now_s: float) -> float:
        """Time that a running request has run since it joined a queue. [s]"""
        return self.served_s[request] + now_s - self._admitted_s[request]

    def _queue(self, request: int, served_s: float) -> int:
        """Queue of a request that has run for `served_s`."""
        return int(log2(served_s * (_QUANTUM_GROWTH - 1) / _QUANTUM_S + _QUANTUM_GROWTH ** self.joined[request]))

    def _quanta_s(self, request: int, last: float) -> float:
        """Quanta of the queues of a request up to `last`. [s]"""
        growth: float = _QUANTUM_GROWTH ** (last + 1) - _QUANTUM_GROWTH ** self.joined[request]
        return _QUANTUM_S * growth / (_QUANTUM_GROWTH - 1)


class FairShares(WaitingQueue):
    """Virtual token counters (VTC, arXiv:2401.00588): the tenant that has been served least is next.

    served   service of each tenant: weighted input and output tokens, lifted to that of others after it was idle
    waiting  requests of each tenant, in the order of arrival
    """

    def __init__(self, requests: RequestStates, tenants: Sequence[int]) -> None:
        super().__init__(requests)
        self.tenants = tenants
        self.served = dict.fromkeys(sorted(set(tenants)), 0.0)
        self.waiting: Mapping[int, deque[int]] = {tenant: deque() for tenant in self.served}
        self._last = min(self.served)  # tenant whose request was admitted last

    def key(self, request: int) -> float:
        return self.served[self.tenants[request]]

    def append(self, request: int) -> None:
        tenant = self.tenants[request]
        if not self.waiting[tenant]:
            others = [self.served[other] for other, queue in self.waiting.items() if queue]
            self.served[tenant] = max(self.served[tenant], min(others, default=self.served[self._last]))
        self.waiting[tenant].append(request)

    def appendleft(self, request: int) -> None:
        self.waiting[self.tenants[request]].appendleft(request)

    def first(self) -> int:
        return self.waiting[self._next()][0]

    def popleft(self) -> int:
        self._last = self._next()
        return self.waiting[self._last].popleft()

    def __len__(self) -> int:
        return sum(map(len, self.waiting.values()))

    def admitted(self, request: int, now_s: float) -> None:  # noqa: ARG002
        if not self.requests.preemptions[request]:
            prompt_service = _INPUT_WEIGHT * self.requests.prompt[request] + _OUTPUT_WEIGHT  # it gives the first token
            self.served[self.tenants[request]] += prompt_service

    def decoded(self, batch: RunningBatch, tokens: int) -> None:
        weight = _OUTPUT_WEIGHT * tokens / len(batch.decoding)
        for request in batch.decoding:
            self.served[self.tenants[request]] += weight

    def _next(self) -> int:
        return min((tenant for tenant, queue in self.waiting.items() if queue), key=self.served.__getitem__)


def _predicted(gen: Sequence[int], bins: int) -> Sequence[int]:
    """Predicted output lengths: the upper ends of their bins, as S3 predicts them (arXiv:2306.06000); without bins, the
    lengths.
    """
    width = max(gen) / bins if bins else 1.0
    return [ceil(ceil(tokens / width) * width) for tokens in gen]


def waiting_queue(policy: Policy, requests: RequestStates, steps: Steps, traffic: Traffic) -> deque[int] | WaitingQueue:
    """The waiting queue of a policy: a deque in the order of arrival.

    Raises InputError for fair shares of tenants that are not told apart.
    """
    match policy.order:
        case "sjf":
            return ShortestFirst(requests, policy.bins)
        case "srpt":
            return ShortestRemaining(requests, policy.bins)
        case "mlfq":
            return FeedbackQueues(requests, steps.prefills_and_intervals_s(traffic)[0].tolist())
        case "vtc":
            if traffic.tenants is None:
                raise InputError(
                    f"tenants must be given for policy {policy}, by their shares of the requests, such as 1,2; or as a "
                    "column of arrivals"
                )
            return FairShares(requests, traffic.tenants.tolist())
    return deque()
