"""Tasks of agents as graphs of calls, described in YAML: lengths, dependencies, branches, loops and waits for tools."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..documents import Section, read_yaml
from ..errors import InputError
from ..records import frozen
from .calls import CALL_LIMITS, CallLimits, Conversations
from .delays import parse_delays
from .lengths import parse_lengths
from .traffic import Traffic, closed_loop_arrivals, poisson_arrivals

_MAX_CALLS: Final = 100  # in a file
_MAX_REPEATS: Final = 1000  # parallel calls, or calls of a loop
_BUFFER: Final = 256  # numbers drawn at once
_KEYS: Final = ("prompt", "gen", "after", "continues", "wait", "probability", "parallel", "repeat", "at_most")

Draw = Callable[[np.random.Generator, int], Any]  # numbers of a distribution


@frozen(kw_only=True)
class TaskCall:
    """A call of a task, in the order of the file.

    after        calls before it, whose answers it waits for
    continues    one of them, whose prompt and answer its prompt begins with; None: the system prompt
    prompt, gen  other input tokens, and output tokens
    wait         time from the last of these answers to the call [s]
    probability  that it is made; if it is not, calls that wait for it wait for what it waits for
    parallel     number of equal calls at once
    repeat_probability  that another call continues the last one, up to `at_most` calls in all
    """

    name: str
    after: tuple[str, ...]
    continues: str | None
    prompt: Draw
    gen: Draw
    wait: Draw
    probability: float
    parallel: Draw
    repeat_probability: float
    at_most: int


@frozen(kw_only=True)
class Task:
    """A task: its calls, and tokens of the system prompt that all of them share.

    limits  of the calls that are drawn, and of their blocks
    """

    name: str
    system_tokens: int
    calls: tuple[TaskCall, ...]
    limits: CallLimits = CALL_LIMITS

    def traffic(
        self, *, rate: float | None, in_flight: int | None, requests: int, generator: np.random.Generator
    ) -> Traffic:
        """Tasks that arrive over time, drawn until they have at least `requests` calls.

        rate  tasks per second, Poisson; None: a closed loop of `in_flight` tasks
        """
        calls, tasks = Conversations("task", self.system_tokens, self.limits), 0
        streams = {call.name: _Streams(call, generator) for call in self.calls}
        while len(calls) < requests or tasks < (in_flight or 0):
            self._add(calls, tasks, streams, generator)
            tasks += 1
        if rate is None:
            return calls.traffic(closed_loop_arrivals(in_flight or 0, tasks), in_flight)
        return calls.traffic(poisson_arrivals(rate, tasks, generator))

    def _add(
        self, calls: Conversations, task: int, streams: dict[str, _Streams], generator: np.random.Generator
    ) -> None:
        """Draws the calls of a task."""
        answers: dict[str, tuple[int, ...]] = {}  # calls whose answers each call of the file stands for
        conversation: dict[str | None, int | None] = {None: None}  # call that is continued by those that continue it
        for call in self.calls:
            parents = tuple(dict.fromkeys(at for name in call.after for at in answers[name]))
            continues, draw = conversation[call.continues], streams[call.name]
            if call.probability < 1 and generator.random() >= call.probability:
                answers[call.name], conversation[call.name] = parents, continues
                continue
            branches, last = next(draw.parallel), []
            if branches > _MAX_REPEATS:
                raise InputError(f"parallel calls of {call.name} must be at most {_MAX_REPEATS}; got {branches}")
            for _ in range(branches):
                at = draw.add(calls, task, parents, continues)
                count = 1
                while count < call.at_most and generator.random() < call.repeat_probability:
                    at = draw.add(calls, task, (at,), at)
                    count += 1
                last.append(at)
            answers[call.name], conversation[call.name] = tuple(last), last[0]


class _Streams:
    """Random numbers of a call, one at a time."""

    def __init__(self, call: TaskCall, generator: np.random.Generator) -> None:
        self.prompt, self.gen, self.wait_s, self.parallel = (
            _stream(draw, generator) for draw in (call.prompt, call.gen, call.wait, call.parallel)
        )

    def add(self, calls: Conversations, task: int, parents: tuple[int, ...], continues: int | None) -> int:
        """Adds a call to a task, and returns its index."""
        return calls.add(
            task, new=next(self.prompt), gen=next(self.gen), delay_s=next(self.wait_s), parents=parents,
            continues=continues,
        )  # fmt: skip


def _stream(draw: Draw, generator: np.random.Generator) -> Iterator[Any]:
    while True:
        yield from draw(generator, _BUFFER).tolist()


def read_task(path: Path) -> Task:
    """Reads a task from a YAML file; docs/serving.md has its keys.

    Raises InputError, with file and key, if it is invalid.
    """
    return parse_task(read_yaml(path))


def parse_task(file: Section, *, reads_files: bool = True, limits: CallLimits = CALL_LIMITS) -> Task:
    """A task from the contents of its file.

    reads_files  whether lengths may name files; not for texts of strangers

    Raises InputError, with file and key, if it is invalid.
    """
    file.only(("name", "system_prompt", "calls"))
    section = file.section("calls")
    names = list(section)
    if not 0 < len(names) <= _MAX_CALLS:
        raise file.error("calls", f"must have 1 to {_MAX_CALLS} calls; got {len(names)}")
    calls: list[TaskCall] = []
    for name in names:
        if not isinstance(name, str):
            raise file.error("calls", f"names must be text; got {name!r}")
        calls.append(_call(section.section(name), name, calls, reads_files=reads_files))
    if not any(call.probability == 1 and not call.after for call in calls):
        raise file.error("calls", "must have a call without after, continues and probability, with which a task begins")
    return Task(
        name=file.text("name", Path(file.file).stem),
        system_tokens=file.integer("system_prompt", 0, least=0),
        calls=tuple(calls),
        limits=limits,
    )


def _call(section: Section, name: str, before: list[TaskCall], *, reads_files: bool) -> TaskCall:
    """A call of a file, given those before it."""
    distribution = partial(_distribution, section, reads_files=reads_files)
    section.only(_KEYS)
    earlier = {call.name: call for call in before}
    after = section.get("after") or []
    after = [after] if isinstance(after, str) else after
    if not isinstance(after, list):
        raise section.error("after", f"must be a call, or a list of calls; got {after!r}")
    continues = section.text("continues") if section.has("continues") else None
    for key, names in (("after", after), ("continues", [continues] if continues else [])):
        for other in names:
            if not isinstance(other, str) or other not in earlier:
                choices = f"one of {', '.join(earlier)}" if earlier else "but this is the first call"
                raise section.error(key, f"must name calls before it, {choices}; got {other!r}")
    if continues and earlier[continues].parallel is not _one:
        raise section.error("continues", f"must name a single call, and {continues} is parallel")
    if section.has("repeat") != section.has("at_most"):
        raise section.error("repeat", "must be given with at_most, the most calls of the loop, and the other way round")
    at_most = section.integer("at_most", 1)
    if at_most > _MAX_REPEATS:
        raise section.error("at_most", f"must be at most {_MAX_REPEATS}; got {at_most}")
    return TaskCall(
        name=name, after=tuple(dict.fromkeys((*after, *([continues] if continues else [])))), continues=continues,
        prompt=distribution("prompt"), gen=distribution("gen"),
        wait=distribution("wait") if section.has("wait") else _zero,
        probability=_share(section, "probability", 1.0), repeat_probability=_share(section, "repeat", 0.0),
        at_most=at_most, parallel=distribution("parallel") if section.has("parallel") else _one,
    )  # fmt: skip


def _one(_: np.random.Generator, count: int) -> Any:
    return np.ones(count, dtype=np.int64)


def _zero(_: np.random.Generator, count: int) -> Any:
    return np.zeros(count)


def _share(section: Section, key: str, default: float) -> float:
    value = section.number(key, default)
    if not 0 <= value <= 1:
        raise section.error(key, f"must be a probability from 0 to 1; got {value:g}")
    return value


def _distribution(section: Section, key: str, *, reads_files: bool) -> Draw:
    """A distribution of tokens or times, in the notation of the command line."""
    value = section.get(key)
    if value is None:
        raise section.error(key, "is missing")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise section.error(key, f"must be a number or a distribution; got {value!r}")
    try:
        if key == "wait":
            return parse_delays(str(value), key).draw
        return parse_lengths(str(value), key, reads_files=reads_files).draw
    except InputError as error:
        raise InputError(f"{section.file}: {section.prefix}{error}") from None
