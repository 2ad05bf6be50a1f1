"""The bound of a collective is below what was measured.

Times of 512 MiB in fp16 from nccl-tests, of the fastest NCCL version of each device, as ai-dynamo/aiconfigurator
publishes them (nccl_perf of its systems/data, NCCL 2.23 to 2.29; Apache-2.0). Sizes are those of the whole buffer.
Between domains, times of DeepEP's kernels on H800 with ConnectX-7, which its docs/legacy.md publishes: tokens of 7168
choose 8 of 256 experts, and are dispatched in fp8 with a scale for 128 and combined in bf16. For few tokens, 128 a
device, a copy goes straight to each expert; for many, 4096 a device, copies are passed on in a node.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmviewer.devices.files import load_hardware
from llmviewer.forms import evaluate
from llmviewer.graph import Graph
from llmviewer.operators.base import Tensor
from llmviewer.operators.collectives import AllGather, AllReduce, AllToAll, ReduceScatter
from llmviewer.operators.routing import UNGROUPED, ExpertChoice, Groups
from llmviewer.parallel.layout import Layout, Network
from llmviewer.parameters import Algorithm
from llmviewer.precision import FP16
from llmviewer.resource import Unit
from llmviewer.setting import Setting
from llmviewer.workload import Workload

BYTES = 512 * 2**20
MEASURED = {  # [us]
    ("a100-sxm-80gb", AllGather, 2): 1789.8,
    ("a100-sxm-80gb", ReduceScatter, 2): 1611.8,
    ("a100-sxm-80gb", ReduceScatter, 4): 1982.3,
    ("a100-sxm-80gb", AllReduce, 4): 3716.3,
    ("a100-sxm-80gb", AllReduce, 8): 4225.9,
    ("a100-sxm-80gb", AllToAll, 4): 2065.7,
    ("a100-sxm-80gb", AllToAll, 8): 2313.5,
    ("h100-sxm", AllGather, 2): 1038.2,
    ("h100-sxm", ReduceScatter, 2): 1074.9,
    ("h100-sxm", ReduceScatter, 4): 1299.4,
    ("h100-sxm", AllReduce, 4): 2299.7,
    ("h100-sxm", AllReduce, 8): 2111.1,
    ("h100-sxm", AllToAll, 4): 1211.6,
    ("h100-sxm", AllToAll, 8): 1468.6,
    ("h200-sxm", AllReduce, 4): 2307.4,
    ("h200-sxm", AllReduce, 8): 2040.0,
    ("h200-sxm", AllToAll, 8): 1445.9,
    ("b200", AllGather, 2): 611.9,
    ("b200", ReduceScatter, 4): 727.1,
    ("b200", AllReduce, 4): 1267.1,
    ("b200", AllReduce, 8): 1334.6,
    ("b200", AllToAll, 8): 831.8,
    ("l40s", AllGather, 2): 13698.0,
    ("l40s", AllReduce, 4): 156034.0,
    ("l40s", AllToAll, 8): 238056.0,
}
DISPATCHED = {8: 77, 16: 118, 32: 155, 64: 173, 128: 192, 256: 194}  # [us]
COMBINED = {8: 114, 16: 195, 32: 273, 64: 314, 128: 369, 256: 360}
FORWARDED = {8: (153, 158), 16: (43, 43), 32: (58, 57), 64: (51, 50)}  # GB/s, with what stays where it is
FACTOR = 2.5  # of the bound that measurements on NVLink stay within


def _bound_us(device, kind, ranks, size=BYTES):
    network = Network.of(load_hardware(device), Layout(tp=ranks))
    x = Tensor(name="x", width=size // 2, format=FP16)
    op = kind(name="c", inputs=(x,), outputs=(x,), group=network.group("tp"))
    rates, step = network.linked().rates, Workload.decode(batch=1, kv_len=1)
    traffic = {r: f for r, f in op.link_traffic().items() if r.unit in (Unit.LINK, Unit.HOP)}
    return 1e6 * max(evaluate(form, step) / rates[resource] for resource, form in traffic.items())


@pytest.mark.parametrize(("device", "kind", "ranks"), MEASURED)
def test_no_measurement_is_faster_than_its_bound(device, kind, ranks):
    bound, measured = _bound_us(device, kind, ranks), MEASURED[device, kind, ranks]
    assert bound < measured
    assert measured < FACTOR * bound or "scale_up.bandwidth" not in load_hardware(device).numbers


@pytest.mark.parametrize(("width", "measured"), [(7168 + 7168 // 128 * 4, DISPATCHED), (2 * 7168, COMBINED)])
def test_no_measurement_between_domains_is_either(width, measured):
    for ranks, time_us in measured.items():
        bound = _bound_us("h800-sxm", AllToAll, ranks, 128 * 8 * width)
        assert bound < time_us < (1.6 if ranks > 8 else 2.4) * bound


def _expected_us(ranks, tokens, *, groups=UNGROUPED, algorithm=Algorithm.AUTO):
    """Dispatch and combine of a layer of DeepSeek-V3."""
    layout = Layout(dp=ranks, ep=ranks, collective=algorithm)
    setting = Setting.of("deepseek-v3", "h800-sxm", layout=layout)
    blocks = [block for block in setting.decode_graph.blocks if any(isinstance(op, AllToAll) for op in block.operators)]
    choice = ExpertChoice(experts=256, top_k=8, groups=groups)
    graph = Graph(tuple(blocks[:1])).map(lambda op: replace(op, choice=choice) if isinstance(op, AllToAll) else op)
    found = setting.kernels.expect_plan(setting.planned(graph), Workload.decode(batch=tokens, kv_len=2))
    rows = zip(found.operators, found.launches, strict=True)
    return [1e6 * float(one.expected[0]) for row, one in rows if isinstance(row.operator, AllToAll)]


@pytest.mark.parametrize("ranks", DISPATCHED)
def test_few_tokens_take_as_long_as_deepep_measured(ranks):
    found = _expected_us(ranks, 128, algorithm=Algorithm.RING)
    assert found == pytest.approx([DISPATCHED[ranks], COMBINED[ranks]], rel=0.1)


@pytest.mark.parametrize("ranks", [16, 32, 64])
def test_a_single_token_takes_the_set_up_between_nodes(ranks):
    """22 to 31 us of DeepEP's low-latency kernels on H100, of SGLang 0.5 (ai-dynamo/aiconfigurator, wide-EP tables)."""
    for algorithm in (Algorithm.AUTO, Algorithm.RING):
        assert all(21 < time_us < 32 for time_us in _expected_us(ranks, 1, algorithm=algorithm))


@pytest.mark.parametrize("ranks", FORWARDED)
def test_many_tokens_take_about_as_long_as_deepep_measured(ranks):
    """DeepEP's test_intranode.py counts the rows that arrive at a device, its test_internode.py those that leave for a
    node, including its own; tokens choose from the experts of up to four nodes.
    """
    nodes = ranks // 8
    groups = Groups(nodes, 4) if nodes > 4 else UNGROUPED
    copies = sum(ExpertChoice(experts=256, top_k=8, groups=groups).needed(1 if nodes == 1 else 8, ranks=ranks))
    measured = [
        4096 * copies * width / 1e3 / rate for width, rate in zip((7392, 2 * 7168), FORWARDED[ranks], strict=True)
    ]
    found = _expected_us(ranks, 4096, groups=groups)
    assert found == pytest.approx(measured, rel=0.25)


def test_switches_that_add_make_an_all_reduce_faster_than_any_without():
    """A ring of eight H200 would send 7/4 of the buffer at 450 GB/s: longer than what was measured."""
    assert MEASURED["h200-sxm", AllReduce, 8] < 1e6 * 2 * 7 / 8 * BYTES / 450e9
    assert _bound_us("h200-sxm", AllReduce, 8) == pytest.approx(1e6 * BYTES / 450e9)
    assert _bound_us("a100-sxm-80gb", AllReduce, 8) == pytest.approx(1e6 * 2 * 7 / 8 * BYTES / 300e9)
