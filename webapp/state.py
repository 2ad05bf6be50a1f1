"""All that a page shows as one value: what its controls say, and what stands in its link."""

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
from llmviewer.expectation.engines import ENGINES
from llmviewer.expectation.index import index
from llmviewer.model_files import model_names
from llmviewer.options import PARAMETERS, RequestOptions
from llmviewer.parallel.layout import Layout
from llmviewer.parameters import declared
from llmviewer.records import frozen

LARGEST_FILE: Final = 1_000_000  # of a file that a user drops in [B]
MOST_FILES: Final = 16  # that a browser holds for a page
LONGEST_LINK: Final = 3_800  # servers in front of the page refuse requests of more than some 4000 characters
MINE: Final = "file:"  # begins the name of a model or device that a user dropped in
TABS: Final = ("overview", "network", "memory", "sweeps", "compare", "timeline", "validation", "glossary")
SWEEPS: Final = ("batch", "length", "figure-4", "figure-5", "figure-6", "figure-7", "figure-8")
MOST_PINS: Final = 6
_MOST_DEVICES: Final = 8
_LONGEST_TEXT: Final = 300
_LONGEST_PIN: Final = 700
_CALLED: Final = re.compile(rf"{MINE}([a-z0-9._-]+)")  # files that a pin names
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,60}\.(?:json|yaml)")  # a label, with no folder in it
_DECLARED: Final = PARAMETERS | declared(RequestOptions)
_LINK_NAMES: Final = {  # keys in links of what options of commands are called, where they differ
    **dict.fromkeys(("hw", "hardware", "device", "devices"), "on"),
    **{name: each.link for name, each in _DECLARED.items() if each.link},
    **{each.flag.lstrip("-"): each.link or name for name, each in _DECLARED.items() if each.flag},
}
LONGEST_READ_LINK: Final = 100_000  # before anything is made of it [characters]
_TOLD: Final = 60  # characters of a value in an error


def _given(value: object) -> str:
    """What a field has, which shows a number out of its range and gives none."""
    return "" if value is None else f"; got {repr(value[:_TOLD] if isinstance(value, str) else value)[: _TOLD + 2]}"


def _number(text: str, kind: Callable[[str], float]) -> object:
    """`text` as a number, or as it is where it is none, which check() refuses."""
    try:
        return kind(text)
    except ValueError:
        return text


@frozen(kw_only=True)
class Number:
    """A whole number of a range."""

    least: int
    most: int

    def read(self, text: str) -> object:
        return _number(text, int)

    def check(self, value: object) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not self.least <= value <= self.most:
            raise ValueError(f"must be a whole number from {self.least:,} to {self.most:,}{_given(value)}")
        return value


@frozen(kw_only=True)
class Fraction:
    """A number of a range."""

    least: float
    most: float

    def read(self, text: str) -> object:
        return _number(text, float)

    def check(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.least <= value <= self.most:
            raise ValueError(f"must be a number from {self.least:g} to {self.most:g}{_given(value)}")
        return float(value)


@frozen(kw_only=True)
class Word:
    """One of a few words, or a name of what ships; `dropped` where it may be one of what was dropped in."""

    known: Callable[[], Iterable[str]]
    dropped: bool = False

    def read(self, text: str) -> str:
        return text

    def check(self, value: object) -> str:
        known = tuple(self.known())
        if not isinstance(value, str) or (value not in known and not (self.dropped and _names_file(value))):
            raise ValueError(f"no {str(value)[:60]!r}; {suggest(str(value)[:60], known)}")
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
    """A short text, which is understood elsewhere."""

    most: int = _LONGEST_TEXT  # characters

    def read(self, text: str) -> str:
        return text

    def check(self, value: object) -> str:
        value = "" if value is None else value
        if not isinstance(value, str) or len(value) > self.most or not value.isprintable():
            raise ValueError(f"must be a text of at most {self.most} printable characters")
        return value.strip()


@frozen(kw_only=True)
class List:
    """Several of a kind, of which none stands twice."""

    kind: Word | Text
    least: int
    most: int

    def read(self, text: str) -> list[str]:
        return [self.kind.read(part) for part in text.split("|") if part]

    def check(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, list | tuple) or not self.least <= len(value) <= self.most:
            raise ValueError(f"must be {self.least} to {self.most} of them")
        return tuple(dict.fromkeys(self.kind.check(part) for part in value))


def libraries() -> tuple[str, ...]:
    """Those whose kernels were measured, and nothing for the one of which most was measured."""
    return ("", *sorted({fit.implementation.library for fit in index().fits}))


Kind = Number | Fraction | Word | Flag | Text | List


def _of(kind: Kind, default: Any) -> Any:
    return field(default=default, metadata={"kind": kind})


def _declared(name: str, default: Any = None) -> Any:
    """A field as the option `name` is declared; `default` is that of the page where the option has none."""
    parameter = _DECLARED[name]
    usual = parameter.default if default is None else default
    most = min(parameter.most, parameter.page_most)
    least = min(parameter.least, usual) if isinstance(usual, int | float) else parameter.least
    kind: Kind
    if isinstance(usual, bool):
        kind = Flag()
    elif isinstance(usual, str):
        kind = _words(*dict.fromkeys((usual, *parameter.choices))) if parameter.choices else Text()
    elif isinstance(usual, int):
        kind = Number(least=int(least), most=int(most))
    else:
        kind = Fraction(least=least, most=most)
    return _of(kind, usual)


def _words(*words: str) -> Word:
    return Word(known=lambda: words)


def _names_file(value: str) -> bool:
    return value.startswith(MINE) and _NAME.fullmatch(value.removeprefix(MINE)) is not None


@frozen(kw_only=True)
class File:
    """A file that a user dropped in: a config.json, or a YAML of a model or a device. It exists in memory only.

    name  a label by which `model` and `on` refer to it; no path

    Raises InputError if the name is none or the text is too large.
    """

    name: str
    text: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InputError(f"file {self.name[:_TOLD]!r}: has a name that no file here has")
        try:
            size = len(self.text.encode())
        except UnicodeEncodeError:
            raise InputError(f"{self.name}: is not a text file") from None
        if size > LARGEST_FILE:
            raise InputError(f"{self.name}: must have at most {LARGEST_FILE:,} bytes; got {size:,}")

    @property
    def is_model(self) -> bool:
        """Rather than a device."""
        return self.name.endswith(".json") or re.search(r"^config:", self.text, re.MULTILINE) is not None


@frozen(kw_only=True)
class State:
    """What is asked, and what of the answer is looked at. Names of fields are those of controls, and keys of the link.

    on       devices
    set      what-ifs, each as DEVICE:KEY=VALUE
    library  whose kernels times are expected of; of the one of which most was measured if empty
    engine   that launches them; none if empty
    measured what the user timed, as QUANTITY=VALUE
    context  tokens that the decode step shown attends to; the first step's if 0
    quant    as published if empty; `attention` likewise as the accounting has it
    op       the operator selected, as BLOCK.NAME; that of the largest share of time if empty
    sweep    what the sweeps run along, or which figure of "LLM Inference Unveiled" they are
    curves   what each of their curves is of; `quants` the precisions, those of the paper if empty
    pins     settings that are compared with this one, each as `pin` has it
    passes   in the trace, counted by its layers if 0; `stage` of a pipeline, the first being 1, that it is of
    files    those that `model` and `on` name
    """

    model: str = _of(Word(known=model_names, dropped=True), "llama-3.1-8b")
    on: tuple[str, ...] = _of(
        List(kind=Word(known=hardware_names, dropped=True), least=1, most=_MOST_DEVICES), ("h100-sxm",)
    )
    set: tuple[str, ...] = _of(List(kind=Text(), least=0, most=64), ())
    phase: str = _of(_words("prefill", "decode"), "decode")
    batch: int = _declared("batch")
    prompt: int = _declared("prompt")
    gen: int = _declared("gen", 128)
    context: int = _declared("kv_len", 0)
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
    library: str = _of(Word(known=libraries), "")
    engine: str = _of(_words("", *ENGINES), "")
    measured: str = _of(Text(), "")
    techniques: tuple[str, ...] = _of(List(kind=Text(), least=0, most=8), ())
    tab: str = _of(_words(*TABS), "overview")
    op: str = _of(Text(), "")
    sweep: str = _of(_words(*SWEEPS), "batch")
    curves: str = _of(_words("devices", "precisions"), "devices")
    quants: tuple[str, ...] = _of(List(kind=Text(), least=0, most=6), ())
    pins: tuple[str, ...] = _of(List(kind=Text(most=_LONGEST_PIN), least=0, most=MOST_PINS), ())
    passes: int = _of(Number(least=0, most=1_000_000), 0)
    stage: int = _of(Number(least=0, most=16), 0)
    files: tuple[File, ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, Any], files: Iterable[File] = ()) -> Self:
        """From values of controls by name; what is not among them is as usual.

        Raises FieldError where one cannot be used.
        """
        found: dict[str, Any] = {}
        for name, kind in KINDS.items():
            if name in values:
                try:
                    found[name] = kind.check(values[name])
                except ValueError as error:
                    raise FieldError(name, str(error)) from None
        return cls(**found).having(files)

    @classmethod
    def of_link(cls, query: str, files: Iterable[File] = ()) -> tuple[Self, tuple[str, ...]]:
        """What a link says, and a notice for each part of it that cannot be used and is as usual instead.

        files  that the browser holds beside the link
        """
        found: dict[str, Any] = {}
        notices: list[str] = []
        held = {one.name: one for one in files}
        for key, text in _pairs(query, notices):
            try:
                if key == "file":
                    one = _unpacked(text)
                    held[one.name] = one
                elif isinstance(kind := KINDS.get(key), List):
                    found[key] = kind.check(_usable(key, kind, kind.read(text), notices))
                elif kind:
                    found[key] = kind.check(kind.read(text))
                else:
                    notices.append(f"link: no setting {key[:40]!r}; {_setting_like(key)}")
            except ValueError as error:
                notices.append(f"link: {key}: {error}; the usual one is shown")
        state = cls(**found)
        for name in (state.model, *state.on):
            if name.startswith(MINE) and name.removeprefix(MINE) not in held:
                notices.append(f"link: {name} is a file that is not in it: drop it in again")
                usual = cls()
                state = replace(
                    state,
                    model=usual.model if name == state.model else state.model,
                    on=tuple(n for n in state.on if n != name) or usual.on,
                )
        usable = state.having(held.values())
        notices += [
            f"link: set: {change[:60]!r} is of no device that is chosen"
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
        """The query of a link to this, with what differs from the usual and as much of files as there is room for."""
        usual = type(self)()
        said = {name: _written(getattr(self, name)) for name in KINDS if getattr(self, name) != getattr(usual, name)}
        query = urlencode(said, safe=":|,=/")
        whole = "&".join(filter(None, (query, urlencode([("file", _packed(one)) for one in self.files]))))
        query = whole if len(whole) <= LONGEST_LINK else query
        return f"?{query}" if query else ""

    @property
    def layout(self) -> Layout:
        """Raises InputError where the degrees do not go together."""
        return Layout(tp=self.tp, pp=self.pp, ep=self.ep, dp=self.dp, cp=self.cp)

    @property
    def question(self) -> Self:
        """The same without what is only looked at: two states with equal questions have equal answers."""
        return replace(
            self, phase="decode", tab="overview", op="", sweep="batch", curves="devices", quants=(), pins=(), passes=0,
            stage=0,
        )  # fmt: skip

    def pin(self, device: str) -> str:
        """The question about one of its devices, to be kept beside others: a link without files."""
        changes = tuple(f"{device}:{change}" for change in self.changes(device))
        link = replace(self.question, on=(device,), set=changes, measured="", files=()).link or f"?model={self.model}"
        return link.removeprefix("?").replace("|", "%7C")

    def changes(self, device: str) -> tuple[str, ...]:
        """The what-ifs of a device, as KEY=VALUE."""
        pairs = (change.partition("=") for change in self.set)
        own = ((*key.rpartition(":"), value) for key, _, value in pairs)
        return tuple(f"{key}={value}" for name, _, key, value in own if name == device)

    def having(self, files: Iterable[File]) -> Self:
        """With those of `files` that it names, and without what-ifs of devices that are not on."""
        named = {name.removeprefix(MINE) for name in (self.model, *self.on) if name.startswith(MINE)}
        named |= {name for pin in self.pins for name in _CALLED.findall(unquote(pin))}
        return replace(
            self,
            files=tuple(one for one in files if one.name in named),
            set=tuple(one for one in self.set if one.partition("=")[0].rpartition(":")[0] in self.on),
        )


KINDS: Final[Mapping[str, Kind]] = {f.name: f.metadata["kind"] for f in fields(State) if f.metadata}


class FieldError(InputError):
    """A control whose value cannot be used."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name} {problem}")
        self.name = name


def _pairs(query: str, notices: list[str]) -> list[tuple[str, str]]:
    """Keys and values of a link; all that is listed under a key that stands twice, the last of another, files apart,
    and nothing of what is no link.
    """
    try:
        pairs = parse_qsl(query[:LONGEST_READ_LINK].removeprefix("?"), keep_blank_values=True, max_num_fields=100)
    except ValueError:
        notices.append("link: has too many parts; the usual page is shown")
        return []
    files = [(key, text) for key, text in pairs if key == "file"]
    found = dict(pairs)
    for name in found.keys() & {name for name, kind in KINDS.items() if isinstance(kind, List)}:
        found[name] = "|".join(text for key, text in pairs if key == name)
    if "on" in found:
        found["on"] = found["on"].replace(",", "|")  # as a command line has them
    return [*files, *((key, text) for key, text in found.items() if key != "file")]


def _usable(key: str, kind: List, given: list[str], notices: list[str]) -> list[str]:
    """The usable ones of several values, with a notice for each other one; `given` if none is usable."""
    usable, problems = [], []
    for one in dict.fromkeys(given):
        try:
            usable.append(kind.kind.check(one))
        except ValueError as error:
            problems.append(f"link: {key}: {error}; it is left out")
    if len(usable) < kind.least:
        return given
    if len(usable) > kind.most:
        problems.append(f"link: {key}: must be {kind.least} to {kind.most} of them; the first are shown")
    notices.extend(problems)
    return usable[: kind.most]


def _written(value: object) -> str:
    if isinstance(value, tuple):
        return "|".join(value)
    if isinstance(value, bool):
        return str(int(value))
    return str(value)


def _packed(file: File) -> str:
    data = base64.urlsafe_b64encode(zlib.compress(file.text.encode(), 9)).decode().rstrip("=")
    return f"{file.name}~{data}"


def _setting_like(key: str) -> str:
    """The key of a link that a reader may have meant by `key`."""
    own = _LINK_NAMES.get(key.lower().replace("-", "_"))
    return f"in a link it is {own}" if own in KINDS else suggest(key[:40], KINDS)


def _unpacked(text: str) -> File:
    name, _, data = text.partition("~")
    try:
        packed = base64.urlsafe_b64decode(data + "=" * (-len(data) % 4))
        reader = zlib.decompressobj()
        plain = reader.decompress(packed, LARGEST_FILE + 1)  # no more is unpacked than a file may have
        found = plain.decode()
    except (binascii.Error, zlib.error, UnicodeError, ValueError):
        raise ValueError("is damaged") from None
    if len(plain) > LARGEST_FILE or not reader.eof:
        raise ValueError("is damaged or too large")
    return File(name=name, text=found)
