"""What is measured: its name, the state it is in, and its file with what was measured."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Final

from ..errors import InputError
from ..hardware_files import hardware_file
from ..local import draft
from ..units import parse, si

_REASONS: Final = {  # why clocks are lowered: NVML API reference, NvmlClocksEventReasons
    0x4: "power cap", 0x8: "slowdown", 0x20: "heat", 0x40: "heat, by hardware", 0x80: "power brake",
}  # fmt: skip
_OFTEN_S: Final = 2.0  # between two looks at the clocks, each of which takes a process
_MEASURED: Final = {"title": "measured by llmviewer measure"}


@dataclass(frozen=True, kw_only=True)
class State:
    """The clock at the moment [MHz], 0 where nothing says it, and what lowers it."""

    clock_mhz: float = 0.0
    throttled: str = ""


class Watch:
    """The state of a CPU or of the first GPU, looked at now and then."""

    def __init__(self, kind: str) -> None:
        self._look = _gpu_state if kind == "gpu" else _cpu_state
        self._state, self._when = self._look(), monotonic()

    def __call__(self) -> State:
        if monotonic() - self._when > _OFTEN_S:
            self._state, self._when = self._look(), monotonic()
        return self._state


def _cpu_state() -> State:
    try:
        clocks = re.findall(r"cpu MHz\s*:\s*([\d.]+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        return State()
    return State(clock_mhz=max(map(float, clocks), default=0.0))


def _gpu_state() -> State:
    said = _smi("clocks.sm", "clocks_event_reasons.active")
    if not said:  # of drivers before 535
        said = _smi("clocks.sm", "clocks_throttle_reasons.active")
    if len(said) != 2 or not said[0].isdecimal():
        return State()
    reasons = int(said[1], 16) if re.fullmatch(r"0x[0-9a-fA-F]+", said[1]) else 0
    return State(clock_mhz=float(said[0]), throttled="; ".join(why for bit, why in _REASONS.items() if reasons & bit))


def driver() -> str:
    """The version of the GPU's; "" without one."""
    said = _smi("driver_version")
    return said[0] if said else ""


def _smi(*fields: str) -> list[str]:
    """What nvidia-smi says of the first GPU; nothing where there is none."""
    command = ["nvidia-smi", "--id=0", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return []
    return [cell.strip() for cell in said.strip().split(",")]


def gpu_name(said: str) -> str | None:
    """The file that ships for what the driver calls a GPU; None where there is none."""
    known = said.lower().replace(" ", "-")
    for name in (known, known.removeprefix("nvidia-")):
        try:
            return hardware_file(name).stem
        except InputError:
            continue
    return None


def documents() -> list[dict[str, Any]]:
    """What `llmviewer hardware --local` drafts, parsed: the CPU, then the kinds of GPUs."""
    import yaml

    return [one for one in yaml.safe_load_all(draft()) if one]


def with_rates(document: Mapping[str, Any], rates: Mapping[str, float], *, year: int, least: bool) -> dict[str, Any]:
    """A hardware file with what was measured, in SI units by keys such as "memory.bandwidth".

    least  a drafted rate that is higher stays: it is of a clock, and no bound on it may be beaten
    """
    found = {key: dict(value) if isinstance(value, dict) else value for key, value in document.items()}
    found["sources"] = {**found["sources"], "measured": _MEASURED | {"year": year}}
    for key, rate in rates.items():
        block, name = key.split(".")
        unit = "B/s" if name == "bandwidth" else "OP/s"
        section = found.setdefault(block, {"source": "measured"})
        if not (least and name in section and _value(section[name]) > rate):
            section[name] = {"value": f"{si(rate, 4)}{unit}", "source": "measured"}
    return found


def _value(fact: Any) -> float:
    text = fact["value"] if isinstance(fact, dict) else fact
    return parse(text, "B/s" if "B/s" in str(text) else "OP/s")
