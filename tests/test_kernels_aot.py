"""Kernels compiled for GPUs that are not there: they compile, fit, do not spill and use the matrix units."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from llmviewer.kernels import kernel_names, load_kernel
from llmviewer.kernels.aot import longest_loop

from . import kernel_checks

# One process, as this one has Triton's functions for the interpreter, of which a compiler makes nothing.
SCRIPT = """
import dataclasses, json, sys
from llmviewer.kernels import aot, load_kernel
from llmviewer.kernels.base import Target

targets = {str(one.sm): one for one in (*aot.TARGETS, *(Target(sm=sm, multiprocessors=128) for sm in (89, 120)))}
for name, sm, place, *tiles in (wanted.split(":") for wanted in sys.argv[1:]):
    kernel = load_kernel(name)
    case = kernel.full_size[int(place)]
    tile = kernel.tilings(targets[sm], case)[int(tiles[0])] if tiles else None
    looked = [name, int(sm), int(place)] in LOOKED
    for launch in kernel.launches(case, targets[sm], tile):
        found = aot.compile_launch(launch, int(sm), inspect_code=looked)
        own = {"kernel": name, "place": int(place), "fits": found.fits, "tile": repr(tile)}
        print(json.dumps(dataclasses.asdict(found) | own | {"a_byte": found.loop and found.rate(1, launch.num_warps)}))
"""
# All on Hopper or, if that lacks their instructions, Blackwell; on others, those whose launches differ there.
WANTED = [(one.name, max(90, one.min_sm(one.full_size[0])), 0) for one in map(load_kernel, kernel_names())] + [
    ("gemm", 80, 0),
    ("gemm", 100, 0),
    ("gemm_w4a16", 80, 0),
    ("gemm_w4a16", 100, 0),
    ("gemm_fp8_block", 100, 0),
    ("decode_attention", 80, 0),
]
# Launches that are not of a kernel's first case, or come near to spilling elsewhere: a cache of int4 is one.
WANTED += [("decode_attention", sm, 4) for sm in (80, 90, 100)] + [
    ("decode_attention", 90, 6),
    ("decode_attention", 100, 6),
    ("gemm_mxfp4", 100, 0),
    ("gated_delta_update", 80, 1),
    ("gated_delta_scan", 90, 2),  # a decay of each channel
    ("sparse_indexer", 90, 5),  # queries of a prompt
]

# With as little shared memory as GPUs of desktops have, those that would take more elsewhere.
WANTED += [("fused_moe", 89, 0), ("fused_moe", 89, 1), ("gemm", 89, 3), ("gemm_w4a16", 89, 0)]
WANTED += [("gemm_fp8_block", 89, 0), ("gemm", 120, 0)]

# Ways to cut work up that tuning tries beside the rule: (kernel, sm, place of the case, of the tiling).
TUNED = [
    ("gemm", 90, 0, 0),
    ("gemm", 90, 0, 4),
    ("gemm", 90, 2, 1),
    ("flash_attention", 90, 0, 4),
    ("flash_attention", 90, 0, 5),
]
TUNED += [("decode_attention", 90, 3, 3), ("decode_attention", 90, 3, 5), ("mla_decode", 90, 1, 2)]


# What products and loops are made of: (kernel, sm, instruction); (kernel, bytes around its loop, how far above memory).
PRODUCTS = [
    ("gemm", 80, "HMMA"),
    ("gemm", 90, "HGMMA"),
    ("gemm", 100, "UTCHMMA"),
    ("gemm_w4a16", 90, "HMMA"),  # few tokens: 8 columns, which the asynchronous instructions here do not have
    ("gemm_fp8_block", 90, "QGMMA"),
    ("gemm_fp8_block", 100, "UTCQMMA"),
    ("gemm_nvfp4", 100, "UTCOMMA"),
    ("gemm_mxfp8", 100, "UTCQMMA"),
    ("grouped_gemm", 90, "HGMMA"),
    ("flash_attention", 90, "HGMMA"),
]
LOOPS = [
    ("gemv", 2 * 4 * 1024, 3),
    ("gemm_w4a16", 128 * 128 / 2, 1.2),
    ("gemm_w8a16", 128 * 128, 1.9),
    ("gemm_mxfp4", 128 * 128 / 2 + 128 * 4, 0.85),
]
LOOPED = [*((name, 90, 0) for name, _, _ in LOOPS), ("decode_attention", 90, 3)]
LOOKED = sorted({(name, sm, 0) for name, sm, _ in PRODUCTS} | {*LOOPED})


@pytest.fixture(scope="module")
def compiled(triton_cache):
    return kernel_checks.compiled(
        f"LOOKED = {[list(one) for one in LOOKED]}\n{SCRIPT}", [*WANTED, *TUNED], triton_cache
    )


@pytest.mark.slow("compiles kernels")
def test_every_launch_compiles_fits_and_keeps_its_registers(compiled):
    seen = {(one["kernel"], one["sm"], one["place"]) for one in compiled}
    assert seen == {*WANTED, *(one[:3] for one in TUNED)}
    for one in compiled:
        assert one["fits"], one
        assert one["spills"] == 0, one
        assert 16 <= one["registers"] <= 255, one


@pytest.mark.slow("compiles kernels")
@pytest.mark.parametrize(("name", "sm", "instruction"), PRODUCTS)
def test_products_use_the_matrix_units_of_their_generation(compiled, name, sm, instruction):
    first = next(one for one in compiled if (one["kernel"], one["sm"]) == (name, sm))
    assert instruction in dict(first["matrix"])
    assert first["async_copies"] > 0


@pytest.mark.slow("compiles kernels")
@pytest.mark.parametrize("name", ["gemm", "flash_attention"])
def test_hopper_warp_specialization_follows_the_tuning(compiled, name):
    launches = [one for one in compiled if (one["kernel"], one["sm"], one["place"]) == (name, 90, 0)]
    assert {"specialized=True" in one["tile"]: one["warps"] for one in launches} == {False: 8, True: 12}
    assert all("HGMMA" in dict(one["matrix"]) for one in launches)


@pytest.mark.slow("compiles kernels")
def test_fp8_converted_by_ptx_takes_a_quarter_fewer_instructions(compiled):
    started, packed = (
        next(
            one
            for one in compiled
            if one["kernel"] == "decode_attention" and f"early=True, packed={is_packed}" in one["tile"]
        )
        for is_packed in (False, True)
    )
    assert packed["loop"] < 0.75 * started["loop"]


# A H200 has 4.8 TB/s for 132 multiprocessors at 1.83 GHz (hardware/h200-sxm.yaml): 19.9 bytes a cycle of one.
H200 = 4.8e12 / 132 / 1.83e9


@pytest.mark.slow("compiles kernels")
@pytest.mark.parametrize(("name", "nbytes", "least"), LOOPS)
def test_instructions_of_a_loop_leave_room_for_the_bandwidth_of_memory(compiled, name, nbytes, least):
    """Bytes of weights and scales once around the loop, by what is issued meanwhile, for one token."""
    first = next(one for one in compiled if (one["kernel"], one["sm"], one["place"]) == (name, 90, 0))
    assert first["a_byte"] * nbytes >= least * H200


def test_the_longest_loop_without_another_inside_is_found():
    code = """
.L_x_0:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   HMMA.16816.F32 R4, R8, R10, R4 ;
        /*0020*/                   IADD3 R1, R1, 0x1, RZ ;
        /*0030*/              @P0 BRA `(.L_x_1) ;
        /*0040*/              @P1 BRA `(.L_x_3) ;
.L_x_2:
        /*0050*/                   IADD3 R2, R2, 0x1, RZ ;
        /*0060*/              @P2 BRA `(.L_x_2) ;
        /*0070*/              @P3 BRA `(.L_x_0) ;
.L_x_3:
        /*0080*/                   EXIT ;
.L_x_4:
        /*0090*/                   BRA `(.L_x_4);
"""
    assert longest_loop(code) == ["HMMA.16816.F32 R4, R8, R10, R4", "IADD3 R1, R1, 0x1, RZ", "@P0 BRA `(.L_x_1)"]
    assert longest_loop(code[code.index(".L_x_3:") :]) == []


@pytest.mark.slow("compiles kernels")
def test_a_kernel_that_is_wrong_or_too_large_shows(triton_cache):
    """The check can fail, unasked to look: tiles of 256 x 256 take more registers and shared memory than there are."""
    script = """
import dataclasses
from llmviewer.kernels import aot, gemm, load_kernel

kernel = load_kernel("gemm")
inputs = kernel.make(kernel.full_size[0], "meta", 0)
tile = gemm.GemmTiling(block_m=256, block_n=256, block_k=64, num_warps=4, num_stages=5)
(launch,) = kernel.plan(aot.TARGETS[1], **inputs, tile=tile).launches
found = aot.compile_launch(launch, 90, inspect_code=False)
print(found.fits, found.spills > 100)
"""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(triton_cache)
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "False True\n", done.stderr
