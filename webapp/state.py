"""State of the page as one value: the values of its controls, written to and read from its link."""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields, replace
from typing import Any, Final, Self
from urllib.parse import parse_qsl, unquote, urlencode

from llmviewer.devices.files import hardware_names
from llmviewer.errors import InputError, suggest
from llmviewer.expectation.engines import engine_names
from llmviewer.expectation.index import index
from llmviewer.model_files import model_names
from llmviewer.options import PARAMETERS, RequestOptions
from llmviewer.parallel.layout import Layout
from llmviewer.parameters import declared
from llmviewer.records import frozen
from llmviewer.serving.policy import FIRST_COME_FIRST_SERVED, ORDERS
from llmviewer.serving.routers import ROUND_ROBIN, ROUTERS

MAX_FILE_BYTES: Final = 1_000_000  # of an uploaded model or device
MAX_FILES: Final = 16  # that a browser stores for a page
MAX_LINK_CHARACTERS: Final = 3_800  # reverse proxies refuse requests of more than about 4000 characters
FILE_PREFIX: Final = "file:"  # of the names of uploaded models and devices
TABS: Final = ("overview", "network", "memory", "sweeps", "serving", "compare", "timeline", "validation", "glossary")
SWEEPS: Final = ("batch", "length", "figure-4", "figure-5", "figure-6", "figure-7", "figure-8")
STEPS: Final = ("mean", "last")  # decode steps by name, beside the first one and that at a context
MAX_PINS: Final = 6
MAX_NAME_CHARACTERS: Final = 40  # of a pin
RECORDINGS: Final = ("ranks", "pair")  # what several traces are
TRAFFIC: Final = ("requests", "sessions", "tasks")  # what clients send to a server
LOADS: Final = ("clients", "rates")  # of servers: closed loops of clients, or arrivals at random times
PLANNED_DEVICES: Final = ("chosen", "priced")  # that servers are planned with: those of the page, or all with a price
EXAMPLE_TASK: Final = "research"  # the task of an agent that ships, of assets/research.yaml
PIN_NAME: Final = "name"  # key of the name of a pin, in its link
_MAX_DEVICES: Final = 8
_MAX_TEXT_CHARACTERS: Final = 300
_MAX_PIN_CHARACTERS: Final = 700
_FILE_REFERENCE: Final = re.compile(rf"{FILE_PREFIX}([a-z0-9._-]+)")  # in a pin
_FILE_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,60}\.(?:json|yaml)")  # a label without folders
_DECLARED: Final = PARAMETERS | declared(RequestOptions)
_LINK_NAMES: Final = {  # keys of links by command-line names that differ from them
    **dict.fromkeys(("hw", "hardware", "device", "devices"), "on"),
    "turns": "session_turns",
    **{name: each.link for name, each in _DECLARED.items() if each.link},
    **{each.flag.lstrip("-"): each.link or name for name, each in _DECLARED.items() if each.flag},
}
MAX_READ_LINK_CHARACTERS: Final = 100_000  # of a link to be parsed
_MAX_ERROR_VALUE_CHARACTERS: Final = 60


def _given_value(value: object) -> str:
    """Ending of an error with the value that was given; empty for None, which browsers send for an invalid number."""
    if value is None:
        return ""
    short = value[:_MAX_ERROR_VALUE_CHARACTERS] if isinstance(value, str) else value
    return f"; got {repr(short)[: _MAX_ERROR_VALUE_CHARACTERS + 2]}"


def _number(text: str, kind: Callable[[str], float]) -> object:
    """`text` as a number; the text itself if it is not one, which check() refuses."""
    try:
        return kind(text)
    except ValueError:
        return text


@frozen(kw_only=True)
class IntegerField:
    """A whole number in a range."""

    minimum: int
    maximum: int

    def read(self, text: str) -> object:
        return _number(text, int)

    def check(self, value: object) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not self.minimum <= value <= self.maximum:
            raise ValueError(f"must be a whole number from {self.minimum:,} to {self.maximum:,}{_given_value(value)}")
        return value


@frozen(kw_only=True)
class RealField:
    """A real number in a range."""

    minimum: float
    maximum: float

    def read(self, text: str) -> object:
        return _number(text, float)

    def check(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.minimum <= value <= self.maximum:
            raise ValueError(f"must be a number from {self.minimum:g} to {self.maximum:g}{_given_value(value)}")
        return float(value)


@frozen(kw_only=True)
class OneOf:
    """A choice among names; `allows_file` if it may also name an uploaded file."""

    choices: Callable[[], Iterable[str]]
    allows_file: bool = False

    def read(self, text: str) -> str:
        return text

    def check(self, value: object) -> str:
        choices = tuple(self.choices())
        if not isinstance(value, str) or (value not in choices and not (self.allows_file and _names_file(value))):
            raise ValueError(f"no {str(value)[:60]!r}; {suggest(str(value)[:60], choices)}")
        return value


@frozen(kw_only=True)
class Flag:
    """Yes or no."""

    def read(self, text: str) -> bool:
        return self.check({"1": True, "0": False}.get(text))

    def check(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise ValueError(f"must be 1 or 0; got {value!r}")  # noqa: TRY004 - a user's mistake
        return value


@frozen(kw_only=True)
class Text:
    """A short text, parsed elsewhere."""

    max_characters: int = _MAX_TEXT_CHARACTERS

    def read(self, text: str) -> str:
        return text

    def check(self, value: object) -> str:
        value = "" if value is None else value
        if not isinstance(value, str) or len(value) > self.max_characters or not value.isprintable():
            raise ValueError(f"must be a text of at most {self.max_characters} printable characters")
        return value.strip()


@frozen(kw_only=True)
class List:
    """A list of names or texts without duplicates."""

    kind: OneOf | Text
    min_items: int
    max_items: int

    def read(self, text: str) -> list[str]:
        return [self.kind.read(part) for part in text.split("|") if part]

    def check(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, list | tuple) or not self.min_items <= len(value) <= self.max_items:
            raise ValueError(f"must have {self.min_items} to {self.max_items} items")
        return tuple(dict.fromkeys(self.kind.check(part) for part in value))


def libraries() -> tuple[str, ...]:
    """Libraries with measured kernels; the empty name selects the one with the most measurements."""
    return ("", *sorted({fit.implementation.library for fit in index().fits}))


Kind = IntegerField | RealField | OneOf | Flag | Text | List


def _field(kind: Kind, default: Any) -> Any:
    return field(default=default, metadata={"kind": kind})


def _declared(name: str, default: Any = None) -> Any:
    """A field with type, limits and default of the declared option `name`; `default` if the option has none."""
    parameter = _DECLARED[name]
    default_value = parameter.default if default is None else default
    maximum = min(parameter.most, parameter.page_most)
    minimum = min(parameter.least, default_value) if isinstance(default_value, int | float) else parameter.least
    kind: Kind
    if isinstance(default_value, bool):
        kind = Flag()
    elif isinstance(default_value, str):
        kind = _words(*dict.fromkeys((default_value, *parameter.choices))) if parameter.choices else Text()
    elif isinstance(default_value, int):
        kind = IntegerField(minimum=int(minimum), maximum=int(maximum))
    else:
        kind = RealField(minimum=minimum, maximum=maximum)
    return _field(kind, default_value)


def _words(*words: str) -> OneOf:
    return OneOf(choices=lambda: words)


def _names_file(value: str) -> bool:
    return value.startswith(FILE_PREFIX) and _FILE_NAME.fullmatch(value.removeprefix(FILE_PREFIX)) is not None


@frozen(kw_only=True)
class File:
    """An uploaded file: a config.json, or a YAML of a model or a device. It exists in memory only.

    name  label by which `model` and `on` refer to it; not a path

    Raises InputError if the name is invalid or the text too large.
    """

    name: str
    text: str

    def __post_init__(self) -> None:
        if not _FILE_NAME.fullmatch(self.name):
            raise InputError(
                f"file {self.name[:_MAX_ERROR_VALUE_CHARACTERS]!r}: must be a name such as my-model.json, no path"
            )
        try:
            size = len(self.text.encode())
        except UnicodeEncodeError:
            raise InputError(f"{self.name}: is not a text file") from None
        if size > MAX_FILE_BYTES:
            raise InputError(f"{self.name}: must have at most {MAX_FILE_BYTES:,} bytes; got {size:,}")

    @property
    def control(self) -> str:
        """The control that selects it: "model", "tasks" or "on" (devices)."""
        sections = set(re.findall(r"^(config|calls):", self.text, re.MULTILINE))
        return "model" if self.name.endswith(".json") or "config" in sections else "tasks" if sections else "on"


@frozen(kw_only=True)
class State:
    """Inputs of the analysis, and what the page shows of it. Fields are named as the controls and as keys of the link.

    on       devices
    set      what-if changes, each as DEVICE:KEY=VALUE
    library  kernel library of the expected times; the one with the most measurements if empty
    engine   serving engine, whose host may leave gaps between launches; none if empty
    memory_fraction, max_num_seqs, max_num_batched_tokens, max_model_len  those of its server; the engine's if 0
    measured the user's own measurements, as QUANTITY=VALUE
    step     decode step that everything of that phase shows: the first one or that at `context` if empty, else the one
             at the mean context of all steps, or the last one
    context  tokens attended to in the decode step shown; those of the first step if 0
    quant    precision, as published if empty
    attention  attention kernel, the default of the accounting if empty
    op       selected operator, as BLOCK.NAME; the one with the largest share of time if empty
    sweep    axis of the sweeps, or figure of "LLM Inference Unveiled" (arXiv:2402.16363)
    curves   one curve per device or per precision; `quants` are the precisions, those of the paper if empty
    traffic  what the clients of serving send: one of TRAFFIC. A session has `session_turns`, each a `think_time` after
             the answer before, and begins with `system_prompt` tokens; `tasks` is a file with the calls of a task
    replicas, router  servers of serving, and which of them serves a request
    load, rates      one of LOADS, and mean arrival rates [1/s], separated by commas
    prefill_replicas  further servers that run all prefills of arrivals
    tenants, order   shares of the requests by tenant, and the order in which waiting requests are admitted
    ttft, tpot  latency targets of serving [ms], that the percentile `within` of the requests meets
    plan_rate, plan_most, plan_on  requests [1/s] that servers are planned for, their most devices, and of which kinds
    pins     settings to compare with this one, each as pin_link() writes it
    recordings  what several traces are, one of RECORDINGS
    passes   model passes in the trace, counted by its layers if 0
    stage    pipeline stage that the trace was recorded on, from 1; 0 without a pipeline
    files    uploaded files that `model` and `on` name
    """

    model: str = _field(OneOf(choices=model_names, allows_file=True), "llama-3.1-8b")
    on: tuple[str, ...] = _field(
        List(kind=OneOf(choices=hardware_names, allows_file=True), min_items=1, max_items=_MAX_DEVICES), ("h100-sxm",)
    )
    set: tuple[str, ...] = _field(List(kind=Text(), min_items=0, max_items=64), ())
    phase: str = _field(_words("prefill", "decode"), "decode")
    batch: int = _declared("batch")
    prompt: int = _declared("prompt")
    gen: int = _declared("gen", 128)
    context: int = _declared("kv_len", 0)
    step: str = _field(_words("", *STEPS), "")
    quant: str = _declared("quant", "")
    attention: str = _declared("attention", "")
    tp: int = _declared("tp")
    pp: int = _declared("pp")
    ep: int = _declared("ep")
    dp: int = _declared("dp")
    cp: int = _declared("cp")
    mla: str = _declared("mla")
    accounting: str = _declared("accounting")
    skew: float = _declared("expert_skew", 0.0)
    images: int = _declared("images")
    offload: str = _declared("offload")
    mtp: bool = _declared("mtp")
    library: str = _field(OneOf(choices=libraries), "")
    engine: str = _field(_words("", *engine_names()), "")
    memory_fraction: float = _declared("memory_fraction", 0.0)
    max_num_seqs: int = _declared("max_num_seqs", 0)
    max_num_batched_tokens: int = _declared("max_num_batched_tokens", 0)
    max_model_len: int = _declared("max_model_len", 0)
    measured: str = _field(Text(), "")
    techniques: tuple[str, ...] = _field(List(kind=Text(), min_items=0, max_items=8), ())
    tab: str = _field(_words(*TABS), "overview")
    op: str = _field(Text(), "")
    sweep: str = _field(_words(*SWEEPS), "batch")
    curves: str = _field(_words("devices", "precisions"), "devices")
    quants: tuple[str, ...] = _field(List(kind=Text(), min_items=0, max_items=6), ())
    traffic: str = _field(_words(*TRAFFIC), "requests")
    session_turns: int = _field(IntegerField(minimum=1, maximum=64), 4)
    think_time: str = _field(Text(), "")
    system_prompt: int = _field(IntegerField(minimum=0, maximum=131_072), 0)
    tasks: str = _field(OneOf(choices=lambda: (EXAMPLE_TASK,), allows_file=True), EXAMPLE_TASK)
    replicas: int = _field(IntegerField(minimum=1, maximum=64), 1)
    router: str = _field(_words(*ROUTERS), ROUND_ROBIN)
    load: str = _field(_words(*LOADS), LOADS[0])
    rates: str = _field(Text(), "1, 2, 4, 8, 16")
    prefill_replicas: int = _field(IntegerField(minimum=0, maximum=64), 0)
    tenants: str = _field(Text(), "")
    order: str = _field(_words(*ORDERS), FIRST_COME_FIRST_SERVED)
    ttft: int = _field(IntegerField(minimum=1, maximum=1_000_000), 2048)
    tpot: int = _field(IntegerField(minimum=1, maximum=100_000), 64)
    within: str = _field(_words("p50", "p90", "p99"), "p90")
    plan_rate: float = _field(RealField(minimum=0.001, maximum=10_000), 10.0)
    plan_most: int = _field(IntegerField(minimum=1, maximum=1024), 16)
    plan_on: str = _field(_words(*PLANNED_DEVICES), PLANNED_DEVICES[0])
    pins: tuple[str, ...] = _field(
        List(kind=Text(max_characters=_MAX_PIN_CHARACTERS), min_items=0, max_items=MAX_PINS), ()
    )
    recordings: str = _field(_words(*RECORDINGS), RECORDINGS[0])
    passes: int = _field(IntegerField(minimum=0, maximum=1_000_000), 0)
    stage: int = _field(IntegerField(minimum=0, maximum=16), 0)
    files: tuple[File, ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, Any], files: Iterable[File] = ()) -> Self:
        """Checks values of fields by name; fields without a value have their default.

        Raises FieldError for an invalid value.
        """
        checked: dict[str, Any] = {}
        for name, kind in FIELD_TYPES.items():
            if name in values:
                try:
                    checked[name] = kind.check(values[name])
                except ValueError as error:
                    raise FieldError(name, str(error)) from None
        return cls(**checked).with_files(files)

    @classmethod
    def of_link(cls, query: str, files: Iterable[File] = ()) -> tuple[Self, tuple[str, ...]]:
        """The state of a link, and a notice for each invalid part, in place of which the default is used.

        files  uploaded files that the browser stores
        """
        values: dict[str, Any] = {}
        notices: list[str] = []
        files_by_name = {one.name: one for one in files}
        for key, text in _pairs(query, notices):
            try:
                if key == "file":
                    one = _unpacked(text)
                    files_by_name[one.name] = one
                elif isinstance(kind := FIELD_TYPES.get(key), List):
                    values[key] = kind.check(_valid_items(key, kind, kind.read(text), notices))
                elif kind:
                    values[key] = kind.check(kind.read(text))
                elif key != PIN_NAME:
                    notices.append(f"link: no setting {key[:40]!r}; {_setting_like(key)}")
            except ValueError as error:
                notices.append(f"link: {key}: {error}; the default is used")
        state = cls(**values)
        for name in (state.model, *state.on, state.tasks):
            if name.startswith(FILE_PREFIX) and name.removeprefix(FILE_PREFIX) not in files_by_name:
                notices.append(f"link: {name} is an uploaded file that the link does not contain; upload it again")
                defaults = cls()
                state = replace(
                    state,
                    model=defaults.model if name == state.model else state.model,
                    on=tuple(n for n in state.on if n != name) or defaults.on,
                    tasks=defaults.tasks if name == state.tasks else state.tasks,
                )
        usable = state.with_files(files_by_name.values())
        notices += [
            f"link: set: {change[:60]!r} belongs to no selected device"
            for change in state.set
            if change not in usable.set
        ]
        notices += [
            f"link: pins: {notice.removeprefix('link: ')}"
            for pin in usable.pins
            for notice in cls.of_link(pin, usable.files)[1]
        ]
        return usable, tuple(notices)

    @property
    def link(self) -> str:
        """Query of a link to this state: fields with other than default values, and uploaded files if they fit."""
        defaults = type(self)()
        changed_fields = {
            name: _written(getattr(self, name))
            for name in FIELD_TYPES
            if getattr(self, name) != getattr(defaults, name)
        }
        query = urlencode(changed_fields, safe=":|,=/")
        with_files = "&".join(filter(None, (query, urlencode([("file", _packed(one)) for one in self.files]))))
        query = with_files if len(with_files) <= MAX_LINK_CHARACTERS else query
        return f"?{query}" if query else ""

    @property
    def layout(self) -> Layout:
        """Degrees of parallelism.

        Raises InputError if they are incompatible.
        """
        return Layout(tp=self.tp, pp=self.pp, ep=self.ep, dp=self.dp, cp=self.cp)

    @property
    def analysis_inputs(self) -> Self:
        """The state without fields that only select what is shown: equal inputs have equal results."""
        defaults = type(self)()
        return replace(self, **{name: getattr(defaults, name) for name in _SHOWN_FIELDS})

    @property
    def kv_len(self) -> int | None:
        """Tokens that the decode step shown attends to, its own included; None for the first step.

        The mean is over the contexts of all steps, from `prompt` + 1 to `prompt` + `gen` - 1.
        """
        if not self.step:
            return self.context or None
        generated = self.gen // 2 if self.step == "mean" else self.gen - 1
        return self.prompt + max(generated, 1)

    def pin_link(self, device: str) -> str:
        """Link to the setting on one of its devices, for comparison with other settings; it contains no files."""
        changes = tuple(f"{device}:{change}" for change in self.what_ifs(device))
        link = (
            replace(self.analysis_inputs, on=(device,), set=changes, measured="", files=()).link
            or f"?model={self.model}"
        )
        return link.removeprefix("?").replace("|", "%7C")

    def what_ifs(self, device: str) -> tuple[str, ...]:
        """Returns the what-if changes of a device, as KEY=VALUE."""
        pairs = (change.partition("=") for change in self.set)
        split_changes = ((*key.rpartition(":"), value) for key, _, value in pairs)
        return tuple(f"{key}={value}" for name, _, key, value in split_changes if name == device)

    def with_files(self, files: Iterable[File]) -> Self:
        """The state with those of `files` that it names, and without what-ifs of devices that are not selected."""
        names = (self.model, *self.on, self.tasks)
        named = {name.removeprefix(FILE_PREFIX) for name in names if name.startswith(FILE_PREFIX)}
        named |= {name for pin in self.pins for name in _FILE_REFERENCE.findall(unquote(pin))}
        return replace(
            self,
            files=tuple(one for one in files if one.name in named),
            set=tuple(one for one in self.set if one.partition("=")[0].rpartition(":")[0] in self.on),
        )


LOAD_FIELDS: Final = ("replicas", "router", "load", "rates", "prefill_replicas", "tenants", "order")  # of all traffic
SERVED_FIELDS: Final = (
    "traffic", "session_turns", "think_time", "system_prompt", "tasks", *LOAD_FIELDS,
)  # fmt: skip
_SHOWN_FIELDS: Final = (  # that no analysis depends on
    "phase", "tab", "op", "sweep", "curves", "quants", "pins", "recordings", "passes", "stage",
    "ttft", "tpot", "within", "plan_rate", "plan_most", "plan_on", *SERVED_FIELDS,
)  # fmt: skip
FIELD_TYPES: Final[Mapping[str, Kind]] = {f.name: f.metadata["kind"] for f in fields(State) if f.metadata}


def pin_name(pin: str) -> str:
    """Name of a pin; empty if it has none."""
    return _printable_name(dict(_pairs(pin, [])).get(PIN_NAME, ""))


def renamed_pin(pin: str, name: str) -> str:
    """The pin with another name; without one if `name` is empty."""
    parts = [part for part in pin.split("&") if not part.startswith(f"{PIN_NAME}=")]
    text = _printable_name(name)
    return "&".join([*parts, *([urlencode({PIN_NAME: text})] if text else [])]) or pin


def _printable_name(text: str) -> str:
    return "".join(filter(str.isprintable, text)).strip()[:MAX_NAME_CHARACTERS]


class FieldError(InputError):
    """An invalid value of a control."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name} {problem}")
        self.name, self.problem = name, problem


def _pairs(query: str, notices: list[str]) -> list[tuple[str, str]]:
    """Keys and values of a link. Repeated keys of lists are joined, of other keys the last counts, files stay separate;
    empty if the link cannot be parsed.
    """
    try:
        pairs = parse_qsl(
            query[:MAX_READ_LINK_CHARACTERS].removeprefix("?"), keep_blank_values=True, max_num_fields=100
        )
    except ValueError:
        notices.append("link: has too many parts; the default page is shown")
        return []
    files = [(key, text) for key, text in pairs if key == "file"]
    values = dict(pairs)
    for name in values.keys() & {name for name, kind in FIELD_TYPES.items() if isinstance(kind, List)}:
        values[name] = "|".join(text for key, text in pairs if key == name)
    if "on" in values:
        values["on"] = values["on"].replace(",", "|")  # command lines separate devices by commas
    return [*files, *((key, text) for key, text in values.items() if key != "file")]


def _valid_items(key: str, kind: List, items: list[str], notices: list[str]) -> list[str]:
    """The valid ones of several values, with a notice for each other one; all of them if too few are valid."""
    usable, problems = [], []
    for one in dict.fromkeys(items):
        try:
            usable.append(kind.kind.check(one))
        except ValueError as error:
            problems.append(f"link: {key}: {error}; it is omitted")
    if len(usable) < kind.min_items:
        return items
    if len(usable) > kind.max_items:
        problems.append(f"link: {key}: must have {kind.min_items} to {kind.max_items} items; the first ones are used")
    notices.extend(problems)
    return usable[: kind.max_items]


def _written(value: object) -> str:
    if isinstance(value, tuple):
        return "|".join(value)
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        return str(int(value))
    return str(value)


def _packed(file: File) -> str:
    data = base64.urlsafe_b64encode(zlib.compress(file.text.encode(), 9)).decode().rstrip("=")
    return f"{file.name}~{data}"


def _setting_like(key: str) -> str:
    """Hint at the key of a link that may have been meant by `key`."""
    field_name = _LINK_NAMES.get(key.lower().replace("-", "_"))
    return f"in a link it is {field_name}" if field_name in FIELD_TYPES else suggest(key[:40], FIELD_TYPES)


def _unpacked(text: str) -> File:
    name, _, data = text.partition("~")
    try:
        packed = base64.urlsafe_b64decode(data + "=" * (-len(data) % 4))
        reader = zlib.decompressobj()
        plain = reader.decompress(packed, MAX_FILE_BYTES + 1)  # bounds what is unpacked
        decoded = plain.decode()
    except (binascii.Error, zlib.error, UnicodeError, ValueError):
        raise ValueError("is damaged") from None
    if len(plain) > MAX_FILE_BYTES or not reader.eof:
        raise ValueError("is damaged or too large")
    return File(name=name, text=decoded)
