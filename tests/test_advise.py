"""recommend(): the gains that analyze() gives, in their order, and what a user reads and is told."""

import csv
import io
import json
from itertools import pairwise

import pytest

from llmviewer import analyze
from llmviewer.cli import main
from llmviewer.errors import InputError
from llmviewer.serving.advising import recommend

MODEL, DEVICE = "llama-3.1-8b", "rtx-4090"


@pytest.fixture(scope="module")
def found():
    return recommend(MODEL, DEVICE)


def line(lines, *names):
    (one,) = (one for one in lines if {option.name for option in one.options} == set(names))
    return one


def test_gains_are_those_of_two_analyses(found):
    base = analyze(MODEL, DEVICE).generation
    for options, names in (
        ({"quant": "W4A16g128"}, ["W4A16g128"]),
        ({"techniques": ["eagle"]}, ["eagle"]),
        ({"quant": "W4A8g128", "techniques": ["retrieval"]}, ["W4A8g128", "retrieval"]),
    ):
        own = analyze(MODEL, DEVICE, **options).generation
        one = line(found.alone if len(names) == 1 else found.together, *names)
        assert one.gain == pytest.approx(base.latency_s / own.latency_s, rel=1e-3)
        assert one.result.ttft_s == pytest.approx(own.ttft_s, rel=1e-3)


def test_the_best_comes_first_and_helps(found):
    for lines in (found.alone, found.together):
        assert all(a.gain >= b.gain for a, b in pairwise(lines))
        assert all(one.gain > 1 and one.result.fits for one in lines)
    assert all(one.gain <= 1.005 for one in found.idle)
    gains = {option.name: one.gain for one in found.alone for option in one.options}
    for one in found.together:
        assert 2 <= len(one.options) <= 3
        assert one.gain > max(gains[option.name] for option in one.options)
    assert {one.name for one in found.idle} >= {"no-cache", "best-of"}


@pytest.mark.parametrize(
    ("name", "words"),
    [("W4A16g128", "memory traffic -68%"), ("eagle", "passes -72%"), ("prompt-compression", "OPs -45%")],
)
def test_a_line_says_what_it_relieves(found, name, words):
    assert line(found.alone, name).relieves == words


def test_what_would_help_depends_on_the_batch():
    crowd = recommend("llama-2-7b", "a100-sxm-80gb", batch=64, prompt=512)
    alone = recommend("llama-2-7b", "a100-sxm-80gb", batch=1, prompt=512)
    weights = [line((*one.alone, *one.idle), "W4A16g128").gain for one in (alone, crowd)]
    cache = [line((*one.alone, *one.idle), "KV8").gain for one in (alone, crowd)]
    assert weights[0] > 2 > 1.3 > weights[1]
    assert cache[0] < cache[1]


def test_what_is_in_use_is_not_advised():
    one = recommend(MODEL, DEVICE, given=["eagle"], quant="fp8")
    names = {option.name for each in (*one.alone, *one.idle) for option in each.options}
    assert "eagle" not in names
    assert one.base.latency_s == pytest.approx(
        analyze(MODEL, DEVICE, quant="fp8", techniques=["eagle"]).generation.latency_s, rel=1e-3
    )
    refused = {option.name: reason for option, reason in one.refused}
    assert "medusa" in refused


def test_more_devices_where_there_may_be():
    one, several = (recommend(MODEL, "h100-sxm", max_devices=most, wanted="tpot") for most in (1, 4))
    assert not [each for each in one.alone if each.name.startswith("tp=")]
    assert {each.name for each in several.alone if each.name.startswith("tp=")} == {"tp=2", "tp=4"}
    assert line(several.alone, "tp=4").gain > line(several.alone, "tp=2").gain > 1


def test_a_model_that_does_not_fit_is_told_what_makes_it_fit():
    one = recommend("llama-3.1-70b", "h100-sxm")
    assert not one.base.fits
    assert all(each.result.fits for each in (*one.alone, *one.together))
    assert {each.name for each in one.alone} >= {"fp8", "W4A16g128", "offload weights=0.5"}
    assert "KV8" in {each.name for each in one.large}


def test_throughput_tries_larger_batches():
    one = recommend(MODEL, DEVICE, wanted="throughput")
    assert line(one.alone, "batch 8").gain > 4


ASKED = ["advise", MODEL, DEVICE, "--prompt", "64", "--gen", "8"]


def test_the_report(capsys, tmp_path):
    assert main(ASKED) == 0
    text = " ".join(capsys.readouterr().out.split())
    for said in (
        "What would help Llama 3.1 8B",
        "decode steps are memory-",
        "Would not help here:",
        "Together, each better",
    ):
        assert said in text
    assert main([*ASKED, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["alone"][0]["gain"] >= document["alone"][1]["gain"]
    assert main([*ASKED, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["kind"] for row in rows} >= {"alone", "together", "no_help"}
    path = tmp_path / "advice.html"
    assert main([*ASKED, "-o", str(path)]) == 0
    assert "best together" in path.read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--gen", "1"], "gen must be at least 2"),
        (["--batch", "0"], "batch must be a whole number of at least 1; got 0"),
        (["--with", "magic"], "no technique 'magic'"),
        (["--layout", "pp=2"], "layout: pp must be 1 for advice; got 2"),
        (["--max-devices", "0"], "max_devices must be a whole number of at least 1; got 0"),
        (["--quant", "W99"], "bits must be"),
    ],
)
def test_mistakes_get_one_line(capsys, options, said):
    assert main([*ASKED, *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("llmviewer: ")
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_what_cannot_be_advised():
    with pytest.raises(InputError, match="bert-base-uncased does not generate"):
        recommend("bert-base-uncased", "l4")
    with pytest.raises(InputError, match="wanted must be one of latency, ttft, tpot, throughput; got 'joy'"):
        recommend(MODEL, DEVICE, wanted="joy")
