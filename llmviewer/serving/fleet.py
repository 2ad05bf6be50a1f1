"""Replicas behind a router: they serve requests together, fail, are replaced, and are as many as the load needs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import accumulate, count
from math import ceil, inf
from typing import Final

import numpy as np

from ..errors import InputError
from ..expectation.engines import DIRECT, Frontend
from ..records import frozen
from .arrivals import Inbox
from .fleet_rules import FAIL, MIGRATE, RECOMPUTE, RECOVERIES, RESTART, FleetRules
from .kv_cache import Caches
from .metrics import Served, Usage
from .policy import Policy
from .request_states import RequestStates
from .routers import ByModel, RequestRouter
from .server import ReplicaServer, served
from .steps import Steps
from .traffic import Traffic

# Defaults of the HorizontalPodAutoscaler (kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale).
_CHECK_S: Final = 15.0  # between two decisions
_STABILIZATION_S: Final = 300.0  # in which the highest of the decisions holds
_OUTAGE_STREAM: Final = 3  # with the seed and the replica, for random times of failures


@frozen(kw_only=True)
class FleetLog:
    """Changes of a fleet that happened, until the last request was finished.

    replica_s   time of replicas that is paid for, from start to end [s]
    failures    failed replicas
    starts      replicas that were started after the beginning
    migrated, recomputed, restarted, failed  requests of failed replicas, once for each failure
    lost_tokens output tokens of restarted and failed requests until then
    serving     moments, and the number of replicas that accept requests from then on
    """

    replica_s: float
    failures: int
    starts: int
    migrated: int
    recomputed: int
    restarted: int
    failed: int
    lost_tokens: int
    serving: tuple[tuple[float, int], ...]


@frozen(kw_only=True)
class ServerGroup:
    """Equal servers of a model; the other fields as for serve()."""

    steps: Steps
    servers: int
    policy: Policy
    max_batch: int
    block: int


@frozen(kw_only=True)
class ServedFleet:
    """Results of all requests, the time and work of the servers of each group, and the changes of the fleet."""

    served: Served
    usages: tuple[Usage, ...]
    log: FleetLog | None


def serve_fleet(
    groups: Sequence[ServerGroup], traffic: Traffic, router: type[RequestRouter], *, frontend: Frontend = DIRECT,
    rules: FleetRules | None = None, progress: Callable[[int], object] = lambda finished: None,
) -> ServedFleet:  # fmt: skip
    """Simulates servers behind a router until all requests are finished, and what changed if there are `rules`.

    groups  servers of each model of the traffic; with rules one

    A request is routed when no clock of a server is before its arrival.

    Raises InputError if all requests fail.
    """
    requests = RequestStates(traffic, np.zeros(len(traffic), dtype=np.int64), frontend)
    places = _places(groups)
    group_caches = [
        Caches.of(
            group.steps, traffic, group.policy, group.block,
            None if traffic.models is None else np.flatnonzero(traffic.models == number),
        )
        for number, group in enumerate(groups)
    ]  # fmt: skip
    numbers = [number for number, group in enumerate(groups) for _ in range(group.servers)]

    def new_server(index: int) -> ReplicaServer:
        number = numbers[index]
        group = groups[number]
        return ReplicaServer(
            group.steps, traffic, group.policy, max_batch=group.max_batch, requests=requests,
            caches=group_caches[number], arrivals=Inbox(),
        )  # fmt: skip

    routing = router if traffic.models is None else partial(ByModel, router=router, groups=places)
    fleet = ReplicaFleet(traffic, requests, routing, new_server=new_server, replicas=len(numbers), rules=rules)
    fleet.run(progress)
    if np.all(np.isnan(requests.finish_s)):
        raise InputError(f"mtbf must be long enough for a request to finish; all {len(traffic)} failed")
    usages = [Usage.total([fleet.replicas[index].usage() for index in group]) for group in places]
    retired = [server.usage() for server in fleet.retired]
    usages[0] = Usage.total([*retired, usages[0]])
    return ServedFleet(served=served(requests, Usage.total(usages)), usages=tuple(usages), log=fleet.log())


def _places(groups: Sequence[ServerGroup]) -> list[range]:
    """Indices of the servers of each group."""
    ends = list(accumulate(group.servers for group in groups))
    return [range(end - group.servers, end) for end, group in zip(ends, groups, strict=True)]


class ReplicaFleet:
    """State of replicas behind a router between two events.

    replicas   servers by index; that of a failed replica is replaced by a new one
    available  whether each accepts requests
    on_since   when each was started; inf if it is off [s]
    """

    def __init__(
        self,
        traffic: Traffic,
        requests: RequestStates,
        router: Callable[[Traffic, Sequence[ReplicaServer]], RequestRouter],
        *,
        new_server: Callable[[int], ReplicaServer],
        replicas: int,
        rules: FleetRules | None,
    ) -> None:
        """Fleet at its beginning.

        new_server  makes an idle server for an index
        replicas    number of replicas without autoscaling
        """
        self.traffic, self.requests, self.arrivals, self.rules = traffic, requests, requests.arrivals, rules
        self._new_server = new_server
        scaling = rules.scaling if rules else None
        slots = scaling.most if scaling else replicas
        self.replicas = [new_server(index) for index in range(slots)]
        self.retired: list[ReplicaServer] = []
        first = range(scaling.least if scaling else replicas)
        self.available = [index in first for index in range(slots)]
        begin_s = self.arrivals.next_ready_s
        self.on_since = [begin_s if index in first else inf for index in range(slots)]
        self.routing = router(traffic, self.replicas)
        self.routing.candidates = list(first)
        self._busy: list[tuple[float, int]] = []  # heap: clock and index of each replica with requests
        self._unrouted: deque[int] = deque()  # requests while no replica accepts any
        self._events: list[tuple[float, int, Callable[[float], None]]] = []  # heap
        self._order = count()
        self._in_transit = 0  # requests of failed replicas that no other has yet
        seed = rules.seed if rules else 0
        self._generators = [np.random.default_rng((seed, _OUTAGE_STREAM, index)) for index in range(slots)]
        self._draining: set[int] = set()  # replicas that end when their requests are finished
        self._wanted: deque[tuple[float, int]] = deque()  # decisions of the last _STABILIZATION_S
        self._counts = dict.fromkeys(("failures", "starts", *RECOVERIES, "lost_tokens"), 0)
        self._paid_s = 0.0
        self._serving: list[tuple[float, int]] = [(begin_s, len(first))]
        for index in first:
            self._expect_outage(index, begin_s)
        if scaling:
            self._at(begin_s, self._scale)

    def run(self, progress: Callable[[int], object]) -> None:
        """Serves all requests. The replica whose clock is behind takes a step, or decode steps until an event."""
        arrivals, busy, events = self.arrivals, self._busy, self._events
        sent_later = bool(self.traffic.in_flight or self.traffic.calls)
        while busy or arrivals.count < len(self.traffic) or self._unrouted or self._in_transit:
            event_s = events[0][0] if events else inf
            clock_s = busy[0][0] if busy else inf
            if event_s <= clock_s and event_s <= arrivals.next_ready_s:
                time_s, _, act = heappop(events)
                act(time_s)
            elif arrivals.next_ready_s <= clock_s:
                ready_s = arrivals.next_ready_s
                self._route(arrivals.take(), ready_s)
            else:
                index = heappop(busy)[1]
                replica = self.replicas[index]
                answers_s = inf
                if sent_later:
                    answers_s = min([self.replicas[i].earliest_finish_s() for _, i in busy], default=inf)
                replica.advance(min(arrivals.next_ready_s, answers_s, event_s))
                if replica.num_requests:
                    heappush(busy, (replica.clock_s, index))
                elif not self.available[index]:
                    self._switch_off_drained(index, replica.clock_s)
                progress(self.requests.num_finished)

    def log(self) -> FleetLog | None:
        """The changes until the last request is finished; None without rules."""
        if not self.rules:
            return None
        end_s = float(np.nanmax(self.requests.finish_s))
        for index, since_s in enumerate(self.on_since):
            if since_s < end_s:
                self._pay(index, end_s)
        counts = self._counts
        return FleetLog(
            replica_s=self._paid_s, failures=counts["failures"], starts=counts["starts"], migrated=counts[MIGRATE],
            recomputed=counts[RECOMPUTE], restarted=counts[RESTART], failed=counts[FAIL],
            lost_tokens=counts["lost_tokens"], serving=tuple(self._serving),
        )  # fmt: skip

    def _at(self, time_s: float, act: Callable[[float], None]) -> None:
        heappush(self._events, (time_s, next(self._order), act))

    def _route(self, request: int, ready_s: float) -> None:
        """Sends a request to a replica; it waits while none accepts requests."""
        if not self.routing.candidates:
            self._unrouted.append(request)
            return
        index = self.routing.route(request)
        replica = self.replicas[index]
        if not replica.num_requests:
            replica.clock_s = max(replica.clock_s, ready_s)
            heappush(self._busy, (replica.clock_s, index))
        replica.receive(request, ready_s)

    def _accept(self, index: int, now_s: float, *, accepts: bool) -> None:
        """Notes that a replica accepts requests, or does no longer."""
        if self.available[index] == accepts:
            return
        self.available[index] = accepts
        self.routing.candidates = [i for i, available in enumerate(self.available) if available]
        self._serving.append((now_s, len(self.routing.candidates)))
        unrouted, self._unrouted = self._unrouted, deque()
        for request in unrouted:
            self._route(request, now_s)

    # Failures:

    def _expect_outage(self, index: int, now_s: float) -> None:
        """Draws when a replica that serves from now on fails."""
        if not self.rules or not self.rules.outages:
            return
        outages, server = self.rules.outages, self.replicas[index]
        end_s = now_s + self._generators[index].exponential(outages.mtbf_s)
        self._at(max(end_s - outages.notice_s, now_s), lambda time_s: self._warn(index, server, time_s, end_s))

    def _warn(self, index: int, server: ReplicaServer, now_s: float, end_s: float) -> None:
        """Stops sending requests to a replica that fails, and sends those that wait for it to others."""
        if self.replicas[index] is not server:
            return
        assert self.rules is not None
        assert self.rules.outages is not None
        if end_s > now_s:
            self._accept(index, now_s, accepts=False)
            for request in server.take_waiting():
                self._route(request, now_s)
        moving_s = 0.0
        if self.rules.outages.recovery == MIGRATE:
            moving_s = min(server.largest_kv_bytes() / self.rules.kv_bytes_per_s, end_s - now_s)
        self._at(end_s - moving_s, lambda time_s: self._fail(index, server, time_s, end_s, warned_s=now_s))

    def _fail(self, index: int, server: ReplicaServer, now_s: float, end_s: float, *, warned_s: float) -> None:
        """Ends a replica: its requests go on elsewhere by the rules of recovery. Another is in its place after the
        start-up time since the notice.
        """
        if self.replicas[index] is not server:
            return
        assert self.rules is not None
        assert self.rules.outages is not None
        self._counts["failures"] += 1
        self._accept(index, now_s, accepts=False)
        self._busy[:] = [entry for entry in self._busy if entry[1] != index]
        heapify(self._busy)
        stopped_s = max(now_s, server.clock_s) if server.num_requests else now_s  # at the end of a step
        way, waiting, running = self.rules.outages.recovery, server.take_waiting(), server.take_running()
        self._retire(index, end_s)
        if index in self._draining:
            self._draining.discard(index)
        else:
            self._start(index, warned_s, serves_s=max(end_s, warned_s + self.rules.startup_s))
        for request in waiting:
            if way == FAIL or (way == RESTART and self.requests.generated[request]):
                self._recover(request, way, stopped_s)
            else:
                self._send(request, stopped_s)
        arrived_s = dict.fromkeys(range(len(server.scheduler.ranks)), now_s)
        for request, rank, kv_bytes in running:
            if way == MIGRATE and kv_bytes:
                arrived_s[rank] += kv_bytes / self.rules.kv_bytes_per_s
            fits = kv_bytes and arrived_s[rank] <= end_s * (1 + 1e-12)
            if way == MIGRATE and fits:
                self._recover(request, MIGRATE, max(arrived_s[rank], stopped_s))
            else:
                self._recover(request, RECOMPUTE if way == MIGRATE else way, stopped_s)

    def _recover(self, request: int, way: str, time_s: float) -> None:
        """Goes on with a request that a failed replica ran."""
        requests, counts = self.requests, self._counts
        counts[way] += 1
        if way in (FAIL, RESTART):
            counts["lost_tokens"] += requests.generated[request]
            requests.discard_output(request)
        if way == FAIL:
            requests.fail(request, time_s)
            return
        if way == MIGRATE:
            requests.migrated.add(request)
        else:
            requests.interrupt(request)
        self._send(request, time_s)

    def _send(self, request: int, time_s: float) -> None:
        """Sends a request of a failed replica to another, which gets it at `time_s`."""
        self._in_transit += 1
        self._at(time_s, lambda now_s: self._deliver(request, now_s))

    def _deliver(self, request: int, now_s: float) -> None:
        self._in_transit -= 1
        self._route(request, now_s)

    # Starts and ends:

    def _start(self, index: int, begin_s: float, serves_s: float) -> None:
        """Starts a replica, which serves requests from `serves_s` on."""
        server = self.replicas[index]
        self.on_since[index] = begin_s
        self._counts["starts"] += 1
        server.clock_s = serves_s
        self._at(server.clock_s, lambda time_s: self._serve(index, server, time_s))

    def _serve(self, index: int, server: ReplicaServer, now_s: float) -> None:
        """Lets a started replica accept requests."""
        if self.replicas[index] is server:
            self._accept(index, now_s, accepts=True)
            self._expect_outage(index, now_s)

    def _pay(self, index: int, end_s: float) -> None:
        """Ends the time that a replica is paid for."""
        self._paid_s += end_s - self.on_since[index]
        self.on_since[index] = inf

    def _switch_off_drained(self, index: int, now_s: float) -> None:
        """Ends a replica that accepts no requests by decision of the autoscaling, and has none."""
        if index in self._draining:
            self._draining.discard(index)
            self._retire(index, now_s)

    def _retire(self, index: int, now_s: float) -> None:
        """Switches a replica off; another may start in its place."""
        self._pay(index, now_s)
        self.retired.append(self.replicas[index])
        self.replicas[index] = self._new_server(index)
        self.routing.forget(index)

    # Autoscaling:

    def _scale(self, now_s: float) -> None:
        """Decides how many replicas are needed."""
        assert self.rules is not None
        scaling = self.rules.scaling
        assert scaling is not None
        load = sum([replica.num_requests for replica in self.replicas]) + len(self._unrouted) + self._in_transit
        self._wanted.append((now_s, min(max(ceil(load / scaling.target), scaling.least), scaling.most)))
        while self._wanted[0][0] < now_s - _STABILIZATION_S:
            self._wanted.popleft()
        started = [
            index for index, since_s in enumerate(self.on_since) if since_s < inf and index not in self._draining
        ]
        now_wanted, highest_wanted = self._wanted[-1][1], max(number for _, number in self._wanted)
        for index in sorted(self._draining)[: max(now_wanted - len(started), 0)]:  # rather than to start others
            self._draining.discard(index)
            self._accept(index, now_s, accepts=True)
            started.append(index)
        free_slots = [index for index, since_s in enumerate(self.on_since) if since_s == inf]
        for index in free_slots[: max(now_wanted - len(started), 0)]:
            self._start(index, now_s, serves_s=now_s + self.rules.startup_s)
        for index in sorted(started, key=self._load)[: max(len(started) - max(highest_wanted, now_wanted), 0)]:
            self._accept(index, now_s, accepts=False)
            if self.replicas[index].num_requests:
                self._draining.add(index)
            else:
                self._retire(index, now_s)
        self._at(now_s + _CHECK_S, self._scale)

    def _load(self, index: int) -> tuple[bool, int]:
        """Key by which replicas end first: those that still start, then those with the fewest requests."""
        return self.available[index], self.replicas[index].num_requests
