"""Engines of which whole passes were measured (tokens per second), but no single kernel.

A launch takes a sum of terms, each an amount at the full rate of the device times a factor:

    launch_us + weights bytes / bandwidth x weights + cache bytes / bandwidth x cache
    + activation bytes / bandwidth x moved + OPs / rate x products, few_rows, half or attention

Sums of terms are linear in the factors, so a pass has the factors of its launches, and they can be fitted to passes.
`few_rows` is for products of at most FEW_ROWS rows, which llama.cpp computes on vector units (mul_mat_vec_q). Factors
that differ by architecture have the one of the device if its passes were measured, else that of its architecture, else
that of the backend. Factors and errors are in profiles/engines/, as tests/oracle/make_engines.py fits them.

CPUs of llama.cpp are backends too, by their number of memory channels. They also run the launches on the host beside a
device, whatever engine that has; a crossing of activations between both sides takes a wait and its time over the link.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import inf
from typing import Final

import numpy as np

from ..devices.hardware import Hardware
from ..documents import Section, read_yaml
from ..errors import InputError
from ..graph import Graph
from ..operators.linear import Linear
from ..precision import HALF
from ..records import frozen
from ..resource import MEMORY, matrix, vector
from ..transforms.quantize import Quantization, parse_quantization
from .expected import ExpectedLaunch
from .families.base import MICROSECOND, Array
from .launches import LibraryKernel
from .launches.whole import ATTENTION, CROSSING, OTHER, PRODUCT
from .profile import FOLDER

FEW_ROWS: Final = 8  # MMVQ_MAX_BATCH_SIZE of ggml/src/ggml-cuda/mmvq.cuh
COMMON: Final = ("launch_us", "weights", "cache", "moved", "few_rows", "half")  # factors of all devices of a backend
VARYING: Final = ("products", "attention")  # by architecture
LEVELS: Final = ("device", "architecture", "backend")  # what the factors of a device come from, the nearest first
PHASES: Final = ("few tokens", "prompts")  # passes of at most FEW_ROWS tokens, and of more
HOST_ENGINE: Final = "llama.cpp"  # whose CPU kernels run beside any device
_CHANNEL_BITS: Final = 64  # width of a memory channel
_LATENCY: Final = 0.5  # share of launch_us from which a launch is in the latency regime


def terms(kernel: LibraryKernel, hardware: Hardware, *, integers: bool) -> dict[str, Array]:
    """Amounts of one launch at full rates, by factor. [s]; for launch_us [1e-6]

    integers  whether products with narrow weights multiply 8-bit integers, whatever activations the precision has
    """
    sizes, bandwidth = kernel.shapes, hardware.rates[MEMORY]
    amounts: dict[str, Array] = {"launch_us": np.full(1, MICROSECOND)}
    amounts |= {name: np.atleast_1d(sizes[name]) / bandwidth for name in ("weights", "cache", "moved")}
    if kernel.implementation.kernel == OTHER:
        return amounts
    ops, narrow = np.atleast_1d(sizes["ops"]), kernel.implementation.kernel == PRODUCT
    dtype = "int8" if narrow and integers else kernel.implementation.dtype
    time_s = ops / hardware.rates[hardware.supply(matrix(dtype))]
    if kernel.implementation.kernel == ATTENTION:
        return amounts | {"attention": time_s}
    is_vector_product = np.less_equal(sizes["rows"], FEW_ROWS)
    on_vectors = np.where(is_vector_product & narrow, ops / hardware.rates[vector("fp32")], 0)
    return amounts | {"few_rows": on_vectors, "products" if narrow else "half": np.where(is_vector_product, 0, time_s)}


@frozen(kw_only=True)
class EngineKernels:
    """Kernels of an engine for devices of some vendors.

    engine, title  its engine, and its own name, such as "CUDA"
    vendors        vendors of its devices
    hbm            whether only devices with stacked memory are its, or only others; None: all
    kind           of its devices: "gpu" or "cpu"
    channels       most memory channels of its devices
    wait_us        of a crossing of activations between a device and such a CPU [us]
    activations    the 8-bit format to which it quantizes activations for products with narrow weights; "" if it does
                   not
    common         factors of COMMON
    varying        of each factor of VARYING its values, by device, architecture or "" for all others
    errors         by level and phase, the quotients of measured and expected time between which 80 % are
    """

    engine: str
    title: str
    vendors: tuple[str, ...]
    hbm: bool | None
    activations: str
    common: Mapping[str, float]
    varying: Mapping[str, Mapping[str, float]]
    errors: Mapping[tuple[str, str], tuple[float, float]]
    kind: str = "gpu"
    channels: float = inf
    wait_us: float = 0.0

    def runs_on(self, hardware: Hardware) -> bool:
        """Whether the backend runs on a device."""
        other = self.hbm is not None and self.hbm != has_hbm(hardware)
        channels = hardware.numbers.get("memory.bus_width", 0.0) / _CHANNEL_BITS
        is_kind = (hardware.kind or "gpu") == self.kind and channels <= self.channels
        return hardware.vendor in self.vendors and is_kind and not other

    def operands(self, quantization: Quantization, graph: Graph) -> Quantization:
        """A precision of a model with the activations of these kernels, unless it names others.

        Products with weights of 16 bits keep the model's activations.
        """
        named = quantization.scheme.activation or any(one.scheme.activation for one in quantization.overrides)
        weight = quantization.scheme.weight
        formats = (op.weight.format for _, op in graph if isinstance(op, Linear))
        narrow = weight.bits < HALF.bits if weight else any(one.bits < HALF.bits for one in formats)
        if named or not narrow or not self.activations:
            return quantization
        if quantization.mixture:
            with_activations = parse_quantization(f"{quantization.mixture.name},{self.activations}")
            return replace(with_activations, overrides=quantization.overrides)
        change = parse_quantization(f"*={self.activations}").overrides
        text = f"{quantization}, {change[0].text}"
        return replace(quantization, overrides=(*quantization.overrides, *change), text=text)

    def expect(self, kernel: LibraryKernel, hardware: Hardware) -> ExpectedLaunch:
        """The expected time of one launch."""
        level, factors = self._factors(hardware)
        if kernel.implementation.kernel == CROSSING:
            parts = {"launch_us": self.wait_us * MICROSECOND + np.atleast_1d(kernel.shapes["link_s"])}
        else:
            parts = {
                name: factors[name] * value
                for name, value in terms(kernel, hardware, integers=bool(self.activations)).items()
            }
        time_s: Array = sum(parts.values(), start=np.zeros(1))
        is_small = np.less_equal(kernel.shapes["tokens"], FEW_ROWS)
        low, high = (
            np.where(is_small, *(self.errors[level, phase][side] for phase in PHASES)) * time_s for side in (0, 1)
        )
        return ExpectedLaunch(
            expected=time_s, low=low, high=high, latency=parts["launch_us"] > _LATENCY * time_s,
            source=self._source(level, hardware), implementations=(f"{self.engine} {self.title}",),
        )  # fmt: skip

    def is_unmeasured(self, hardware: Hardware) -> bool:
        """Whether the factors were fitted on other devices only."""
        return self._factors(hardware)[0] != LEVELS[0]

    def _factors(self, hardware: Hardware) -> tuple[str, dict[str, float]]:
        """Returns the level at which the factors of products were fitted, and all factors."""
        names = (hardware.name, architecture(hardware), "")
        varying = {name: next(values[key] for key in names if key in values) for name, values in self.varying.items()}
        level = next(level for level, key in zip(LEVELS, names, strict=True) if key in self.varying["products"])
        return level, {**self.common, **varying}

    def _source(self, level: str, hardware: Hardware) -> str:
        if level == "device":
            return f"calibrated on {hardware.name} {self.engine} {self.title}, whole passes"
        devices = f"{hardware.architecture} devices" if level == "architecture" else "other devices"
        return f"transferred from {devices}, {self.engine} {self.title}, whole passes"


def architecture(hardware: Hardware) -> str:
    """The key of a device's architecture: an architecture with and without stacked memory counts as two."""
    return f"{hardware.architecture}, HBM" if has_hbm(hardware) else hardware.architecture


def has_hbm(hardware: Hardware) -> bool:
    """Whether the memory of a device is stacked, as that of data-center devices is."""
    return any(fact.key == "memory.type" and str(fact.value).startswith("HBM") for fact in hardware.facts)


def typical(engine: str, devices: Sequence[Hardware]) -> Hardware:
    """Device whose precision suits all devices: the first on which the engine quantizes activations, if any.

    Other kernels widen weights to the format of activations, so narrower ones change no time by more than their bytes.
    """
    quantizing = (device for device in devices for one in backends(engine) if one.runs_on(device) and one.activations)
    return next(quantizing, devices[0])


@cache
def backends(engine: str) -> tuple[EngineKernels, ...]:
    """The backends of an engine; none if its kernels are those of a library."""
    paths = (FOLDER / "engines" / f"{engine}{end}.yaml" for end in ("", "-cpu"))
    return tuple(
        _backend(engine, part) for path in paths if path.is_file() for part in read_yaml(path).sections("backends")
    )


def backend_of(engine: str, hardware: Hardware) -> EngineKernels:
    """The backend of an engine that runs on a device.

    Raises InputError if none of its measured backends does.
    """
    candidates = backends(engine)
    for one in candidates:
        if one.runs_on(hardware):
            return one
    vendors = ", ".join(dict.fromkeys(vendor for one in candidates for vendor in one.vendors))
    raise InputError(f"engine: {engine} was measured on devices of {vendors}; {hardware.name} is none")


def _backend(engine: str, part: Section) -> EngineKernels:
    errors = part.section("errors")
    return EngineKernels(
        engine=engine,
        title=part.text("title"),
        vendors=part.texts("vendors"),
        hbm=part.flag("hbm", False) if "hbm" in part else None,
        kind=part.text("kind", "gpu"),
        channels=part.number("channels", inf),
        wait_us=part.number("wait_us", 0.0),
        activations=part.text("activations", ""),
        common={name: part.number(name) for name in COMMON},
        varying={
            name: {"" if key == "others" else key: part.section(name).number(key) for key in part.section(name)}
            for name in VARYING
        },
        errors={
            (level, phase): (interval.number("low"), interval.number("high"))
            for level in LEVELS
            for phase in PHASES
            for interval in [errors.section(level).section(phase)]
        },
    )
