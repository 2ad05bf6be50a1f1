"""Kernels compiled for GPUs that are not there: they compile, fit, do not spill and use the matrix units."""

import os
import subprocess
import sys
from itertools import product

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from llmviewer.kernels import kernel_names

from . import kernel_checks

# One process, as this one has Triton's functions for the interpreter, of which a compiler makes nothing.
SCRIPT = """
import dataclasses, json, sys
from llmviewer.kernels import aot, load_kernel

targets = {str(target.sm): target for target in aot.TARGETS}
for name, sm, place in (wanted.split(":") for wanted in sys.argv[1:]):
    kernel = load_kernel(name)
    for launch in kernel.launches(kernel.full_size[int(place)], targets[sm]):
        found = aot.compiled(launch, int(sm))
        print(json.dumps(dataclasses.asdict(found) | {"kernel": name, "place": int(place), "fits": found.fits}))
"""
# All on Hopper; on what is before and after it, those whose launches differ there.
WANTED = [(name, 90, 0) for name in kernel_names()] + [
    (name, sm, 0) for name, sm in product(("gemm", "gemm_w4a16", "gemm_fp8_block", "decode_attention"), (80, 100))
    if (name, sm) != ("gemm_fp8_block", 80)  # without fp8
]  # fmt: skip
# Launches that are not of a kernel's first case, or come near to spilling elsewhere: a cache of int4 is one.
WANTED += [("decode_attention", sm, 4) for sm in (80, 90, 100)] + [
    ("gemm_mxfp4", 100, 0),
    ("gated_delta_update", 80, 1),
]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    return kernel_checks.compiled(SCRIPT, WANTED, tmp_path_factory.mktemp("triton"))


def test_every_launch_compiles_fits_and_keeps_its_registers(compiled):
    seen = {(one["kernel"], one["sm"], one["place"]) for one in compiled}
    assert seen == set(WANTED)
    for one in compiled:
        assert one["fits"], one
        assert one["spills"] == 0, one
        assert 16 <= one["registers"] <= 255, one


@pytest.mark.parametrize(
    ("name", "sm", "instruction"),
    [
        ("gemm", 80, "HMMA"),
        ("gemm", 90, "HGMMA"),
        ("gemm", 100, "UTCHMMA"),
        ("gemm_w4a16", 90, "HGMMA"),  # a token's product is narrow, so the weights are the left operand
        ("gemm_fp8_block", 90, "QGMMA"),
        ("gemm_fp8_block", 100, "UTCQMMA"),
        ("grouped_gemm", 90, "HGMMA"),
        ("flash_attention", 90, "HGMMA"),
    ],
)
def test_products_use_the_matrix_units_of_their_generation(compiled, name, sm, instruction):
    first = next(one for one in compiled if (one["kernel"], one["sm"]) == (name, sm))
    assert instruction in dict(first["matrix"])
    assert first["async_copies"] > 0


def test_a_kernel_that_is_wrong_or_too_large_shows():
    """The check can fail: tiles of 256 x 256 take more registers and shared memory than there are."""
    script = """
import dataclasses
from llmviewer.kernels import aot, gemm, load_kernel

kernel = load_kernel("gemm")
inputs = kernel.make(kernel.full_size[0], "meta", 0)
tile = gemm.Tiling(block_m=256, block_n=256, block_k=64, num_warps=4, num_stages=5)
(launch,) = kernel.plan(aot.TARGETS[1], **inputs, tile=tile).launches
found = aot.compiled(launch, 90)
print(found.fits, found.spills > 100)
"""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "False True\n", done.stderr
