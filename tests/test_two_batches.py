"""Two-batch overlap: a batch in halves, of which one computes while what the other sends is on its way."""

from dataclasses import replace
from functools import cache
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmviewer
from llmviewer.cli import main
from llmviewer.comparing.cells import launch_together
from llmviewer.errors import InputError
from llmviewer.operators.collectives import Collective
from llmviewer.parallel.layout import Layout, parse_layout
from llmviewer.parameters import Algorithm
from llmviewer.roofline import pipelined_s
from llmviewer.serving.steps import Steps
from llmviewer.setting import Setting
from llmviewer.workload import Spans, Workload

PLAIN = "dp=16 ep=16"


@cache
def setting(layout, *, model="deepseek-v2-lite", two=True, **options):
    laid = replace(parse_layout(layout), two_batch_overlap=two)
    return Setting.of(model, "h100-sxm", layout=laid, **options)


def launches(own, phase, workload):
    """(whether it travels, how long it takes) of each launch, in order; bounds, as expected, and what it takes of the
    cores of others. [s]
    """
    rows = own.plan_of(phase).estimate(workload).operators
    expected = own.expected_pass(phase, workload).launches
    each = [
        (
            row.block,
            isinstance(row.operator, Collective),
            *map(float, map(np.sum, (row.time_s, one.expected, one.core_time_s))),
        )
        for row, one in zip(rows, expected, strict=True)
    ]
    layers = (list(layer) for _, layer in groupby(each, key=lambda row: id(row[0])))
    return [row[1:] for layer in layers for row in layer * layer[0][0].repeat]


def two_streams(half):
    """Time of two halves that take turns on two streams, one that computes and one that sends: each of their runs of
    launches begins when the run before it has ended and the stream is free, as SGLang and vLLM launch them.
    """
    runs = [(travels, sum(time_s for _, time_s in run)) for travels, run in groupby(half, key=lambda one: one[0])]
    free, done = {False: 0.0, True: 0.0}, [0.0, 0.0]
    for travels, time_s in runs:
        for which in (0, 1):
            done[which] = free[travels] = max(done[which], free[travels]) + time_s
    return max(done)


def lanes(half):
    return tuple(sum(time_s for travels, time_s in half if travels is own) for own in (False, True))


# What it takes.


@pytest.mark.parametrize(("phase", "batch"), [("prefill", 64), ("decode", 64), ("decode", 2048)])
@pytest.mark.parametrize("layout", [PLAIN, "tp=8"])
def test_pass_time_is_the_longer_of_compute_and_communication(layout, phase, batch):
    """Both halves, whose launches are those of one batch of half the sequences."""
    own, plain = setting(layout), setting(layout, two=False)
    half = own.layout.rank_batch(batch) / 2
    workload = (
        Workload.prefill(batch=half, prompt=500) if phase == "prefill" else Workload.decode(batch=half, kv_len=500)
    )
    each = launches(plain, phase, workload)
    bounds, expected = zip(*([(t, b), (t, e)] for t, b, e, _ in each), strict=True)
    computing, sending = lanes(expected)
    taken = sum(cores for *_, cores in each)
    assert own.time_s(phase, workload, batch) == pytest.approx(2 * max(lanes(bounds)))
    assert own.expected_time(phase, workload, batch).numbers()[0] == pytest.approx(2 * max(computing + taken, sending))
    assert own.layout.micro_batch_count(batch) == 2
    for times in (bounds, expected):  # a schedule of two streams is no faster, and little slower
        assert 2 * max(lanes(times)) * (1 - 1e-12) <= two_streams(times) <= 1.3 * 2 * max(lanes(times))


@given(
    st.lists(st.tuples(st.booleans(), st.floats(0, 10)), min_size=1, max_size=30),
    st.integers(1, 2),
)
def test_no_schedule_of_two_streams_is_below_the_bound(half, parts):
    computing, sending = lanes(half)
    bound = pipelined_s(computing + sending, max(computing, sending), parts, autoregressive=True)
    assert bound <= (two_streams(half) if parts == 2 else computing + sending) * (1 + 1e-12)
    if parts == 2 and not (computing and sending):  # nothing to hide, or nothing to hide it behind
        assert bound == pytest.approx(2 * (computing + sending)) == pytest.approx(two_streams(half))


@given(st.floats(0.1, 10), st.floats(0.1, 10), st.integers(1, 60))
def test_layers_that_are_alike_are_hidden_but_for_the_first_and_last(computing, sending, layers):
    """Where each run of sending lies between runs of computing that take as long as each other."""
    half = [(False, computing), (True, sending)] * layers
    assert two_streams(half) == pytest.approx((2 * layers - 1) * max(computing, sending) + computing + sending)


def shared_cores(half, share):
    """Time of two halves that take turns, of which what computes is slower by `share` as long as the other sends."""
    left, now = [list(map(list, half)), list(map(list, half))], 0.0
    while any(left):
        first = [(runs[0][0], which) for which, runs in enumerate(left) if runs]
        active = dict(sorted(first, key=lambda one: len(left[one[1]])))  # where both ask, the one that is behind
        pace = {False: 1 - share * (True in active), True: 1.0}
        step = min(left[which][0][1] / pace[travels] for travels, which in active.items())
        now += step
        for travels, which in active.items():
            left[which][0][1] -= step * pace[travels]
            if left[which][0][1] <= 1e-12:
                left[which].pop(0)
    return now


@given(st.floats(0.1, 10), st.floats(0.1, 10), st.floats(0, 0.9), st.integers(1, 40))
def test_compute_slows_by_the_cores_communication_takes(computing, sending, share, layers):
    half = [(False, computing), (True, sending)] * layers
    whole = 2 * layers * max(computing + share * sending, sending)
    assert whole - sending - computing <= shared_cores(half, share) * (1 + 1e-9)
    assert shared_cores(half, share) <= whole + 2 * (computing + sending) / (1 - share)


@settings(max_examples=20)
@given(st.integers(1, 3000), st.sampled_from(["prefill", "decode"]))
def test_pass_time_is_between_the_longer_stream_and_the_sum_of_streams(batch, phase):
    own, plain = setting(PLAIN, bound=True), setting(PLAIN, two=False, bound=True)
    one = {"prefill": Workload.prefill(batch=own.layout.micro_batch_size(batch), prompt=100)}
    workload = one.get(phase) or Workload.decode(batch=own.layout.micro_batch_size(batch), kv_len=100)
    through = plain.plan_of(phase).time_s(workload)
    parts, time_s = own.layout.micro_batch_count(batch), own.time_s(phase, workload, batch)
    assert parts == (1 if batch <= 16 else 2)
    assert max(through, parts * through / 2) <= time_s * (1 + 1e-12)
    assert time_s <= parts * through


def test_two_batches_without_communication_reread_the_weights():
    own, plain = (setting("dp=4 ep=4", model="llama-2-7b", two=two, bound=True) for two in (True, False))
    half, whole = (Workload.decode(batch=batch, kv_len=100.0) for batch in (8.0, 16.0))
    assert own.time_s("decode", half, 64) == pytest.approx(2 * plain.time_s("decode", half, 32))
    assert own.time_s("decode", half, 64) > 1.7 * plain.time_s("decode", whole, 64)
    half, whole = (Workload.prefill(batch=batch, prompt=4096) for batch in (8, 16))
    assert own.time_s("prefill", half, 64) == pytest.approx(plain.time_s("prefill", whole, 64), rel=0.01)


def test_halves_take_as_much_memory_as_the_whole():
    sizes = {"batch": np.array([1.0, 16, 17, 500]), "prompt": 1000, "gen": 10}
    own, plain = (setting(PLAIN, two=two).footprint.parts(**sizes) for two in (True, False))
    assert all(map(np.array_equal, own, plain))


# Where it is asked for.


def test_layout_text_round_trips_two_batch_overlap():
    layout = parse_layout("dp=8,ep=8,two-batch-overlap")
    assert layout == Layout(dp=8, ep=8, two_batch_overlap=True)
    assert parse_layout(str(layout)) == layout
    with pytest.raises(InputError, match="got 'two-batch-overlap'"):
        parse_layout("dp=8 ep=8 two-batch-overlap two-batch-overlap")


def test_two_batch_overlap_is_refused_as_a_technique(capsys):
    assert main(["analyze", "deepseek-v3", "h100-sxm", "--dp", "8", "--ep", "8", "--with", "two-batch-overlap"]) == 2
    said = "no technique 'two-batch-overlap': it is part of the layout; give it as --two-batch-overlap, or in --layout"
    assert capsys.readouterr() == ("", f"llmviewer: {said}\n")


def test_products_that_leave_cores_free_take_as_long_on_devices_launched_together():
    """Products in fp8 of SGLang, beside collectives, are slower in a prefill alone."""
    asked = {"layout": f"{PLAIN} two-batch-overlap", "batch": 512, "prompt": 300, "gen": 20, "engine": "sglang"}
    one = llmviewer.analyze("deepseek-v3", "h100-sxm", **asked).generation
    cells = llmviewer.compare("deepseek-v3", ["h100-sxm", "h200-sxm"], **asked).cells
    launch_together(cells)
    assert cells[0].expected.ttft.expected == pytest.approx(one.expected_ttft_s)
    assert cells[0].expected.tpot.expected == pytest.approx(one.expected_tpot_s)


def test_analysis_sweep_comparison_and_simulation_agree():
    """An analysis, each side of one on two kinds of devices, a sweep, a comparison and steps of a simulation."""
    text = f"{PLAIN} two-batch-overlap"
    asked = {"batch": 512, "prompt": 300, "gen": 20}
    one = llmviewer.analyze("deepseek-v2-lite", "h100-sxm", layout=text, **asked)
    plain = llmviewer.analyze("deepseek-v2-lite", "h100-sxm", layout=PLAIN, **asked)
    assert one.generation.ttft_s < plain.generation.ttft_s
    over = {"layout": [text], "batch": [512]}
    row = llmviewer.sweep("deepseek-v2-lite", "h100-sxm", over, expected=True, prompt=300, gen=20).columns
    (cell,) = llmviewer.compare("deepseek-v2-lite", ["h100-sxm"], layout=text, **asked).cells
    for name in ("ttft_s", "tpot_s", "expected_ttft_s", "expected_tpot_s"):
        assert row[name][0] == pytest.approx(getattr(one.generation, name)), name
    assert cell.ttft_s[0] == pytest.approx(one.generation.ttft_s)
    assert cell.tpot_s[0] == pytest.approx(one.generation.tpot_s)
    assert cell.passes["prefill"].time_s[0] == pytest.approx(one.generation.ttft_s)
    steps = Steps(setting(PLAIN))
    assert steps.decode_s(batch=32.0, kv_len=301.0) == pytest.approx(one.phases.decode.time_s)
    assert steps.prefill_s(300.0, 32.0) == pytest.approx(one.generation.ttft_s)
    assert steps.decoding_s([(32, 301.0)] * 16) == pytest.approx(one.phases.decode.time_s)
    assert steps.step_s([(Spans(batch=32.0, q_len=300.0, kv_len=300.0),)] * 16) == pytest.approx(one.generation.ttft_s)
    off = [  # steps between shapes that were worked out: as far from an analysis as without halves
        Steps(setting(PLAIN, two=two), expected=True).decode_s(batch=32.0, kv_len=301.0)
        / found.phases.decode.expected_time_s
        for two, found in ((True, one), (False, plain))
    ]
    assert off[0] == pytest.approx(off[1], rel=0.03) == pytest.approx(1, abs=0.1)


def test_a_step_of_one_token_has_no_halves():
    own, plain = (Steps(setting(PLAIN, two=two)) for two in (True, False))
    assert own.decode_s(batch=1.0, kv_len=50.0) == pytest.approx(plain.decode_s(batch=1.0, kv_len=50.0))
    assert own.decoding_s([(1, 50.0)] * 16) == pytest.approx(plain.decoding_s([(1, 50.0)] * 16))


def test_plan_matches_its_simulation():
    asked = {
        "rate": 7,  # which leaves each rank about four sequences: of one, nothing is cut
        "ttft": 20,
        "tpot": 3,
        "prompt": 2000,
        "gen": 100,
        "hardware": ["h200-sxm"],
        "quants": ["published"],
    }
    plan = llmviewer.plan("deepseek-v3", layouts=[f"{PLAIN} two-batch-overlap"], max_devices=16, **asked)
    run = llmviewer.simulate(**plan.simulation(plan.best), requests=400).expected
    assert plan.best.ttft_s == pytest.approx(np.mean(run.ttft_s), rel=0.15)
    assert plan.best.tpot_s == pytest.approx(np.mean(run.tpot_s), rel=0.15)


def test_drafts_and_launches_are_of_both_halves():
    sizes = {"batch": 64, "prompt": 300, "gen": 20}
    drafting = setting(PLAIN, model="deepseek-v3", techniques=("mtp",)).schedule(**sizes)
    assert {run.parts for run in (*drafting.first, *drafting.rest)} == {2}
    assert (len(drafting.first), len(drafting.rest)) == (2, 2)
    own, plain = (
        setting(PLAIN, two=two, techniques=("launches:each=10000",)).schedule(**sizes) for two in (True, False)
    )
    assert own.tpot_s == pytest.approx(2 * plain.tpot_s)


# What is said of it.


def test_report_states_when_two_batch_overlap_does_not_pay(capsys):
    asked = [
        "analyze",
        "deepseek-v3",
        "h100-sxm",
        "--dp",
        "32",
        "--ep",
        "32",
        "--two-batch-overlap",
        "--prompt",
        "4096",
    ]
    assert main([*asked, "--batch", "128"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "one of 2 micro-batches" in text
    assert "Two-batch overlap slows down decode steps: " in text
    assert "slows down the prefill" not in text
    assert main([*asked, "--batch", "32"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "Batch 32 gives each device of ep=32 dp=32 two-batch-overlap one sequence, so there is no two-batch overlap"
        in text
    )


def gain(phase, layout, batch, length):
    """Speed with two batches over that without, as expected of SGLang."""
    found = []
    for two in (True, False):
        own = Setting.of("deepseek-v3", "h100-sxm", layout=replace(layout, two_batch_overlap=two), engine="sglang")
        share = own.layout.micro_batch_size(batch * layout.dp)
        read = Workload.prefill(batch=share, prompt=length)
        workload = read if phase == "prefill" else Workload.decode(batch=share, kv_len=length)
        found.append(own.expected_time(phase, workload, batch * layout.dp).numbers()[0])
    return found[1] / found[0]


def test_two_batch_overlap_gains_and_losses_match_sglang():
    """lmsys.org/blog, 2025-05-05-large-scale-ep, on H100: 1.27 to 1.35 times as fast reading 8192 tokens on a device,
    with products that leave DeepEP's cores free in whole prefills; in decode steps of 72 devices with 32 redundant
    experts 0.73 times with 32 sequences on one, more than 1 somewhere from 64 to 128, and 1.255 with 256. DeepEP's
    kernels for such steps send rows straight to ranks; a copy for each of several experts there, too.
    """
    assert 1.27 < gain("prefill", Layout(dp=32, ep=32), 2, 4096) < 1.01 * 1.35
    straight = Layout(dp=72, ep=72, redundant_experts=32, collective=Algorithm.RING)
    few, some, more, many = (gain("decode", straight, batch, 2000) for batch in (32, 64, 128, 256))
    assert few == pytest.approx(0.73, abs=0.02)
    assert some < 1 < more
    assert many == pytest.approx(1.255, rel=0.03)


def test_halves_of_sglang_wait_for_tokens_that_their_stages_do_not_hide():
    """A dispatch travels while the other half is between experts and attention, its results while that is in attention;
    other engines, prefills and single batches have no stages. Launches are those of one engine.
    """
    layout = Layout(dp=64, ep=64, collective=Algorithm.RING, two_batch_overlap=True)
    own = Setting.of("deepseek-v3", "h100-sxm", layout=layout, engine="sglang")
    step = Workload.decode(batch=128, kv_len=2000)
    staged = own.expected_pass("decode", step)
    free = replace(staged, staged=False)
    layer = [
        (row.operator, float(np.sum(one.expected)), float(np.sum(one.core_time_s)))
        for row, one in zip(staged.operators, staged.launches, strict=True)
        if row.block.name == "moe"
    ]
    names = [op.name for op, *_ in layer]
    core, send, receive = (names.index(name) for name in ("attention", "dispatch", "collect"))
    hidden_s = (
        sum(time_s for _, time_s, _ in (*layer[:core], *layer[receive + 1 :])),
        sum(time_s for _, time_s, _ in layer[core:send]),
    )
    traveling_s = (time_s - core_s for _, time_s, core_s in (layer[send], layer[receive]))
    waits_s = 58 * sum(max(time_s - other_s, 0) for time_s, other_s in zip(traveling_s, hidden_s, strict=True))
    assert waits_s > 2e-3
    assert float(np.sum(staged.core_time_s - free.core_time_s)) == pytest.approx(waits_s)
    assert not np.any(own.expected_pass("prefill", Workload.prefill(batch=2, prompt=4096)).staged)
    vllm = Setting.of("deepseek-v3", "h100-sxm", layout=layout, engine="vllm").expected_pass("decode", step)
    assert not np.any(vllm.staged)
    alone = Setting.of(
        "deepseek-v3", "h100-sxm", layout=replace(layout, two_batch_overlap=False), engine="sglang"
    ).expected_pass("decode", step)
    assert float(np.sum(alone.core_time_s)) == 0


def test_a_whole_step_of_sglang_on_72_devices_takes_as_long_as_measured():
    """92 ms (lmsys.org/blog, 2025-05-05-large-scale-ep) with 256 sequences on each."""
    layout = Layout(dp=72, ep=72, redundant_experts=32, collective=Algorithm.RING, two_batch_overlap=True)
    own = Setting.of("deepseek-v3", "h100-sxm", layout=layout, engine="sglang")
    half = Workload.decode(batch=own.layout.micro_batch_size(256 * 72), kv_len=2000)
    assert own.expected_time("decode", half, 256 * 72).numbers()[0] == pytest.approx(0.092, rel=0.02)
