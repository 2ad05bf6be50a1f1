"""Routers: which replica serves a request, chosen when it arrives.

`--router NAME` selects one of ROUTERS; a router is a class here that chooses by what replicas have at that moment.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Final, Protocol

from ..errors import InputError
from .traffic import Traffic

ROUND_ROBIN: Final = "round-robin"

# Defaults of SGLang's router (docs/getting-started/load-balancing.md of github.com/lightseekorg/smg).
_MIN_MATCH: Final = 0.3  # share of a prompt that a replica must have for affinity
_MAX_DIFFERENCE, _MAX_RATIO = 64, 1.5  # requests of the most loaded replica, over those of the least


class Replica(Protocol):
    """A replica as routers see it.

    num_requests  requests that it has not finished
    kv_bytes      KV memory in use, and what its waiting requests need at first [B]
    """

    @property
    def num_requests(self) -> int: ...
    @property
    def kv_bytes(self) -> float: ...


class RequestRouter(ABC):
    """A router of the requests of a traffic to replicas.

    candidates  replicas that accept requests
    """

    def __init__(self, traffic: Traffic, replicas: Sequence[Replica]) -> None:
        self.traffic, self.replicas = traffic, replicas
        self.candidates: Sequence[int] = range(len(replicas))
        self.routed = [0] * len(replicas)  # requests so far, of which equal replicas get the same number

    def route(self, request: int) -> int:
        """Returns the index of the replica that serves a request."""
        index = self.choose(request)
        self.routed[index] += 1
        return index

    @abstractmethod
    def choose(self, request: int) -> int:
        """The index of the best replica."""

    def forget(self, index: int) -> None:  # noqa: B027
        """Notes that a replica ends, and with it its cache; another may start in its place."""

    def least_loaded(self) -> int:
        """The replica with the fewest unfinished requests."""
        return min(self.candidates, key=lambda i: (self.replicas[i].num_requests, self.routed[i]))


class RoundRobin(RequestRouter):
    """Requests, or whole sessions and tasks, in turn."""

    def choose(self, request: int) -> int:
        return self.candidates[int(self.traffic.task[request]) % len(self.candidates)]


class LeastLoaded(RequestRouter):
    """The replica with the fewest unfinished requests: join the shortest queue."""

    def choose(self, request: int) -> int:  # noqa: ARG002
        return self.least_loaded()


class LeastKv(RequestRouter):
    """The replica with the least KV memory in use."""

    def choose(self, request: int) -> int:  # noqa: ARG002
        return min(self.candidates, key=lambda i: (self.replicas[i].kv_bytes, self.routed[i]))


class PrefixAware(RequestRouter):
    """The replica that got the longest prefix of the prompt before, if that is a notable part of it and its load is not
    far above that of others; else the least loaded. As SGLang's router, which does not know what replicas evict.
    """

    def __init__(self, traffic: Traffic, replicas: Sequence[Replica]) -> None:
        super().__init__(traffic, replicas)
        if traffic.blocks is None:
            raise InputError(
                "router prefix-aware needs prompts whose prefixes are known: sessions, or a trace that names blocks"
            )
        self._blocks = traffic.blocks
        self._sent: list[set[int]] = [set() for _ in replicas]

    def forget(self, index: int) -> None:
        self._sent[index].clear()

    def choose(self, request: int) -> int:
        blocks = self._blocks[request]
        loads = {i: self.replicas[i].num_requests for i in self.candidates}
        matches = {i: sum(1 for _ in takewhile(self._sent[i].__contains__, blocks)) for i in self.candidates}
        index = max(self.candidates, key=lambda i: (matches[i], -loads[i]))
        most, least = max(loads.values()), min(loads.values())
        balanced = most - least <= _MAX_DIFFERENCE or most <= _MAX_RATIO * least
        if not balanced or matches[index] <= _MIN_MATCH * len(blocks):
            index = self.least_loaded()
        self._sent[index].update(blocks)
        return index


class SessionAffinity(RequestRouter):
    """The replica of earlier requests of the session; the least loaded for a new one."""

    def __init__(self, traffic: Traffic, replicas: Sequence[Replica]) -> None:
        super().__init__(traffic, replicas)
        if traffic.calls is None:
            raise InputError("router session needs sessions: session_turns, or a trace with a column session")
        self._task: list[int] = traffic.task.tolist()
        self._places: dict[int, int] = {}

    def choose(self, request: int) -> int:
        task = self._task[request]
        if self._places.get(task) not in self.candidates:
            self._places[task] = self.least_loaded()
        return self._places[task]


class ByModel(RequestRouter):
    """A replica of the model that serves the request, by a router for the replicas of each model."""

    def __init__(
        self, traffic: Traffic, replicas: Sequence[Replica], *, router: type[RequestRouter],
        groups: Sequence[Sequence[int]],
    ) -> None:  # fmt: skip
        """Router to groups of replicas.

        groups  indices of the replicas of each model
        """
        super().__init__(traffic, replicas)
        assert traffic.models is not None
        self._models: list[int] = traffic.models.tolist()
        self._routers = [router(traffic, replicas) for _ in groups]
        for each, group in zip(self._routers, groups, strict=True):
            each.candidates = group

    def choose(self, request: int) -> int:
        return self._routers[self._models[request]].route(request)


ROUTERS: Final[Mapping[str, type[RequestRouter]]] = {
    ROUND_ROBIN: RoundRobin,
    "least-loaded": LeastLoaded,
    "least-kv": LeastKv,
    "prefix-aware": PrefixAware,
    "session": SessionAffinity,
}
