"""`Kernel`: the launches of a kernel, its reference, the operators that it implements, and its cases.

The same `Launch` is run on a GPU, run in Triton's interpreter and compiled ahead of time. A plan takes tensors on any
device; for signatures alone, tensors without memory (device "meta") suffice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from llmviewer.records import frozen

from ..forms import evaluate, total
from ..operators.base import Operator
from ..precision import NAMED, Format
from ..workload import Workload

DTYPES: Final = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "int8": torch.int8,
}
_TRITON: Final = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
}
# Maximum shared memory per block, by compute capability: CUDA C++ Programming Guide, technical specifications. [KiB]
MAX_SHARED_KIB: Final = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99, 121: 99}
EPSILON: Final = {"fp32": 2.0**-23, "fp16": 2.0**-10, "bf16": 2.0**-7}  # difference from 1 to the next number


@frozen
class Case:
    """Sizes and data type of one call."""

    dtype: str
    sizes: tuple[tuple[str, int], ...]

    def __getitem__(self, name: str) -> int:
        return dict(self.sizes)[name]

    def get(self, name: str, default: int = 0) -> int:
        return dict(self.sizes).get(name, default)

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def format(self) -> Format:
        return NAMED[self.dtype]

    def __str__(self) -> str:
        """The case as text, such as "fp16 M=128 N=256 K=64"."""
        return " ".join((self.dtype, *(f"{name}={size}" for name, size in self.sizes)))


def case(dtype: str, **sizes: int) -> Case:
    """A case of a kernel: the type of its operands and its sizes by name."""
    return Case(dtype, tuple(sizes.items()))


@frozen(kw_only=True)
class Target:
    """The GPU that launches are tiled for.

    sm               compute capability: 90 is 9.0
    multiprocessors  number of multiprocessors, which determines persistent grids and splits
    shared           maximum shared memory per block [B]; 0: the value of this compute capability
    """

    sm: int
    multiprocessors: int
    shared: int = 0

    def __post_init__(self) -> None:
        if not self.shared:
            object.__setattr__(self, "shared", 1024 * MAX_SHARED_KIB.get(self.sm, 99))

    @property
    def generation(self) -> int:
        """The compute capability whose tilings apply: 12.x has matrix units and shared memory like 8.x."""
        return 80 if self.sm >= 120 else self.sm

    def starts_early(self, device: torch.device) -> bool:
        """Whether launches for it can start before the launch before them ends: from Hopper on, not interpreted."""
        return self.sm >= 90 and device.type != "cpu"

    def stages(self, max_stages: int, nbytes: int) -> int:
        """Stages of `nbytes` each that fit in shared memory, at most `max_stages`; before Hopper one needs none."""
        return max(min(max_stages, self.shared // nbytes + (self.generation < 90)), 1)

    @classmethod
    def of(cls, device: torch.device) -> Target:
        """The GPU of a device; for the interpreter, a GPU with few multiprocessors, so that persistent loops repeat."""
        if device.type != "cuda":
            return cls(sm=90, multiprocessors=3)
        properties = torch.cuda.get_device_properties(device)
        return cls(
            sm=10 * properties.major + properties.minor,
            multiprocessors=properties.multi_processor_count,
            shared=getattr(properties, "shared_memory_per_block_optin", 0),  # missing in some builds of torch
        )


@frozen(kw_only=True)
class Launch:
    """A jitted function with its grid, arguments by name and compiler options.

    early  programmatic dependent launch (CUDA C++ Programming Guide): programs start while those of the launch before
           end, and must wait for them (`gdc_wait`) before they read or write what it may write or read
    """

    function: Any
    grid: tuple[int, ...]
    arguments: Mapping[str, Any]
    num_warps: int = 4
    num_stages: int = 3
    early: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """Options of the compiler and the launcher; Triton's interpreter knows no `launch_pdl`."""
        options: dict[str, Any] = {"num_warps": self.num_warps, "num_stages": self.num_stages}
        return options | ({"launch_pdl": True} if self.early else {})

    def __call__(self) -> None:
        self.function[self.grid](**self.arguments, **self.options)

    def warmup(self) -> None:
        """Compile for the current GPU without launching."""
        self.function.warmup(**self.arguments, **self.options, grid=self.grid)

    def signature(self) -> tuple[dict[str, str], dict[str, Any], tuple[str, ...]]:
        """(types, constants, arguments divisible by 16), as Triton's launcher would derive them."""
        types: dict[str, str] = {}
        constants: dict[str, Any] = {}
        aligned = []
        for parameter in self.function.params:
            name, value = parameter.name, self.arguments[parameter.name]
            if parameter.is_constexpr or value is None or (type(value) is int and value == 1):
                types[name], constants[name] = "constexpr", value
            elif isinstance(value, TensorDescriptor):
                types[name] = f"tensordesc<{_TRITON[value.base.dtype]}{list(value.block_shape)}>"
            elif isinstance(value, torch.Tensor):
                types[name] = f"*{_TRITON[value.dtype]}"
                aligned.append(name)  # allocators align to far more
            else:
                types[name] = "fp32" if isinstance(value, float) else "i32"
                if isinstance(value, int) and value % 16 == 0:
                    aligned.append(name)
        return types, constants, tuple(aligned)

    @property
    def code_key(self) -> str:
        """Equal for launches of the same machine code."""
        return repr((self.function, self.signature(), self.options))


@frozen(kw_only=True)
class LaunchPlan:
    """Launches in order, and their outputs. A plan can be launched repeatedly."""

    launches: tuple[Launch, ...]
    outputs: tuple[torch.Tensor, ...]

    def __call__(self) -> tuple[torch.Tensor, ...]:
        for launch in self.launches:
            launch()
        return self.outputs


Inputs = dict[str, Any]


def cloned_inputs(inputs: Inputs, number: int) -> Inputs:  # noqa: ARG001 - they are all alike
    """The inputs with all tensors copied."""
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}


@frozen(kw_only=True)
class Kernel:
    """A kernel, or a sequence of kernels that belong together.

    family     group of its measurements: "gemm", "attention", "norm"
    cases      small and odd cases, to check results
    full_size  cases of real models, to compile and to time
    make       (case, device, seed) -> random inputs of realistic scale, the keyword arguments of plan and reference
    plan       (target, **inputs) -> Plan; outputs are allocated and filled with NaN
    reference  (**inputs) -> outputs, computed in fp32
    tolerance  case -> (relative, absolute)
    operators  case -> operators that all launches together implement
    workload   case -> the pass in which these operators have the sizes of the case
    min_sm   case -> oldest compute capability with the necessary instructions
    next_inputs  (inputs, number from 1) -> inputs with other data to move: new tensors or, if they are large and
               sparsely accessed, other parts of the same
    tilings    (target, case) -> a few alternatives to the tiling that `plan` chooses by rule, to be passed to `plan` as
               `tile`; they change the speed, not the result
    """

    name: str
    family: str
    cases: tuple[Case, ...]
    full_size: tuple[Case, ...]
    make: Callable[[Case, str, int], Inputs]
    plan: Callable[..., LaunchPlan]
    reference: Callable[..., tuple[torch.Tensor, ...]]
    tolerance: Callable[[Case], tuple[float, float]]
    operators: Callable[[Case], tuple[Operator, ...]]
    workload: Callable[[Case], Workload]
    min_sm: Callable[[Case], int] = lambda case: 89 if case.dtype.startswith("fp8") else 80
    next_inputs: Callable[[Inputs, int], Inputs] = cloned_inputs
    tilings: Callable[[Target, Case], tuple[Any, ...]] = lambda target, case: ()

    def run(self, **inputs: Any) -> tuple[torch.Tensor, ...]:
        """Launch on the device of the tensors; returns the outputs."""
        device = next(value.device for value in inputs.values() if isinstance(value, torch.Tensor))
        return self.plan(Target.of(device), **inputs)()

    def launches(self, case: Case, target: Target, tile: Any = None) -> tuple[Launch, ...]:
        """The launches of a case on `target`, with the tiling `tile` (None: by rule), without allocating memory."""
        chosen = {} if tile is None else {"tile": tile}
        return self.plan(target, **self.make(case, "meta", 0) | chosen).launches

    def ops(self, case: Case) -> float:
        """OPs of the model's arithmetic, as the engine counts them."""
        return float(evaluate(total(op.work().ops for op in self.operators(case)), self.workload(case)))

    def nbytes(self, case: Case) -> float:
        """Bytes to and from memory, as the engine counts them."""
        return float(evaluate(total(op.work().nbytes for op in self.operators(case)), self.workload(case)))


@frozen
class Random:
    """Makes random tensors on a device; on "meta", tensors without values."""

    device: str
    seed: int

    def __post_init__(self) -> None:
        if self.device != "meta":
            object.__setattr__(self, "generator", torch.Generator(self.device).manual_seed(self.seed))

    def normal(self, *shape: int, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
        if self.device == "meta":
            return torch.empty(shape, dtype=dtype, device="meta")
        return (torch.randn(shape, generator=self.generator, device=self.device) * scale).to(dtype)  # type: ignore[attr-defined]

    def uniform(self, *shape: int, low: float, high: float) -> torch.Tensor:
        """Uniform numbers in fp32, such as scales."""
        if self.device == "meta":
            return torch.empty(shape, device="meta")
        return torch.rand(shape, generator=self.generator, device=self.device) * (high - low) + low  # type: ignore[attr-defined]

    def integers(self, *shape: int, low: int, high: int, dtype: torch.dtype) -> torch.Tensor:
        """Random integers from low to high - 1."""
        if self.device == "meta":
            return torch.empty(shape, dtype=dtype, device="meta")
        values = torch.randint(low, high, shape, generator=self.generator, device=self.device)  # type: ignore[attr-defined]
        return values.to(dtype)


def poisoned(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor filled with NaN or the largest integer, so that elements that a kernel does not write are detected."""
    bad = float("nan") if dtype.is_floating_point else torch.iinfo(dtype).max
    return torch.full(shape, bad, dtype=dtype, device=device)


def scratch(size: int, alignment: int, stream: int | None) -> torch.Tensor:  # noqa: ARG001 - Triton calls it so
    """GPU memory for descriptors that kernels create."""
    return torch.empty(size, dtype=torch.int8, device="cuda")


def tensors(values: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors among the inputs of a kernel."""
    return (value for value in values.values() if isinstance(value, torch.Tensor))


def cdiv(a: int, b: int) -> int:
    """The quotient a / b, rounded up."""
    return -(-a // b)


def pow2(n: int) -> int:
    """The smallest power of two that is at least n; block sizes must be powers of two."""
    return 1 << max(n - 1, 0).bit_length()
