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
_MAX_MODELS: Final = 20  # in a file
_KEYS: Final = (
    "model", "prompt", "gen", "after", "continues", "wait", "if", "unless", "probability", "parallel", "repeat",
    "at_most",
)  # fmt: skip
_MODEL_KEYS: Final = ("model", "hardware", "replicas", "layout", "quant", "techniques", "price")
_TEXT_KEYS: Final = ("model", "hardware", "layout", "quant")

Draw = Callable[[np.random.Generator, int], Any]  # numbers of a distribution


@frozen(kw_only=True)
class TaskModel:
    """A model that serves calls of a task.

    model       its name or file; "" for the model that is simulated without a file
    hardware    its device; "" for the same
    replicas, layout, quant, techniques  of its servers
    usd_per_token  price of an input and an output token, for the cost of calls by tokens; None without [USD]
    """

    name: str
    model: str = ""
    hardware: str = ""
    replicas: int = 1
    layout: str = ""
    quant: str = ""
    techniques: tuple[str, ...] = ()
    usd_per_token: tuple[float, float] | None = None


@frozen(kw_only=True)
class TaskCall:
    """A call of a task, in the order of the file.

    model        name of the model that serves it; "" for that which is simulated without a file
    after        calls before it, whose answers it waits for
    continues    one of them, whose prompt and answer its prompt begins with; None: the system prompt
    prompt, gen  other input tokens, and output tokens
    wait         time from the last of these answers to the call [s]
    only_if, unless  call before it without which, or with which, it is not made; None for none
    probability  that it is made; if it is not, calls that wait for it wait for what it waits for
    parallel     number of equal calls at once
    repeat_probability  that another call continues the last one, up to `at_most` calls in all
    """

    name: str
    model: str
    after: tuple[str, ...]
    continues: str | None
    prompt: Draw
    gen: Draw
    wait: Draw
    only_if: str | None
    unless: str | None
    probability: float
    parallel: Draw
    repeat_probability: float
    at_most: int


@frozen(kw_only=True)
class Task:
    """A task: its calls, and tokens of the system prompt that all of them share.

    models  that serve the calls; empty if one model serves all
    limits  of the calls that are drawn, and of their blocks
    """

    name: str
    system_tokens: int
    calls: tuple[TaskCall, ...]
    models: tuple[TaskModel, ...] = ()
    limits: CallLimits = CALL_LIMITS

    def traffic(
        self, *, rate: float | None, in_flight: int | None, requests: int, generator: np.random.Generator
    ) -> Traffic:
        """Tasks that arrive over time, drawn until they have at least `requests` calls.

        rate  tasks per second, Poisson; None: a closed loop of `in_flight` tasks
        """
        calls, tasks = Conversations("task", self.system_tokens, self.limits), 0
        place = {model.name: number for number, model in enumerate(self.models)}
        streams = {call.name: _Streams(call, place.get(call.model, 0), generator) for call in self.calls}
        while len(calls) < requests or tasks < (in_flight or 0):
            self._add(calls, tasks, streams, generator)
            tasks += 1
        has_models = bool(self.models)
        if rate is None:
            return calls.traffic(closed_loop_arrivals(in_flight or 0, tasks), in_flight, has_models=has_models)
        return calls.traffic(poisson_arrivals(rate, tasks, generator), has_models=has_models)

    def _add(
        self, calls: Conversations, task: int, streams: dict[str, _Streams], generator: np.random.Generator
    ) -> None:
        """Draws the calls of a task."""
        answers: dict[str, tuple[int, ...]] = {}  # calls whose answers each call of the file stands for
        conversation: dict[str | None, int | None] = {None: None}  # call that is continued by those that continue it
        made_calls: set[str] = set()
        for call in self.calls:
            parents = tuple(dict.fromkeys(at for name in call.after for at in answers[name]))
            continues, draw = conversation[call.continues], streams[call.name]
            possible = (call.only_if is None or call.only_if in made_calls) and call.unless not in made_calls
            if not possible or (call.probability < 1 and generator.random() >= call.probability):
                answers[call.name], conversation[call.name] = parents, continues
                continue
            made_calls.add(call.name)
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

    def __init__(self, call: TaskCall, model: int, generator: np.random.Generator) -> None:
        self.model = model
        self.prompt, self.gen, self.wait_s, self.parallel = (
            _stream(draw, generator) for draw in (call.prompt, call.gen, call.wait, call.parallel)
        )

    def add(self, calls: Conversations, task: int, parents: tuple[int, ...], continues: int | None) -> int:
        """Adds a call to a task, and returns its index."""
        return calls.add(
            task, new=next(self.prompt), gen=next(self.gen), delay_s=next(self.wait_s), parents=parents,
            continues=continues, model=self.model,
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
    file.only(("name", "system_prompt", "models", "calls"))
    if file.has("models") and not reads_files:
        raise file.error("models", "must be left out here, where one model serves all calls; use llmviewer simulate")
    models = _models(file) if file.has("models") else ()
    section = file.section("calls")
    names = list(section)
    if not 0 < len(names) <= _MAX_CALLS:
        raise file.error("calls", f"must have 1 to {_MAX_CALLS} calls; got {len(names)}")
    calls: list[TaskCall] = []
    for name in names:
        if not isinstance(name, str):
            raise file.error("calls", f"names must be text; got {name!r}")
        calls.append(_call(section.section(name), name, calls, models, reads_files=reads_files))
    if not any(call.probability == 1 and not call.after and call.only_if is None for call in calls):
        raise file.error(
            "calls", "must have a call without after, continues, if and probability, with which a task begins"
        )
    serving = {call.model for call in calls}
    for unused in (model.name for model in models if model.name not in serving):
        raise file.error("models", f"{unused} must serve a call: give a call `model: {unused}`, or leave it out")
    return Task(
        name=file.text("name", Path(file.file).stem),
        system_tokens=file.integer("system_prompt", 0, least=0),
        calls=tuple(calls),
        models=models,
        limits=limits,
    )


def _models(file: Section) -> tuple[TaskModel, ...]:
    """The models of a file; first the one without a model of its own, which is simulated without a file too."""
    section = file.section("models")
    if not 1 < len(list(section)) <= _MAX_MODELS:
        raise file.error("models", f"must have 2 to {_MAX_MODELS} models; got {len(list(section))}")
    for name in section:
        if not isinstance(name, str):
            raise file.error("models", f"names must be text; got {name!r}")
    models = [_model(section.section(name), name) for name in section]
    if sum(not model.model for model in models) != 1:
        raise file.error("models", "must have one entry without model, the MODEL of the command")
    return tuple(sorted(models, key=lambda model: bool(model.model)))


def _model(section: Section, name: str) -> TaskModel:
    """A model of a file."""
    section.only(_MODEL_KEYS)
    for key in () if section.has("model") else _MODEL_KEYS:
        if key != "price" and section.has(key):
            raise section.error(key, "must be left out without model; it is an option of the command, for its MODEL")
    price = None
    if section.has("price"):
        prices = section.section("price")
        prices.only(("input", "output"))
        price = _price(prices, "input"), _price(prices, "output")
    return TaskModel(
        name=name, replicas=section.integer("replicas", 1), techniques=section.texts("techniques"),
        usd_per_token=price, **{key: section.text(key, "") for key in _TEXT_KEYS},
    )  # fmt: skip


def _price(section: Section, key: str) -> float:
    """A price of a token, given per million. [USD]"""
    price = section.number(key)
    if price < 0:
        raise section.error(key, f"must be a price of 0 or more, in USD per million tokens; got {price:g}")
    return price / 1e6


def _call(
    section: Section, name: str, before: list[TaskCall], models: tuple[TaskModel, ...], *, reads_files: bool
) -> TaskCall:
    """A call of a file, given those before it."""
    distribution = partial(_distribution, section, reads_files=reads_files)
    section.only(_KEYS)
    earlier = {call.name: call for call in before}
    after = section.get("after") or []
    after = [after] if isinstance(after, str) else after
    if not isinstance(after, list):
        raise section.error("after", f"must be a call, or a list of calls; got {after!r}")
    named = {key: section.text(key) if section.has(key) else None for key in ("continues", "if", "unless")}
    continues = named["continues"]
    for key, names in (("after", after), *((key, [one] if one else []) for key, one in named.items())):
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
        name=name, model=_model_name(section, models), only_if=named["if"], unless=named["unless"],
        after=tuple(dict.fromkeys((*after, *([continues] if continues else [])))), continues=continues,
        prompt=distribution("prompt"), gen=distribution("gen"),
        wait=distribution("wait") if section.has("wait") else _zero,
        probability=_share(section, "probability", 1.0), repeat_probability=_share(section, "repeat", 0.0),
        at_most=at_most, parallel=distribution("parallel") if section.has("parallel") else _one,
    )  # fmt: skip


def _model_name(section: Section, models: tuple[TaskModel, ...]) -> str:
    """Name of the model that serves a call."""
    names = [model.name for model in models]
    name = section.text("model", names[0] if names else "")
    if section.has("model") and name not in names:
        choices = f"one of {', '.join(names)}" if names else "but models is missing"
        raise section.error("model", f"must be a name under models, {choices}; got {name!r}")
    return name


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
