"""Analyses of a page state, one per device: cached pure functions of the state."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, fields, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

import yaml

from llmviewer._layout import data_dir
from llmviewer.analyzing.analysis import Analysis, analyze
from llmviewer.analyzing.measured import parse as parse_measured
from llmviewer.analyzing.phases import Phase
from llmviewer.devices.files import hardware_names, hardware_yaml, load_hardware, parse_hardware
from llmviewer.devices.hardware import Hardware
from llmviewer.devices.keys import COUNT, SECTIONS
from llmviewer.documents import parse_object, parse_yaml, read_yaml
from llmviewer.errors import InputError, suggest
from llmviewer.model import Model
from llmviewer.model_files import load_model, model_names, parse_model
from llmviewer.records import frozen
from llmviewer.request import Request
from llmviewer.setting import Setting
from llmviewer.techniques import declaration, techniques
from llmviewer.variants.evaluation import Evaluation

from . import traffic
from .cpu_limit import CpuLimitError, check_limit, restart_limit
from .errors import error_line
from .state import FILE_PREFIX, MAX_FILE_BYTES, File, State

VERBATIM_PARAMETERS: Final = (
    "draft_quant",
    "scorer_quant",
    "targets",
    "tree",
    "layers",
    "mix",
)  # texts that name no file or model
_MAX_PARAMETER: Final = 131_072  # of a technique; larger numbers of steps take seconds to evaluate
_MAX_BY_PARAMETER: Final = {"gamma": 64}
# Fields reset one after another until a link can be analyzed, the likeliest mistakes first.
_RESET_ORDER: Final = (
    "measured", "techniques", "quant", "offload", "set", "library", "memory_fraction", "max_num_seqs",
    "max_num_batched_tokens", "max_model_len", "engine", "attention", "mla", "accounting", "skew", "mtp", "images",
    "router", "order", "tenants", "rates", "load", "think_time", "traffic",
    "step", "context", "cp", "dp", "ep", "pp", "tp", "gen", "prompt", "batch",
)  # fmt: skip
_OWN_SOURCE: Final = "own"  # key of the source of numbers that the user gave
_CACHED_RESULTS: Final = 16  # up to 1 MB each: a device has some 10 settings in "What would help"
_MAX_OPERATORS: Final = 2000  # of an uploaded model; the largest that ships has some hundreds
_MAX_PATTERNS, _MAX_UNBOUNDED = 64, 4  # patterns of module names in a file, * and + in one of them
_REPEATED_GROUP: Final = re.compile(r"\)\s*(?:[*+]|\{)")
_UNBOUNDED: Final = re.compile(r"[*+]|\{\d*,\d*\}")
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,60}")


@frozen(kw_only=True)
class DeviceResult:
    """Analysis of the state on one device; `name` is its name in the state."""

    name: str
    setting: Setting
    analysis: Analysis

    @property
    def evaluation(self) -> Evaluation:
        """The evaluated generation, the baseline of variants."""
        assert self.analysis.evaluation  # None only for prefill and decode on separate devices
        return self.analysis.evaluation

    def phase(self, name: str) -> Phase:
        """The phase of that name; prefill where the model does not generate."""
        return dict(self.analysis.phases).get(name, self.analysis.phases.prefill)

    def phase_name(self, name: str) -> str:
        """The name of phase(name)."""
        return name if name in dict(self.analysis.phases) else "prefill"


def device_results(state: State) -> tuple[DeviceResult, ...]:
    """Results of a state, one per device, in order.

    Raises InputError if the state cannot be analyzed.
    """
    return tuple(_device_result(_device_inputs(state, name)) for name in state.on)


def evaluation_of(state: State) -> Evaluation:
    """The generation on the only device of a state, without its operators: all that gains of changes need.

    Raises InputError if the state cannot be evaluated.
    """
    (name,) = state.on
    try:
        return _evaluation(_device_inputs(state, name))
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - the page stays
        raise InputError(error_line(error, state.link)) from None


def problem_of(state: State) -> str:
    """The reason why a state cannot be analyzed, in one line of the page's words; empty if it can."""
    return _problem_of(state).text


class _StateProblem(NamedTuple):
    """The reason why a state cannot be analyzed, and whether it takes too long; no text if it can."""

    text: str = ""
    is_slow: bool = False


def _problem_of(state: State) -> _StateProblem:
    try:
        device_results(state)
        traffic.check(state)
    except Exception as error:  # noqa: BLE001 - the page stays
        return _StateProblem(error_line(error, state.link), isinstance(error, CpuLimitError))
    return _StateProblem()


def nearest_valid(state: State) -> tuple[State, tuple[str, ...]]:
    """`state` with as few fields reset to their defaults as are needed to analyze it, and a notice for each of them."""
    notices: list[str] = []
    problem = _problem_of(state)
    while problem.text:
        replacement = _reset_field(state, problem)
        if replacement is None:
            notices.append(f"link: cannot be analyzed, the default page is shown: {problem.text}")
            return State(tab=state.tab), tuple(notices)
        name, state, remaining = replacement
        notices.append(f"link: {name}: {problem.text}; the default is used")
        problem = remaining
    return state, tuple(notices)


def _reset_field(state: State, problem: _StateProblem) -> tuple[str, State, _StateProblem] | None:
    """Finds a field that causes `problem`: its name, the state with it reset, and the error that then remains.

    Prefers a field whose reset leaves no error to one whose reset leaves another error; None if there is neither.
    """
    candidate = None
    for name, reset_state in _reset_candidates(state, every_field=not problem.is_slow):
        restart_limit()
        remaining = _problem_of(reset_state)
        if not remaining.text:
            return name, reset_state, remaining
        if candidate is None and remaining.text != problem.text:
            candidate = name, reset_state, remaining
    return candidate


def _reset_candidates(state: State, *, every_field: bool) -> Iterator[tuple[str, State]]:
    """States with one field reset or shortened, the likeliest mistake first, model and devices last.

    every_field  whether every field is tried, rather than those that take most CPU time
    """
    defaults = State()
    for name in (*_RESET_ORDER, "model", "on") if every_field else ("techniques", "on"):
        current = getattr(state, name)
        if current == getattr(defaults, name):
            continue
        values: list[Any] = []
        if isinstance(current, tuple) and len(current) > 1:
            values = (
                [current[:place] + current[place + 1 :] for place in range(len(current))]
                if every_field
                else [current[:1]]
            )
        for value in (*values, getattr(defaults, name)):
            yield name, replace(state, **{name: value}).with_files(state.files)


def parse_model_file(name: str, text: str, others: Sequence[File] = ()) -> File:
    """Checks an uploaded config.json or YAML of a model.

    others  files of the page, whose names a config.json that is not named itself does not take

    Raises InputError with the name of the file and the problem.
    """
    _check_size(name, text)
    suffix = _suffix(name)
    if suffix not in (".json", ".yaml", ".yml"):
        raise InputError(f"{name}: must be a config.json, or a YAML of a model; got {suffix or 'no suffix'}")
    if suffix == ".json":
        stem = _stem(name)
        file = File(name=f"{stem or _free_stem(name, text, others)}.json", text=text)
    else:
        file = File(name=f"{_declared_name(name, text)}.yaml", text=text)
    model(file, title=name)
    return file


def _free_stem(name: str, text: str, others: Sequence[File]) -> str:
    """Name of a config.json: that of its repository, else of its family, with a number if another model has it."""
    config = parse_object(text, name).data
    given_names = [one for key in ("_name_or_path", "model_type") if isinstance(one := config.get(key), str)]
    stem = next(filter(None, (_plain(one.rpartition("/")[2]) for one in given_names)), "my-model")
    taken_names = {one.name.removesuffix(".json") for one in others if one.text != text}
    return next(one for one in (stem, *(f"{stem}-{number}" for number in range(2, 99))) if one not in taken_names)


def own_device_file(state: State, source: str, name: str) -> File:
    """A device of the user's own: `source` with its what-ifs as the numbers of its file.

    Raises InputError if the name is invalid or that of a device that ships, or a number is impossible.
    """
    if not _NAME.fullmatch(name):
        raise InputError("name of the device: must be lower-case letters, digits, dots and dashes")
    if name in hardware_names():
        raise InputError(f"name of the device: {name} ships with llmviewer; give another one")
    changed = device(state, source)
    text = _file(state, source).text if source.startswith(FILE_PREFIX) else hardware_yaml(source)
    data = dict(parse_yaml(text, source).data)
    data |= {"name": name, "title": name, "aliases": [], "sources": {**data["sources"], _OWN_SOURCE: {
        "title": f"hypothetical, from {source.removeprefix(FILE_PREFIX)}", "year": data["released"],
    }}}  # fmt: skip
    for fact in changed.facts:
        if fact.note.startswith("what-if") and isinstance(fact.value, float):
            section, _, key = fact.key.partition(".")
            unit = SECTIONS[section][key]
            value = fact.value if unit == COUNT else f"{fact.value:.12g} {unit}"
            data[section] = {**data.get(section, {"source": _OWN_SOURCE}), key: {"value": value, "source": _OWN_SOURCE}}
    if "memory.usable" not in {fact.key for fact in changed.facts}:
        data["memory"] = {key: value for key, value in data["memory"].items() if key != "usable"}
    return parse_hardware_file(f"{name}.yaml", yaml.safe_dump(data, sort_keys=False, allow_unicode=True))


def parse_task_file(name: str, text: str) -> File:
    """Checks an uploaded YAML of the calls of an agent's task.

    Raises InputError with the name of the file and the problem.
    """
    _check_size(name, text)
    if _suffix(name) not in (".yaml", ".yml"):
        raise InputError(f"{name}: must be a YAML with the calls of a task; got {_suffix(name) or 'no suffix'}")
    file = File(name=f"{_stem(name) or 'my-task'}.yaml", text=text)
    traffic.check(State(traffic="tasks", tasks=f"{FILE_PREFIX}{file.name}", files=(file,)))
    return file


def parse_hardware_file(name: str, text: str) -> File:
    """Checks an uploaded YAML of a device.

    Raises InputError with the name of the file and the problem.
    """
    _check_size(name, text)
    if _suffix(name) not in (".yaml", ".yml"):
        raise InputError(f"{name}: must be a YAML like those in hardware/; got {_suffix(name) or 'no suffix'}")
    file = File(name=f"{_declared_name(name, text)}.yaml", text=text)
    hardware(file, (), title=name)
    return file


@lru_cache(maxsize=64)
def model(file: File, *, title: str = "") -> Model:
    """The model of an uploaded file; errors name the file by `title` if given."""
    _check_patterns(file, title or file.name)
    parsed = parse_model(file.text, file.name, source=title)
    _check_extent(parsed, title or file.name)
    return parsed


@lru_cache(maxsize=64)
def hardware(file: File, changes: tuple[str, ...], *, title: str = "") -> Hardware:
    """The device of an uploaded file with what-if changes."""
    return parse_hardware(file.text, file.name.removesuffix(".yaml"), changes, source=title or file.name)


class CatalogueModel(NamedTuple):
    """Title, published number of parameters, and aliases (repositories on the hub) of a model that ships."""

    title: str
    parameters: int
    aliases: tuple[str, ...]


@lru_cache(maxsize=1)
def model_catalogue() -> Mapping[str, CatalogueModel]:
    """The models that ship, by name."""
    files = {name: read_yaml(data_dir("models") / f"{name}.yaml") for name in model_names()}
    return {
        name: CatalogueModel(file.text("title"), file.integer("parameters"), tuple(file.texts("aliases")))
        for name, file in files.items()
    }


@lru_cache(maxsize=1)
def hardware_catalogue() -> Mapping[str, Hardware]:
    """The devices that ship, and those of the user's folder."""
    return {name: load_hardware(name) for name in hardware_names()}


def device(state: State, name: str) -> Hardware:
    """A device of a state, with the user's what-if changes."""
    if name.startswith(FILE_PREFIX):
        return hardware(_file(state, name), state.what_ifs(name))
    return _shipped_hardware(name, state.what_ifs(name))


def _device_inputs(state: State, name: str) -> State:
    """The inputs of the analysis on one device, without what belongs to other devices: the key of its cache."""
    inputs = replace(state.analysis_inputs, on=(name,))
    files = tuple(file for file in state.files if f"{FILE_PREFIX}{file.name}" in (state.model, name))
    return replace(inputs, set=tuple(f"{name}:{change}" for change in state.what_ifs(name)), files=files)


@lru_cache(maxsize=_CACHED_RESULTS)
def _device_result(inputs: State) -> DeviceResult:
    check_limit()
    (name,) = inputs.on
    setting = _setting(inputs)
    analysis = analyze(setting, _request(inputs, setting), measured=parse_measured(inputs.measured))
    return DeviceResult(name=name, setting=setting, analysis=analysis)


@lru_cache(maxsize=_CACHED_RESULTS)
def _evaluation(inputs: State) -> Evaluation:
    check_limit()
    setting = _setting(inputs)
    request = _request(inputs, setting).of_model(setting.model)
    request.check_countable()
    evaluation = Evaluation.of(setting, request)
    _ = setting.plan, setting.decode_plan, evaluation.memory  # impossible inputs raise here
    return evaluation


def setting_on(state: State, name: str) -> Setting:
    """The setting of a state on one of its devices.

    Raises InputError if it is impossible.
    """
    return _setting(_device_inputs(state, name))


def _request(inputs: State, setting: Setting) -> Request:
    return Request(
        batch=inputs.batch,
        prompt=inputs.prompt,
        gen=inputs.gen,
        kv_len=inputs.kv_len if setting.model.generates else None,
        images=inputs.images,
    )


def _setting(inputs: State) -> Setting:
    """The setting of the inputs on one device, cached for all requests."""
    return _cached_setting(replace(inputs, batch=1, prompt=1, gen=1, context=0, step="", images=0, measured=""))


@lru_cache(maxsize=_CACHED_RESULTS)
def _cached_setting(inputs: State) -> Setting:
    (name,) = inputs.on
    return Setting.of(
        model_of(inputs),
        device(inputs, name),
        quant=inputs.quant or None,
        attention=inputs.attention or None,
        accounting=inputs.accounting,
        mla=inputs.mla,
        expert_skew=inputs.skew,
        mtp=inputs.mtp,
        layout=inputs.layout,
        offload=inputs.offload,
        techniques=[_checked_technique(text) for text in inputs.techniques],
        library=inputs.library,
        engine=inputs.engine,
        memory_fraction=inputs.memory_fraction or None,
        max_num_seqs=inputs.max_num_seqs or None,
        max_num_batched_tokens=inputs.max_num_batched_tokens or None,
        max_model_len=inputs.max_model_len or None,
    )


def model_of(state: State) -> Model:
    """The model of a state, in its published precision.

    Raises InputError if the page does not have it.
    """
    name = state.model
    return model(_file(state, name)) if name.startswith(FILE_PREFIX) else _shipped_model(name)


@lru_cache(maxsize=64)
def _shipped_model(name: str) -> Model:
    """A model that ships. Texts of links are never taken as a path, a repository or code."""
    if name not in model_names():
        raise InputError(f"no model {name!r}")
    return load_model(name)


@lru_cache(maxsize=256)
def _shipped_hardware(name: str, changes: tuple[str, ...]) -> Hardware:
    if name not in hardware_names():
        raise InputError(f"no device {name!r}")
    return load_hardware(name, changes)


def _file(state: State, name: str) -> File:
    matches = [file for file in state.files if f"{FILE_PREFIX}{file.name}" == name]
    if not matches:
        raise InputError(f"{name}: the file is not on this page; upload it again")
    return matches[0]


def _checked_technique(text: str) -> str:
    """Checks a technique: texts that may be paths or code must name a model that ships, numbers must be quick to
    evaluate.
    """
    name, _, rest = text.partition(":")
    kind = techniques().get(name.strip())
    texts = {f.name for f in fields(kind) if "str" in str(f.type) and not _is_verbatim(f)} if kind else set()
    for part in rest.split(","):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if key in texts and value not in model_names():
            raise InputError(
                f"{name}: {key} must be a model that ships with llmviewer; {suggest(value, model_names())}"
            )
        maximum = _MAX_BY_PARAMETER.get(key, _MAX_PARAMETER)
        if _number(value) > maximum:
            raise InputError(f"{name}: {key} must be at most {maximum:,} on this page; got {value}")
    return text


def _is_verbatim(parameter: Field[Any]) -> bool:
    """Whether a text of a technique names no file or model."""
    return bool(declaration(parameter).choices) or parameter.name in VERBATIM_PARAMETERS


def _number(text: str) -> float:
    """A number as the parser of techniques reads it; 0 for other texts."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def _check_size(name: str, text: str) -> None:
    if len(text.encode()) > MAX_FILE_BYTES:
        raise InputError(f"{name}: must have at most {MAX_FILE_BYTES:,} bytes; got {len(text.encode()):,}")


def _suffix(name: str) -> str:
    """Suffix of a file name with its dot, in lower case; empty if it has none."""
    stem, dot, ending = name.rpartition(".")
    return f"{dot}{ending}".lower() if stem else ""


def _stem(name: str) -> str:
    """Name of a model on the page, from the name of its file; empty if that names none."""
    plain = _plain(name.rpartition(".")[0])
    return "" if plain == "config" else plain  # config.json does not name a model


def _plain(text: str) -> str:
    """A text as a name: lower-case letters, digits, dots and dashes."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")[:40].strip("-._")


def _declared_name(name: str, text: str) -> str:
    """The `name` of a YAML, which names it on the page.

    Raises InputError if it is not a valid name.
    """
    declared = parse_yaml(text, name).text("name")
    if not _NAME.fullmatch(declared):
        raise InputError(f"{name}: name: must be lower-case letters, digits, dots and dashes; got {declared[:60]!r}")
    return declared


def _check_extent(model: Model, title: str) -> None:
    """Raises InputError if an uploaded model has more distinct operators than one request may evaluate."""
    number = sum(1 for _ in model.graph)
    if number > _MAX_OPERATORS:
        requirement = f"at most {_MAX_OPERATORS:,} operators in distinct layers"
        raise InputError(f"{title}: must have {requirement} on this page; has {number:,}; llmviewer analyze takes more")


def _check_patterns(file: File, title: str) -> None:
    """Raises InputError if a file has many or slow patterns of module names, which would block other requests."""
    parse = parse_object if file.name.endswith(".json") else parse_yaml
    patterns = [text for text in _texts_in(parse(file.text, title).data) if _UNBOUNDED.search(text)]
    if len(patterns) > _MAX_PATTERNS:
        requirement = f"at most {_MAX_PATTERNS} patterns of module names"
        raise InputError(
            f"{title}: must have {requirement} on this page; has {len(patterns)}; llmviewer analyze takes more"
        )
    for text in patterns:
        if _REPEATED_GROUP.search(text) or len(_UNBOUNDED.findall(text)) > _MAX_UNBOUNDED:
            rule = f"must repeat no group and have at most {_MAX_UNBOUNDED} of * and +"
            raise InputError(f"{title}: patterns of module names {rule} on this page; got {text[:60]!r}")


def _texts_in(value: object) -> Iterator[str]:
    """All keys and texts of a document."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts_in(str(key))
            yield from _texts_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts_in(inner)
