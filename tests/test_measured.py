"""Measured times of a user, compared with the bound and the expected time."""

import json
import re

import pytest

from llmviewer import InputError, analyze
from llmviewer.cli import main
from llmviewer.reports.analysis import REPORT
from llmviewer.units import fold

ASKED = {"model": "llama-3.1-8b", "hardware": "h100-sxm", "batch": 16}
QUANTITIES = ("ttft_s", "tpot_s", "latency_s")


@pytest.fixture(scope="module")
def bare():
    return analyze(**ASKED).generation


@pytest.mark.parametrize("name", QUANTITIES)
def test_verdict_depends_on_bound_and_interval(bare, name):
    bound, expected = getattr(bare, name), getattr(bare, f"expected_{name}")
    low, high = (getattr(bare, f"expected_{name.removesuffix('_s')}_{end}_s") for end in ("low", "high"))
    times = {
        0.5 * bound: "impossible", 0.98 * bound: "impossible", bound: "faster", 0.999 * bound: "faster",
        0.99 * low: "faster", low: "inside", expected: "inside", high: "inside", 1.01 * high: "slower",
    }  # fmt: skip
    for time_s, verdict in times.items():
        (one,) = analyze(**ASKED, measured={name: time_s}).measured
        assert (one.quantity, one.measured, one.verdict) == (name, time_s, verdict)
        assert (one.bound, one.expected, one.low, one.high) == (bound, expected, low, high)
        assert one.of_bound == pytest.approx(time_s / bound)
        assert one.of_expected == pytest.approx(time_s / expected)


def test_measured_throughput_gets_the_verdict_of_its_latency(bare):
    tokens = ASKED["batch"] * 128
    for factor in (0.5, 1.5, 2.0, 3.0):
        time_s = factor * bare.latency_s
        one, other = analyze(**ASKED, measured={"latency_s": time_s, "tokens_per_s": tokens / time_s}).measured
        assert one.verdict == other.verdict
        assert other.of_bound == pytest.approx(1 / one.of_bound)
        assert other.of_expected == pytest.approx(1 / one.of_expected)
        assert (other.bound, other.expected) == pytest.approx((bare.tokens_per_s, bare.expected_tokens_per_s))
        assert other.low < other.expected < other.high < other.bound


@pytest.mark.parametrize(
    ("more", "measured", "said"),
    [
        ({}, {"tpot_s": 0.025}, (
            "# ms: #x the bound, #x expected, slower than 90 % of measured kernels; # ms above expected: gaps between "
            "launches, host time, queueing or slower kernels; try --engine NAME, CUDA graphs, `llmviewer simulate`, "
            "`llmviewer timeline TRACE ...`"
        )),
        ({"layout": "tp=2", "engine": "vllm"}, {"ttft_s": 0.38}, (
            "# ms: #x the bound, #x expected, slower than 90 % of measured kernels; # ms above expected: queueing, "
            "collectives or slower kernels; try `llmviewer simulate`, `llmviewer timeline TRACE ...`"
        )),
        ({}, {"ttft_s": 0.2}, (
            "# ms: #x the bound, #x expected; no kernel beats the bound, so the measured setting differs: check unit, "
            "batch, lengths, --quant, cached prefixes (--with prefix-cache)"
        )),
        ({"layout": "tp=2"}, {"tokens_per_s": 9000}, (
            "# tokens/s: #x the bound, #x expected; no kernel beats the bound, so the measured setting differs: check "
            "unit, batch, lengths, --quant, number of devices, speculative decoding (--with speculative)"
        )),
        ({}, {"tpot_s": 0.008}, (
            "# ms: #x the bound, #x expected, within the 80 % interval of measured kernels; to go faster, reduce the "
            "work: see the improvements of decode"
        )),
        ({}, {"tpot_s": 0.006}, (
            "# ms: #x the bound, #x expected, faster than 90 % of measured kernels; to go faster, reduce the work: see "
            "the improvements of decode"
        )),
        ({"bound": True}, {"tpot_s": 0.006}, "# ms: #x the bound"),
        ({"hardware": "tpu-v5e", "batch": 1, "model": "gpt2"}, {"tpot_s": 1},
         "# s: #x the bound; no expected time is known here"),
        ({"model": "bert-base-uncased", "hardware": "rtx-a6000", "batch": 1}, {"latency_s": 0.015}, (
            "# ms: #x the bound, #x expected, slower than 90 % of measured kernels; # ms above expected: gaps between "
            "launches, host time or slower kernels; try --engine NAME, `llmviewer timeline TRACE ...`"
        )),
    ],
)  # fmt: skip
def test_verdict_explains_the_gap_and_suggests_a_next_step(more, measured, said):
    (one,) = analyze(**{**ASKED, **more}, measured=measured).measured
    assert re.sub(r"[\d.]+(?=x\b| ms| s:| tokens/s)", "#", one.said) == said
    assert f": {fold(one.of_bound)} the bound" in one.said


def test_every_report_format_shows_the_measured_verdict():
    found = analyze("gpt2", "t4", measured={"tpot_s": 0.01, "tokens_per_s": 90})
    for text in (REPORT.text(found), REPORT.markdown(found), REPORT.html(found)):
        words = " ".join(text.split())
        for one in found.measured:
            assert one.said[:60] in words
    assert "\nmeasured tpot      10.0 ms: " in REPORT.text(found)
    assert "| measured tokens/s | 90.0 tokens/s: " in REPORT.markdown(found)
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert [one["quantity"] for one in document["measured"]] == ["tpot_s", "tokens_per_s"]
    assert document["measured"][0]["verdict"] == "slower"
    assert analyze("gpt2", "t4").to_dict()["measured"] == []


@pytest.mark.parametrize(
    ("measured", "error"),
    [
        ({"tpt_s": 1}, "measured: no quantity 'tpt'; did you mean tpot?"),
        ({"tpot_s": 0}, "measured: tpot must be a positive number; got 0"),
        ({"tpot_s": float("nan")}, "measured: tpot must be a positive number; got nan"),
        ({"tpot_s": "25ms"}, "measured: tpot must be a positive number; got '25ms'"),
        (["tpot_s"], "measured must be a mapping of quantities to numbers; got ['tpot_s']"),
    ],
)
def test_invalid_measurements_are_refused_in_one_line(measured, error):
    with pytest.raises(InputError) as raised:
        analyze("gpt2", "t4", measured=measured)
    assert str(raised.value) == error


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("gpt2 t4 --measured tpt=5ms",
         "--measured: no quantity 'tpt'; did you mean tpot?"),
        ("gpt2 t4 --measured 25ms",
         "--measured: must be QUANTITY=VALUE, such as tpot=25ms; got '25ms'"),
        ("gpt2 t4 --measured tpot=-5ms",
         "--measured: tpot must be a time with its unit, such as 25ms; got '-5ms'"),
        ("gpt2 t4 --measured tpot=25", "--measured: tpot must be a time with its unit, such as 25ms; got '25'"),
        ("gpt2 t4 --measured tokens_per_s=12/s",
         "--measured: tokens_per_s must be a number, such as 1200; got '12/s'"),
        ("gpt2 t4 --measured tpot=1s --measured ttft=2s,tpot=2s", "--measured: tpot is given twice; give it once"),
        ("gpt2 t4 --gen 1 --measured tpot=1s", "--measured: tpot needs at least two generated tokens; leave it out"),
        ("bert-base-uncased t4 --measured ttft=1s",
         "--measured: ttft applies to models that generate; bert-base-uncased runs one pass, whose time is latency"),
        ("gpt2 t4 --measured tpot=1s --format csv",
         "--measured does not apply to csv, which has a row per operator; leave one of them out"),
        ("gpt2 t4 --measured tpot=1s --decode-hardware l4",
         "--measured is not supported with --prefill-... and --decode-...; leave one of them out"),
    ],
)  # fmt: skip
def test_command_line_errors_name_the_option(words, error, capsys):
    assert main(["analyze", *words.split()]) == 2
    assert capsys.readouterr() == ("", f"llmviewer: {error}\n")


def test_the_command_reads_times_and_rates(capsys):
    words = ["analyze", "gpt2", "t4", "--measured", "tpot=25ms, ttft=0.8s", "--measured", "tokens_per_s=90"]
    assert main([*words, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["measured"]
    assert {one["quantity"]: one["measured"] for one in found} == {"tpot_s": 0.025, "ttft_s": 0.8, "tokens_per_s": 90}


def test_scenario_files_take_measured_times(tmp_path, capsys):
    file = tmp_path / "setting.yaml"
    file.write_text("model: gpt2\nhardware: t4\nmeasured: [tpot=25ms]\n")
    assert main(["analyze", "--scenario", str(file)]) == 0
    assert "\nmeasured tpot      25.0 ms: " in capsys.readouterr().out
