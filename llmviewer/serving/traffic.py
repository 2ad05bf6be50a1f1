"""Requests: arrival times, prompts and output lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from math import inf, nan
from typing import Final

import numpy as np
import numpy.typing as npt

from ..records import frozen
from .lengths import Lengths, Tokens
from .progress import Progress

Times = npt.NDArray[np.float64]

TRACE_BLOCK_TOKENS: Final = 512  # per hash_id of Mooncake's traces (arXiv:2407.00079; github.com/kvcache-ai/Mooncake)
_OUTPUT_STREAM, _TENANT_STREAM = 1, 2  # with the seed, for random numbers other than those of arrivals and lengths


@frozen(kw_only=True)
class Calls:
    """Requests that wait for answers of others: turns of a session, or calls of an agent's task.

    kind     "session" or "task"
    task     session or task of each request, from 0 in the order of their first requests
    parents  requests whose answers each request waits for, all of the same task and before it in the traffic
    delay_s  time from the last of these answers to the request: think time, or that of tools [s]
    """

    kind: str
    task: npt.NDArray[np.int64]
    parents: tuple[tuple[int, ...], ...]
    delay_s: Times

    @property
    def count(self) -> int:
        """Number of sessions or tasks."""
        return int(np.max(self.task)) + 1

    @cached_property
    def children(self) -> list[list[int]]:
        """Requests that wait for each request."""
        children: list[list[int]] = [[] for _ in self.parents]
        for request, parents in enumerate(self.parents):
            for parent in parents:
                children[parent].append(request)
        return children

    def only(self, selection: npt.NDArray[np.intp]) -> Calls:
        """The calls of a selection of whole tasks, in the same order."""
        place = {request: i for i, request in enumerate(selection.tolist())}
        return Calls(
            kind=self.kind,
            task=np.unique(self.task[selection], return_inverse=True)[1],
            parents=tuple(tuple(place[parent] for parent in self.parents[request]) for request in selection),
            delay_s=self.delay_s[selection],
        )


@frozen(kw_only=True)
class Traffic:
    """Requests in the order of their arrival; calls of tasks in the order in which they can arrive.

    arrival_s  arrival, the first at 0 or later; inf in a closed loop until a client sends the request; of a request
               that waits for answers, the earliest [s]
    prompt     input tokens of each
    gen        output tokens of each, the first of which comes with its prefill
    empty      rows of the trace file without output tokens, which are ignored
    later      requests of the trace file beyond the requested number
    cached     cached tokens of each prompt, if the trace file has them; if it names blocks, those of any prompt before
    blocks     names of the blocks of each prompt, and maybe of its answer, if they are known; requests that are equal
               up to the end of a block have the same name there
    ends       tokens up to the end of each of these blocks; a number: of all blocks but the last of a prompt
    drafted    output tokens by pass, if a pass may give several
    calls      dependencies between requests; None without any
    in_flight  concurrency of a closed loop: as many requests (tasks, with calls) arrive at 0, and each other one when
               one before it finishes
    tenants    index into `tenant_names` of each request; None if tenants are not told apart
    models     number of the model that serves each request; None if one serves all
    """

    arrival_s: Times
    prompt: Tokens
    gen: Tokens
    empty: int = 0
    later: int = 0
    cached: Tokens | None = None
    blocks: tuple[tuple[int, ...], ...] | None = None
    ends: tuple[tuple[int, ...], ...] | int = TRACE_BLOCK_TOKENS
    drafted: Progress | None = None
    calls: Calls | None = None
    in_flight: int | None = None
    tenants: Tokens | None = None
    tenant_names: tuple[str, ...] = ()
    models: Tokens | None = None

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def rate(self) -> float:
        """Mean arrival rate; inf if all arrive at once. [1/s]"""
        span = float(np.max(self.arrival_s))
        return len(self) / span if span > 0 else inf

    @cached_property
    def task(self) -> npt.NDArray[np.int64]:
        """Session or task of each request, from 0; each request by itself without calls."""
        return self.calls.task if self.calls else np.arange(len(self))

    @property
    def task_count(self) -> int:
        """Number of sessions or tasks; of requests without calls."""
        return self.calls.count if self.calls else len(self)

    @property
    def task_rate(self) -> float:
        """Mean arrival rate of sessions, tasks or else requests; inf if all arrive at once. [1/s]"""
        first = self.arrival_s[np.unique(self.task, return_index=True)[1]]
        span = float(np.max(first))
        return self.task_count / span if span > 0 else inf

    @property
    def repeated(self) -> float:
        """Share of prompt tokens in a prefix of an earlier prompt; nan without names of blocks."""
        if self.blocks is None or self.cached is None:
            return nan
        return float(np.sum(self.cached)) / float(np.sum(self.prompt))

    @property
    def progress(self) -> Progress:
        """Output tokens by pass."""
        return self.drafted or Progress.even(self.gen)

    @property
    def tokens_per_step(self) -> float:
        """Mean output tokens of a sequence per decode step; nan without decode steps."""
        steps = float(np.sum(self.progress.passes)) - len(self)
        return (float(np.sum(self.gen)) - len(self)) / steps if steps else nan

    def with_acceptance(self, leaves: Sequence[float], seed: int) -> Traffic:
        """Traffic whose passes give at least 1, 2, ... tokens with the probabilities `leaves`."""
        return self.with_acceptances([leaves], seed)

    def with_acceptances(self, leaves: Sequence[Sequence[float]], seed: int) -> Traffic:
        """Traffic whose passes give at least 1, 2, ... tokens with the probabilities of the model that serves each."""
        if all(len(each) == 1 for each in leaves):
            return self
        generator = np.random.default_rng((seed, _OUTPUT_STREAM))
        return replace(self, drafted=Progress.drawn(self.gen, leaves, generator, self.models))

    def block_ends(self, request: int, size: int) -> Tokens:
        """Tokens up to the end of each named block of a request, in full cache blocks of `size` if they vary."""
        assert self.blocks is not None
        if isinstance(self.ends, int):
            full_ends: Tokens = self.ends * np.arange(1, len(self.blocks[request]) + 1)
            return np.minimum(full_ends, int(self.prompt[request]))
        ends: Tokens = np.array(self.ends[request], dtype=np.int64) // size * size
        return ends

    def shared_among(self, shares: Sequence[float], seed: int) -> Traffic:
        """Traffic whose requests come from tenants at random, numbered from 1, with these shares."""
        generator = np.random.default_rng((seed, _TENANT_STREAM))
        tenants = generator.choice(len(shares), size=len(self), p=np.array(shares) / sum(shares))
        names = tuple(str(number) for number in range(1, len(shares) + 1))
        return replace(self, tenants=tenants, tenant_names=names)

    def only(self, selection: npt.NDArray[np.intp]) -> Traffic:
        """A selection of the requests, of whole tasks if they are calls."""
        first = self.task[selection] < self.in_flight if self.in_flight else np.zeros(0)
        return Traffic(
            arrival_s=self.arrival_s[selection], prompt=self.prompt[selection], gen=self.gen[selection],
            cached=None if self.cached is None else self.cached[selection],
            blocks=self.blocks and tuple(self.blocks[place] for place in selection),
            ends=self.ends if isinstance(self.ends, int) else tuple(self.ends[place] for place in selection),
            drafted=self.drafted and self.drafted.only(selection),
            calls=self.calls and self.calls.only(selection),
            in_flight=self.in_flight and len(np.unique(self.task[selection][first])),
            tenants=None if self.tenants is None else self.tenants[selection], tenant_names=self.tenant_names,
            models=None if self.models is None else self.models[selection],
        )  # fmt: skip


def poisson_arrivals(rate: float, count: int, generator: np.random.Generator) -> Times:
    """Poisson arrivals, scaled to a mean rate of exactly `rate`, as one near the maximum could exceed it. [s]"""
    moments: Times = np.cumsum(generator.exponential(size=count))
    return moments * float(count / rate / moments[-1])


def closed_loop_arrivals(in_flight: int, count: int) -> Times:
    """Arrivals of a closed loop: `in_flight` at 0, the others when a client sends them. [s]"""
    return np.where(np.arange(count) < in_flight, 0.0, inf)


def poisson(*, rate: float, prompts: Lengths, gens: Lengths, requests: int, generator: np.random.Generator) -> Traffic:
    """Requests with Poisson arrivals."""
    return Traffic(
        arrival_s=poisson_arrivals(rate, requests, generator),
        prompt=prompts.draw(generator, requests),
        gen=gens.draw(generator, requests),
    )


def closed_loop(
    *, in_flight: int, prompts: Lengths, gens: Lengths, requests: int, generator: np.random.Generator
) -> Traffic:
    """Requests of a closed loop of `in_flight` clients, each of which sends its next request when one finishes."""
    return Traffic(
        arrival_s=closed_loop_arrivals(in_flight, requests),
        prompt=prompts.draw(generator, requests),
        gen=gens.draw(generator, requests),
        in_flight=in_flight,
    )
