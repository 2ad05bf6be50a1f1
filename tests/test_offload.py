"""Weights and cache outside of device memory: transferred bytes by hand, and limits of offloading."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmviewer.analyzing.analysis import analyze
from llmviewer.cli import main
from llmviewer.devices.files import load_hardware
from llmviewer.errors import InputError
from llmviewer.forms import evaluate
from llmviewer.memory import weight_bytes
from llmviewer.model_files import load_model
from llmviewer.resource import link
from llmviewer.setting import Setting
from llmviewer.sweeping.grid import sweep
from llmviewer.transforms.offload import ON_DEVICE, parse_offload
from llmviewer.workload import Workload

T4 = load_hardware("t4", ["storage.bandwidth=3 GB/s"])
PCIE = T4.fact("host.bandwidth")
OPT_30B = 2 * load_model("opt-30b").parameters  # bytes in fp16
STEP = Workload.decode(batch=4, kv_len=513)
PROMPT = Workload.prefill(batch=4, prompt=512)
CACHE = 2 * 48 * 7168 * 2  # bytes of OPT-30B for each token: keys and values of 48 layers
parts = st.sampled_from((0.0, 0.1, 0.25, 0.5, 0.9, 1.0))


def _crossed(setting, workload, phase):
    """Bytes by link."""
    amounts = {}
    for row in setting.plan_of(phase).operators:
        for resource, form in row.operator.transfers:
            amounts[resource.dtype] = amounts.get(resource.dtype, 0) + row.block.repeat * evaluate(form, workload)
    return amounts


# By hand.


def test_decode_step_fetches_the_offloaded_fraction_of_weights_and_only_the_used_embedding_rows():
    setting = Setting.of("opt-30b", T4, offload="weights=0.5")
    rows = 2 * 4 * 7168 * 2  # of two tables, for 4 tokens
    tables = (50272 + 2050) * 7168 * 2
    head = 50272 * 7168 * 2  # tied: read, but not held twice
    assert _crossed(setting, STEP, "decode") == {"host": pytest.approx(0.5 * (OPT_30B - tables + head + rows))}


def test_a_token_of_offloaded_weights_is_no_faster_than_the_host_link():
    """OPT-30B on a T4, the setting of FlexGen (arXiv:2303.06865)."""
    setting = Setting.of("opt-30b", T4, offload="weights=1")
    read = OPT_30B - 2050 * 7168 * 2 + 4 * 7168 * 2 * 2
    assert float(setting.decode_plan.time_s(STEP)) == pytest.approx(read / PCIE, rel=1e-4)
    assert analyze("opt-30b", T4, offload="weights=1").memory.host_bytes == OPT_30B


def test_a_prefill_leaves_its_cache_and_a_step_fetches_it():
    setting = Setting.of("opt-30b", T4, offload="kv=0.5")
    assert _crossed(setting, PROMPT, "prefill") == {"to host": 0.5 * 4 * 512 * CACHE}
    assert _crossed(setting, STEP, "decode") == {"host": 0.5 * 4 * 513 * CACHE, "to host": 0.5 * 4 * CACHE}


def test_transfers_from_storage_also_cross_the_host_link():
    setting = Setting.of("opt-30b", T4, offload="weights=0.25@storage kv=0.5")
    crossed = _crossed(setting, STEP, "decode")
    weights = _crossed(Setting.of("opt-30b", T4, offload="weights=0.25"), STEP, "decode")["host"]
    cache = 0.5 * 4 * 513 * CACHE
    assert crossed == {"host": pytest.approx(weights + cache), "storage": weights, "to host": 0.5 * 4 * CACHE}
    rates = setting.linked.rates
    assert (rates[link("storage")], rates[link("host")], rates[link("to host")]) == (3e9, PCIE, PCIE)


def test_the_cache_is_fetched_once_where_two_launches_read_it():
    eager, flash = (
        _crossed(Setting.of("deepseek-v2-lite", "h100-sxm", offload="kv=1", attention=a), STEP, "decode")["host"]
        for a in ("eager", "flash")
    )
    assert eager == flash == 4 * 513 * load_model("deepseek-v2-lite").kv_bytes_per_token


def test_transfers_that_are_waited_for_are_launches_of_their_own():
    at_once, waits, alone = (
        Setting.of("opt-30b", T4, offload=text) for text in ("weights=0.5 kv=0.5", "weights=0.5,kv=0.5,sync", "")
    )
    for phase, workload in (("prefill", PROMPT), ("decode", STEP)):
        assert _crossed(waits, workload, phase) == pytest.approx(_crossed(at_once, workload, phase))
        plan = waits.plan_of(phase)
        transfers = [r for r in plan.estimate(workload).operators if r.operator.kind == "transfer"]
        waited = sum(r.repeat * r.time_s for r in transfers)
        assert plan.time_s(workload) == pytest.approx(alone.plan_of(phase).time_s(workload) + waited)
    assert waits.footprint.total_bytes(batch=4, prompt=512, gen=8) == at_once.footprint.total_bytes(
        batch=4, prompt=512, gen=8
    )


def test_each_device_fetches_its_own_shard():
    one, two = (Setting.of("llama-2-7b", "h100-sxm", offload="weights=0.5 kv=0.5", layout=t) for t in ("", "tp=2"))
    whole, part = (_crossed(s, STEP, "decode") for s in (one, two))
    assert part["host"] == pytest.approx(whole["host"] / 2, rel=1e-3)  # norms are on both
    assert part["to host"] == whole["to host"] / 2


def test_a_pass_takes_as_long_as_its_launches_or_the_transfers_on_a_link():
    plain = Setting.of("llama-2-7b", "h100-sxm")
    for text in ("kv=0.05", "kv=1", "weights=0.01", "weights=0.5 kv=0.5", "weights=0.3 kv=1"):
        setting = Setting.of("llama-2-7b", "h100-sxm", offload=text)
        for phase, workload in (("prefill", PROMPT), ("decode", STEP)):
            estimate = setting.plan_of(phase).estimate(workload)
            launches = plain.plan_of(phase).time_s(workload)
            links = [
                nbytes / setting.linked.rates[link(way)] for way, nbytes in _crossed(setting, workload, phase).items()
            ]
            assert estimate.time_s == pytest.approx(max(launches, *links, 0))
            assert setting.plan_of(phase).time_s(workload) == pytest.approx(estimate.time_s)
            found = analyze("llama-2-7b", "h100-sxm", offload=text, batch=4, prompt=512, gen=2)
            shown = getattr(found.phases, phase)
            assert sum(op.bound_time_s for op in shown.operators) == pytest.approx(shown.total.bound_time_s)


def test_expected_launches_wait_for_their_own_data():
    """Attention of all layers fetches the whole cache, and nothing else runs meanwhile."""
    found = analyze("llama-2-7b", "h100-sxm", offload="kv=1", batch=16, prompt=2048, gen=2).phases.decode
    fetched = 16 * 2049 * load_model("llama-2-7b").kv_bytes_per_token / load_hardware("h100-sxm").fact("host.bandwidth")
    here = analyze("llama-2-7b", "h100-sxm", batch=16, prompt=2048, gen=2).phases.decode
    attention = next(op for op in found.operators if op.name == "attention")
    others = here.expected_time_s - next(op.expected_time_s for op in here.operators if op.name == "attention")
    assert attention.expected_time_s == pytest.approx(fetched)
    assert found.expected_time_s == pytest.approx(fetched + others)
    assert found.time_s == pytest.approx(fetched)


# Laws.


@pytest.mark.parametrize("name", ["llama-2-7b", "mixtral-8x7b", "deepseek-v2-lite", "t5-large"])
def test_nothing_offloaded_changes_nothing(name):
    plain, none = (Setting.of(name, "h100-sxm", offload=text) for text in ("", "weights=0,kv=0"))
    assert none.offload == ON_DEVICE
    assert none.graph == plain.graph
    assert none.decode_graph == plain.decode_graph


@settings(max_examples=40)
@given(st.sampled_from(["llama-2-7b", "mixtral-8x7b", "jamba-v0.1"]), parts, parts, parts, parts, st.booleans())
def test_more_offloaded_is_never_faster_and_never_needs_more_device_memory(name, w1, w2, k1, k2, waits):
    less = f"weights={min(w1, w2)} kv={min(k1, k2)}" + " sync" * waits
    more = f"weights={max(w1, w2)} kv={max(k1, k2)}" + " sync" * waits
    some, all_of_it = (Setting.of(name, "h100-sxm", offload=text) for text in (less, more))
    for phase, workload in (("prefill", PROMPT), ("decode", STEP)):
        times = [float(s.plan_of(phase).time_s(workload)) for s in (some, all_of_it)]
        assert times[0] <= times[1] * (1 + 1e-12)
    sizes = [float(s.footprint.total_bytes(batch=4, prompt=512, gen=9)) for s in (some, all_of_it)]
    assert sizes[1] <= sizes[0] * (1 + 1e-12)


@settings(max_examples=25)
@given(parts, parts, st.sampled_from(["", "@storage"]))
def test_offloaded_bytes_are_counted_on_host_or_storage(weights, kv, place):
    found = analyze("llama-2-7b", T4, offload=f"weights={weights}{place},kv={kv}").memory
    here = analyze("llama-2-7b", T4).memory
    together = found.weight_bytes + found.kv_cache_bytes + found.host_bytes + found.storage_bytes
    assert together == pytest.approx(here.weight_bytes + here.kv_cache_bytes)
    assert found.storage_bytes == pytest.approx(weights * here.weight_bytes if place else 0)


def test_sweep_of_offloading_equals_single_analyses():
    asked = {"offload": "weights=0.5 kv=0.5", "batch": 2, "prompt": 100, "gen": 10}
    one, many = analyze("llama-2-7b", T4, **asked), sweep("llama-2-7b", T4, {"batch": [2]}, **{**asked, "batch": 1})
    assert many.columns["latency_s"][0] == pytest.approx(one.generation.latency_s)
    assert many.columns["weight_bytes"][0] == one.memory.weight_bytes


# What a user reads.


def test_advice_states_the_smallest_offload_fraction_that_fits():
    asked = {"batch": 2, "prompt": 512, "gen": 32}
    found = analyze("opt-30b", T4, **asked)
    share = float(found.phases.decode.advice.split("--offload weights=")[1].split(",")[0])
    fits, too_little = (analyze("opt-30b", T4, offload=f"weights={s:.2f}", **asked) for s in (share, share - 0.01))
    assert fits.memory.fits
    assert not too_little.memory.fits
    then = f", >= {fits.phases.decode.time_s:.2f} s"
    assert then in found.phases.decode.advice
    assert "--offload" not in fits.phases.decode.advice


def test_advice_offers_no_offloading_where_it_cannot_help():
    assert "--offload" not in analyze("llama-2-7b", "t4", batch=500).phases.decode.advice  # its cache alone is too much
    stages = analyze("llama-2-70b", T4, layout="pp=4", prompt=64, gen=8)
    share = stages.phases.decode.advice.split("--offload ")[1].split(",")[0]
    assert analyze("llama-2-70b", T4, layout="pp=4", prompt=64, gen=8, offload=share).memory.fits


def test_reports_state_offloaded_bytes_and_transfers(capsys):
    assert main(["analyze", "opt-30b", "t4", "--offload", "weights=0.9,kv=0.5", "--offload-sync"]) == 0
    text = capsys.readouterr().out
    assert "offloaded weights=0.9 kv=0.5 sync" in " ".join(text.split())
    assert "in host memory" in " ".join(text.split())
    assert "q_proj_fetch" in text
    found = analyze("opt-30b", "t4", offload="weights=0.9")
    assert found.to_dict()["memory"]["host_bytes"] == pytest.approx(0.9 * OPT_30B)
    assert "links to offloaded data limit 94% of its time, mostly host (" in found.phases.decode.advice
    assert weight_bytes(Setting.of("opt-30b", "t4", offload="weights=0.9").graph) == pytest.approx(0.1 * OPT_30B)


MUST = "must be weights=PART or kv=PART with a part from 0 to 1, such as weights=0.5,kv=0.2 or weights=0.3@storage"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("weights=2", f"offload 'weights=2': {MUST}; got 'weights=2'"),
        ("weights=nan", f"offload 'weights=nan': {MUST}; got 'weights=nan'"),
        ("experts=0.5", f"offload 'experts=0.5': {MUST}; got 'experts=0.5'"),
        ("kv=0.1@tape", f"offload 'kv=0.1@tape': {MUST}; got 'kv=0.1@tape'"),
        ("kv=0.1 kv=0.2", f"offload 'kv=0.1 kv=0.2': {MUST}; got 'kv=0.2'"),
    ],
)
def test_malformed_offload_text_is_refused(text, message):
    with pytest.raises(InputError) as caught:
        parse_offload(text)
    assert str(caught.value) == message


def test_offloading_without_kv_cache_or_storage_bandwidth_is_refused():
    with pytest.raises(InputError, match=r"offload 'kv=1': the model has no KV cache; leave kv out"):
        analyze("mamba-2.8b", "h100-sxm", offload="kv=1")
    with pytest.raises(InputError, match=r"t4 has no storage\.bandwidth in its file"):
        analyze("llama-2-7b", "t4", offload="weights=1@storage")


@given(parts, parts, st.sampled_from(["", "@storage"]), st.booleans())
def test_texts_of_offloading(weights, kv, place, waits):
    asked = parse_offload(f"weights={weights},kv={kv}{place}" + ",sync" * waits)
    again = parse_offload(str(asked))
    assert (again.weights, again.kv) == (weights, kv)
    assert again == asked or not (weights and kv)  # nothing is said of where nothing lies
