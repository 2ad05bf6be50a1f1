"""Strict reading of YAML and JSON files; errors are one line with file and key."""

from __future__ import annotations

import json
import math
import re
import stat
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import yaml

from .errors import InputError, suggest

_REPEATED = (  # fields that determine how much is built
    "num_hidden_layers", "n_layer", "num_layers", "n_layers", "repeat", "vt_num_hidden_layers",
    "num_nextn_predict_layers", "num_mtp_layers",
)  # fmt: skip
_MOST_REPEATED = 10_000
LARGEST = 2**53  # whole numbers up to here are exact as floats
MOST_BYTES = 64 * 2**20  # largest document: the index of hundreds of thousands of tensors fits
_SHORT = 16_000  # characters; no nesting in them overflows the stack of the C parser, which has no check
_DEEPEST = 100
_BETWEEN = re.compile(r"[\s_-]+")  # words of a name
_MARKS = re.compile(r"\((?:r|tm)\)")  # in names that drivers give
_TELLING = 200  # characters of a value in an error


class _Loader(yaml.CSafeLoader):
    """YAML 1.2 numbers and no dates: 1e12 is a number and 2022-10-01 is text; keys must be unique."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT002
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=deep)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, "a key must be plain text", key_node.start_mark)
            if key in seen:
                mark = key_node.start_mark
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} stands twice", mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if not tag.endswith((":timestamp", ":float", ":int", ":bool"))]
    for first, found in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|false|False)$"), list("tTfF"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?[0-9]+$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf)|\.(?:nan|NaN))$"),
    list("-+0123456789."),
)


def read_text(path: Path) -> str:
    """The text of a file, without a byte order mark.

    Raises InputError if it is missing, a folder, not readable or not text.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder; give a file") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not a text file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def check_file(path: Path, most: int | None = None) -> None:
    """Raises InputError if `path` is no regular file, or has more than `most` bytes."""
    try:
        held = path.stat()
    except OSError:  # reading it will raise the error
        return
    if not stat.S_ISREG(held.st_mode) and not stat.S_ISDIR(held.st_mode):
        raise InputError(f"{path}: is a device or a pipe; give a file")
    if most is not None and held.st_size > most:
        raise InputError(f"{path}: must have at most {most} bytes; has {held.st_size}")


def check_path(name: str) -> None:
    """Raises InputError if `name` can only be a path, and nothing exists there."""
    if name.startswith(("./", "../", "/", "~")) and not is_there(name):
        raise InputError(f"{name}: there is no such file or folder")


def plain(name: str) -> str:
    """A name without what everybody writes differently: capitals, trademarks, spaces and hyphens."""
    return _BETWEEN.sub("", _MARKS.sub("", name.lower()))


def is_there(name: str) -> bool:
    """Whether a file or folder `name` exists; False for names that are too long."""
    try:
        return bool(name) and Path(name).exists()
    except OSError:
        return False


def _document(path: Path) -> str:
    check_file(path, MOST_BYTES)
    return read_text(path)


def read_yaml(path: Path) -> Section:
    return parse_yaml(_document(path), path)


def parse_yaml(text: str, path: Path) -> Section:
    """What `text` of the file `path` says.

    Raises InputError, with file, line and column, if it is no mapping in YAML.
    """
    too_deep = InputError(f"{path}: is not readable YAML: nested too deeply")
    try:
        deep = len(text) > _SHORT and any(depth > _DEEPEST for depth in _depths(text))
        data = None if deep else yaml.load(text, Loader=_Loader)  # noqa: S506
    except RecursionError:
        raise too_deep from None
    except ValueError:
        raise InputError(f"{path}: is not readable YAML: a number has too many digits") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise InputError(f"{path}{at}: is not YAML: {problem}") from None
    if deep:
        raise too_deep
    return _top(data, path, "a mapping of keys to values")


def _depths(text: str) -> Iterator[int]:
    """The nesting depth of each part of a document."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        yield depth


def read_json(path: Path) -> Section:
    text = _document(path)
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}:{error.colno}: is not JSON: {error.msg}") from None
    except RecursionError:
        raise InputError(f"{path}: is not readable JSON: nested too deeply") from None
    except ValueError:
        raise InputError(f"{path}: is not readable JSON: a number has too many digits") from None
    return _top(data, path, "a JSON object")


def _top(data: object, path: Path, kind: str) -> Section:
    if not isinstance(data, Mapping):
        raise InputError(f"{path}: must hold {kind}; got {_shown(data)}")
    return Section(data, str(path))


class Defaults(Protocol):
    """Values of keys that a mapping leaves out."""

    def names(self, key: str) -> tuple[str, ...]:
        """Other names of a key."""

    def value(self, key: str) -> Any:
        """The value of a key that is left out; None if there is none."""

    def inside(self, key: str, data: Mapping[str, Any]) -> Defaults:
        """Those of the mapping `data` under a key."""


class Section:
    """A mapping in a file, with its location and a record of the keys that were read.

    assumed  values of `Defaults` that were taken for required keys, by location
    """

    def __init__(self, data: Mapping[str, Any], file: str, at: str = "") -> None:
        self.data, self.file, self.at = data, file, at
        self.asked: set[str] = set()
        self._opened: dict[str, Section] = {}
        self._other_names: Mapping[str, Collection[str]] = {}
        self._defaults: Defaults | None = None
        self.assumed: dict[str, Any] = {}

    def default_to(self, defaults: Defaults) -> None:
        """Sets the values of keys that are left out, for this section and those within."""
        self._defaults = defaults
        for key, section in self._opened.items():
            section.default_to(defaults.inside(key, section.data))

    def also_called(self, other_names: Mapping[str, Collection[str]]) -> None:
        """Sets other names of keys, for this section and those opened from it."""
        self._other_names = other_names
        for section in self._opened.values():
            section.also_called(other_names)

    def with_data(self, data: Mapping[str, Any]) -> Section:
        """The same section with other data; both share the record of keys read."""
        section = Section(data, self.file, self.at)
        section.asked, section._opened, section._other_names = self.asked, self._opened, self._other_names
        section._defaults, section.assumed = self._defaults, self.assumed
        return section

    def _written(self, key: str) -> str:
        """The name of `key` in this file."""
        return next((name for name in self._names(key) if self.data.get(name) is not None), key)

    def _names(self, key: str) -> Iterator[str]:
        """The names of `key`, its own first."""
        usual = (key, *self._other_names.get(key, ()))
        yield from usual
        if self._defaults:
            yield from chain.from_iterable(map(self._defaults.names, usual))

    def get(self, key: str) -> Any:
        """The value of a key, unchecked; if it is absent, its default; None if it is null or has no default."""
        written = self._written(key)
        self.asked.update((key, written))
        value = self.data.get(written)
        return self._default(key) if value is None else value

    def unread(self, known: Collection[str] = ()) -> list[str]:
        """Keys with a value that were never read and are not `known`, here and in sections opened."""
        own = [
            f"{self.at}{k}" for k, v in self.data.items() if v is not None and k not in self.asked and k not in known
        ]
        inside = (section.unread(known) for key, section in self._opened.items() if key not in known)
        return sorted((*own, *chain.from_iterable(inside)))

    def costless(self, *keys: str) -> None:
        """Marks keys as read that have no effect on counts."""
        self.asked.update(keys, (self._written(key) for key in keys))

    def first(self, *keys: str) -> str:
        """The first of several equivalent keys that is present; the first key if none is."""
        return next((key for key in keys if self.data.get(key) is not None), keys[0])

    def __contains__(self, key: str) -> bool:
        return key in self.data

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def error(self, key: str, problem: str) -> InputError:
        return InputError(f"{self.file}: {self.at}{self._written(key)}: {problem}")

    def only(self, known: Iterable[str]) -> None:
        """Raises InputError at the first key that is not in `known`."""
        known = tuple(known)
        for key in self.data:
            if key not in known:
                raise self.error(str(key), f"unknown key; {suggest(str(key), known)}")

    def section(self, key: str) -> Section:
        value = self._required(key)
        if not isinstance(value, Mapping):
            raise self.error(key, f"must be a mapping; got {_shown(value)}")
        opened = self._opened.setdefault(key, Section(value, self.file, f"{self.at}{key}."))
        opened.also_called(self._other_names)
        opened.assumed = self.assumed
        if self._defaults:
            opened.default_to(self._defaults.inside(key, value))
        return opened if opened.data is value else opened.with_data(value)

    def empty(self, key: str) -> Section:
        """The section of a key that is left out, which has nothing but defaults."""
        return self.with_data({**self.data, key: {}}).section(key)

    def sections(self, key: str) -> list[Section]:
        """The mappings in a list of at least one."""
        value = self._required(key)
        if not isinstance(value, list) or not value or not all(isinstance(item, Mapping) for item in value):
            raise self.error(key, f"must be a list of mappings; got {_shown(value)}")
        return [Section(item, self.file, f"{self.at}{key}[{i}].") for i, item in enumerate(value)]

    def text(self, key: str, default: str | None = None) -> str:
        if default is not None and self.get(key) is None:
            return default
        value = self._given(key, default)
        if not isinstance(value, str) or not value:
            raise self.error(key, f"must be text; got {_shown(value)}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; empty if the key is absent."""
        value = self.get(key) or []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(key, f"must be a list of texts; got {_shown(value)}")
        return tuple(value)

    def integer(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number of at least `least`; null counts as absent, as in config.json files."""
        if default is not None and self.get(key) is None:
            return default
        value = self._given(key, default)
        if isinstance(value, float) and math.isfinite(value) and value == int(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(key, f"must be a whole number of at least {least}; got {_shown(value)}")
        if key in _REPEATED and value > _MOST_REPEATED:
            raise self.error(key, f"must be at most {_MOST_REPEATED}; got {value}")
        if value > LARGEST:
            raise self.error(key, f"must be at most {LARGEST}, the largest that is counted exactly")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        if default is not None and self.get(key) is None:
            return default
        value = self._given(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.error(key, f"must be a finite number; got {_shown(value)}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"must be true or false; got {_shown(value)}")
        return value

    def choice(self, key: str, known: Iterable[str], default: str | None = None) -> str:
        value = self.text(key, default)
        known = tuple(known)
        if value not in known:
            raise self.error(key, f"must be one of {', '.join(known)}; got {_shown(value)}")
        return value

    def _required(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise self.error(key, "is missing")
        return value

    def _given(self, key: str, default: object) -> Any:
        """The value of a key; one of the `Defaults` that is taken for lack of a `default` is recorded."""
        value = self._required(key)
        if default is None and self._defaults and self._written(key) not in self.data:
            self.assumed[f"{self.at}{key}"] = value
        return value

    def _default(self, key: str) -> Any:
        """The default of a key that is absent under all its names; None for a key that is null."""
        names = tuple(self._names(key))
        if self._defaults is None or any(name in self.data for name in names):
            return None
        return next((value for value in map(self._defaults.value, names) if value is not None), None)


def _shown(value: object) -> str:
    text = json.dumps(value, default=str) if not isinstance(value, str) else repr(value)
    return text if len(text) <= _TELLING else f"{text[:_TELLING]}..."
