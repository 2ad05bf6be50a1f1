"""Drafts of hardware files for this machine, from kernel and driver; unknown numbers are marked."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from ..errors import InputError
from .files import known_file, load_hardware
from .hardware import Hardware

_QUERY: Final = (
    "name", "memory.total", "clocks.max.sm", "clocks.max.memory", "power.default_limit", "compute_cap",
    "pcie.link.gen.max", "pcie.link.width.max", "driver_version",
)  # fmt: skip
_LANE: Final = {"3": 8e9, "4": 16e9, "5": 32e9}  # transfers per second, coded 128b/130b
_SIZES: Final = {"K": 2**10, "M": 2**20}


class _Unit(NamedTuple):
    """OPs per core and clock of the units that a CPU flag stands for."""

    flag: str
    key: str
    ops: int
    why: str


# Intel 64 and IA-32 Architectures Optimization Reference Manual (2023), chapters on AVX-512, VNNI and AMX; Arm Neoverse
# software optimization guides (2021). The number of multiply-add units is that of most server cores, and the draft says
# so. Of the entries with one key, the first that a CPU has applies.
_UNITS: Final = (
    _Unit("avx512f", "vector.fp32", 64, "2 units x 16 lanes x 2; cores with one 512-bit unit have half"),
    _Unit("fma", "vector.fp32", 32, "2 units of 256 bit x 8 lanes x 2"),
    _Unit("avx", "vector.fp32", 16, "one addition and one multiplication of 8 lanes"),
    _Unit("sse2", "vector.fp32", 8, "one addition and one multiplication of 4 lanes"),
    _Unit("asimd", "vector.fp32", 16, "2 units of 128 bit x 4 lanes x 2; large cores have 4"),
    _Unit("avx512_fp16", "vector.fp16", 128, "twice fp32"),
    _Unit("avx512_bf16", "vector.bf16", 128, "twice fp32; some cores have half"),
    _Unit("avx512_vnni", "vector.int8", 256, "four times fp32"),
    _Unit("avx_vnni", "vector.int8", 128, "four times fp32"),
    _Unit("amx_fp16", "matrix.fp16", 1024, "AMX: 16 x 16 x 32 multiply-adds in 16 clocks"),
    _Unit("amx_bf16", "matrix.bf16", 1024, "AMX: 16 x 16 x 32 multiply-adds in 16 clocks"),
    _Unit("amx_int8", "matrix.int8", 2048, "AMX: 16 x 16 x 64 multiply-adds in 16 clocks"),
)


def draft(root: Path = Path("/")) -> str:
    """Drafts a YAML document for the CPU and one for each model of GPU; each belongs in its own file.

    root  folder with /proc and /sys

    Raises InputError if /proc/cpuinfo cannot be read.
    """
    return "---\n".join((_cpu(root), *_gpus()))


def local_device() -> Hardware:
    """The GPU of this machine, if one that ships is like it; Apple's chips with the memory that the machine has.

    Raises InputError if there is none, or it is unknown.
    """
    names = [row["name"] for row, _ in _driver_rows()]
    if sys.platform == "darwin":
        names = [_sysctl("machdep.cpu.brand_string").removeprefix("Apple ")]
    for name in names:
        if file := known_file(name):
            device = load_hardware(file.stem)
            memory = _sysctl("hw.memsize") if sys.platform == "darwin" else ""
            if not memory.isdecimal():
                return device
            usable = int(memory) * device.capacity / device.numbers["memory.capacity"]
            return load_hardware(file.stem, [f"memory.capacity={memory} B", f"memory.usable={usable:.0f} B"])
    reason = f"no shipped device is {names[0]!r}" if names else "no GPU was found"
    raise InputError(
        f"hardware must be named here: {reason} (`llmviewer hardware` lists devices, `llmviewer hardware --local` "
        "drafts a file of this machine)"
    )


def _sysctl(key: str) -> str:
    """A value of the kernel of macOS; "" if unknown."""
    return _output(["/usr/sbin/sysctl", "-n", key]).strip()


def _output(command: list[str]) -> str:
    """Standard output of a program; "" without it."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ""


def _cpu(root: Path) -> str:
    info = _read(root / "proc/cpuinfo")
    if not info:
        raise InputError(f"{root / 'proc/cpuinfo'}: cannot be read; --local needs Linux")
    fields = [dict(_pairs(block)) for block in info.strip().split("\n\n")]
    first = fields[0]
    title = first.get("model name") or first.get("CPU part", "CPU")
    physical_cores = {(f["physical id"], f["core id"]) for f in fields if {"physical id", "core id"} <= f.keys()}
    cores = len(physical_cores) or sum("processor" in f for f in fields)
    clock, clock_note = _clock(root, first, title)
    lines = [
        *_head(title, "cpu", first.get("vendor_id", "unknown")),
        "sources:",
        *_source("kernel", "/proc and /sys of the machine"),
        *_source("formula", "cores x OPs of a core in one clock x clock; the OPs as the CPU's flags allow"),
    ]
    if clock:
        lines += [f"clock: {{source: kernel, boost: {{value: {clock / 1e6:.0f} MHz, note: {json.dumps(clock_note)}}}}}"]
    lines += _cpu_rates(first, cores, clock)
    memory = re.search(r"MemTotal:\s+(\d+) kB", _read(root / "proc/meminfo"))
    lines += ["memory:", "  source: kernel"]
    lines += [f"  capacity: {int(memory[1]) * 1024} B"] if memory else _unknown("capacity", "64 GB", "/proc/meminfo")
    how = "channels x 8 B x transfers a second, as `dmidecode -t memory` lists them, or as STREAM measures"
    lines += _unknown("bandwidth", "76.8 GB/s", how)
    lines += [f"{level}: {{source: kernel, capacity: {size} B}}" for level, size in _caches(root).items()]
    lines += [f"cores: {{source: kernel, count: {cores}}}", "notes:"]
    lines += ["  - The rates are of the clock above on all cores at once; long runs of wide units may be slower."]
    return "\n".join(lines) + "\n"


def _cpu_rates(first: Mapping[str, str], cores: int, clock: float) -> list[str]:
    """The blocks `matrix` and `vector`. [OP/s]"""
    flags = set((first.get("flags") or first.get("Features", "")).split())
    units = {unit.key: unit for unit in reversed(_UNITS) if unit.flag in flags}
    zen4 = (first.get("vendor_id"), first.get("cpu family")) == ("AuthenticAMD", "25")
    lines: list[str] = []
    for key, unit in sorted(units.items()):
        block, dtype = key.split(".")
        if f"{block}:" not in lines:
            lines += [f"{block}:", "  source: formula"]
        ops, why = unit.ops, unit.why
        if zen4 and unit.flag.startswith("avx512"):
            ops, why = ops // 2, "Zen 4 has 256-bit units"
        note = f"{cores} cores x {ops} OPs x clock ({unit.flag}: {why})"
        if clock:
            lines += [
                f"  {dtype}:",
                f"    value: {cores * ops * clock / 1e9:.4g} GOP/s",
                f"    note: {json.dumps(note)}",
            ]
        else:
            lines += _unknown(dtype, "1500 GOP/s", note)
    return lines


def _clock(root: Path, first: Mapping[str, str], title: str) -> tuple[float, str]:
    """The highest known clock, 0 if none [Hz], and its source."""
    fastest = _read(root / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").strip()
    if fastest.isdecimal():
        return float(fastest) * 1e3, "cpuinfo_max_freq: of one core; all at once may be slower"
    named = re.search(r"@ ([\d.]+)GHz", title)
    if named:
        return float(named[1]) * 1e9, "in the processor's name: its base clock"
    now = first.get("cpu MHz", "0")
    return float(now) * 1e6, "cpu MHz of /proc/cpuinfo: the clock at this moment"


def _caches(root: Path) -> dict[str, int]:
    """Bytes of all level 2 and 3 caches; shared caches count once."""
    sizes: dict[tuple[str, str], int] = {}
    for index in sorted(root.glob("sys/devices/system/cpu/cpu[0-9]*/cache/index*")):
        level, shared, size = (_read(index / name).strip() for name in ("level", "shared_cpu_list", "size"))
        if level in ("2", "3") and size[:-1].isdecimal() and size[-1] in _SIZES:
            sizes[level, shared] = int(size[:-1]) * _SIZES[size[-1]]
    totals = {f"l{level}": sum(size for key, size in sizes.items() if key[0] == level) for level in ("2", "3")}
    return {level: size for level, size in totals.items() if size}


def _gpus() -> list[str]:
    """Documents of the driver's GPUs, one per model; none without a driver."""
    return [_gpu(row, count) for row, count in _driver_rows()]


def _driver_rows() -> list[tuple[dict[str, str], int]]:
    """Properties of each model of GPU by the driver, and the number of such GPUs; none without a driver."""
    output = _output(["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"])
    rows = Counter(tuple(cell.strip() for cell in line.split(",")) for line in output.splitlines() if line.strip())
    return [(dict(zip(_QUERY, row, strict=False)), count) for row, count in rows.items()]


def _gpu(properties: Mapping[str, str], count: int) -> str:
    """A reference to the shipped file of this GPU, or a draft."""
    name = properties["name"]
    header = f"# {count} x {name}: nvidia-smi says " + ", ".join(
        f"{key} {properties.get(key, '?')}" for key in _QUERY[1:]
    )
    file = known_file(name)
    if file is None:
        return (
            f"{header}\n# No file that ships has the alias {name.lower().replace(' ', '-')}.\n{_gpu_draft(properties)}"
        )
    return f"{header}\n# It is {file.stem}, which ships: `llmviewer hardware {file.stem}`.\n{_read(file)}"


def _gpu_draft(properties: Mapping[str, str]) -> str:
    numbers = {key: value for key, value in properties.items() if re.fullmatch(r"\d+(?:\.\d+)?", value)}
    whitepaper = "the data sheet, or SMs x 256 OPs x clock where an SM has 128 lanes"
    lines = [
        *_head(properties["name"], "gpu", "nvidia"),
        *([f"compute_capability: {json.dumps(numbers['compute_cap'])}"] if "compute_cap" in numbers else []),
        "sources:",
        *_source("driver", f"nvidia-smi of the machine, driver {properties.get('driver_version', 'unknown')}"),
    ]
    clocks = (("max", "clocks.max.sm"), ("memory", "clocks.max.memory"))
    clock_lines = [f"  {key}: {numbers[name]} MHz" for key, name in clocks if name in numbers]
    if clock_lines:
        rated = _unknown("boost", clock_lines[0].partition(": ")[2], "the data sheet, the clock of its rates")
        lines += ["clock:", "  source: driver", *clock_lines, *rated]
    lines += ["# matrix: {source: driver, fp16: 125 TOP/s}  # unknown, an example; dense rates of the data sheet"]
    lines += ["vector:", "  source: driver", *_unknown("fp32", "31.2 TOP/s", whitepaper), "memory:", "  source: driver"]
    memory = f"{numbers['memory.total']} MiB" if "memory.total" in numbers else None
    lines += [f"  capacity: {memory}"] if memory else _unknown("capacity", "24 GiB", "the data sheet")
    lines += _unknown("bandwidth", "600 GB/s", "the data sheet, or bus width x rate of a pin / 8")
    generation, width = properties.get("pcie.link.gen.max", ""), properties.get("pcie.link.width.max", "")
    if generation in _LANE and width.isdecimal():
        rate = _LANE[generation] * int(width) * 128 / 130 / 8
        lines += [f"host: {{source: driver, type: PCIe {generation}.0 x{width}, bandwidth: {rate / 1e9:.4g} GB/s}}"]
    limit = numbers.get("power.default_limit")
    lines += [f"power: {{source: driver, tdp: {limit} W}}"] if limit else []
    return "\n".join(lines) + "\n"


def _head(title: str, kind: str, vendor: str) -> list[str]:
    name = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((?:r|tm)\)", "", title.lower())).strip("-")
    return [
        "# Drafted from this machine. Dense rates at the clock below; a multiply-add is two OPs; bandwidths one way.",
        f"# Save it as {name}.yaml, give what is marked as unknown, and try `llmviewer hardware {name}.yaml --check`.",
        f"name: {name}",
        f"title: {json.dumps(title)}",
        f"vendor: {vendor}",
        f"kind: {kind}",
        "architecture: unknown",
        f"released: {_year()}  # of the draft, not of the device",
        "status: shipping",
    ]


def _source(key: str, title: str) -> list[str]:
    return [f"  {key}: {{title: {json.dumps(title)}, year: {_year()}}}"]


def _year() -> int:
    return datetime.now(tz=UTC).year


def _unknown(key: str, example: str, how: str) -> list[str]:
    return [f"  # {key}: {example}  # unknown, an example; take it from:", f"  #   {how}"]


def _pairs(block: str) -> Iterable[tuple[str, str]]:
    for line in block.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            yield key.strip(), value.strip()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
