"""Requests of sessions and tasks: prompts that grow by earlier answers, and the blocks that they share."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from ..errors import InputError
from ..records import frozen
from .delays import Delays
from .lengths import MAX_TOKENS, Lengths
from .traffic import TRACE_BLOCK_TOKENS, Calls, Times, Traffic, closed_loop_arrivals, poisson_arrivals


@frozen(kw_only=True)
class CallLimits:
    """Limits of the calls of all sessions or tasks, and of the blocks of their prompts together."""

    calls: int
    blocks: int


CALL_LIMITS: Final = CallLimits(calls=1_000_000, blocks=20_000_000)


class Conversations:
    """Calls in the order in which they can arrive, from which a Traffic is made.

    Each prompt continues the conversation of an earlier call of its task, or begins with the system prompt. Its own
    tokens, and those of its answer, are named in blocks of at most TRACE_BLOCK_TOKENS.
    """

    def __init__(self, kind: str, system_tokens: int = 0, limits: CallLimits = CALL_LIMITS) -> None:
        self.kind, self.limits = kind, limits
        self.task: list[int] = []
        self.delay_s: list[float] = []
        self.parents: list[tuple[int, ...]] = []
        self.prompt: list[int] = []
        self.gen: list[int] = []
        self.models: list[int] = []  # model that serves each call
        self.continues: list[int | None] = []
        self.shared: list[int] = []  # tokens of each prompt that an earlier call of its model computed
        self.names: list[tuple[int, ...]] = []
        self.ends: list[tuple[int, ...]] = []
        self._count_names = self._total_names = 0
        self._system = self._blocks(0, system_tokens)
        self._system_tokens = system_tokens
        self._begun: set[int] = set()  # models that served a call

    def __len__(self) -> int:
        return len(self.prompt)

    def add(
        self, task: int, *, new: int, gen: int, delay_s: float = 0.0,
        parents: tuple[int, ...] = (), continues: int | None = None, model: int = 0,
    ) -> int:  # fmt: skip
        """Adds a call, and returns its index.

        new        tokens of the prompt besides the conversation or system prompt that it begins with
        parents    calls whose answers it waits for
        continues  call whose prompt and answer it begins with; None: the system prompt
        model      number of the model that serves it
        """
        if continues is None:
            begin, names, ends = self._system_tokens, *self._system
        else:
            begin, names, ends = (
                self.prompt[continues] + self.gen[continues],
                self.names[continues],
                self.ends[continues],
            )
        computed = continues  # the last call of the conversation that this model served
        while computed is not None and self.models[computed] != model:
            computed = self.continues[computed]
        shared = self._system_tokens if model in self._begun else 0
        shared = shared if computed is None else self.ends[computed][-1]
        self._begun.add(model)
        prompt = begin + new
        if prompt + gen > MAX_TOKENS:
            raise InputError(f"a {self.kind} grows to {prompt + gen} tokens; they must be at most {MAX_TOKENS}")
        for end in (prompt, prompt + gen - 1):  # the last output token is not computed
            new_names, new_ends = self._blocks(ends[-1] if ends else 0, end)
            names, ends = (*names, *new_names), (*ends, *new_ends)
        self._total_names += len(names)
        if len(self) >= self.limits.calls or self._total_names > self.limits.blocks:
            raise InputError(
                f"{self.kind}s must have at most {self.limits.calls:,} calls and {self.limits.blocks:,} blocks of "
                "prompts in all; use fewer requests, or shorter ones"
            )
        self.task.append(task)
        self.delay_s.append(delay_s)
        self.parents.append(parents)
        self.prompt.append(prompt)
        self.gen.append(gen)
        self.models.append(model)
        self.continues.append(continues)
        self.shared.append(min(shared, prompt - 1))
        self.names.append(names)
        self.ends.append(ends)
        return len(self) - 1

    def traffic(self, starts_s: Times, in_flight: int | None = None, *, has_models: bool = False) -> Traffic:
        """The requests; `in_flight` sessions or tasks at once in a closed loop.

        starts_s    arrivals of the sessions or tasks
        has_models  whether several models serve them
        """
        has_parents = np.array(list(map(len, self.parents))) > 0
        return Traffic(
            arrival_s=np.where(has_parents, 0.0, starts_s[self.task]), cached=np.array(self.shared),
            prompt=np.array(self.prompt), gen=np.array(self.gen), blocks=tuple(self.names), ends=tuple(self.ends),
            calls=Calls(
                kind=self.kind, task=np.array(self.task), parents=tuple(self.parents), delay_s=np.array(self.delay_s)
            ),
            in_flight=in_flight, models=np.array(self.models) if has_models else None,
        )  # fmt: skip

    def _blocks(self, begin: int, end: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Names and ends of new blocks of the tokens from `begin` to `end`."""
        ends = tuple(
            min(at, end) for at in range(begin + TRACE_BLOCK_TOKENS, end + TRACE_BLOCK_TOKENS, TRACE_BLOCK_TOKENS)
        )
        names = tuple(range(self._count_names, self._count_names + len(ends)))
        self._count_names += len(ends)
        return names, ends


def drawn_sessions(
    *, rate: float | None, in_flight: int | None, turns_per_session: Lengths, think: Delays, system_tokens: int,
    prompts: Lengths, gens: Lengths, requests: int, generator: np.random.Generator,
) -> Traffic:  # fmt: skip
    """Sessions of several turns, each of which comes a think time after the answer to the last and repeats all before.

    rate      sessions per second, Poisson; None: a closed loop of `in_flight` users
    prompts   new input tokens of a turn; with `system_tokens` that all sessions share before the first
    requests  sessions are drawn until they have at least so many turns
    """
    counts = turns_per_session.draw(generator, requests)
    sessions = max(int(np.searchsorted(np.cumsum(counts), requests)) + 1, in_flight or 0)
    counts = counts[:sessions]
    total = int(np.sum(counts))
    if total > CALL_LIMITS.calls:
        raise InputError(f"sessions must have at most {CALL_LIMITS.calls:,} turns in all; got {total:,}")
    arrivals = (
        closed_loop_arrivals(in_flight or 0, sessions) if rate is None else poisson_arrivals(rate, sessions, generator)
    )
    new, gen = prompts.draw(generator, total).tolist(), gens.draw(generator, total).tolist()
    delay = think.draw(generator, total).tolist()
    calls = Conversations("session", system_tokens, CALL_LIMITS)
    for session, count in enumerate(counts.tolist()):
        before: tuple[int, ...] = ()
        for _ in range(count):
            at = len(calls)
            calls.add(
                session, new=new[at], gen=gen[at],
                delay_s=delay[at] if before else 0.0, parents=before, continues=before[0] if before else None,
            )  # fmt: skip
            before = (at,)
    return calls.traffic(arrivals, in_flight)


def with_repeated_conversations(traffic: Traffic) -> Traffic:
    """Sessions of a trace without names of blocks, with those of conversations.

    A prompt is taken to repeat the conversation of the request that it waits for if it is longer.
    """
    assert traffic.calls is not None
    calls = Conversations(traffic.calls.kind)
    for at, parents in enumerate(traffic.calls.parents):
        conversation = {parent: int(traffic.prompt[parent] + traffic.gen[parent]) for parent in parents}
        continues = max(
            (parent for parent in parents if conversation[parent] < traffic.prompt[at]),
            key=conversation.__getitem__, default=None,
        )  # fmt: skip
        calls.add(
            int(traffic.calls.task[at]), gen=int(traffic.gen[at]), continues=continues,
            new=int(traffic.prompt[at]) - (0 if continues is None else conversation[continues]),
        )  # fmt: skip
    named = calls.traffic(np.zeros(traffic.task_count))
    return replace(traffic, cached=named.cached, blocks=named.blocks, ends=named.ends)
