"""Strict reading of YAML and JSON files; errors are one line with file and key."""

from __future__ import annotations

import json
import math
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from .errors import InputError, quoted, suggest
from .parsed_files import parsed_file, parsed_json

MAX_COUNT = 10_000  # layers and other things that are made one by one
MAX_EXACT_INTEGER = 2**53  # whole numbers up to here are exact as floats
MAX_DOCUMENT_BYTES = 64 * 2**20  # largest document: the index of hundreds of thousands of tensors fits
_MAX_UNCHECKED_CHARS = 16_000  # characters; no nesting in them overflows the stack of the C parser, which has no check
_MAX_DEPTH = 100  # levels of nesting
_MAX_VALUES = 2_000_000  # values of a document, each alias of YAML counted with all that it stands for
_MAX_NUMBER = 1e100  # beyond which squares and products have no float
_SEPARATORS = re.compile(r"[\s_-]+")  # words of a name
_TRADEMARKS = re.compile(r"\((?:r|tm)\)")  # in names that drivers give


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
        raise InputError(f"{path}: is not a text file in UTF-8") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def check_file(path: Path, max_bytes: int | None = None) -> None:
    """Raises InputError if `path` is no regular file, or has more than `most` bytes."""
    try:
        status = path.stat()
    except OSError:  # reading it will raise the error
        return
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise InputError(f"{path}: is a device or a pipe; give a file")
    if max_bytes is not None and status.st_size > max_bytes:
        raise InputError(f"{path}: must have at most {max_bytes} bytes; has {status.st_size}")


def check_path(name: str) -> None:
    """Raises InputError if `name` can only be a path, and nothing exists there."""
    if name.startswith(("./", "../", "/", "~")) and not path_exists(name):
        raise InputError(f"{name}: there is no such file or folder")


def normalized(name: str) -> str:
    """A name without capitals, trademark signs, spaces and hyphens, which spellings of it differ in."""
    return _SEPARATORS.sub("", _TRADEMARKS.sub("", name.lower()))


def path_exists(name: str) -> bool:
    """Whether a file or folder `name` exists; False for names that are too long."""
    try:
        return bool(name) and Path(name).exists()
    except OSError:
        return False


def _document(path: Path) -> str:
    check_file(path, MAX_DOCUMENT_BYTES)
    return read_text(path)


def read_yaml(path: Path) -> Section:
    """The mapping in a YAML file; that of a file that ships comes from parsed.json of its folder.

    Raises InputError if the file cannot be read, or is no mapping in YAML.
    """
    text = _document(path)
    data = parsed_file(path, text)
    return parse_yaml(text, path) if data is None else Section(data, str(path))


def parse_yaml(text: str, path: Path | str) -> Section:
    """The mapping in `text`, the contents of the file `path`, which is not opened.

    Raises InputError, with file, line and column, if it is no mapping in YAML.
    """
    from . import yaml_text

    try:
        too_deep = len(text) > _MAX_UNCHECKED_CHARS and any(depth > _MAX_DEPTH for depth in yaml_text.depths(text))
        data = None if too_deep else yaml_text.load(text)
    except RecursionError:
        too_deep = True
    except ValueError:
        raise InputError(f"{path}: is not readable YAML: a number has too many digits") from None
    except yaml_text.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        position = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise InputError(f"{path}{position}: is not YAML: {problem}") from None
    if too_deep:
        raise InputError(f"{path}: is not readable YAML: nested too deeply")
    return _checked_section(data, path, "YAML", "a mapping of keys to values")


def parsed_folder(folder: Path) -> str:
    """The text of parsed.json of a folder of YAML files.

    Raises InputError if a file is no mapping in YAML.
    """
    texts = {path.stem: read_text(path) for path in folder.glob("*.yaml")}
    return parsed_json(texts, {name: parse_yaml(text, folder / f"{name}.yaml").data for name, text in texts.items()})


def read_json(path: Path) -> Section:
    """Reads the object in a JSON file."""
    return parse_object(_document(path), path)


def parse_object(text: str, path: Path | str) -> Section:
    """The object in `text`, the contents of the file `path`, which is not opened.

    Raises InputError, with file, line and column, if it is no JSON object.
    """
    return _checked_section(parse_json(text, str(path)), path, "JSON", "a JSON object")


def parse_json(text: str | bytes, where: str) -> Any:
    """The value in `text`, which is at `where`.

    Raises InputError, with line and column, if it is not JSON.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}:{error.lineno}:{error.colno}: is not JSON: {error.msg}") from None
    except RecursionError:
        raise InputError(f"{where}: is not readable JSON: nested too deeply") from None
    except UnicodeDecodeError:
        raise InputError(f"{where}: is not JSON: is not text in UTF-8") from None
    except ValueError:
        raise InputError(f"{where}: is not readable JSON: a number has too many digits") from None


def _checked_section(data: object, path: Path | str, language: str, kind: str) -> Section:
    _check_extent(data, path, language)
    if not isinstance(data, Mapping):
        raise InputError(f"{path}: must hold {kind}; got {quoted(data)}")
    return Section(data, str(path))


def _check_extent(data: object, path: Path | str, language: str) -> None:
    """Raises InputError if a document is nested too deeply, as one that contains itself is, or has too many values."""
    level, num_values = [data], 0
    for _ in range(_MAX_DEPTH):
        next_level: list[object] = []
        for one in level:
            children = one.values() if isinstance(one, Mapping) else one if isinstance(one, list) else ()
            num_values += len(children)
            if num_values > _MAX_VALUES:
                raise InputError(f"{path}: must have at most {_MAX_VALUES} values, with those of its aliases")
            next_level.extend(value for value in children if isinstance(value, Mapping | list))
        if not next_level:
            return
        level = next_level
    raise InputError(f"{path}: is not readable {language}: nested too deeply")


class Defaults(Protocol):
    """Values of keys that a mapping leaves out."""

    def names(self, key: str) -> tuple[str, ...]:
        """Other names of a key."""

    def value(self, key: str, present_keys: Collection[str]) -> Any:
        """The value of a key that is left out while `present_keys` are given; None if there is none."""

    def inside(self, key: str, data: Mapping[str, Any]) -> Defaults:
        """Class defaults of the mapping `data` under a key."""


class Section:
    """A mapping in a file, with its location and a record of the keys that were read.

    assumed  values of `Defaults` that were taken for required keys, by location
    """

    def __init__(self, data: Mapping[str, Any], file: str, prefix: str = "") -> None:
        self.data, self.file, self.prefix = data, file, prefix
        self.read_keys: set[str] = set()
        self._opened: dict[str, Section] = {}
        self._aliases: Mapping[str, Collection[str]] = {}
        self._defaults: Defaults | None = None
        self.assumed: dict[str, Any] = {}

    def set_defaults(self, defaults: Defaults) -> None:
        """Sets the values of keys that are left out, for this section and those within."""
        self._defaults = defaults
        for key, section in self._opened.items():
            section.set_defaults(defaults.inside(key, section.data))

    def set_aliases(self, aliases: Mapping[str, Collection[str]]) -> None:
        """Sets other names of keys, for this section and those opened from it."""
        self._aliases = aliases
        for section in self._opened.values():
            section.set_aliases(aliases)

    def with_data(self, data: Mapping[str, Any]) -> Section:
        """The same section with other data; both share the record of keys read."""
        section = Section(data, self.file, self.prefix)
        section.read_keys, section._opened, section._aliases = self.read_keys, self._opened, self._aliases
        section._defaults, section.assumed = self._defaults, self.assumed
        return section

    def _name_in_file(self, key: str) -> str:
        """The name of `key` in this file."""
        return next((name for name in self._names(key) if self.data.get(name) is not None), key)

    def _names(self, key: str) -> Iterator[str]:
        """The names of `key`, its own first."""
        own_names = (key, *self._aliases.get(key, ()))
        yield from own_names
        if self._defaults:
            yield from chain.from_iterable(map(self._defaults.names, own_names))

    def get(self, key: str) -> Any:
        """The value of a key, unchecked; if it is absent, its default; None if it is null or has no default.

        The default of a mapping is for section() alone.
        """
        written = self._name_in_file(key)
        self.read_keys.update((key, written))
        value = self.data.get(written)
        if value is None:
            value = self._default(key)
            return None if isinstance(value, Mapping) else value
        return value

    def has(self, key: str) -> bool:
        """Whether the file has a value of a key, under any of its names."""
        return self.data.get(self._name_in_file(key)) is not None

    def unread(self, ignored_keys: Collection[str] = ()) -> list[str]:
        """Keys with a value that were never read and are not `known`, here and in sections opened."""
        unread_keys = [
            f"{self.prefix}{k}"
            for k, v in self.data.items()
            if v is not None and k not in self.read_keys and k not in ignored_keys
        ]
        nested_keys = (section.unread(ignored_keys) for key, section in self._opened.items() if key not in ignored_keys)
        return sorted((*unread_keys, *chain.from_iterable(nested_keys)))

    def ignore(self, *keys: str) -> None:
        """Marks keys as read that have no effect on counts."""
        self.read_keys.update(keys, (self._name_in_file(key) for key in keys))

    def first(self, *keys: str) -> str:
        """The first of several equivalent keys that is present, or else has a default; the first key if none is."""
        present_keys = (key for key in keys if self.data.get(key) is not None)
        defaulted_keys = (key for key in keys if self._defaults and self._defaults.value(key, self.data) is not None)
        return next(chain(present_keys, defaulted_keys), keys[0])

    def __contains__(self, key: str) -> bool:
        return key in self.data

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def error(self, key: str, problem: str) -> InputError:
        return InputError(f"{self.file}: {self.prefix}{self._name_in_file(key)}: {problem}")

    def only(self, known_keys: Iterable[str]) -> None:
        """Raises InputError at the first key that is not in `known`."""
        known_keys = tuple(known_keys)
        for key in self.data:
            if key not in known_keys:
                raise self.error(str(key), f"unknown key; {suggest(str(key), known_keys)}")

    def section(self, key: str) -> Section:
        value = self.get(key)
        if value is None and isinstance(self._default(key), Mapping):
            value = self._default(key)
            self.assumed[f"{self.prefix}{key}"] = "as a whole"
        if value is None:
            raise self.error(key, "is missing")
        if not isinstance(value, Mapping):
            raise self.error(key, f"must be a mapping; got {quoted(value)}")
        opened = self._opened.setdefault(key, Section(value, self.file, f"{self.prefix}{key}."))
        opened.set_aliases(self._aliases)
        opened.assumed = self.assumed
        if self._defaults:
            opened.set_defaults(self._defaults.inside(key, value))
        return opened if opened.data is value else opened.with_data(value)

    def empty(self, key: str) -> Section:
        """The section of a key that is left out, which has nothing but defaults."""
        return self.with_data({**self.data, key: {}}).section(key)

    def sections(self, key: str) -> list[Section]:
        """The mappings in a list of at least one."""
        value = self._required(key)
        if not isinstance(value, list) or not value or not all(isinstance(item, Mapping) for item in value):
            raise self.error(key, f"must be a list of mappings; got {quoted(value)}")
        return [Section(item, self.file, f"{self.prefix}{key}[{i}].") for i, item in enumerate(value)]

    def text(self, key: str, default: str | None = None) -> str:
        if default is not None and self.get(key) is None:
            return default
        value = self._value_or_assumed(key, default)
        if not isinstance(value, str) or not value:
            raise self.error(key, f"must be text; got {quoted(value)}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; empty if the key is absent."""
        value = self.get(key) or []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(key, f"must be a list of texts; got {quoted(value)}")
        return tuple(value)

    def integer(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number of at least `least`; null counts as absent, as in config.json files."""
        if default is not None and self.get(key) is None:
            return default
        value = self._value_or_assumed(key, default)
        if isinstance(value, float) and math.isfinite(value) and value == int(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(key, f"must be a whole number of at least {least}; got {quoted(value)}")
        if value > MAX_EXACT_INTEGER:
            raise self.error(key, f"must be at most {MAX_EXACT_INTEGER}, the largest that is counted exactly")
        return value

    def count(self, key: str, default: int | None = None, least: int = 1, *, times: int = 1) -> int:
        """A number of things that are made one by one, such as layers; `times` as many are made in all."""
        value = self.integer(key, default, least)
        if value * times > MAX_COUNT:
            maximum = MAX_COUNT // times if times <= MAX_COUNT else 0
            raise self.error(key, f"must be at most {maximum}; got {value}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        if default is not None and self.get(key) is None:
            return default
        value = self._value_or_assumed(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not -_MAX_NUMBER <= value <= _MAX_NUMBER:
            raise self.error(key, f"must be a finite number; got {quoted(value)}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key)
        if value is None:
            return default and not any(name in self.data for name in self._names(key))  # null is false, as in Python
        if not isinstance(value, bool):
            raise self.error(key, f"must be true or false; got {quoted(value)}")
        return value

    def choice(self, key: str, choices: Iterable[str], default: str | None = None) -> str:
        value = self.text(key, default)
        choices = tuple(choices)
        if value not in choices:
            raise self.error(key, f"must be one of {', '.join(choices)}; got {quoted(value)}")
        return value

    def _required(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise self.error(key, "is missing")
        return value

    def _value_or_assumed(self, key: str, default: object) -> Any:
        """The value of a key; one of the `Defaults` that is taken for lack of a `default` is recorded."""
        value = self._required(key)
        if default is None and self._defaults and self._name_in_file(key) not in self.data:
            self.assumed[f"{self.prefix}{key}"] = value
        return value

    def _default(self, key: str) -> Any:
        """The default of a key that is absent under all its names; None for a key that is null."""
        names = tuple(self._names(key))
        if self._defaults is None or any(name in self.data for name in names):
            return None
        values = (self._defaults.value(name, self.data) for name in names)
        return next((value for value in values if value is not None), None)
