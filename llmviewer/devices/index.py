"""hardware/index.json: what lists show of the devices that ship, whose files take a millisecond each to read and check.

`python tests/test_indexes.py` remakes it from the files. A file that has changed since is read itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from zlib import crc32

from .._layout import data_dir
from ..parsed_files import json_lines
from ..records import frozen
from ..resource import Unit
from .files import hardware_files, load_hardware
from .hardware import Hardware


@frozen(kw_only=True)
class DeviceRow:
    """A device in a list.

    capacity_bytes  usable main memory [B]
    bandwidth       of main memory [B/s]
    matrix          dense datasheet rate of the matrix units, by data type [OP/s]
    vector          rate of the vector units, by data type [OP/s]
    """

    name: str
    title: str
    vendor: str
    architecture: str
    status: str
    aliases: tuple[str, ...]
    capacity_bytes: float
    bandwidth: float
    matrix: Mapping[str, float]
    vector: Mapping[str, float]

    @classmethod
    def of(cls, device: Hardware) -> DeviceRow:
        """The row of a device."""
        rates = {unit: {r.dtype: rate for r, rate in device.rates.items() if r.unit is unit} for unit in Unit}
        return cls(
            name=device.name, title=device.title, vendor=device.vendor, architecture=device.architecture,
            status=device.status, aliases=device.aliases, capacity_bytes=device.capacity, bandwidth=device.bandwidth(),
            matrix=rates[Unit.MATRIX], vector=rates[Unit.VECTOR],
        )  # fmt: skip


def device_rows() -> list[DeviceRow]:
    """Shipped devices and those of the user's folder, by name.

    Raises InputError if a file that is not in the index is invalid.
    """
    entries = json.loads(_path().read_text(encoding="utf-8")) if _path().is_file() else {}
    return [
        DeviceRow(**{**entry["row"], "aliases": tuple(entry["row"]["aliases"])})
        if path.parent == data_dir("hardware") and (entry := entries.get(name)) and entry["crc32"] == _checksum(path)
        else DeviceRow.of(load_hardware(name))
        for name, path in hardware_files().items()
    ]


def index_json() -> str:
    """The text of hardware/index.json, a device a line."""
    return json_lines({
        path.stem: {"crc32": _checksum(path), "row": asdict(DeviceRow.of(load_hardware(str(path))))}
        for path in sorted(data_dir("hardware").glob("*.yaml"))
    })  # fmt: skip


def _path() -> Path:
    return data_dir("hardware") / "index.json"


def _checksum(path: Path) -> int:
    return crc32(path.read_bytes())
