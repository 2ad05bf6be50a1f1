"""Arrivals of requests: at known times, or when the answers arrive that a request or a client waits for; at servers
behind a router when it has chosen one.
"""

from __future__ import annotations

import heapq
from collections import deque
from math import inf

import numpy as np

from ..expectation.engines import DIRECT, Frontend
from .traffic import Traffic


class Inbox:
    """Requests that a router has sent to one of several servers, which advance together.

    next_ready_s  when the scheduler can see the next request; inf while there is none [s]
    count         number of requests that the scheduler has seen
    horizon_s     when a request may be routed next: the server must not advance further [s]
    """

    routed = True

    def __init__(self) -> None:
        self._requests: deque[tuple[float, int]] = deque()
        self.count, self.horizon_s = 0, inf

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def next_ready_s(self) -> float:
        return self._requests[0][0] if self._requests else inf

    def append(self, request: int, ready_s: float) -> None:
        """Adds a request that the scheduler can see from `ready_s` on."""
        self._requests.append((ready_s, request))

    def take(self) -> int:
        """Removes and returns the next request."""
        self.count += 1
        return self._requests.popleft()[1]

    def clear(self) -> list[int]:
        """Removes and returns all requests."""
        requests = [request for _, request in self._requests]
        self._requests.clear()
        return requests


class Arrivals:
    """Requests on their way to the scheduler, which sees them in the order in which they are sent.

    arrival_s     when a client sends each request; inf until that is known [s]
    next_ready_s  when the scheduler can see the next request; inf while none is known to come [s]
    count         number of requests that the scheduler has seen
    place         place of each of them in their order
    """

    routed = False

    def __init__(self, traffic: Traffic, frontend: Frontend = DIRECT) -> None:
        self._frontend, self._prompt = frontend, traffic.prompt.tolist()
        self._earliest_s: list[float] = traffic.arrival_s.tolist()
        self.arrival_s = [inf] * len(traffic)
        self.place = [-1] * len(traffic)
        self.count = 0
        self._sent: list[tuple[float, int]] = []  # heap
        self._accepted_s = 0.0  # when the frontend has passed on the last request
        self.next_ready_s = inf
        calls, first = traffic.calls, list(range(len(traffic)))
        if calls:
            self._missing = list(map(len, calls.parents))  # answers that each request still waits for
            self._children = calls.children
            self._answer_s, self._delay_s = [0.0] * len(traffic), calls.delay_s.tolist()
            self._task: list[int] = calls.task.tolist()
            self._unanswered: list[int] = np.bincount(calls.task).tolist()  # calls of each task
            first = [request for request in first if not calls.parents[request]]
        self._calls = calls
        self._later: deque[list[int]] = deque()  # first requests of tasks, for which a client of a closed loop waits
        for request in first:
            if self._earliest_s[request] < inf:
                self._send(request, self._earliest_s[request] + (self._delay_s[request] if calls else 0.0))
            elif calls and self._later and self._task[self._later[-1][0]] == self._task[request]:
                self._later[-1].append(request)
            else:
                self._later.append([request])

    @property
    def horizon_s(self) -> float:
        """Time at which the next request may be seen. [s]"""
        return self.next_ready_s

    def take(self) -> int:
        """Removes and returns the next request."""
        _, request = heapq.heappop(self._sent)
        self._accepted_s = self.next_ready_s
        self.place[request] = self.count
        self.count += 1
        self._update_next()
        return request

    def answer(self, request: int, received_s: float) -> None:
        """Sends the requests that waited for the last token of this one, received at `received_s`."""
        finished = True
        if self._calls:
            for child in self._children[request]:
                self._missing[child] -= 1
                self._answer_s[child] = max(self._answer_s[child], received_s)
                if not self._missing[child]:
                    self._send(child, max(self._earliest_s[child], self._answer_s[child] + self._delay_s[child]))
            task = self._task[request]
            self._unanswered[task] -= 1
            finished = not self._unanswered[task]
        if finished and self._later:
            for first in self._later.popleft():
                self._send(first, received_s + (self._delay_s[first] if self._calls else 0.0))

    def _send(self, request: int, time_s: float) -> None:
        self.arrival_s[request] = time_s
        heapq.heappush(self._sent, (time_s, request))
        self._update_next()

    def _update_next(self) -> None:
        """Computes when the frontend passes on the next request, after those before it."""
        if not self._sent:
            self.next_ready_s = inf
            return
        arrival_s, request = self._sent[0]
        start_s = max(arrival_s, self._accepted_s)
        self.next_ready_s = start_s + self._frontend.request_s + self._prompt[request] * self._frontend.token_s
