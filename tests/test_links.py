"""Links between devices, types and amounts of their traffic, and layout options without effect."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmviewer import analyze
from llmviewer.cli import main
from llmviewer.devices.files import hardware_names, load_hardware
from llmviewer.errors import InputError
from llmviewer.forms import evaluate
from llmviewer.operators.collectives import AllToAll
from llmviewer.operators.elementwise import Permute
from llmviewer.parallel.layout import ONE_DEVICE, Layout, Network, layouts, nearest_divisors
from llmviewer.parameters import Algorithm
from llmviewer.setting import Setting
from llmviewer.workload import Workload

PROMPT = Workload.prefill(batch=4, prompt=1000)
BRIDGED = [
    name
    for name in hardware_names()
    if any(f.key == "scale_up.type" and "bridge" in str(f.value) for f in load_hardware(name).facts)
]


def _unbridged(name: str):
    """The device without its scale-up links."""
    device = load_hardware(name)
    return replace(device, facts=tuple(f for f in device.facts if not f.key.startswith("scale_up.")))


# Where groups meet.


@given(st.integers(1, 5000), st.integers(1, 100), st.sampled_from(["rtx-3090", "h100-sxm", "gb200", "rtx-4090"]))
def test_a_group_has_as_many_members_in_a_domain_as_divide_it_and_find_room(size, stride, device):
    network = Network.of(load_hardware(device), ONE_DEVICE)
    group = network.members("g", size, stride)
    assert group.size == size
    able = [n for n in range(1, size + 1) if size % n == 0 and n * stride <= network.domain]
    assert group.inner == max(able, default=1)


def test_beyond_a_bridge_devices_talk_over_their_host_links():
    found = analyze("llama-2-70b", "rtx-3090", layout="tp=8")
    assert found.memory.fits
    assert (
        "scale-up links of rtx-3090 connect at most 2 devices: traffic between such groups goes over host links "
        "(31.5 GB/s each)"
    ) in found.notes
    group = Network.of(load_hardware("rtx-3090"), Layout(tp=8)).group("tp")
    assert group.tiers == (("scale_up", 2), ("host", 4))
    (reduced,) = (op for op in found.phases.decode.operators if op.name == "o_proj_all_reduce")
    outside = 2 * 3 / 4 * 8192 * 2 / 2  # of the half that a device has after the reduce-scatter in its pair
    assert reduced.bound_time_s == pytest.approx(80 * outside / 31.5e9)


@pytest.mark.parametrize("name", BRIDGED)
def test_bridge_never_slows_a_layout_down(name):
    for text in ("tp=2", "tp=8", "tp=4 pp=2", "cp=4"):
        with_it, without = (
            Setting.of("llama-3.1-8b", device, layout=text).plan for device in (load_hardware(name), _unbridged(name))
        )
        times = [float(plan.seconds(plan.values(PROMPT))) for plan in (with_it, without)]
        assert times[0] <= times[1] * (1 + 1e-9), text


def test_seventy_billion_parameters_in_fp16_need_six_bridged_cards_of_24_gb():
    found = [analyze("llama-2-70b", "rtx-3090", prompt=16, gen=1, layout=f"pp={n}").memory.fits for n in (4, 5, 6)]
    assert found == [False, False, True]


def test_devices_without_scale_up_links_use_scale_out_links():
    found = analyze("llama-3.1-8b", "gb10", layout="tp=2")
    assert "gb10 has no scale-up link: devices communicate over scale-out links (25.0 GB/s each)" in found.notes
    (reduced,) = (op for op in found.phases.decode.operators if op.name == "o_proj_all_reduce")
    assert reduced.bound_time_s == pytest.approx(32 * 4096 * 2 / 25e9)


@pytest.mark.parametrize(("name", "missing"), [("mi308x", "scale_out"), ("m1", "scale_up")])
def test_unknown_link_bandwidth_is_refused(name, missing):
    with pytest.raises(InputError, match=rf"^{name} has no {missing}\.bandwidth in its file"):
        _ = Setting.of("llama-3.1-8b", name, layout="tp=16").plan


# Degrees.


@given(st.integers(1, 3000), st.integers(1, 3000))
def test_nearest_divisors_are_the_next_on_both_sides(number, wanted):
    able = [n for n in range(1, number + 1) if number % n == 0]
    near = [*[n for n in able if n < wanted][-1:], *[n for n in able if n > wanted][:1]]
    assert nearest_divisors(number, wanted) == " or ".join(map(str, near))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp=1000000007", "tp must be at most 1048576; got 1000000007"),
        ("tp=1048573", "tp=1048573 does not divide the 32 heads of q_proj in layer; try tp=32"),
        ("tp=1048573 dp=1048575 ep=1048571",
         "ep must divide tp x dp = 1099507433475, the ranks that hold experts; got 1048571; try 349525 or 1048573"),
        ("tp=" + "9" * 5000, "layout 'tp=999"),
    ],
)  # fmt: skip
def test_degrees_beyond_all_measure_are_refused_at_once(text, message):
    with pytest.raises(InputError) as caught:
        _ = Setting.of("llama-2-7b", "h100-sxm", layout=text).plan
    assert str(caught.value).startswith(message)


# What is sent in which type.


@pytest.mark.parametrize(
    ("name", "quant", "bits"),
    [
        ("deepseek-v3", None, 8 + 32 / 128),  # fp8, with a scale for each 128
        ("mixtral-8x7b", None, 16),
        ("mixtral-8x7b", "W8A8", 8),
        ("mixtral-8x7b", "W4A16g128", 16),
    ],
)
def test_tokens_go_to_experts_in_the_type_of_their_operands_and_come_back_in_16_bits(name, quant, bits):
    graph = Setting.of(name, "h200-sxm", layout="dp=8 ep=8", quant=quant).graph.check()
    there = [op for _, op in graph if isinstance(op, AllToAll) and op.name == "dispatch"]
    back = [op for _, op in graph if isinstance(op, AllToAll) and op.name == "collect"]
    assert {op.inputs[0].format.stored_bits for op in there} == {bits}
    assert {op.inputs[0].format.stored_bits for op in back} == {16}
    assert evaluate(there[0].payload(), PROMPT) == pytest.approx(evaluate(back[0].payload(), PROMPT) * bits / 16)
    assert not evaluate(there[0].conversion(), PROMPT)  # whoever makes the copies converts them
    (copies,) = {op for _, op in graph if isinstance(op, Permute)}
    assert bool(evaluate(copies.conversion(), PROMPT)) == (bits < 16)


def test_note_names_quantization_blocks_cut_by_tensor_parallelism():
    cut = "tp=32 cuts quantization blocks of "
    (found,) = (note for note in analyze("deepseek-v3", "h200-sxm", layout="tp=32").notes if note.startswith(cut))
    assert "expert_down_proj" in found
    for text in ("tp=8", "tp=32 ep=32"):
        notes = analyze("deepseek-v3", "h200-sxm", layout=text).notes
        assert not [note for note in notes if "expert_down_proj" in note]
    (found,) = (n for n in analyze("llama-3.2-1b", "h100-sxm", layout="tp=2", quant="W4A16g2048").notes if "tp=2" in n)
    assert found == "tp=2 cuts quantization blocks of o_proj: engines refuse or pad them"


# Options that are of no use.

PIPELINE = "micro_batches need a pipeline; give pp"
COLLECTIVE = "an algorithm of collectives needs ranks that share a tensor; give tp, cp or ep"
AWAY = "a hierarchical all-to-all needs experts on other ranks than their tokens; give dp, and ep above tp"
OVERLAP = "overlap needs collectives between launches; give tp, cp or ep, and no two-batch overlap"
TWO = "two-batch overlap needs collectives and no pipeline; give tp, cp or ep, and no pp"


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ({"micro_batches": 4}, ["--micro-batches", "4"], PIPELINE),
        ({"tp": 2, "micro_batches": 4}, ["--tp", "2", "--micro-batches", "4"], PIPELINE),
        ({"micro_batches": -1}, ["--micro-batches", "-1"], "micro_batches must be at least 0; got -1"),
        ({"pp": 2, "micro_batches": 1 << 21}, ["--pp", "2", "--micro-batches", "2097152"],
         "micro_batches must be at most 1048576; got 2097152"),
        ({"collective": Algorithm.RING}, ["--collective", "ring"], COLLECTIVE),
        ({"pp": 2, "collective": Algorithm.TREE}, ["--pp", "2", "--collective", "tree"], COLLECTIVE),
        ({"tp": 2, "hierarchical_all_to_all": True}, ["--tp", "2", "--hierarchical-all-to-all"], AWAY),
        ({"dp": 2, "overlap": True}, ["--dp", "2", "--overlap"], OVERLAP),
        ({"tp": 2, "overlap": True, "two_batch_overlap": True}, ["--tp", "2", "--overlap", "--two-batch-overlap"],
         OVERLAP),
        ({"dp": 2, "two_batch_overlap": True}, ["--dp", "2", "--two-batch-overlap"], TWO),
        ({"tp": 2, "pp": 2, "two_batch_overlap": True}, ["--tp", "2", "--pp", "2", "--two-batch-overlap"], TWO),
    ],
)  # fmt: skip
def test_layout_options_without_effect_are_refused(given, options, message, capsys):
    with pytest.raises(InputError) as caught:
        Layout(**given)
    assert str(caught.value) == message
    assert main(["analyze", "llama-2-7b", "h100-sxm", *options]) == 2
    typed = message.replace("micro_batches must", "--micro-batches must")
    assert capsys.readouterr() == ("", f"llmviewer: {typed}\n")


def test_shared_options_apply_only_to_layouts_that_use_them():
    found = layouts([{}, {"tp": 2}, {"pp": 2}], overlap=True, micro_batches=4, hierarchical_all_to_all=False)
    assert found == [Layout(), Layout(tp=2, overlap=True), Layout(pp=2, micro_batches=4)]
    with pytest.raises(InputError, match="overlap needs collectives"):
        layouts([{}, {"pp": 2}], overlap=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--offload-sync"], "offload: sync needs something to transfer; give weights=PART or kv=PART too"),
        (["--kv-transfer", "after"],
         "--kv-transfer needs separate prefill and decode workers; give --prefill-hardware or --decode-hardware"),
    ],
)  # fmt: skip
def test_transfer_options_without_transfers_are_refused(options, message, capsys):
    assert main(["analyze", "llama-2-7b", "h100-sxm", *options]) == 2
    assert capsys.readouterr() == ("", f"llmviewer: {message}\n")
