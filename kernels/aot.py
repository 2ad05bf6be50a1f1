"""Compiles kernels for any GPU, without one: resources of each launch on a multiprocessor, and compilation errors.

python -m llmviewer.kernels.aot [NAMES] prints a table. Triton brings ptxas, cuobjdump and nvdisasm, so no GPU, no
driver and no CUDA toolkit is needed. It compiles for the types and the multiples of 16 that its launcher would find,
without which no load is wide.
The number of instructions of the innermost loop is the only indication of speed without a GPU: a multiprocessor issues
at most 4 per cycle, one per warp scheduler (NVIDIA H100 Tensor Core GPU Architecture, GH100 SM).
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Final

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from llmviewer.records import frozen

from . import kernel_names, load_kernel
from .base import MAX_SHARED_KIB, Case, Kernel, Launch, Target

# A100 40 GB, H100 SXM and B200 datasheets.
TARGETS: Final = (
    Target(sm=80, multiprocessors=108),
    Target(sm=90, multiprocessors=132),
    Target(sm=100, multiprocessors=148),
)
_TENSOR_CORES: Final = (
    "HMMA", "IMMA", "QMMA", "HGMMA", "IGMMA", "QGMMA", "UTCHMMA", "UTCIMMA", "UTCQMMA", "UTCOMMA",
)  # fmt: skip
SCHEDULERS: Final = 4
_USAGE: Final = re.compile(r"REG:(\d+) STACK:(\d+)")
_LINE: Final = re.compile(r"^(?:(?P<label>\.L_x_\d+):|\s*/\*[0-9a-f]+\*/\s+(?P<instruction>.*?)\s*;)", re.MULTILINE)
_BRANCH: Final = re.compile(r"\bBRA\b.*`\((\.L_x_\d+)\)")


@frozen(kw_only=True)
class Compiled:
    """Resources and instructions of one launch.

    warps          warps per program, including those added by warp specialization
    registers      registers per thread
    shared         shared memory per block [B]
    spills         loads and stores of spilled registers in the machine code
    matrix         (matrix instruction, number of occurrences)
    async_copies   instructions that load into shared memory without registers
    loop           instructions per warp in one iteration of the longest innermost loop; 0 without a loop. Both sides of
                   a branch count
    loop_matrix    matrix instructions among them
    """

    function: str
    sm: int
    warps: int
    registers: int
    shared: int
    spills: int
    matrix: tuple[tuple[str, int], ...]
    async_copies: int
    loop: int
    loop_matrix: int

    @property
    def fits(self) -> bool:
        return self.shared <= 1024 * MAX_SHARED_KIB[self.sm]

    def rate(self, nbytes: float, num_warps: int) -> float:
        """Bytes per cycle and multiprocessor that issue slots allow, at `nbytes` per iteration of `num_warps` warps."""
        return SCHEDULERS * nbytes / (num_warps * self.loop)


def compile_launch(launch: Launch, sm: int, *, inspect_code: bool = True) -> Compiled:
    """Compiles a launch for compute capability `sm`.

    inspect_code  whether to count matrix instructions, copies and loops in the machine code; else it is read only for
                  launches that use local memory, as only those can spill

    Raises triton's CompilationError if the kernel is invalid.
    """
    types, constants, aligned = launch.signature()
    order = launch.function.arg_names
    source = ASTSource(
        fn=launch.function,
        signature=types,
        constexprs=constants,
        attrs={(order.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    binary = triton.compile(source, target=GPUTarget("cuda", sm, 32), options=launch.options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        usage = _tool("cuobjdump", "-res-usage", file.name)
        match = _USAGE.search(usage)
        if match is None:
            raise RuntimeError(f"cuobjdump -res-usage printed no registers: {usage!r}")
        code = _tool("nvdisasm", "-ndf", file.name) if inspect_code or int(match[2]) else ""
    matrix = tuple((name, times) for name in _TENSOR_CORES if (times := _count_mnemonic(code, name)))
    loop = longest_loop(code)
    return Compiled(
        function=launch.function.fn.__name__.removeprefix("_"),
        sm=sm,
        warps=binary.metadata.num_warps,
        registers=int(match[1]),
        shared=binary.metadata.shared,
        spills=_count_mnemonic(code, "LDL") + _count_mnemonic(code, "STL"),
        matrix=matrix,
        async_copies=_count_mnemonic(code, "LDGSTS") + _count_mnemonic(code, "UTMALDG"),
        loop=len(loop),
        loop_matrix=sum(_count_mnemonic(one, name) for one in loop for name in _TENSOR_CORES),
    )


def _tool(name: str, *arguments: str) -> str:
    path = getattr(triton.knobs.nvidia, name).path
    process = subprocess.run([path, *arguments], capture_output=True, text=True, check=True)  # noqa: S603
    return process.stdout + process.stderr


def _count_mnemonic(code: str, mnemonic: str) -> int:
    return len(re.findall(rf"\b{mnemonic}\b", code))


def longest_loop(code: str) -> list[str]:
    """The instructions of the longest innermost loop in the output of nvdisasm."""
    instructions: list[str] = []
    labels: dict[str, int] = {}
    loops: list[tuple[int, int]] = []
    for line in _LINE.finditer(code):
        if line["label"]:
            labels[line["label"]] = len(instructions)
            continue
        instructions.append(line["instruction"])
        branch = _BRANCH.search(line["instruction"])
        if branch and branch[1] in labels:  # a label that comes later is no loop
            loops.append((labels[branch[1]], len(instructions)))
    inner = [(a, b) for a, b in loops if not any(a <= c and d <= b and (a, b) != (c, d) for c, d in loops)]
    # Every kernel ends in a branch to itself, which is no loop.
    first, end = max(inner, key=lambda loop: loop[1] - loop[0], default=(0, 0))
    return instructions[first:end] if end - first > 1 else []


def distinct_launches(kernel: Kernel, target: Target) -> Iterator[tuple[Case, Launch]]:
    """Distinct launches of full-size cases that `target` supports."""
    yielded_keys = set()
    for case in kernel.full_size:
        if target.sm < kernel.min_sm(case):
            continue
        for launch in kernel.launches(case, target):
            if launch.code_key not in yielded_keys:
                yielded_keys.add(launch.code_key)
                yield case, launch


def main(names: list[str]) -> None:
    """Print a table of the resources of each launch of the named kernels, or of all."""
    head = f"{'kernel':<18}{'launch':<16}{'sm':>4}{'regs':>6}{'shared B':>10}{'spills':>8}{'loop':>6}{'mma':>5}"
    sys.stdout.write(f"{head}  matrix, async\n")
    for name in names or kernel_names():
        kernel = load_kernel(name)
        for target in TARGETS:
            for case, launch in distinct_launches(kernel, target):
                code = compile_launch(launch, target.sm)
                matrix = " ".join(f"{name}x{times}" for name, times in code.matrix)
                sys.stdout.write(
                    f"{name:<18}{code.function:<16}{code.sm:>4}{code.registers:>6}{code.shared:>10}"
                    f"{code.spills:>8}{code.loop:>6}{code.loop_matrix:>5}  {matrix or '-'} +{code.async_copies}"
                    f"  {case}{'' if code.fits else '  DOES NOT FIT'}\n"
                )


if __name__ == "__main__":
    main(sys.argv[1:])
