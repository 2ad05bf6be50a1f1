"""profiles/index.json: the shipped profiles in a form that is read in a few milliseconds.

`python -m llmviewer.expectation.index` remakes it from the YAML files, which are the truth: where their sizes are not
those that it knows, they are read instead, and a test compares all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache, cached_property
from typing import Any, Final

from ..records import frozen
from .device import DeviceTraits, find_device
from .families import Implementation
from .profile import (
    FOLDER,
    Error,
    FitGroup,
    KernelFit,
    plain_entry,
    plain_error,
    profile_files,
    shipped,
    transfer_errors,
)
from .trend import Trend

PATH: Final = FOLDER / "index.json"


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


@cache
def index() -> ProfileIndex:
    """Index of the shipped profiles."""
    document = json.loads(PATH.read_bytes())  # faster than as text, whose line ends are looked at
    if document["sizes"] != _sizes():
        devices = {fit.device: find_device(fit.device) for fit in shipped()}
        return ProfileIndex(fits=FitGroup(shipped()), devices=devices, errors=transfer_errors())
    return ProfileIndex(
        fits=FitGroup(map(_entry, document["entries"])),
        devices={k["name"]: DeviceTraits(**k) for k in document["devices"]},
        errors={(name, dtype, near): Error.of(error) for name, dtype, near, error in document["errors"]},
    )


def by_family(fits: Iterable[KernelFit]) -> dict[str, FitGroup]:
    """Fits by family of kernels, in order."""
    groups: dict[str, list[KernelFit]] = {}
    for fit in fits:
        groups.setdefault(fit.family, []).append(fit)
    return {name: FitGroup(group) for name, group in groups.items()}


def _sizes() -> dict[str, int]:
    """Sizes of the profile files by path. [B]"""
    return {str(path.relative_to(FOLDER)): path.stat().st_size for path in profile_files()}


def device_traits(name: str) -> DeviceTraits:
    """Traits of a device by its name in profiles, which decide its similarity to others."""
    devices = index().devices
    return devices[name] if name in devices else find_device(name)


def to_json() -> str:
    """Text of the file, with a line for each fit."""
    devices = [find_device(name) for name in sorted({fit.device for fit in shipped()})]
    facts = [{key: getattr(device, key) for key in DeviceTraits.__dataclass_fields__} for device in devices]
    fits = [{"device": fit.device, "library": fit.implementation.library, **plain_entry(fit)} for fit in shipped()]
    errors = [[*key, plain_error(error)] for key, error in transfer_errors().items()]
    parts: dict[str, list[Any]] = {"devices": facts, "entries": fits, "errors": errors}
    between = ",\n"
    lists = (f'"{key}": [\n{between.join(map(_compact, items))}\n]' for key, items in parts.items())
    sizes = f'"sizes": {_compact(_sizes())}'
    return "{\n" + between.join((sizes, *lists)) + "\n}\n"


def _compact(value: Any) -> str:
    """JSON without spaces, as start-up reads the file."""
    return json.dumps(value, separators=(",", ":"))


def _entry(document: Mapping[str, Any]) -> KernelFit:
    label = document.get
    return KernelFit(
        device=document["device"],
        family=document["family"],
        implementation=Implementation(
            library=label("library", ""),
            dtype=label("dtype", ""),
            kv_dtype=label("kv_dtype", ""),
            kernel=label("kernel", ""),
        ),
        variant=document.get("variant", ""),
        parameters=document["parameters"],
        rows=document["rows"],
        shape_families=document.get("shape_families", 0),
        version=document.get("version", ""),
        sizes={name: (smallest, largest) for name, (smallest, largest) in document.get("sizes", {}).items()},
        fit_mape=document["fit_mape"],
        held_out=Error.of(document["held_out"]),
        trend=Trend.of(document["trend"]) if "trend" in document else None,
    )


if __name__ == "__main__":
    PATH.write_text(to_json(), encoding="utf-8")
