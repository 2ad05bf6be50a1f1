"""The sentence under a phase: what it promises is what analyze() then finds."""

from __future__ import annotations

import re
from dataclasses import asdict, fields

import pytest

from llmviewer import analyze
from llmviewer.setting import Setting
from llmviewer.units import seconds
from llmviewer.variants.changes import larger_batch

from .cases import first_fast

_OFFER = re.compile(r"batch (\d+) \(([\d.]+)x (?:decode |prefill )?throughput at the bound(?:, ([\d.]+)x expected)?\)")
_PRECISION = re.compile(r"\(--quant ('[^']+'|\S+)\) >= (\S+ \w+) \(([\d.]+)x at the bound(?:, ([\d.]+)x expected)?\)")
_CHUNKED = "--with chunked-prefill"
_CURE = re.compile(r"(--[^,]+), >= (\S+ \w+) \((?:(\S+)x (faster|as long)|as fast)\)")


@pytest.mark.parametrize(
    ("name", "device", "asked"),
    first_fast(
        [
            ("llama-3.1-8b", "h100-sxm", {"layout": "", "batch": 1}),
            ("llama-3.1-8b", "h100-sxm", {"layout": "dp=8", "batch": 8}),
            ("llama-3.1-8b", "h100-sxm", {"layout": "dp=8", "batch": 256}),
            ("llama-3.1-8b", "h100-sxm", {"layout": "pp=4", "batch": 16}),
            ("llama-3.1-8b", "h100-sxm", {"layout": "pp=2 dp=2", "batch": 3}),
            ("deepseek-v3", "h200-sxm", {"layout": "dp=8 ep=8", "batch": 256}),
            ("llama-3.1-8b", "h100-sxm", {"batch": 2, "techniques": ["beam:width=3"]}),
        ],
        "each remedy",
        2,
    ),
)
def test_advised_batch_fits_and_yields_the_stated_throughput_gain(name, device, asked):
    asked = {"prompt": 512, "gen": 8, **asked}
    now = analyze(name, device, **asked)
    told = _OFFER.search(now.phases.decode.advice)
    batch = int(told[1])
    then = analyze(name, device, **{**asked, "batch": batch})
    assert batch == larger_batch(asked["batch"], now.memory.max_batch) > asked["batch"]
    assert then.memory.fits
    more, before, after = batch / asked["batch"], now.phases.decode, then.phases.decode
    assert told[2] == f"{more * before.time_s / after.time_s:.2g}"
    assert told[3] == f"{more * before.expected_time_s / after.expected_time_s:.2g}"


def test_no_batch_is_advised_that_does_not_fit():
    most = analyze("llama-3.1-8b", "l4", prompt=512, gen=8).memory.max_batch
    assert "batch" not in analyze("llama-3.1-8b", "l4", batch=most, prompt=512, gen=8).phases.decode.advice
    assert (larger_batch(4, None), larger_batch(4, 100), larger_batch(4, 40)) == (64, 64, 40)


_PROMPTS = {"batch": 8, "prompt": 8192, "gen": 8}


@pytest.mark.parametrize(
    ("name", "device", "asked", "phase", "offers"),
    [
        ("llama-3.1-8b", "h100-sxm", {}, "decode", ["W4A16g128"]),
        ("llama-3.1-8b", "h100-sxm", {"layout": "pp=4", "batch": 16}, "decode", ["W4A16g128"]),
        ("llama-3.1-8b", "h100-sxm", {"quant": "fp8", "prompt": 60_000}, "decode", ["W4Afp8g128", "Wfp8Afp8KV8"]),
        ("llama-3.1-8b", "h100-sxm", {"quant": "W8A8KV8", "prompt": 4096}, "decode", ["W4A8g128KV8"]),
        # weights that are as narrow stay, so that a model which fits still does
        ("qwen2.5-32b", "rtx-4090", {"quant": "W4A16g128", "prompt": 4096}, "prefill",
         ["W4A8g128", "W4Afp8g128", "W4A4g128"]),
        ("llama-3.1-70b", "l40s", {"quant": "W4A16g128,down_proj=W3A16"}, "prefill",
         [f"W4A16g128,down_proj=W3A16,*={low}" for low in ("A8", "Afp8", "A4")]),
        ("gpt-oss-120b", "h100-sxm", _PROMPTS, "prefill", ["*=Afp8"]),
        ("gpt-oss-120b", "h100-sxm", _PROMPTS, "decode", ["KV8"]),
        ("deepseek-v3", "h200-sxm", {"layout": "tp=8"}, "decode", ["W4Afp8g128"]),
        # and what is wider than 16 bits is offered those
        ("mamba2-2.7b", "h100-sxm", {"batch": 16}, "prefill", ["bf16", "W8A8", "fp8"]),
        ("mamba2-2.7b", "h100-sxm", {"batch": 16, "quant": "W4A32"}, "prefill", ["W4Abf16", "W4A8", "W4Afp8"]),
        ("mamba2-2.7b", "v100-sxm2-32gb", {"batch": 16}, "decode", ["fp16", "W4g128"]),
        ("llama-2-7b", "rtx-a6000", {"accounting": "survey", "batch": 8}, "prefill", ["W8A8KV8", "W4A4KV4"]),
        ("llama-2-7b", "rtx-a6000", {"accounting": "survey", "batch": 8, "quant": "W4A16"}, "prefill",
         ["W4A8KV8", "W4A4KV4"]),
    ],
)  # fmt: skip
def test_advised_precision_fits_and_yields_the_stated_speedup(name, device, asked, phase, offers):
    now = analyze(name, device, **asked)
    told = _PRECISION.findall(getattr(now.phases, phase).advice)
    assert [quant.strip("'") for quant, *_ in told] == offers
    assert now.memory.fits
    for quant, takes, times, hoped in told:
        then = analyze(name, device, **asked | {"quant": quant.strip("'")})
        assert then.memory.fits
        before, after = (getattr(one.phases, phase) for one in (now, then))
        assert (takes, times) == (seconds(after.time_s), f"{before.time_s / after.time_s:.2g}")
        assert not hoped or hoped == f"{before.expected_time_s / after.expected_time_s:.2g}"


def test_a_precision_is_advised_in_place_of_the_technique_that_names_one():
    asked = {"prompt": 4096, "gen": 8}
    now = analyze("llama-3.1-8b", "l40s", **asked, techniques=["quantized:scheme=awq"]).phases.prefill
    told = re.search(r"\(--quant (\S+) in place of quantized\) >= (\S+ \w+) \(", now.advice)
    assert told[1] == "W4A8g128"
    assert told[2] == seconds(analyze("llama-3.1-8b", "l40s", **asked, quant=told[1]).phases.prefill.time_s)


def test_precision_that_does_not_fit_is_not_advised():
    asked = {"prompt": 4400, "gen": 8}
    room, full = (analyze("qwen2.5-32b", "rtx-5090", **asked, batch=n, quant="W4A16") for n in (1, 8))
    assert "--quant nvfp4" in room.phases.prefill.advice
    assert full.memory.fits
    assert not analyze("qwen2.5-32b", "rtx-5090", **asked, batch=8, quant="nvfp4").memory.fits
    assert "--quant nvfp4" not in full.phases.prefill.advice


@pytest.mark.parametrize(
    ("name", "device", "asked", "cures"),
    first_fast(
        [
            ("deepseek-v3", "h200-sxm", {"layout": "tp=8 ep=8", "batch": 256, "prompt": 2048, "gen": 512}, [_CHUNKED]),
            ("llama-3.1-70b", "h100-sxm", {}, ["--tp 2", "--quant fp8", "--offload weights="]),
            ("llama-3.1-70b", "i9-13900k", {}, ["--quant W4A16g128"]),  # no links, and no host but itself
            ("llama-3.1-405b", "h100-sxm", {}, ["--tp 4 --quant W4A16g128", "--offload weights="]),  # neither suffices
            (
                "gpt-oss-120b",
                "h100-sxm",
                {"quant": "fp8KV8"},
                ["--tp 2", "--quant W4Afp8g128KV8", "--offload weights="],
            ),
            (
                "llama-3.1-8b",
                "h100-sxm",
                {"prompt": 1_000_000},
                [f"--tp 2 {_CHUNKED}"],
            ),  # a cache larger than the memory
            ("deepseek-v3", "h200-sxm", {"layout": "ep=2 tp=2", "batch": 2}, ["--tp 8", "--offload weights="]),
            ("llama-3.1-70b", "l4", {"layout": "tp=2"}, ["--tp 8", "--quant W4A16g128", "--offload weights="]),
        ],
        "each remedy",
        2,
    ),
)
def test_memory_fixes_fit_and_cost_the_stated_time(name, device, asked, cures):
    asked = {"prompt": 512, "gen": 8, **asked}
    now = analyze(name, device, **asked)
    assert not now.memory.fits
    for phase, found in now.phases:
        told = _CURE.findall(found.advice.partition("does not fit: use ")[2])
        assert [option.rstrip("0123456789.") if "=" in option else option for option, *_ in told] == cures
        for option, takes, times, how in told:
            then = analyze(name, device, **asked | _typed(option, asked))
            assert then.memory.fits
            before, after = (
                one.generation.ttft_s if phase == "prefill" else one.phases.decode.time_s for one in (now, then)
            )
            change = after / before if how == "as long" else before / after
            assert float(f"{change:.3g}") >= 1
            assert (takes, times or "1") == (seconds(after), f"{change:.3g}")


def test_no_more_devices_are_advised_than_links_are_known_between():
    asked = {"prompt": 512, "gen": 8, "layout": "tp=8"}  # 32 of them would do, eight are joined
    for _, phase in analyze("llama-3.1-405b", "v100-sxm2-32gb", **asked).phases:
        assert "--tp" not in phase.advice
        assert "does not fit: use --quant W4A16g128, >= " in phase.advice


def test_no_fewer_devices_would_do():
    now = analyze("llama-3.1-70b", "rtx-4090", prompt=512, gen=8)
    assert "does not fit: use --tp 8, >= " in now.phases.decode.advice
    assert not analyze("llama-3.1-70b", "rtx-4090", prompt=512, gen=8, layout="tp=4").memory.fits


@pytest.mark.parametrize(
    ("name", "device", "asked", "said"),
    [
        ("llama-2-7b", "t4", {"batch": 5000},  # the cache of each of eight is too large
         "chunked prefill, up to 8 times as many devices (--tp), 4-bit weights, weights in host memory"),
        ("deepseek-v3", "m4-max", {},
         ("chunked prefill, 4-bit weights; its file has "
          "no scale_up.bandwidth for more devices and no host.bandwidth for weights in host memory")),
        ("bert-base-uncased", "t4", {"batch": 50_000, "prompt": 512},  # no part of its prompt is read before the rest
         "up to 4 times as many devices (--tp), 4-bit weights, weights in host memory"),
    ],
)  # fmt: skip
def test_advice_lists_the_memory_fixes_tried_when_none_helps(name, device, asked, said):
    """Only of what was tried; eight devices do not divide the 12 heads of BERT."""
    for _, phase in analyze(name, device, **asked).phases:
        assert phase.advice.endswith(f"; does not fit, nor with {said}")


def test_other_techniques_are_advised_when_no_precision_is_faster():
    asked = {"layout": "tp=8", "batch": 8, "quant": "fp8", "prompt": 2048, "gen": 2}
    advice = analyze("qwen3-235b-a22b", "h100-sxm", **asked).phases.prefill.advice
    said = "; no narrower format helps; more devices (--tp {}) or a device with more bandwidth would help"
    assert advice.endswith(f"{said.format(16)}; `llmviewer advise` ranks techniques")
    once = analyze("bert-base-uncased", "h100-sxm", quant="W4A8", batch=512, prompt=16).phases.prefill
    assert once.advice.endswith(said.format(2))  # llmviewer advise is of models that generate


def test_advice_lists_all_shares_when_no_resource_takes_half_of_the_time():
    found = analyze("deepseek-v3", "b200", layout="tp=8 ep=8", batch=32)
    shares = "memory 35%, compute 35%, link 30% of its time"
    limit = "memory bandwidth (7.70 TB/s) limits 35%"
    assert found.phases.prefill.advice.startswith(f"prefill is memory-bound ({shares}): {limit}")
    assert found.phases.decode.advice.startswith("decode is memory-bound: memory bandwidth (7.70 TB/s) limits 99%")


def test_settings_that_fit_get_no_memory_fix():
    assert all("not fit" not in phase.advice for _, phase in analyze("llama-3.1-8b", "h100-sxm").phases)


def _typed(option, asked):
    """Arguments of analyze() for options of the command line."""
    words = option.split()
    given = dict(zip(words[::2], words[1::2], strict=True))
    found = {"techniques": [given["--with"]]} if "--with" in given else {}
    if "--tp" in given:
        others = [part for part in asked.get("layout", "").split() if not part.startswith("tp=")]
        found["layout"] = " ".join((f"tp={given['--tp']}", *others))
    return found | {option[2:]: given[option] for option in ("--quant", "--offload") if option in given}


@pytest.mark.parametrize(("name", "said"), [("llama-3.1-8b", "W4A16g128"), ("mamba2-2.7b", "W4g128"), ("glm-5.2", "")])
def test_precision_advice_spells_out_16_bit_activations_when_the_graph_stays_the_same(name, said):
    """Models that hand on more than 16 bits would have them rounded."""
    setting = Setting.of(name, "h100-sxm")
    plain, named = (setting.having(quant=quant) for quant in ("W4g128", "W4A16g128"))
    assert (plain.graph == named.graph) == (said == "W4A16g128")
    if said:
        assert f"--quant {said})" in analyze(name, "h100-sxm", batch=16).phases.decode.advice


def test_advice_is_computed_lazily_and_only_once(monkeypatch):
    calls = []
    monkeypatch.setattr("llmviewer.analyzing.analysis.advice", lambda *_, **__: calls.append(1) or "buy another")
    found = analyze("gpt2", "t4")
    assert not calls
    for name, phase in found.phases:
        told = found.to_dict()["phases"][name]
        assert told["advice"] == phase.advice == "buy another"
        assert told.keys() == {f.name for f in fields(phase)} - {"compute_advice", "workload"} | {"advice"}
        assert told["operators"][0] == asdict(phase.operators[0])
    assert len(calls) == 2
