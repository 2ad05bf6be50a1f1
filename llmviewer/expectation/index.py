"""profiles/index.json: the shipped profiles in a form that is read in a few milliseconds.

It begins with what fits are selected by. The numbers of each fit and its trend are lines after that, which are read
when they are used. `python -m llmviewer.expectation.index` remakes it from the YAML files, which are the truth: where
their sizes are not those that it knows, they are read instead, and a test compares all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from functools import cache, cached_property
from operator import attrgetter
from typing import Any, Final

from ..records import frozen
from .device import DeviceTraits, find_device
from .families import Implementation
from .profile import (
    FOLDER,
    OPERATORS_FOLDER,
    Error,
    FitGroup,
    KernelFit,
    plain_entry,
    plain_error,
    shipped,
    transfer_errors,
)
from .trend import Trend

PATH: Final = FOLDER / "index.json"
_LABELS: Final = ("device", "family", "variant", "rows", "version", "shape_families", "held_out_mape")
_VALUES: Final = ("implementation", *_LABELS, "_numbers_line", "_trend_line")
_NUMBER_KEYS: Final = ("parameters", "sizes", "fit_mape", "held_out")
_BETWEEN: Final = ",\n"
_NUMBERS, _TRENDS = b'"numbers": [\n', b'"trends": [\n'


@frozen(kw_only=True)
class ProfileIndex:
    """Contents of profiles/index.json.

    devices  traits of the measured devices by name, which decide their similarity
    errors   errors of transfers, as in transfer_errors()
    """

    fits: FitGroup
    devices: Mapping[str, DeviceTraits]
    errors: Mapping[tuple[str, str, str], Error]

    @cached_property
    def fits_by_family(self) -> Mapping[str, FitGroup]:
        """The fits of each family of kernels."""
        return by_family(self.fits)


class _IndexedFit(KernelFit):
    """A fit of the index, whose lines are read when one of their numbers is used."""

    _numbers_line: bytes
    _trend_line: bytes

    @classmethod
    def of(cls, implementation: Implementation, labels: Iterable[Any], numbers: bytes, trend: bytes) -> _IndexedFit:
        """The fit with these values of `_LABELS`, and its lines."""
        fit = cls.__new__(cls)
        vars(fit).update(zip(_VALUES, (implementation, *labels, numbers, trend), strict=True))
        return fit

    @cached_property
    def _numbers(self) -> Mapping[str, Any]:
        numbers: dict[str, Any] = json.loads(self._numbers_line.removesuffix(b","))
        return numbers

    @cached_property
    def parameters(self) -> Mapping[str, float]:
        return dict[str, float](self._numbers["parameters"])

    @cached_property
    def fit_mape(self) -> float:
        return float(self._numbers["fit_mape"])

    @cached_property
    def held_out(self) -> Error:
        return Error.of(self._numbers["held_out"])

    @cached_property
    def sizes(self) -> Mapping[str, tuple[float, float]]:
        return {name: (smallest, largest) for name, (smallest, largest) in self._numbers.get("sizes", {}).items()}

    @cached_property
    def trend(self) -> Trend | None:
        document = json.loads(self._trend_line.removesuffix(b","))
        return Trend.of(document) if document else None


@cache
def index() -> ProfileIndex:
    """Index of the shipped profiles."""
    content = PATH.read_bytes()
    first = content.index(_NUMBERS)
    document = json.loads(content[:first].removesuffix(b",\n") + b"}")
    if document["sizes"] != _sizes():
        devices = {fit.device: find_device(fit.device) for fit in shipped()}
        return ProfileIndex(fits=FitGroup(shipped()), devices=devices, errors=transfer_errors())
    implementations = [Implementation(**names) for names in document["implementations"]]
    rows = zip(document["fits"], _lines(content, _NUMBERS), _lines(content, _TRENDS), strict=False)
    return ProfileIndex(
        fits=FitGroup(_IndexedFit.of(implementations[place], labels, *each) for (place, *labels), *each in rows),
        devices={k["name"]: DeviceTraits(**k) for k in document["devices"]},
        errors={(name, dtype, near): Error.of(error) for name, dtype, near, error in document["errors"]},
    )


def _lines(content: bytes, heading: bytes) -> Iterator[bytes]:
    """Yields the lines after a heading. find() takes a tenth of the time of split(), which looks at each byte."""
    start = content.index(heading) + len(heading)
    while (end := content.find(b"\n", start)) >= 0:
        yield content[start:end]
        start = end + 1


def by_family(fits: Iterable[KernelFit]) -> dict[str, FitGroup]:
    """Fits by family of kernels, in order."""
    groups: dict[str, list[KernelFit]] = {}
    for fit in fits:
        groups.setdefault(fit.family, []).append(fit)
    return {name: FitGroup(group) for name, group in groups.items()}


def _sizes() -> dict[str, int]:
    """Sizes of the profile files by path. [B]"""
    files = (
        (f"{prefix}{entry.name}", entry.stat().st_size)
        for prefix, folder in (("", FOLDER), (f"{OPERATORS_FOLDER.name}/", OPERATORS_FOLDER))
        for entry in sorted(os.scandir(folder), key=attrgetter("name"))  # takes a tenth of the time of Path.glob()
    )
    return {name: size for name, size in files if name.endswith(".yaml")}


def device_traits(name: str) -> DeviceTraits:
    """Traits of a device by its name in profiles, which decide its similarity to others."""
    devices = index().devices
    return devices[name] if name in devices else find_device(name)


def to_json() -> str:
    """Text of the file, with a line for each fit in each of its lists."""
    devices = [find_device(name) for name in sorted({fit.device for fit in shipped()})]
    facts = [{key: getattr(device, key) for key in DeviceTraits.__dataclass_fields__} for device in devices]
    implementations = list(dict.fromkeys(fit.implementation for fit in shipped()))
    places = {implementation: place for place, implementation in enumerate(implementations)}
    labels = [[places[fit.implementation], *(getattr(fit, name) for name in _LABELS)] for fit in shipped()]
    entries = [plain_entry(fit) for fit in shipped()]
    errors = [[*key, plain_error(error)] for key, error in transfer_errors().items()]
    parts: dict[str, list[Any]] = {"devices": facts, "errors": errors}
    parts["implementations"] = [{f.name: getattr(one, f.name) for f in fields(one)} for one in implementations]
    parts["fits"] = labels
    parts["numbers"] = [{name: entry[name] for name in _NUMBER_KEYS if name in entry} for entry in entries]
    parts["trends"] = [entry.get("trend") for entry in entries]
    lists = (f'"{key}": [\n{_BETWEEN.join(map(_compact, items))}\n]' for key, items in parts.items())
    sizes = f'"sizes": {_compact(_sizes())}'
    return "{\n" + _BETWEEN.join((sizes, *lists)) + "\n}\n"


def _compact(value: Any) -> str:
    """JSON without spaces, as start-up reads the file."""
    return json.dumps(value, separators=(",", ":"))


if __name__ == "__main__":
    PATH.write_text(to_json(), encoding="utf-8")
