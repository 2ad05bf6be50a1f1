"""Kernels that wait for memory, compiled for GPUs that are not there: they move 16 bytes at a time and do not spill."""

from itertools import cycle

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from . import kernel_checks

# One process, as this one has Triton's functions for the interpreter. What is disassembled is kept to look at.
SCRIPT = """
import json, re, sys
from llmviewer.kernels import aot, load_kernel

tool, seen = aot._tool, {}

def kept(name, *arguments):
    seen[name] = tool(name, *arguments)
    return seen[name]

aot._tool = kept
targets = {str(target.sm): target for target in aot.TARGETS}
for name, sm in (wanted.split(":") for wanted in sys.argv[1:]):
    for launch in load_kernel(name).launches(load_kernel(name).full_size[0], targets[sm]):
        found = aot.compile_launch(launch, int(sm))
        wide = [len(re.findall(rf"\\b{move}\\.\\S*\\b128\\b", seen["nvdisasm"])) for move in ("LDG", "STG")]
        print(json.dumps([name, int(sm), found.function, found.spills, *wide]))
"""
pytestmark = pytest.mark.slow("compiles kernels")
STREAMS = ("rms_norm", "layer_norm", "softmax", "rope", "silu_and_mul", "embedding", "kv_write")
# In turn on the oldest and the newest: how wide a kernel loads is up to its code. On 90, test_kernels_aot.py sees what
# spills.
WANTED = list(zip((*STREAMS, "argmax", "sample"), cycle((80, 100)), strict=False))


@pytest.fixture(scope="module")
def compiled(triton_cache):
    return kernel_checks.compiled(SCRIPT, WANTED, triton_cache)


def test_nothing_spills(compiled):
    assert {(name, sm) for name, sm, *_ in compiled} == set(WANTED)
    assert [one for one in compiled if one[3]] == []


def test_streams_move_16_bytes_at_a_time(compiled):
    streams = [one for one in compiled if one[0] in STREAMS]
    assert [one for one in streams if not (one[4] and one[5])] == []
    logits = [one for one in compiled if one[2] in ("best", "levels", "gather")]
    assert [one for one in logits if not one[4]] == []
