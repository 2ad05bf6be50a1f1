"""Checks of every kernel in Triton's interpreter: reference, fresh inputs, and nothing left unwritten."""

import json
import os
import subprocess
import sys
from zlib import crc32

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.tools.tensor_descriptor import TensorDescriptor

from llmviewer.forms import evaluate
from llmviewer.kernels import kernel_names, load_kernel
from llmviewer.kernels.base import Target

_TORCH = {
    "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp8e4nv": torch.float8_e4m3fn,
}  # fmt: skip
NEW, OLD = Target(sm=90, multiprocessors=3), Target(sm=89, multiprocessors=3)  # so few that programs take many tiles
_BITS = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32}


# Added to the seed of every check: LLMVIEWER_TEST_SEED=$RANDOM draws other inputs than the suite has.
SEED = os.environ.get("LLMVIEWER_TEST_SEED", "")


def cases(*families):
    """(kernel name, case) of every kernel, or of those of some families."""
    kernels = [load_kernel(name) for name in kernel_names()]
    return [(one.name, case) for one in kernels if not families or one.family in families for case in one.cases]


def first_is_fast(found):
    """Parameters of a test over cases, of which the first of each kernel is in the fast tier."""
    firsts = dict(reversed(found))
    slow = pytest.mark.slow("every case in Triton's interpreter")
    return [pytest.param(name, case, marks=() if case is firsts[name] else slow) for name, case in found]


def seed(*case):
    """Seed of the inputs of a case: the same in every run but for SEED."""
    return crc32(f"{SEED} {case}".encode()) >> 1


def named(value):
    return value.replace("_", "-") if isinstance(value, str) else str(value).replace(" ", "-")


def dot_scaled(x, x_scale, x_format, w, w_scale, w_format, sums, *options):
    """`tl.dot_scaled`, which the interpreter has not: codes [m, k] and [k, n], scales [m, groups] and [n, groups]."""

    def numbers(codes, scale, name):
        data, factors = (torch.from_numpy(np.ascontiguousarray(one)) for one in (codes, scale.handle.data))
        if name == "e2m1":
            both = torch.stack((data & 15, data >> 4), 2).flatten(1).long()
            found = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])[both & 7] * (1 - 2 * (both >> 3))
        else:
            found = data.view(torch.float8_e4m3fn).float()
        is_exponent = scale.dtype == tl.uint8
        factors = torch.exp2(factors.float() - 127) if is_exponent else factors.view(torch.float8_e4m3fn).float()
        return found * factors.repeat_interleave(found.shape[1] // factors.shape[1], 1)

    found = numbers(x.handle.data, x_scale, x_format) @ numbers(w.handle.data.T, w_scale, w_format).T
    return tl.tensor(interpreter.TensorHandle(sums.handle.data + found.numpy(), tl.float32), sums.type)


interpreter.interpreter_semantic.dot_scaled = dot_scaled


def converted(values, source, target, rounding):
    """Floats from type to type, as torch does: the interpreter rounds up without a carry into the exponent."""
    found = torch.from_numpy(values.copy()).view(_TORCH[source.name]).to(_TORCH[target.name])
    return found.view(_BITS[found.element_size()]).numpy()


def check(name, case, monkeypatch):
    """The reference holds, with the launches of new GPUs and of old ones where those are others."""
    kernel = load_kernel(name)
    inputs = kernel.make(case, "cpu", seed(name, case))
    wanted = kernel.reference(**inputs)
    plans = {target: kernel.plan(target, **inputs) for target in (NEW, OLD)}
    alike = run_of(plans[NEW]) == run_of(plans[OLD])
    for plan in list(plans.values())[: 1 if alike else 2]:
        equals_reference(kernel, case, plan, wanted, monkeypatch)


def equals_reference(kernel, case, plan, wanted, monkeypatch):
    """A plan gives what is wanted, within the tolerance of the case."""
    monkeypatch.setattr(interpreter, "_convert_float", converted)
    relative, absolute = kernel.tolerance(case)
    with np.errstate(over="ignore"):  # an exponential may be infinite, and its reciprocal the 0 that is meant
        found = plan()
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == theirs.shape
        assert not ours.float().isnan().any(), "NaN"
        wrong = (ours.float() - theirs.float()).abs() - relative * theirs.float().abs()
        assert wrong.max() <= absolute, f"{wrong.max():.3g} over the relative tolerance"


def run_of(plan):
    """All that the interpreter goes by in a plan: functions, grids, numbers and how tensors lie, not what they hold."""

    def told(value):
        if isinstance(value, TensorDescriptor):
            return ("descriptor", told(value.base), value.shape, value.strides, value.block_shape)
        if isinstance(value, torch.Tensor):
            return ("tensor", value.dtype, value.shape, value.stride())
        return value

    return [
        (launch.function, launch.grid, {name: told(value) for name, value in launch.arguments.items()})
        for launch in plan.launches
    ]


def moved(name, case):
    """Bytes of all tensors that a case is given and gives."""
    kernel = load_kernel(name)
    inputs = kernel.make(case, "cpu", 0)
    given = [value for value in inputs.values() if isinstance(value, torch.Tensor)]
    return sum(t.numel() * t.element_size() for t in (*given, *kernel.run(**inputs)))


def counted(kernel, case):
    """(OPs, bytes) of each operator of a case."""
    workload = kernel.workload(case)
    works = [op.work() for op in kernel.operators(case)]
    return [(evaluate(work.ops, workload), evaluate(work.nbytes, workload)) for work in works]


def compiled(script, wanted, folder):
    """Output of a script that compiles kernels for GPUs, a JSON text a line.

    It has a process of its own, as this one has Triton's functions for the interpreter, of which a compiler makes
    nothing; `folder` is for what Triton keeps.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(folder)
    found = subprocess.run(
        [sys.executable, "-c", script, *(":".join(map(str, one)) for one in wanted)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if "Cannot find ptxas" in found.stderr:
        pytest.skip("this build of Triton has no ptxas")
    assert not found.returncode, found.stderr
    return [json.loads(line) for line in found.stdout.splitlines()]
