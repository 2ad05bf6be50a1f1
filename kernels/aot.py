"""Compile kernels for GPUs that are not there: what each launch takes of a multiprocessor, and what errors show.

python -m llmviewer.kernels.aot [NAMES] prints a table. Triton brings ptxas and cuobjdump, so no GPU, no driver and no
CUDA toolkit is needed. It compiles for the types and the multiples of 16 that its launcher would find, without which no
load is wide.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from . import kernel_names, load_kernel
from .base import Case, Kernel, Launch, Target

# Multiprocessors and shared memory that a block may have: CUDA C++ Programming Guide, technical specifications per
# compute capability (163 KB for 8.0, 227 KB for 9.0 and 10.0); A100 40 GB, H100 SXM and B200 datasheets.
TARGETS: Final = (
    Target(sm=80, multiprocessors=108),
    Target(sm=90, multiprocessors=132),
    Target(sm=100, multiprocessors=148),
)
SHARED: Final = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
_TENSOR_CORES: Final = (
    "HMMA", "IMMA", "QMMA", "HGMMA", "IGMMA", "QGMMA", "UTCHMMA", "UTCIMMA", "UTCQMMA", "UTCOMMA",
)  # fmt: skip
_USAGE: Final = re.compile(r"REG:(\d+) STACK:(\d+)")


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What one launch takes.

    registers      of a thread
    shared         bytes of a block
    spills         loads and stores of registers that did not fit, in the machine code
    matrix         instructions of the matrix units, by name, with how often each is there
    async_copies   instructions that load into shared memory past the registers
    """

    function: str
    sm: int
    registers: int
    shared: int
    spills: int
    matrix: tuple[tuple[str, int], ...]
    async_copies: int

    @property
    def fits(self) -> bool:
        return self.shared <= SHARED[self.sm]


def compiled(launch: Launch, sm: int) -> Compiled:
    """Compile what `launch` would launch.

    Raises triton's CompilationError where the kernel is wrong.
    """
    types, constants, aligned = launch.signature()
    order = launch.function.arg_names
    source = ASTSource(
        fn=launch.function,
        signature=types,
        constexprs=constants,
        attrs={(order.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    found = triton.compile(source, target=GPUTarget("cuda", sm, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(found.asm["cubin"])
        file.flush()
        usage = _tool("cuobjdump", "-res-usage", file.name)
        code = _tool("nvdisasm", file.name)
    match = _USAGE.search(usage)
    if match is None:
        raise RuntimeError(f"cuobjdump -res-usage printed no registers: {usage!r}")
    matrix = tuple((name, times) for name in _TENSOR_CORES if (times := _times(code, name)))
    return Compiled(
        function=launch.function.fn.__name__.removeprefix("_"),
        sm=sm,
        registers=int(match[1]),
        shared=found.metadata.shared,
        spills=_times(code, "LDL") + _times(code, "STL"),
        matrix=matrix,
        async_copies=_times(code, "LDGSTS") + _times(code, "UTMALDG"),
    )


def _tool(name: str, *arguments: str) -> str:
    path = getattr(triton.knobs.nvidia, name).path
    done = subprocess.run([path, *arguments], capture_output=True, text=True, check=True)  # noqa: S603
    return done.stdout + done.stderr


def _times(code: str, mnemonic: str) -> int:
    return len(re.findall(rf"\b{mnemonic}\b", code))


def launches(kernel: Kernel, target: Target) -> Iterator[tuple[Case, Launch]]:
    """What differs among the launches of the full-size cases that `target` has the instructions for."""
    seen = set()
    for case in kernel.full_size:
        if target.sm < kernel.least_sm(case):
            continue
        for launch in kernel.launches(case, target):
            options = (launch.num_warps, launch.num_stages)
            key = repr((launch.function, launch.signature(), options))
            if key not in seen:
                seen.add(key)
                yield case, launch


def main(names: list[str]) -> None:
    """Print a table of what each launch of these kernels, or of all, takes."""
    sys.stdout.write(f"{'kernel':<18}{'launch':<16}{'sm':>4}{'regs':>6}{'shared B':>10}{'spills':>8}  matrix, async\n")
    for name in names or kernel_names():
        kernel = load_kernel(name)
        for target in TARGETS:
            for case, launch in launches(kernel, target):
                found = compiled(launch, target.sm)
                matrix = " ".join(f"{name}x{times}" for name, times in found.matrix)
                sys.stdout.write(
                    f"{name:<18}{found.function:<16}{found.sm:>4}{found.registers:>6}{found.shared:>10}"
                    f"{found.spills:>8}  {matrix or '-'} +{found.async_copies}  {case}"
                    f"{'' if found.fits else '  DOES NOT FIT'}\n"
                )


if __name__ == "__main__":
    main(sys.argv[1:])
