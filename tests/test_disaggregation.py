"""Prefills on one kind of device, decode steps on another: what goes between them, and what both say together."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmviewer.analyzing.analysis import analyze
from llmviewer.analyzing.disaggregation import disaggregate
from llmviewer.cli import main
from llmviewer.errors import InputError
from llmviewer.model_files import load_model

ASKED = {"batch": 16, "prompt": 2048, "gen": 128}
NODES = ["scale_out.bandwidth=50 GB/s"]


def _both(**changes):
    question = {"prefill_layout": "tp=4", "decode_layout": "tp=8", **ASKED, **changes}
    return disaggregate("llama-3.1-70b", "h100-sxm", "a100-sxm-80gb", **question)


# By hand.


def test_the_cache_of_the_prompts_goes_once_at_the_pace_of_the_slower_side():
    found = _both(hardware_set=NODES)
    assert found.kv_transfer_bytes == 16 * 2048 * 80 * 2 * 8 * 128 * 2  # layers, K and V, heads, elements, bytes
    assert found.kv_transfer_bytes_per_s == 4 * 50e9
    assert found.kv_transfer_s == 16 * 2048 * 327680 / 200e9


def test_devices_without_a_scale_out_link_send_over_their_host_links():
    found = disaggregate("llama-2-7b", "l4", "t4", decode_layout="pp=2", batch=2, prompt=100, gen=8)
    hosts = [side.hardware.fact("host.bandwidth") for _, side in found.sides]
    assert not any("scale_out.bandwidth" in side.hardware.numbers for _, side in found.sides)
    assert found.kv_transfer_bytes_per_s == min(hosts[0], 2 * hosts[1])


def test_within_a_domain_they_may_send_over_scale_up_links():
    asked = {"batch": 2, "prompt": 100, "gen": 8, "kv_link": "scale-up"}
    found = disaggregate("llama-2-7b", "h100-sxm", "h100-sxm", prefill_layout="tp=2", decode_layout="tp=4", **asked)
    assert found.kv_transfer_bytes_per_s == 2 * 450e9
    assert found.to_dict()["kv_transfer"]["link"] == "scale-up"
    for other, layout in (("h100-sxm", "tp=8"), ("h200-sxm", "tp=2")):
        with pytest.raises(
            InputError, match=r"^kv_link must be scale-out unless both sides fit in one scale-up domain"
        ):
            disaggregate("llama-2-7b", "h100-sxm", other, decode_layout=layout, **asked)


@pytest.mark.parametrize(
    ("name", "changes", "nbytes"),
    [
        ("llama-3.1-8b", {"prefill_layout": "tp=16", "decode_layout": "tp=16"}, 1000 * 131072),  # copied heads go once
        ("llama-3.1-8b", {"quant": "KV8"}, 1000 * 65536),
        ("deepseek-v2-lite", {}, 1000 * 27 * 576 * 2),
        ("mistral-7b-v0.1", {"prompt": 10_000}, 4096 * 131072),  # a window of 4096
    ],
)
def test_transfer_bytes_of_other_cache_types_by_hand(name, changes, nbytes):
    question = {"prompt": 1000, "gen": 4, "hardware_set": ["scale_up.devices=16"], **changes}
    found = disaggregate(name, "h100-sxm", "h100-sxm", **question).kv_transfer_bytes
    assert found == nbytes


def test_recurrent_state_transfer_does_not_depend_on_the_prompt():
    short, long = (disaggregate("mamba-2.8b", "h100-sxm", "l4", prompt=n).kv_transfer_bytes for n in (5, 500))
    assert short == long >= 64 * 5120 * 16 * 4  # layers, channels, a state of 16 in fp32


def test_time_to_first_token_waits_for_the_cache():
    after, overlapped = (_both(hardware_set=NODES, kv_transfer=when) for when in ("after", "overlapped"))
    read = analyze("llama-3.1-70b", "h100-sxm", layout="tp=4", **ASKED).generation.ttft_s
    written = analyze("llama-3.1-70b", "a100-sxm-80gb", layout="tp=8", **ASKED).generation
    assert after.generation.ttft_s == read + after.kv_transfer_s
    assert overlapped.generation.ttft_s == max(read, after.kv_transfer_s) == read
    assert after.generation.tpot_s == written.tpot_s
    assert after.generation.latency_s == pytest.approx(after.generation.ttft_s + 127 * written.tpot_s)
    assert after.generation.tokens_per_s == 16 * 128 / after.generation.latency_s


def test_overlapped_transfer_over_a_slow_link_determines_ttft():
    slow = _both(hardware_set=["scale_out.bandwidth=0.1 GB/s"], kv_transfer="overlapped")
    assert slow.generation.ttft_s == slow.kv_transfer_s > slow.prefill.generation.ttft_s


def test_balanced_device_ratio_by_hand():
    found = _both()
    read, step = found.prefill.generation.ttft_s, found.decode.generation.tpot_s
    assert found.decode_per_prefill == pytest.approx(127 * step * 8 / (read * 4))


def test_decode_workers_reserve_no_prefill_activations():
    found, alone = _both(), analyze("llama-3.1-70b", "a100-sxm-80gb", layout="tp=8", **ASKED).memory
    there = found.decode.memory
    assert (there.weight_bytes, there.kv_cache_bytes) == (alone.weight_bytes, alone.kv_cache_bytes)
    step = analyze("llama-3.1-70b", "a100-sxm-80gb", layout="tp=8", batch=16, prompt=1, gen=2175).memory
    assert there.activation_bytes == step.activation_bytes < alone.activation_bytes
    assert there.max_batch > alone.max_batch
    first = analyze("llama-3.1-70b", "h100-sxm", layout="tp=4", batch=16, prompt=2048, gen=1).memory
    assert found.prefill.memory == first


# Laws.


@settings(max_examples=20)
@given(st.integers(1, 64), st.integers(1, 4000), st.integers(1, 300), st.sampled_from(["after", "overlapped"]))
def test_two_sides_alike_are_one_device_and_a_transfer(batch, prompt, gen, when):
    asked = {"batch": batch, "prompt": prompt, "gen": gen}
    alone = analyze("llama-2-7b", "h100-sxm", **asked).generation
    found = disaggregate("llama-2-7b", "h100-sxm", "h100-sxm", kv_transfer=when, **asked)
    extra = found.generation.latency_s - alone.latency_s
    most = found.kv_transfer_s if when == "after" else max(found.kv_transfer_s - alone.ttft_s, 0)
    assert extra == pytest.approx(most, abs=1e-9 * alone.latency_s)


# What a user reads.


def _printed(capsys, *arguments):
    asked = ("analyze", "llama-2-7b", "h100-sxm", "--decode-hardware", "l4", "--gen", "9")
    code = main([*asked, *arguments])
    out = capsys.readouterr()
    return code, out.out if code == 0 else out.err


def test_text_and_markdown_have_both_sides_under_one_headline(capsys):
    for form in ("text", "markdown"):
        code, text = _printed(capsys, "--format", form, "--kv-transfer", "overlapped")
        said = " ".join(text.replace("|", " ").split())
        assert code == 0
        assert "Llama 2 7B: prefill on NVIDIA H100 SXM5 80 GB, decode on NVIDIA L4: batch 1" in said
        assert re.search(r"TTFT >= [\d.]+ ms: prefill [\d.]+ ms, KV transfer [\d.]+ ms during it; expected ", said)
        assert "memory, prefill" in said
        assert "memory, decode" in said
        assert said.count("-bound: ") == 2


def test_documents_have_each_sides_own_phase(capsys):
    _, text = _printed(capsys, "--format", "json")
    document = json.loads(text)
    assert document["prefill"]["phases"]["decode"] is None
    assert document["decode"]["phases"]["prefill"] is None
    found = disaggregate("llama-2-7b", "h100-sxm", "l4", gen=9)
    assert document["generation"]["ttft_s"] == found.generation.ttft_s
    assert document["kv_transfer"]["time_s"] == found.kv_transfer_s
    assert document["kv_transfer"]["when"] == "after"
    _, text = _printed(capsys, "--format", "csv")
    times = {}
    for row in csv.DictReader(io.StringIO(text)):
        times[row["phase"]] = times.get(row["phase"], 0) + float(row["bound_time_s"])
    assert times["prefill"] == pytest.approx(found.prefill.phases.prefill.total.bound_time_s)
    assert times["decode"] == pytest.approx(found.decode.phases.decode.total.bound_time_s)


def test_the_page_has_a_memory_bar_and_the_numbers_of_both_devices(capsys, tmp_path):
    path = tmp_path / "both.html"
    assert _printed(capsys, "-o", str(path))[0] == 0
    page = path.read_text()
    page = page[page.index("<body>") :]
    assert "Numbers of NVIDIA H100 SXM5 80 GB and where" in page
    assert "Numbers of NVIDIA L4 and where" in page
    ids = re.findall(r'<div id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert {"memory-bar", "memory-bar1", "roofline-prefill", "roofline-decode"} <= set(ids)
    assert "KV transfer" in page


def test_each_side_has_its_own_notes():
    notes = disaggregate("llama-2-7b", "h100-sxm", "t4", quant="fp8", gen=4).joint.notes
    assert any(note.startswith("decode: t4 has no fp8 matrix units") for note in notes)
    assert len(set(notes)) == len(notes)


def test_a_layout_of_one_side_alone(capsys):
    code, text = _printed(capsys, "--tp", "2", "--decode-layout", "tp=4", "--format", "json")
    document = json.loads(text)
    assert (code, document["prefill"]["inputs"]["layout"], document["decode"]["inputs"]["layout"]) == (
        0,
        "tp=2",
        "tp=4",
    )


def test_invalid_disaggregation_options_are_refused(capsys):
    with pytest.raises(InputError, match="does not generate: there are no decode steps to run on other devices"):
        disaggregate("bert-base", "h100-sxm", "l4")
    code, text = _printed(capsys, "--kv-transfer", "late")
    assert (code, text) == (2, "llmviewer: --kv-transfer must be one of after, overlapped; got 'late'\n")
    assert load_model("bert-base").generates is False


@pytest.mark.parametrize(
    ("hardware", "options", "message"),
    [
        ("not-a-device", ["--prefill-hardware", "h200", "--decode-hardware", "h100"],
         "no hardware 'not-a-device': "),
        ("l4", ["--prefill-hardware", "h200", "--decode-hardware", "h100"],
         "HARDWARE l4 has no effect beside --prefill-hardware and --decode-hardware; name one of them\n"),
        ("l4", ["--tp", "2", "--prefill-layout", "tp=4", "--decode-layout", "pp=2"],
         "layout tp=2 has no effect beside --prefill-layout and --decode-layout; leave one out\n"),
    ],
)  # fmt: skip
def test_options_that_apply_to_neither_side_are_refused(hardware, options, message, capsys):
    assert main(["analyze", "llama-2-7b", hardware, *options]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith(f"llmviewer: {message}")


def test_decode_hardware_may_repeat_the_positional_device(capsys):
    asked = ["analyze", "llama-2-7b", "h100", "--prefill-hardware", "h200", "--decode-hardware", "h100-sxm"]
    assert main([*asked, "--gen", "2"]) == 0
    assert "NVIDIA H200" in capsys.readouterr().out
