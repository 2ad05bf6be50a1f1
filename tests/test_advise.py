"""advise(): gains equal those of analyze(); order, report and errors."""

import csv
import io
import json

import pytest

from llmviewer import analyze, load_model
from llmviewer.cli import main
from llmviewer.errors import InputError
from llmviewer.reports.advice import REPORT, Folded
from llmviewer.reports.tables import Item
from llmviewer.serving.advice import advise
from llmviewer.techniques import Requirement, techniques
from llmviewer.variants import changes

from .cases import first_fast

MODEL, DEVICE = "llama-3.1-8b", "rtx-4090"
FEWER = ("answers", "draft", "model")  # left out where a test is of none of them, which take most of the time


TOLD = []  # how far it was, as who asks for `found` was told


@pytest.fixture(scope="module")
def found():
    TOLD.clear()
    return advise(MODEL, DEVICE, research=True, progress=lambda done, steps: TOLD.append((done, steps)))


def test_headline_names_the_current_layout():
    laid = advise("llama-3.1-70b", "h100-sxm", layout="tp=4", batch=64, without=FEWER)
    assert REPORT.headline(laid).startswith(
        "Changes that speed up Llama 3.1 70B on 4 x NVIDIA H100 SXM5 80 GB (tp=4): batch 64, "
    )
    assert "e+" not in REPORT.headline(laid)


def line(lines, *names):
    (one,) = (one for one in lines if {change.name for change in one.changes} == set(names))
    return one


def asked(one):
    """The options of analyze() with the changes of a variant."""
    found = {"techniques": []}
    for change in one.changes:
        found |= {**change.options, "techniques": [*found["techniques"], *change.options.get("techniques", ())]}
    return found


def test_gains_equal_the_ratio_of_two_analyses(found):
    base = analyze(MODEL, DEVICE).generation
    lines = [line(found.alone, "W4A16g128"), line(found.alone, "eagle"), *found.together[:2], found.together[-1]]
    for one in lines:
        own = analyze(MODEL, DEVICE, **asked(one)).generation
        assert one.gain == pytest.approx(base.latency_s / own.latency_s, rel=1e-3)
        assert one.expected_gain == pytest.approx(base.expected_latency_s / own.expected_latency_s, rel=1e-12)
        assert one.result.bounds.ttft_s == pytest.approx(own.ttft_s, rel=1e-9)
        assert one.result.expected.tpot_s == pytest.approx(own.expected_tpot_s, rel=1e-12)


@pytest.mark.slow("tries every technique")
def test_gains_in_a_pipeline_equal_the_ratio_of_two_analyses(capsys):
    base, own = (
        analyze(MODEL, DEVICE, layout="tp=2 pp=2", prompt=64, gen=8, quant=q).generation for q in (None, "fp8")
    )
    assert main([*ASKED, "--tp", "2", "--pp", "2", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["inputs"]["layout"] == "tp=2 pp=2"
    (one,) = (row for row in document["alone"] if row["techniques"] == ["fp8"])
    assert one["gain"] == pytest.approx(base.latency_s / own.latency_s)
    assert one["expected_gain"] == pytest.approx(base.expected_latency_s / own.expected_latency_s)
    refused = {each["technique"]: each["reason"] for each in document["refused"]}
    assert "is not supported in a pipeline" in refused["eagle"]


def test_changes_rank_by_requirement_then_by_expected_gain(found):
    order = list(Requirement)
    assert order == [Requirement(name) for name in ("nothing", "answers", "draft", "model")]
    for lines in (found.alone, found.together):
        ranks = [(order.index(one.requires), -one.expected_gain) for one in lines]
        assert ranks == sorted(ranks)
        assert all(one.expected_gain > 1 and one.fits for one in lines)
    assert all(one.expected_gain <= 1.005 for one in found.no_gain)
    gains = {change.name: one.expected_gain for one in found.alone for change in one.changes}
    for one in found.together:
        assert 2 <= len(one.changes) <= 3
        assert one.expected_gain > max(gains[change.name] for change in one.changes)
    assert {one.name for one in found.no_gain} >= {"no-cache", "best-of"}


def test_expected_times_are_never_below_the_bound(found):
    for one in (*found.alone, *found.together, *found.no_gain):
        for name in ("ttft_s", "tpot_s", "latency_s"):
            assert getattr(one.result.expected, name) >= getattr(one.result.bounds, name) * (1 - 1e-9), (one.name, name)


@pytest.mark.slow("tries every technique")
def test_gains_compare_bounds_without_measured_kernels():
    one = advise("llama-3.2-1b", "tpu-v6e", prompt=64, gen=8, research=True)
    assert one.base.expected is None
    assert all(each.expected_gain is None for each in one.alone)
    gains = [each.gain for each in one.alone if each.requires is Requirement.NEW_WEIGHTS]
    assert len(gains) > 1
    assert gains == sorted(gains, reverse=True)
    words = " ".join(REPORT.text(one).split())
    assert "Gains compare roofline lower bounds" in words
    assert "no kernel was measured on tpu-v6e" in words


def test_an_engine_that_waits_for_its_host_gains_from_fewer_launches():
    slow = advise(
        "llama-2-7b", "a100-sxm-80gb", prompt=64, gen=8, engine="huggingface", without=["model"], research=True
    )
    one = line(slow.alone, "fusion")
    assert one.expected_gain > 1.1
    assert one.relieves.startswith("launches -")
    weights = line((*slow.alone, *slow.no_gain), "W4A16g128")
    assert weights.expected_gain < 1.05  # its kernels are not what it waits for


def test_names_are_not_broken():
    head, row = ("technique", "relieves"), (Item(text="low-rank-attention + KV8"), Item(text="x" * 64))
    text = Folded(title="Alone", about="", head=head, words=head, body=(row,)).text()
    assert text.splitlines()[2:] == [f"low-rank-attention {'x' * 64}", "  + KV8"]


def test_a_small_model_of_the_family_drafts(found):
    one = line((*found.alone, *found.no_gain), "draft llama-3.2-1b")
    assert asked(one)["techniques"] == ["speculative:draft=llama-3.2-1b,tau=1.9"]
    assert "assumes 1.9 tokens per pass of the model" in " ".join(REPORT.text(found).split())
    none = advise("llama-3.2-1b", DEVICE, prompt=64, gen=8, without=FEWER)
    names = {change.name for each in (*none.alone, *none.no_gain, *none.too_large) for change in each.changes}
    assert not [name for name in names if name.startswith("draft")]
    assert "Of a draft" not in REPORT.text(none)


@pytest.mark.parametrize(
    ("model", "draft"),
    [
        ("llama-3.1-70b", "llama-3.2-1b"),
        ("qwen3-32b", "qwen3-0.6b"),
        ("qwen2.5-72b", "qwen2.5-7b"),  # smaller ones have another number of rows in their tables
        ("mistral-7b-v0.1", ""),
    ],
)
def test_a_draft_is_of_the_same_generation(model, draft):
    assert changes._draft(load_model(model)) == draft


def test_every_technique_is_ranked_or_refused_with_a_reason(found):
    named = {change.name for each in (*found.alone, *found.no_gain, *found.too_large) for change in each.changes}
    named |= {change.name for change, _ in found.refused}
    assert named >= techniques().keys() - {"speculative", "quantized"}


@pytest.mark.slow("tries every technique")
def test_report_lists_untried_and_impossible_techniques(capsys):
    assert main([*ASKED, "--with", "eagle"]) == 0
    text = " ".join(capsys.readouterr().out.replace("-\n", "-").split())
    assert (
        "Not tried, because they need a parameter (--with NAME:PARAMETER=VALUE): phrase-copying (phrases: phrases that "
        "a step scores); sparse-activation (share: fraction of the tokens that attend); window (size: last tokens that "
        "a query sees); lengths (file: text file with one length per "
        "line); structured-pruning (heads, ffn, experts, layers or hidden below 1). Not "
        "possible here: denoising (llama-3.1-8b generates token by token; it is for "
        "models without a KV cache); encoder-exit (llama-3.1-8b is no encoder of text alone; give early-exit for "
        "models that generate); kangaroo, lookahead, medusa, mtp, parallel-draft, retrieval, self-speculative, draft "
        "llama-3.2-1b (with eagle: it also drafts tokens); no-cache (eagle needs a cache); expert-capacity (no routed "
        "experts). Expected: times of "
    ) in text


def test_techniques_without_a_required_parameter_are_listed_as_not_tried(found):
    """The report also names every refused technique."""
    (wanting,) = (line for line in REPORT.remarks(found) if line.startswith("Not tried"))
    told = {part.split(" (")[0] for part in wanting.partition("): ")[2].split("; ")}
    assert told == {"phrase-copying", "window", "lengths", "structured-pruning", "sparse-activation"}
    others = " ".join(line for line in REPORT.remarks(found) if line.startswith("Not possible"))
    assert all(change.name in told or change.name in others for change, _ in found.refused)


@pytest.mark.parametrize(
    ("name", "words"),
    [("W4A16g128", "memory traffic -68%"), ("eagle", "passes -61%"), ("prompt-compression", "OPs -45%")],
)
def test_each_change_names_the_resource_it_relieves(found, name, words):
    assert line(found.alone, name).relieves == words


@pytest.mark.slow("tries every technique")
def test_weight_quantization_gains_at_batch_1_and_cache_quantization_at_large_batches():
    alone, crowd = (
        advise("llama-2-7b", "a100-sxm-80gb", batch=batch, prompt=512, without=["model"], research=True)
        for batch in (1, 64)
    )
    weights = [line((*one.alone, *one.no_gain), "W4A16g128").gain for one in (alone, crowd)]
    cache = [line((*one.alone, *one.no_gain), "KV8").gain for one in (alone, crowd)]
    assert weights[0] > 2 > 1.3 > weights[1]
    assert cache[0] < cache[1]


@pytest.mark.slow("tries every technique")
def test_techniques_in_use_are_not_advised():
    one = advise(MODEL, DEVICE, techniques=["eagle"], quant="fp8", without=["answers"], research=True)
    names = {change.name for each in (*one.alone, *one.no_gain) for change in each.changes}
    assert "eagle" not in names
    assert one.base.bounds.latency_s == pytest.approx(
        analyze(MODEL, DEVICE, quant="fp8", techniques=["eagle"]).generation.latency_s, rel=1e-3
    )
    refused = {change.name: reason for change, reason in one.refused}
    assert "medusa" in refused


@pytest.mark.slow("tries every technique")
def test_more_devices_are_advised_up_to_the_limit(found):
    several = advise(MODEL, "h100-sxm", max_devices=4, wanted="tpot", without=FEWER)
    assert not [each for each in (*found.alone, *found.no_gain, *found.too_large) if each.name.startswith("tp=")]
    assert {each.name for each in several.alone if each.name.startswith("tp=")} == {"tp=2", "tp=4"}
    gains = [line(several.alone, f"tp={degree}").gain for degree in (4, 2)]
    assert gains[0] > gains[1] > 1
    many = advise(MODEL, "gb200", max_devices=64, wanted="tpot", prompt=64, gen=8, without=FEWER)
    tried = {each.name for each in (*many.alone, *many.no_gain) if each.name.startswith("tp=")}
    assert tried == {"tp=2", "tp=4", "tp=8", "tp=16", "tp=32"}
    assert "tp=64 does not divide" in {change.name: reason for change, reason in many.refused}["tp=64"]


def test_changes_for_a_model_that_does_not_fit_make_it_fit():
    one = advise("llama-3.1-70b", "h100-sxm", without=["model"], research=True)
    assert not one.base.fits
    assert all(each.result.fits for each in (*one.alone, *one.together))
    assert {each.name for each in one.alone} >= {"fp8", "W4A16g128"}
    assert "KV8" in {each.name for each in one.too_large}


def test_advised_offload_fraction_is_the_smallest_that_fits():
    asked = {"quant": "W4A16g128", "prompt": 1024, "gen": 128}
    one = advise("llama-3.1-70b", "rtx-4090", without=FEWER, **asked)
    (name,) = (each.name for each in one.alone if each.name.startswith("offload"))
    share = float(name.partition("weights=")[2])
    offloaded, fewer = (
        analyze("llama-3.1-70b", "rtx-4090", offload=f"weights={part:.2f}", **asked) for part in (share, share - 0.01)
    )
    assert offloaded.memory.fits
    assert not fewer.memory.fits


def test_each_change_is_labelled_with_its_requirement(found, capsys):
    touched = {each.name: str(each.requires) for each in found.alone}
    assert touched["fp8"] == touched["prompt-compression"] == "answers"
    assert (touched["eagle"], touched["mixture-of-depths"]) == ("draft", "model")
    assert touched["retrieval"] == touched["fusion"] == "nothing"
    for line in found.together:
        each = {str(change.requires) for change in line.changes}
        assert str(line.requires) == next(name for name in ("model", "draft", "answers", "nothing") if name in each)
    assert all(kind.requires in Requirement for kind in techniques().values())
    assert (
        main(["advise", "llama-3.1-8b", "h100-sxm", "--without", "draft", "--without", "answers", "--without", "model"])
        == 0
    )
    words = capsys.readouterr().out
    assert "retrieval" in words
    assert "eagle" not in words
    assert "fp8" not in words
    assert max(map(len, words.splitlines())) <= 80


@pytest.fixture(scope="module")
def deployed():
    return advise("qwen3-32b", "h100-sxm", quant="fp8", layout="tp=2", engine="vllm", batch=32, prompt=4096, gen=1024)


def test_advice_for_an_engine_has_only_features_the_engine_supports(deployed):
    names = {
        change.name for line in (*deployed.alone, *deployed.no_gain, *deployed.too_large) for change in line.changes
    }
    names |= {change.name for change, _ in deployed.refused}
    assert {"prefix-cache", "retrieval", "eagle", "KVfp8", "mtp"} <= names
    assert not names & {
        "paged",
        "chunked-prefill",
        "skeleton",
        "h2o",
        "sparsity",
        "linear-attention",
        "medusa",
        "fusion",
        "nvfp4",
        "W8A8",
    }
    words = " ".join(REPORT.text(deployed).split())
    assert "No gain" not in words
    assert "Not possible here" not in words
    assert "--research also ranks" in words
    assert "retrieval assumes outputs that repeat known text" in words
    assert "vllm serve Qwen/Qwen3-32B" in words
    assert "--max-num-seqs 32" in words


def test_eagle_chain_drafting_speeds_up_a_batch(deployed):
    """With a tree of 25 candidates it would not; a chain of 3 is what vLLM and SGLang start with."""
    assert line(deployed.alone, "eagle").expected_gain > 1.3


def test_advised_precisions_have_matrix_units_on_the_device():
    asked = {"prompt": 64, "gen": 8, "without": ("draft", "model")}
    offered = {}
    for device in ("a100-sxm-80gb", "h100-sxm", "b200"):
        one = advise(MODEL, device, **asked)
        lines = (*one.alone, *one.no_gain, *one.too_large)
        offered[device] = {c.name for each in lines for c in each.changes if c.group == "precision"}
    assert offered["a100-sxm-80gb"] == {"W8A8", "W4A16g128"}
    assert offered["h100-sxm"] == {"fp8", "W4A16g128"}
    assert offered["b200"] == {"fp8", "W4A16g128", "nvfp4"}


def test_llama_cpp_gets_narrower_files():
    one = advise("qwen3-32b", DEVICE, quant="Q8_0", engine="llama.cpp", prompt=64, gen=8)
    assert not one.base.fits
    assert {"Q5_K_M", "Q4_K_M"} <= {each.name for each in one.alone}
    assert one.recommended.name in {"Q4_K_M", "Q5_K_M"}
    assert one.recommended_setting.quantization.mixture.name == one.recommended.name
    assert "GGUF_REPOSITORY:Q" in REPORT.text(one)


def test_no_wider_precision_is_offered():
    one = advise("gpt-oss-20b", "h100-sxm", prompt=64, gen=8)
    lines = (*one.alone, *one.no_gain, *one.too_large)
    assert not [each.name for each in lines for c in each.changes if c.group == "precision"]


def test_batches_are_within_targets_memory_and_server():
    asked = {"wanted": "throughput", "prompt": 512, "gen": 64, "engine": "vllm", "without": ("answers", "draft")}
    one = advise(MODEL, "h100-sxm", tpot=0.012, **asked)
    batches = [c.batch for each in one.alone for c in each.changes if c.batch]
    assert batches
    largest = max(batches)
    for batch, is_within in ((largest, True), (largest + 24, False)):
        shown = analyze(MODEL, "h100-sxm", engine="vllm", batch=batch, prompt=512, gen=64).generation
        assert (shown.expected_tpot_s <= 0.012) == is_within
    assert one.recommended_batch <= largest
    free = advise(MODEL, "h100-sxm", **asked)
    assert max(c.batch for each in free.alone for c in each.changes if c.batch) <= 1024
    assert not one.too_slow or all(each.result.likely.tpot_s > 0.012 for each in one.too_slow)


def test_experts_are_laid_out_over_devices():
    asked = {"prompt": 64, "gen": 8, "without": FEWER, "max_devices": 2}
    one = advise("qwen3-30b-a3b", "h100-sxm", **asked)
    lines = (*one.alone, *one.no_gain, *one.too_large)
    assert {"tp=2", "tp=2 ep=2", "dp=2 ep=2"} <= {each.name for each in lines}
    assert "--layout 'dp=2 ep=2'" in {each.typed for each in lines}
    dense = advise(MODEL, "h100-sxm", **asked)
    assert not [each for each in (*dense.alone, *dense.no_gain) if "ep=2" in each.name]


def test_the_command_of_the_advice(capsys):
    asked = ["advise", "deepseek-v3", "h200-sxm", "--tp", "8", "--engine", "sglang", "--batch", "8"]
    assert main([*asked, "--emit", "sglang"]) == 0
    text = capsys.readouterr().out
    assert "--speculative-algorithm NEXTN" in text
    assert "--tp-size 8" in text
    assert main([*asked, "--emit", "sglang", "--format", "json"]) == 2
    assert "leave out --format" in capsys.readouterr().err


def test_advice_is_shown_in_some_lines(found):
    assert len(repr(found)) < 2_000


@pytest.mark.slow("tries every technique")
def test_throughput_tries_larger_batches():
    one = advise(MODEL, DEVICE, wanted="throughput", without=FEWER, research=True)
    assert line(one.alone, "batch 8").gain > 4
    most = analyze(MODEL, DEVICE).memory.max_batch
    assert most > 16
    assert line(one.alone, f"batch {most}").gain > line(one.alone, "batch 16").gain
    crowd = advise(MODEL, DEVICE, wanted="throughput", batch=most, without=FEWER, research=True)
    assert not [each for each in crowd.alone if each.name.startswith("batch")]


ASKED = ["advise", MODEL, DEVICE, "--prompt", "64", "--gen", "8", "--research"]


def test_the_report(capsys, found):
    assert main(ASKED) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    text = " ".join(out.split())
    for said in (
        "Techniques that speed up Llama 3.1 8B",
        "decode is memory-",
        "No gain:",
        "Single, with the same weights and the same answers",
        "Single, with the same weights and other answers",
        "Combined, each better",
    ):
        assert said in text
    assert "requires" not in text.partition("Combined")[0]  # as the tables are by that
    document = json.loads(REPORT.json(found))
    assert document["alone"][0]["expected_gain"] >= document["alone"][1]["expected_gain"]
    rows = list(csv.DictReader(io.StringIO(REPORT.csv(found))))
    assert {row["kind"] for row in rows} >= {"alone", "together", "no_help"}
    assert "best combined" in REPORT.html(found)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--gen", "1"], "gen must be at least 2"),
        (["--gen", "16777217"], "gen must be at most 16777216, because steps are computed one by one; got 16777217"),
        (["--batch", str(2**53)], f"batch x tokens of a sequence must be at most {2**53}, the largest that is counted"),
        (["--batch", "0"], "batch must be a whole number of at least 1; got 0"),
        (["--with", "magic"], "no technique 'magic'"),
        (["--tp", "2", "--layout", "tp=2"], "--layout must be left out beside tp, which it sets too; give one of them"),
        (["--pp", "40"], "pp=40 is more than the 32 layers; try pp=32 or fewer"),
        (["--max-devices", "0"], "--max-devices must be a whole number of at least 1; got 0"),
        (["--quant", "W99"], "bits must be"),
        (["--library", "vlm"], "no kernels of a library 'vlm' were measured"),
        (["--engine", "vlm"], "no engine 'vlm'"),
        (["--hardware-path", "/no/such"], "/no/such"),
    ],
)
def test_mistakes_get_one_line(capsys, options, said):
    usual = [*ASKED[:-3], "--research"] if "--gen" in options else ASKED
    assert main([*usual, *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("llmviewer: ")
    assert said in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.usefixtures("found")
def test_progress_counts_up_to_the_total():
    assert [done for done, _ in TOLD] == sorted(done for done, _ in TOLD)
    assert TOLD[0] == (1, TOLD[-1][1])
    assert TOLD[-1][0] == TOLD[-1][1]


@pytest.mark.parametrize("quant", first_fast(["int8", "mxfp4", "W4A16g128,lm_head=W8A8"], "tries every technique"))
def test_kv_cache_quantization_combines_with_any_precision(quant):
    found = advise(MODEL, DEVICE, quant=quant, batch=64, without=["model"], research=True)
    assert not {"KV8", "KV4"} & {change.name for change, _ in found.refused}
    line = next(line for line in (*found.alone, *found.no_gain) if line.name == "KV8")
    assert line.result.setting.quantization.scheme.weight == found.base.setting.quantization.scheme.weight
    assert line.work_ratios["bytes"] < 1


def test_encoder_models_and_unknown_goals_are_refused():
    with pytest.raises(InputError, match="bert-base-uncased does not generate"):
        advise("bert-base-uncased", "l4")
    with pytest.raises(InputError, match="wanted must be one of latency, ttft, tpot, throughput; got 'joy'"):
        advise(MODEL, DEVICE, wanted="joy")
