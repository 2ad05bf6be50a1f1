"""A state -> what analyze() finds for each of its devices. Pure functions, remembered for as long as there is room."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any, Final

from llmviewer._layout import data_dir
from llmviewer.analyzing.analysis import Analysis, analyze
from llmviewer.analyzing.measured import parse as parse_measured
from llmviewer.analyzing.phases import Phase
from llmviewer.devices.files import hardware_names, load_hardware, parse_hardware
from llmviewer.devices.hardware import Hardware
from llmviewer.documents import parse_object, parse_yaml, read_yaml
from llmviewer.errors import InputError, suggest
from llmviewer.model import Model
from llmviewer.model_files import load_model, model_names, parse_model
from llmviewer.records import frozen
from llmviewer.request import Request
from llmviewer.setting import Setting
from llmviewer.techniques import declaration, techniques
from llmviewer.variants.evaluation import Evaluation

from .state import LARGEST_FILE, MINE, File, State
from .work import TooMuchWorkError, begin_again, check_work

_LOG: Final = logging.getLogger(__name__)
WORDS_OF_TECHNIQUES: Final = ("draft_quant", "scorer_quant", "targets", "tree")  # texts that are read as they stand
_MOST_OF_ALL: Final = 131_072  # of a number of a technique; more takes long to step through
_MOST: Final = {"gamma": 64}
# Fields of a question whose values may not go together, the likeliest mistakes first.
_MISTAKEN: Final = (
    "measured", "techniques", "quant", "offload", "set", "library", "engine", "attention", "mla", "accounting", "skew",
    "mtp", "images", "context", "cp", "dp", "ep", "pp", "tp", "gen", "prompt", "batch",
)  # fmt: skip
_MOST_OPERATORS: Final = 2000  # of a dropped model; the largest that ships has some hundreds
_MOST_PATTERNS, _MOST_UNBOUNDED = 64, 4
_REPEATED_GROUP: Final = re.compile(r"\)\s*(?:[*+]|\{)")
_UNBOUNDED: Final = re.compile(r"[*+]|\{\d*,\d*\}")
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,60}")


@frozen(kw_only=True)
class Answer:
    """What was found for one device; `name` is what the state calls it."""

    name: str
    setting: Setting
    analysis: Analysis

    @property
    def evaluation(self) -> Evaluation:
        """The generation, the base of variants."""
        assert self.analysis.evaluation  # of devices of one kind
        return self.analysis.evaluation

    def phase(self, name: str) -> Phase:
        """That of a name; the one there is, where the model does not generate."""
        return dict(self.analysis.phases).get(name, self.analysis.phases.prefill)

    def phase_name(self, name: str) -> str:
        """The name of phase(name)."""
        return name if name in dict(self.analysis.phases) else "prefill"


def answers(state: State) -> tuple[Answer, ...]:
    """One for each device, in their order.

    Raises InputError where the question has no answer.
    """
    return tuple(_answer(_of_one(state, name)) for name in state.on)


def why_not(state: State) -> str:
    """Why a question has no answer, in one line; nothing where it has one."""
    problem = _problem(state)
    return str(problem) if problem else ""


def _problem(state: State) -> InputError | None:
    try:
        answers(state)
    except InputError as error:
        return error
    except Exception:  # noqa: BLE001 - the page stays
        return InputError(fault(state.link))
    return None


def fault(what: str) -> str:
    """The line for users where llmviewer itself is at fault; the log has what to mend."""
    _LOG.exception(what)
    return "llmviewer has a fault and cannot work this out; the log of the server has more"


def settled(state: State) -> tuple[State, tuple[str, ...]]:
    """`state` where it has an answer; else without the fields that have none, with a notice for each."""
    notices: list[str] = []
    problem = _problem(state)
    while problem:
        found = _without(state, problem)
        if found is None:
            notices.append(f"link: cannot be answered, and another page is shown: {problem}")
            return State(tab=state.tab), tuple(notices)
        name, state, left = found
        notices.append(f"link: {name}: {problem}; the usual one is shown")
        problem = left
    return state, tuple(notices)


def _without(state: State, problem: InputError) -> tuple[str, State, InputError | None] | None:
    """A field that has `problem`, the state as usual in it, and what is still wrong then.

    That without which all is well, or else without which something else is wrong; None if there is none.
    """
    other = None
    for name, near in _nearer(state, texts=not isinstance(problem, TooMuchWorkError)):
        begin_again()
        left = _problem(near)
        if left is None:
            return name, near, None
        if other is None and str(left) != str(problem):
            other = name, near, left
    return other


def _nearer(state: State, *, texts: bool) -> Iterator[tuple[str, State]]:
    """States with one field as usual, the likeliest mistake first: texts, then numbers, then model and devices.

    texts  whether each field is tried, rather than those that take most work
    """
    usual = State()
    for name in (*_MISTAKEN, "model", "on") if texts else ("techniques", "on"):
        given = getattr(state, name)
        if given == getattr(usual, name):
            continue
        values: list[Any] = []
        if isinstance(given, tuple) and len(given) > 1:
            values = [given[:place] + given[place + 1 :] for place in range(len(given))] if texts else [given[:1]]
        for value in (*values, getattr(usual, name)):
            yield name, replace(state, **{name: value}).having(state.files)


def model_file(name: str, text: str) -> File:
    """A config.json or a YAML that describes a model, once it has been read through.

    Raises InputError, which names the file and what is wrong with it.
    """
    _short(name, text)
    suffix = _ending(name)
    if suffix not in (".json", ".yaml", ".yml"):
        raise InputError(f"{name}: must be a config.json, or a YAML of a model; got {suffix or 'no ending'}")
    stem = _stem(name) if suffix == ".json" else _said(name, text)
    file = File(name=f"{stem}{'.json' if suffix == '.json' else '.yaml'}", text=text)
    model(file, shown=name)
    return file


def hardware_file(name: str, text: str) -> File:
    """A YAML of a device, likewise.

    Raises InputError.
    """
    _short(name, text)
    if _ending(name) not in (".yaml", ".yml"):
        raise InputError(f"{name}: must be a YAML like those in hardware/; got {_ending(name) or 'no ending'}")
    file = File(name=f"{_said(name, text)}.yaml", text=text)
    hardware(file, (), shown=name)
    return file


@lru_cache(maxsize=64)
def model(file: File, *, shown: str = "") -> Model:
    """The model of a dropped file, which errors call `shown` if that is given."""
    _check_patterns(file, shown or file.name)
    found = parse_model(file.text, file.name, source=shown)
    _check_extent(found, shown or file.name)
    return found


@lru_cache(maxsize=64)
def hardware(file: File, changes: tuple[str, ...], *, shown: str = "") -> Hardware:
    """The device of a dropped file, under what-ifs."""
    return parse_hardware(file.text, file.name.removesuffix(".yaml"), changes, source=shown or file.name)


@lru_cache(maxsize=1)
def model_catalogue() -> Mapping[str, tuple[str, int]]:
    """Title and parameters, as published, of each model that ships."""
    files = {name: read_yaml(data_dir("models") / f"{name}.yaml") for name in model_names()}
    return {name: (file.text("title"), file.integer("parameters")) for name, file in files.items()}


@lru_cache(maxsize=1)
def hardware_catalogue() -> Mapping[str, Hardware]:
    """The devices that ship, and those of the user's folder."""
    return {name: load_hardware(name) for name in hardware_names()}


def device(state: State, name: str) -> Hardware:
    """One of the devices of a state, with what the user changed of it."""
    if name.startswith(MINE):
        return hardware(_file(state, name), state.changes(name))
    return _shipped_hardware(name, state.changes(name))


def _of_one(state: State, name: str) -> State:
    """The question about one of the devices: what does not matter to it is as usual."""
    question = replace(state.question, on=(name,))
    files = tuple(file for file in state.files if f"{MINE}{file.name}" in (state.model, name))
    return replace(question, set=tuple(f"{name}:{change}" for change in state.changes(name)), files=files)


@lru_cache(maxsize=512)
def _answer(question: State) -> Answer:
    check_work()
    (name,) = question.on
    setting = _setting(replace(question, batch=1, prompt=1, gen=1, context=0, images=0, measured=""))
    request = Request(
        batch=question.batch,
        prompt=question.prompt,
        gen=question.gen,
        kv_len=question.context or None if setting.model.generates else None,
        images=question.images,
    )
    analysis = analyze(setting, request, measured=parse_measured(question.measured))
    return Answer(name=name, setting=setting, analysis=analysis)


@lru_cache(maxsize=128)
def _setting(question: State) -> Setting:
    (name,) = question.on
    chosen = question.model
    return Setting.of(
        model(_file(question, chosen)) if chosen.startswith(MINE) else _shipped_model(chosen),
        device(question, name),
        quant=question.quant or None,
        attention=question.attention or None,
        accounting=question.accounting,
        mla=question.mla,
        expert_skew=question.skew,
        mtp=question.mtp,
        layout=question.layout,
        offload=question.offload,
        techniques=[_safe(text) for text in question.techniques],
        library=question.library,
        engine=question.engine,
    )


@lru_cache(maxsize=64)
def _shipped_model(name: str) -> Model:
    """Only names of what ships: nothing that a link says is taken for a path, a repository or code."""
    if name not in model_names():
        raise InputError(f"no model {name!r}")
    return load_model(name)


@lru_cache(maxsize=256)
def _shipped_hardware(name: str, changes: tuple[str, ...]) -> Hardware:
    if name not in hardware_names():
        raise InputError(f"no device {name!r}")
    return load_hardware(name, changes)


def _file(state: State, name: str) -> File:
    found = [file for file in state.files if f"{MINE}{file.name}" == name]
    if not found:
        raise InputError(f"{name} is a file that is not here: drop it in again")
    return found[0]


def _safe(text: str) -> str:
    """A technique as it is written, if no path and no code stands in it, and no number that others would wait for: of
    its texts, those that are more than words name a model that ships.
    """
    name, _, rest = text.partition(":")
    kind = techniques().get(name.strip())
    words = {f.name for f in fields(kind) if declaration(f).choices or f.name in WORDS_OF_TECHNIQUES} if kind else set()
    texts = {f.name for f in fields(kind) if "str" in str(f.type)} - words if kind else set()
    for part in rest.split(","):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if key in texts and value not in model_names():
            raise InputError(f"{name}: {key} must be a model that ships, and no file; {suggest(value, model_names())}")
        most = _MOST.get(key, _MOST_OF_ALL)
        if _number(value) > most:
            raise InputError(f"{name}: {key} must be at most {most:,} on this page; got {value}")
    return text


def _number(text: str) -> float:
    """As the parser of techniques reads it; 0 for what is none."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def _short(name: str, text: str) -> None:
    if len(text.encode()) > LARGEST_FILE:
        raise InputError(f"{name}: must have at most {LARGEST_FILE:,} bytes; got {len(text.encode()):,}")


def _ending(name: str) -> str:
    """The ending of a name, with its dot; "" if it has none."""
    stem, dot, ending = name.rpartition(".")
    return f"{dot}{ending}".lower() if stem else ""


def _stem(name: str) -> str:
    """The name here of a model whose file is `name`."""
    stem = name.rpartition(".")[0].lower()
    plain = re.sub(r"[^a-z0-9._-]+", "-", stem).strip("-._")
    return "my-model" if plain in ("", "config") else plain[:40].strip("-._")  # config.json names nothing


def _said(name: str, text: str) -> str:
    """The name that a YAML gives itself, which has to be that of its file."""
    said = parse_yaml(text, name).text("name")
    if not _NAME.fullmatch(said):
        raise InputError(f"{name}: name: must be lower-case letters, digits, dots and dashes; got {said[:60]!r}")
    return said


def _check_extent(model: Model, shown: str) -> None:
    """Raises InputError if a dropped model has more operators than one request can work on."""
    number = sum(1 for _ in model.graph)
    if number > _MOST_OPERATORS:
        most = f"at most {_MOST_OPERATORS:,} operators of layers that are not alike"
        raise InputError(f"{shown}: must have {most} on this page; has {number:,}; llmviewer analyze takes more")


def _check_patterns(file: File, shown: str) -> None:
    """Raises InputError if a file has many or slow patterns of module names, which hold up others while they match."""
    read = parse_object if file.name.endswith(".json") else parse_yaml
    patterns = [text for text in _texts_in(read(file.text, shown).data) if _UNBOUNDED.search(text)]
    if len(patterns) > _MOST_PATTERNS:
        most = f"at most {_MOST_PATTERNS} patterns of modules"
        raise InputError(f"{shown}: must have {most} on this page; has {len(patterns)}; llmviewer analyze takes more")
    for text in patterns:
        if _REPEATED_GROUP.search(text) or len(_UNBOUNDED.findall(text)) > _MOST_UNBOUNDED:
            must = f"must repeat no group, and have at most {_MOST_UNBOUNDED} of * and +"
            raise InputError(f"{shown}: patterns of modules {must} on this page; got {text[:60]!r}")


def _texts_in(value: object) -> Iterator[str]:
    """Keys and texts of a document."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts_in(str(key))
            yield from _texts_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts_in(inner)
