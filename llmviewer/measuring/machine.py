"""The measured machine: name, state, and a hardware file with measured rates."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import field
from pathlib import Path
from statistics import median
from threading import Thread
from time import monotonic
from typing import Any, Final, NamedTuple

from ..devices.files import hardware_file, load_hardware
from ..devices.local import draft
from ..errors import InputError
from ..records import frozen
from ..units import parse, si

_CLOCK_REASONS: Final = {  # reasons for lowered clocks: NVML API reference, NvmlClocksEventReasons
    0x4: "power cap", 0x8: "slowdown", 0x20: "heat", 0x40: "heat, by hardware", 0x80: "power brake",
}  # fmt: skip
_GPU_FIELDS: Final = ("clocks.sm", "power.draw", "temperature.gpu")  # of a sample, before the reasons
_CPU_SAMPLE_S: Final = 2.0  # between samples of a CPU's clocks
_MEASURED_SOURCE: Final = {"title": "measured by llmviewer measure"}
_DISTURBED_SOURCE: Final = {"title": "measured by llmviewer measure while other programs ran: the true rate is higher"}


@frozen(kw_only=True)
class Machine:
    """The measured device.

    name      name of its hardware file
    hardware  name or path of an existing hardware file
    title     its name in the system
    kind      "cpu" or "gpu"
    cache     last-level cache [B]
    memory    free memory [B]
    document  draft of its hardware file without measured numbers, if none is shipped
    """

    name: str
    hardware: str
    title: str
    kind: str
    cache: float
    memory: float
    driver: str = ""
    document: dict[str, Any] | None = field(default=None, repr=False)

    @property
    def folder(self) -> Path | None:
        """Folder of its file, if it is not a shipped one."""
        return Path(self.hardware).parent if self.hardware.endswith((".yaml", ".yml")) else None

    @property
    def torch(self) -> str:
        return "cuda" if self.kind == "gpu" else "cpu"


def this_machine(kind: str, hardware: str | None = None) -> Machine:
    """The CPU, or the first GPU.

    hardware  name or file of the device, to override detection

    Raises InputError if that is another kind of device, or no device is found.
    """
    import torch

    device = load_hardware(hardware) if hardware else None
    if device and device.kind != kind:
        raise InputError(
            f"--hardware must be of kind {kind}, which is what is measured; {device.name} is of kind {device.kind}; "
            "leave it out, or give this machine's file"
        )
    drafts = [one for one in documents() if one["kind"] == kind]
    document = drafts[0] if drafts else None
    if kind == "gpu":
        properties = torch.cuda.get_device_properties(0)
        title, memory, cache = properties.name, torch.cuda.mem_get_info()[0], properties.L2_cache_size
        name = device.name if device else gpu_name(title)
        if name is None and document is None:
            raise InputError(f"no hardware file has the alias {title!r}; give one with --hardware")
        if document is not None:
            document.setdefault("cores", {"source": "driver", "count": properties.multi_processor_count})
            document.setdefault("l2", {"source": "driver", "capacity": f"{cache} B"})
    else:
        if document is None:
            raise InputError("the CPU cannot be read from /proc; give its file with --hardware")
        title, name = document["title"], device.name if device else None
        memory = _available() or 4 * 2**30
        caches = [document[level]["capacity"] for level in ("l3", "l2") if level in document]
        cache = float(caches[0].split()[0]) if caches else 32 * 2**20
    return Machine(
        name=name or str(document["name"] if document else title),
        hardware=hardware or name or "",
        title=title,
        kind=kind,
        cache=cache,
        memory=memory,
        driver=driver() if kind == "gpu" else "",
        document=None if name else document,
    )


def _available() -> float:
    """Memory available without swapping. [B]"""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0.0
    return next((float(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0.0)


@frozen(kw_only=True)
class MachineState:
    """Medians of several samples, 0 if unknown, and the reasons that lowered the clock in any of them.

    clock_mhz      clock [MHz]
    power_w        power of a GPU's board [W]
    temperature_c  temperature of a GPU [degrees Celsius]
    """

    clock_mhz: float = 0.0
    power_w: float = 0.0
    temperature_c: float = 0.0
    throttled: str = ""


class Watch:
    """Watches the state of the CPU or the first GPU during a measurement, from `start` to a call."""

    def __init__(self, kind: str) -> None:
        self._process = _clock_process() if kind == "gpu" else None
        self._seen: list[_GpuSample] = []  # the first is from before the start
        self._state, self._when = (_cpu_state() if kind == "cpu" else MachineState()), monotonic()
        self._kind = kind
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(self) -> None:
        self._seen = self._seen[-1:]

    def __call__(self) -> MachineState:
        if self._kind == "gpu":
            samples = self._seen[1:] or self._seen
            if not samples:
                return MachineState()
            lowered = [why for bit, why in _CLOCK_REASONS.items() if any(one.reasons & bit for one in samples)]
            return MachineState(
                clock_mhz=median(one.clock for one in samples),
                power_w=median(one.power for one in samples),
                temperature_c=median(one.temperature for one in samples),
                throttled="; ".join(lowered),
            )
        if monotonic() - self._when > _CPU_SAMPLE_S:
            self._state, self._when = _cpu_state(), monotonic()
        return self._state

    def close(self) -> None:
        if self._process:
            self._process.kill()
            self._reader.join()

    def _read(self) -> None:
        if self._process is None or self._process.stdout is None:
            return
        with self._process:
            for line in self._process.stdout:
                if sample := _gpu_sample(line):
                    self._seen.append(sample)


class _GpuSample(NamedTuple):
    clock: float
    power: float
    temperature: float
    reasons: int


def _gpu_sample(line: str) -> _GpuSample | None:
    """A line of nvidia-smi: clock, power, temperature, reasons; None without a clock. Other missing numbers are 0."""
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(_GPU_FIELDS) + 1 or not cells[0].isdecimal():
        return None
    clock, power, temperature, reasons = cells
    match = re.fullmatch(r"0x[0-9a-fA-F]+", reasons)
    return _GpuSample(float(clock), _number(power), _number(temperature), int(reasons, 16) if match else 0)


def _number(text: str) -> float:
    """A number of nvidia-smi; 0 of "[N/A]"."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def _cpu_state() -> MachineState:
    try:
        clocks = re.findall(r"cpu MHz\s*:\s*([\d.]+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        return MachineState()
    return MachineState(clock_mhz=max(map(float, clocks), default=0.0))


def _clock_process() -> subprocess.Popen[str] | None:
    """A process that prints the fields of a sample every 100 ms; None without nvidia-smi."""
    for reasons in ("clocks_event_reasons.active", "clocks_throttle_reasons.active"):  # the latter before driver 535
        if _smi("clocks.sm", reasons):
            command = [*_query(*_GPU_FIELDS, reasons), "-lms", "100"]
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)  # noqa: S603
    return None


def driver() -> str:
    """The version of the GPU driver; "" without one."""
    answer = _smi("driver_version")
    return answer[0] if answer else ""


def _smi(*fields: str) -> list[str]:
    """Fields of the first GPU from nvidia-smi; empty if there is none."""
    try:
        output = subprocess.run(_query(*fields), capture_output=True, text=True, timeout=30, check=True).stdout  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return []
    return [cell.strip() for cell in output.strip().split(",")]


def _query(*fields: str) -> list[str]:
    return ["nvidia-smi", "--id=0", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]


def gpu_name(driver_name: str) -> str | None:
    """Name of the shipped file for a GPU name of the driver; None if there is none."""
    file_name = driver_name.lower().replace(" ", "-")
    for name in (file_name, file_name.removeprefix("nvidia-")):
        try:
            return hardware_file(name).stem
        except InputError:
            continue
    return None


def documents() -> list[dict[str, Any]]:
    """The parsed drafts of `llmviewer hardware --local`: the CPU, then the kinds of GPUs."""
    import yaml

    return [one for one in yaml.safe_load_all(draft()) if one]


def with_rates(
    document: Mapping[str, Any],
    rates: Mapping[str, float],
    *,
    year: int,
    keep_higher: bool,
    disturbed: Collection[str] = (),
) -> dict[str, Any]:
    """A hardware file with measured `rates`, in SI units by keys such as "memory.bandwidth".

    keep_higher  whether a higher drafted rate stays: it follows from the clock, and no measurement may beat the bound
    disturbed  keys of rates that other programs lowered; each replaces no number that the file has, and names a source
               that says so where the file has none
    """
    with_sources = {key: dict(value) if isinstance(value, dict) else value for key, value in document.items()}
    with_sources["sources"] = {**with_sources["sources"], "measured": _MEASURED_SOURCE | {"year": year}}
    for key, rate in rates.items():
        block, name = key.split(".")
        unit = "B/s" if name == "bandwidth" else "OP/s"
        source = "disturbed" if key in disturbed else "measured"
        section = with_sources.setdefault(block, {"source": source})
        if name in section and (key in disturbed or (keep_higher and _value(section[name]) > rate)):
            continue
        section[name] = {"value": f"{si(rate, 4)}{unit}", "source": source}
        if source == "disturbed":
            with_sources["sources"][source] = _DISTURBED_SOURCE | {"year": year}
    return with_sources


def _value(fact: Any) -> float:
    text = fact["value"] if isinstance(fact, dict) else fact
    return parse(text, "B/s" if "B/s" in str(text) else "OP/s")
