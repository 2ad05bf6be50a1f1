"""Reading hardware/*.yaml files. Every number has a unit and a source."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from math import inf
from pathlib import Path
from typing import Final

from .._layout import PATH_VARIABLE, data_dir
from ..documents import Section, check_path, normalized, parse_yaml, path_exists, read_text, read_yaml
from ..errors import InputError, suggest
from ..resource import MEMORY, Resource, Unit
from ..units import parse, si
from .hardware import ROUNDING, Fact, Hardware, Source, products
from .keys import COUNT, KINDS, ON_CHIP, PLAIN, SECTIONS, STATUSES, TEXT, TOPOLOGIES, TOPOLOGY
from .what_ifs import apply_what_ifs, sets_rate

_REQUIRED: Final = ("vector.fp32", "memory.capacity", "memory.bandwidth")
_ROUNDING: Final = 1e-9  # relative rounding error of numbers computed from factors
_ROUNDED_BELOW: Final = 1.0005  # product of a rate's factors over the datasheet's rate; up to it, four digits agree
_OPTIONAL: Final = ("compute_capability", "aliases", "notes")  # of the device as a whole
_DEVICE_COUNT: Final = re.compile(r"(?P<number>\d+) ?[xX*] ?(?P<name>.+)")  # 8xh100
_WORD_SEPARATOR: Final = re.compile(r"[\s_-]+")  # words of a name
_ALIASES: Final = re.compile(r"^aliases:.*(?:\n[ \]-].*)*$", re.MULTILINE)
_VENDOR: Final = re.compile(r"^vendor: *(\w+)", re.MULTILINE)
_START: Final = "`llmviewer hardware NAME --format yaml` starts a file from one that ships"


def hardware_names() -> tuple[str, ...]:
    """Names of the shipped devices and of those in the user's folder."""
    return tuple(hardware_files())


def hardware_files() -> dict[str, Path]:
    """The file of each shipped device and of those in the user's folder, by name."""
    files = {path.stem: path for folder in reversed(_folders()) for path in folder.glob("*.yaml")}
    return dict(sorted(files.items()))


def load_hardware(name: str, changes: Sequence[str] = ()) -> Hardware:
    """The device of a name, an alias, or the path of a YAML file.

    Names may have capitals, spaces for hyphens, and the maker in front: "NVIDIA H100 SXM" is h100-sxm. Files in the
    folder LLMVIEWER_HARDWARE_PATH take precedence over shipped ones.

    changes  what-ifs such as "memory.bandwidth=2x" or "matrix.fp16=155 TOP/s"

    Raises InputError, with the nearest names, if there is no such device, and if the file or a change is invalid.
    """
    if not isinstance(name, str):
        raise InputError(f"hardware must be text; got {name!r}")
    path = hardware_file(name)
    return (_shipped if path.parent == data_dir("hardware") else _read)(path, tuple(changes))


def loaded(hardware: str | Hardware, changes: Sequence[str] = ()) -> Hardware:
    """A device from its name or a Hardware.

    Raises InputError if it cannot be read, or if `changes` are given for a Hardware.
    """
    if isinstance(hardware, str):
        (device_changes,) = changes_by_device([hardware], changes)
        return load_hardware(hardware, device_changes)
    if changes:
        raise InputError("hardware_set needs hardware given by name; change a Hardware with dataclasses.replace")
    return hardware


def changes_by_device(hardware: Sequence[str | Hardware], changes: Sequence[str]) -> list[tuple[str, ...]]:
    """The `changes` of each device: KEY=VALUE, for all devices, and NAME:KEY=VALUE, for one.

    Raises InputError if NAME is none of the devices.
    """
    names = [one.name if isinstance(one, Hardware) else hardware_file(one).stem for one in hardware]
    device_changes: list[tuple[str, str]] = []
    for change in changes:
        key, equals, value = change.partition("=")
        name, colon, bare_key = key.rpartition(":")
        device = name.strip()
        if colon and device not in names:  # an alias, or a file
            device = hardware_file(device).stem
        if colon and device not in names:
            raise InputError(f"{change}: {name} must be one of the devices given")
        device_changes.append((device, f"{bare_key}{equals}{value}"))
    return [tuple(change for device, change in device_changes if device in ("", name)) for name in names]


def hardware_file(name: str) -> Path:
    """The file that load_hardware(name) reads."""
    if path := known_file(name):
        return path
    if path_exists(name):
        raise InputError(f"{name}: must be a .yaml file, or a name that `llmviewer hardware` lists")
    check_path(name)
    makers = _makers()
    if name.lower() in makers:
        raise InputError(f"no hardware {name!r}: give one of its devices, which `llmviewer hardware {name}` lists")
    raise InputError(f"no hardware {name!r}: {_suggestion(name, makers)} (`llmviewer hardware` lists all)")


def _suggestion(name: str, makers: set[str]) -> str:
    """A hint for a name that no device has: a command, an option or the nearest names."""
    if any(path.stem == name.lower() for path in data_dir("models").glob("*.yaml")):
        return "that is a model; `llmviewer compare` takes several, MODEL,MODEL"
    if "," in name:
        return "give one; `llmviewer compare` takes several"
    counted = _DEVICE_COUNT.fullmatch(name)
    if counted and known_file(counted["name"]):
        return f"give {counted['name']} and how many share the model, such as --tp {counted['number']}"
    maker, *words = _WORD_SEPARATOR.split(name.lower().strip())
    if maker in makers:
        name = "-".join(words) or name
    devices = {called: device for device, names in hardware_aliases().items() for called in names}
    return suggest(name, devices, targets=devices)


def _makers() -> set[str]:
    texts = (read_text(path) for folder in _folders() for path in folder.glob("*.yaml"))
    return {match[1].lower() for text in texts if (match := _VENDOR.search(text))}


def known_file(name: str) -> Path | None:
    """The file that load_hardware(name) reads; None if there is none."""
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    for folder in _folders():
        path = folder / f"{name.lower()}.yaml"
        if "/" not in name and path_exists(str(path)):
            return path
        files = _shipped_files() if folder == data_dir("hardware") else _files(folder)
        if normalized(name) in files:
            return files[normalized(name)]
    return None


def hardware_yaml(name: str, new: str = "") -> str:
    """The text of a device's file, as a draft for a device `new`, which has no aliases."""
    text = read_text(hardware_file(name))
    if not new:
        return text
    text = re.sub(r"^name:.*$", f"name: {new}", text, count=1, flags=re.MULTILINE)
    return _ALIASES.sub("aliases: []", text, count=1)


def hardware_aliases() -> dict[str, tuple[str, ...]]:
    """All names of each device; the first is the name of its file."""
    return {name: (name, *_aliases(path, read_text(path))) for name, path in hardware_files().items()}


def plain_names() -> dict[str, str]:
    """The device of each known name, written as by `normalized`."""
    files = {called: path for folder in reversed(_folders()) for called, path in _files(folder).items()}
    return {called: path.stem for called, path in files.items()}


def _folders() -> tuple[Path, ...]:
    """Folders with devices, in order of precedence."""
    user_folder = os.environ.get(PATH_VARIABLE)
    if not user_folder:
        return (data_dir("hardware"),)
    if not Path(user_folder).is_dir():
        raise InputError(
            f"{PATH_VARIABLE} (--hardware-path): must be a folder of hardware YAML files; got {user_folder!r}"
        )
    return (Path(user_folder), data_dir("hardware"))


def _files(folder: Path) -> dict[str, Path]:
    """The file of each device name, written as by `normalized`, without and with the vendor in front."""
    return {name: path for path in sorted(folder.glob("*.yaml")) for name in _names_in_file(path)}


def _names_in_file(path: Path) -> Iterator[str]:
    text = read_text(path)
    maker = _VENDOR.search(text)
    for name in (path.stem, *_aliases(path, text)):
        yield normalized(name)
        if maker:
            yield normalized(maker[1] + name)


@cache
def _shipped_files() -> dict[str, Path]:
    return _files(data_dir("hardware"))


def _aliases(path: Path, text: str) -> tuple[str, ...]:
    """The aliases in the `text` of a file. Only these lines are parsed, because parsing all of every file is slow."""
    match = _ALIASES.search(text)
    if not match:
        return ()
    before = "\n" * text.count("\n", 0, match.start())  # so that errors name the right line
    return tuple(alias.lower() for alias in parse_yaml(before + match[0], path).texts("aliases"))


@lru_cache(maxsize=1024)
def _shipped(path: Path, changes: tuple[str, ...]) -> Hardware:
    return _read(path, changes)


def _read(path: Path, changes: tuple[str, ...]) -> Hardware:
    return _device(read_yaml(path), path.stem, changes)


def parse_hardware(text: str, name: str, changes: Sequence[str] = (), *, source: str = "") -> Hardware:
    """The device `name` that the text of a YAML file describes. No file is read.

    changes  see load_hardware()
    source   name of the text in errors; default `name`.yaml

    Raises InputError if the text or a change is invalid.
    """
    return _device(parse_yaml(text, source or f"{name}.yaml"), name, tuple(changes))


def _device(file: Section, name: str, changes: tuple[str, ...]) -> Hardware:
    """The device of a YAML file called `name`."""
    _check_keys(file, changes)
    if file.text("name") != name:
        raise file.error("name", f"must be the name of the file, {name}; got {file.text('name')!r}")
    sources = {key: _source(file.section("sources").section(key)) for key in file.section("sources")}
    facts = {fact.key: fact for name in SECTIONS if name in file for fact in _facts(file.section(name), name, sources)}
    written = {key: fact.value for key, fact in facts.items() if isinstance(fact.value, float)}
    facts, derived_changes = apply_what_ifs(facts, changes, name)
    value = {key: fact.value for key, fact in facts.items() if isinstance(fact.value, float)}
    if value.get("memory.usable", 0) > value["memory.capacity"] * (1 + _ROUNDING):
        where = next(
            (change for change in changes if change.startswith("memory.usable")), f"{file.file}: memory.usable"
        )
        capacity, usable = (f"{si(value[key])}B" for key in ("memory.capacity", "memory.usable"))
        raise InputError(f"{where}: must be at most memory.capacity, {capacity}; got {usable}")
    rates = {Resource(unit, key.split(".")[1]): rate for key, rate in value.items()
             for unit in (Unit.MATRIX, Unit.VECTOR) if key.startswith(f"{unit}.")}  # fmt: skip
    on_chip = [value[key] for level in ON_CHIP if (key := f"{level}.capacity") in value]
    return Hardware(
        name=file.text("name"),
        title=file.text("title"),
        rates={**rates, MEMORY: value["memory.bandwidth"]},
        headroom=_headroom(rates, value, written, facts),
        capacity=value.get("memory.usable", value["memory.capacity"]),
        on_chip_bytes=sum(on_chip) if on_chip else inf,
        vendor=file.text("vendor"),
        kind=file.choice("kind", KINDS),
        architecture=file.text("architecture"),
        released=file.integer("released"),
        status=file.choice("status", STATUSES),
        aliases=file.texts("aliases"),
        facts=tuple(facts.values()),
        sources=sources,
        notes=file.texts("notes"),
        changes=changes,
        derived_changes=derived_changes,
        file_numbers={key: number for key, number in written.items() if value.get(key) != number},
    )


def _headroom(
    rates: Iterable[Resource], value: Mapping[str, float], written: Mapping[str, float], facts: Mapping[str, Fact]
) -> dict[Resource, float]:
    """The factors from datasheet rates to limits, by unit and data type; rates that a what-if sets have none."""
    rated = written.get("clock.boost")
    if not rated:
        return {}
    clock_ratio = value.get("clock.max", value["clock.boost"]) / value["clock.boost"]
    unrounded = {
        product.key.partition(".")[0]: product.of(written) / written[product.key] for product in products(written)
    }
    headroom = {}
    for resource in rates:
        tiles = resource.unit is Unit.MATRIX and resource.dtype != "fp64"  # fp64 has the clock of vector units
        clock = written.get("clock.matrix", rated) if tiles else rated
        rounding = unrounded.get(str(resource.unit), 1.0)
        ratio = clock_ratio * rated / clock * (rounding if _ROUNDED_BELOW < rounding <= 1 + ROUNDING else 1.0)
        if ratio != 1 and not sets_rate(facts[f"{resource.unit}.{resource.dtype}"]):
            headroom[resource] = ratio
    return headroom


def _check_keys(file: Section, changes: Sequence[str]) -> None:
    """Raises InputError if a key is unknown, or if required keys are in neither the file nor `changes`."""
    file.only((*PLAIN, *SECTIONS))
    for name in SECTIONS:
        if name in file:
            file.section(name).only(("source", *SECTIONS[name]))
    changed_keys = {change.partition("=")[0].strip() for change in changes}
    required_paths: list[tuple[str, ...]] = [(key,) for key in PLAIN if key not in _OPTIONAL]
    required_paths += [
        ("sources", key, field) for key in _mapping(file.data.get("sources")) for field in ("title", "year")
    ]
    required_paths += [(name, "source") for name in SECTIONS if name in file]
    required_paths += [
        (name, key, "value")
        for name in SECTIONS
        for key, entry in _mapping(file.data.get(name)).items()
        if key != "source" and isinstance(entry, Mapping)
    ]
    required_paths += [
        (block, key) for block, _, key in (key.partition(".") for key in _REQUIRED if key not in changed_keys)
    ]
    missing = [".".join(path) for path in required_paths if _is_missing(file.data, path)]
    if missing:
        are = "is missing" if len(missing) == 1 else f"are missing; {_START}"
        raise InputError(f"{file.file}: {', '.join(missing)}: {are}")


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _is_missing(data: Mapping[str, object], path: Sequence[str]) -> bool:
    """Whether the value at a path of keys is absent or null; False if a value on the path is no mapping."""
    value: object = data
    for key in path:
        if value is not None and not isinstance(value, Mapping):
            return False
        value = _mapping(value).get(key)
    return value is None


def _source(section: Section) -> Source:
    section.only(("title", "version", "page", "year", "url"))
    return Source(
        title=section.text("title"),
        year=section.integer("year"),
        **{key: section.text(key, "") for key in ("version", "page", "url")},
    )


def _facts(section: Section, name: str, sources: Mapping[str, Source]) -> list[Fact]:
    source = section.choice("source", sources)
    return [_fact(section, f"{name}.{key}", source, sources) for key in section if key != "source"]


def _fact(section: Section, full_key: str, source: str, sources: Mapping[str, Source]) -> Fact:
    """The value of a key: plain, or `{value, source, note}` if its source differs from that of its block."""
    block, key = full_key.split(".")
    unit, note = SECTIONS[block][key], ""
    if isinstance(section.data[key], Mapping):
        section = section.section(key)
        section.only(("value", "source", "note"))
        source, note, key = section.choice("source", sources, source), section.text("note", ""), "value"
    value: float | str
    if unit == COUNT:
        value, text = float(section.integer(key)), str(section.integer(key))
    elif unit == TEXT:
        value = text = section.text(key)
    elif unit == TOPOLOGY:
        value = text = section.choice(key, TOPOLOGIES)
    else:
        text = str(section.get(key))
        try:
            value = parse(section.get(key), unit)
        except ValueError as error:
            raise section.error(key, str(error)) from None
    return Fact(key=full_key, text=text, value=value, source=source, note=note)
