"""fit(): fitting models equal those of analyze(), in the widest precision that fits."""

import csv
import io
import json

import pytest

import llmviewer
from llmviewer import analyze, fit
from llmviewer.cli import main
from llmviewer.devices import local
from llmviewer.errors import InputError
from llmviewer.reports.machine_fit import REPORT
from llmviewer.server_memory import capacity
from llmviewer.setting import Setting

from .cases import first_fast

MODELS = ("qwen3-8b", "qwen3-14b", "gpt-oss-20b", "llama-3.1-70b", "qwen3-32b")


@pytest.fixture(scope="module")
def found():
    return fit("rtx-4090", models=MODELS)


def test_each_model_is_in_the_widest_precision_that_fits(found):
    assert {one.facts.name: one.quant for one in found.fitting} == {
        "qwen3-32b": "Q4_K_M", "gpt-oss-20b": "published", "qwen3-14b": "Q8_0", "qwen3-8b": "Q8_0",
    }  # fmt: skip
    assert found.too_large == ("llama-3.1-70b",)
    sizes = [one.facts.parameters for one in found.fitting]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("name", first_fast(("qwen3-32b", "gpt-oss-20b", "qwen3-14b"), "each model", 1))
def test_numbers_equal_the_analysis(found, name):
    (one,) = (one for one in found.fitting if one.facts.name == name)
    quant = None if one.quant == "published" else one.quant
    shown = analyze(name, "rtx-4090", quant=quant, engine="llama.cpp", prompt=512, gen=2, kv_len=8192)
    server = capacity(Setting.of(name, "rtx-4090", quant=quant, engine="llama.cpp", max_num_seqs=1, max_model_len=8192))
    assert server.starts
    assert one.memory_bytes + one.room_bytes == pytest.approx(
        server.weight_bytes + server.activation_bytes + server.other_bytes + server.pool_bytes
    )
    assert one.memory_bytes == pytest.approx(shown.memory.weight_bytes + shown.memory.kv_cache_bytes, rel=0.06)
    assert float(one.step_s.expected) == pytest.approx(shown.phases.decode.total.expected_time_s)
    assert one.bound_s == pytest.approx(shown.phases.decode.total.bound_time_s)
    assert one.step_s.expected >= one.bound_s


@pytest.mark.parametrize(
    ("device", "engine", "model"),
    [("rtx-4090", "llama.cpp", "seed-oss-36b"), ("rtx-4090", "vllm", "qwen3-14b"), ("l4", "vllm", "llama-3.1-8b"),
     ("tpu-v6e", "", "qwen3-8b")],
)  # fmt: skip
def test_the_printed_command_gives_the_numbers_of_the_row(capsys, device, engine, model):
    result = fit(device, models=[model], engine=engine)
    one = result.fitting[0]
    (command,) = REPORT.more(result)
    assert main([*command.words[1:], "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    memory = document["memory"]
    assert memory["fits"]
    room, live = memory["capacity_bytes"] - memory["total_bytes"], memory["activation_bytes"]
    chunk = one.evaluation.memory.activation_bytes  # engines divide prompts; the analysis prefills one in one pass
    assert room + (0 if engine else live - chunk) == pytest.approx(one.room_bytes, rel=0.02)
    assert memory["server"]["starts"]
    step = document["generation"]["expected_tpot_s"] if engine else document["generation"]["tpot_s"]
    assert 1 / step == pytest.approx(one.tokens_per_s, rel=0.01)
    if engine:
        used = f"uses up to {one.usable_bytes / 1e9:.1f} GB: memory + free"
        assert used in REPORT.headline(result)
        assert "(--max-num-seqs 1 --max-model-len 8192)" in REPORT.headline(result)


def test_an_engine_that_has_a_precision_is_chosen_and_one_that_has_not_is_refused():
    assert fit("rtx-4090", models=["qwen3-8b"], quants=["fp8"]).engine.name == "vllm"
    assert fit("rtx-4090", models="qwen3-8b", quants="Q4_K_M").engine.name == "llama.cpp"  # one need not be a list
    assert fit("m4-max", models=["qwen3-8b"], quants=["W4A16g64"]).engine.name == "mlx"
    for device, options in (("rtx-4090", {"engine": "llama.cpp"}), ("m4-max", {})):
        with pytest.raises(InputError, match=r"^quants: (llama\.cpp|MLX) has no weights in fp8, .*or another engine$"):
            fit(device, models=["qwen3-8b"], quants=["fp8"], **options)


def test_a_context_that_fits_is_stated_for_models_that_do_not():
    result = fit("rtx-4090", models=["qwen3-32b"], context=32768)
    (one,) = result.shorter
    assert (one.model, one.quant) == ("qwen3-32b", "Q4_K_M")
    assert f"fits: qwen3-32b in Q4_K_M with --context {one.tokens}." in " ".join(REPORT.text(result).split())
    assert "No model runs in any of" in REPORT.headline(result)
    assert "models, from" not in " ".join(REPORT.remarks(result))
    assert result.to_dict()["too_large_fitting"] == [{"model": "qwen3-32b", "quant": "Q4_K_M", "tokens": one.tokens}]
    assert fit("rtx-4090", models=["qwen3-32b"], context=one.tokens).fitting
    assert not fit("rtx-4090", models=["qwen3-32b"], context=one.tokens * 102 // 100).fitting
    nowhere = fit("rtx-4090", models=["llama-3.1-70b"])
    assert nowhere.too_large == ("llama-3.1-70b",)
    assert not nowhere.shorter


def test_a_wider_precision_would_not_fit(found):
    (one,) = (one for one in found.fitting if one.facts.name == "qwen3-32b")
    for quant, tokens, starts in (("Q5_K_M", 8192, False), ("Q4_K_M", one.max_context, True),
                                  ("Q4_K_M", one.max_context * 102 // 100, False)):  # fmt: skip
        options = {"quant": quant, "engine": "llama.cpp", "max_num_seqs": 1, "max_model_len": tokens}
        assert capacity(Setting.of("qwen3-32b", "rtx-4090", **options), tokens).starts == starts
    assert one.max_context > found.context


@pytest.mark.parametrize(
    ("device", "engine", "model", "context"),
    [("m4-max", "mlx", "dots.llm1", 32768), ("rtx-4090", "sglang", "qwen2.5-14b", 32768),
     ("rtx-4090", "tensorrt-llm", "qwen2.5-14b", 32768), ("tpu-v5e", "", "llama-3.1-8b", 8192)],
)  # fmt: skip
def test_what_runs_has_memory_left(device, engine, model, context):
    """Also with engines that start although no request of that context fits, and with those whose memory is unknown."""
    wider = {"dots.llm1": "W6A16g64", "qwen2.5-14b": "fp8", "llama-3.1-8b": "published"}[model]
    (one,) = fit(device, models=[model], engine=engine, context=context).fitting
    assert one.quant != wider
    assert one.room_bytes >= 0
    refused = fit(device, models=[model], engine=engine, context=context, quants=[wider])
    assert not refused.fitting
    assert refused.too_large == (model,)
    (shorter,) = refused.shorter or (None,)
    assert shorter is None or shorter.tokens < context
    if one.max_context < one.evaluation.setting.model.max_context:
        assert fit(device, models=[model], engine=engine, context=one.max_context, quants=[one.quant]).fitting
        longer = one.max_context * 102 // 100
        assert not fit(device, models=[model], engine=engine, context=longer, quants=[one.quant]).fitting


def test_a_speed_makes_precisions_narrower():
    quick = fit("rtx-4090", models=["qwen3-14b", "qwen3-32b"], tokens_per_s=70)
    assert {one.facts.name: one.quant for one in quick.fitting} == {"qwen3-14b": "Q4_K_M"}
    assert quick.too_slow == ("qwen3-32b",)
    assert all(one.tokens_per_s >= 70 for one in quick.fitting)


@pytest.mark.parametrize(("device", "engine"), [("m4-max", "mlx"), ("h100-sxm", "vllm"), ("rx-7900-xtx", "llama.cpp")])
def test_engine_and_precisions_are_those_of_the_device(device, engine):
    result = fit(device, models=["qwen3-8b"])
    assert result.engine.name == engine
    (one,) = result.fitting
    assert one.quant == {"mlx": "W8A16g64", "vllm": "published", "llama.cpp": "Q8_0"}[engine]
    assert one.step_s is not None
    assert result.quants[0] == one.quant


def test_without_measured_kernels_speeds_are_bounds():
    result = fit("tpu-v6e", models=["qwen3-8b"])
    assert result.engine is None
    (one,) = result.fitting
    assert one.step_s is None
    assert one.tokens_per_s == pytest.approx(1 / one.bound_s)
    words = " ".join(REPORT.text(result).split())
    assert "no kernels are known on it" in words
    assert "speeds are bounds" in words
    assert json.loads(REPORT.json(result))["inputs"]["engine"] is None


def test_largest_models_come_first_and_the_others_are_listed():
    result = fit("rtx-4090", models=["qwen3-"], limit=2)
    assert len(result.fitting) == 2
    assert "qwen3-8b" in result.unevaluated
    assert "smaller models were not evaluated" in " ".join(REPORT.text(result).split())
    assert max(map(len, REPORT.headline(result).split())) < 80


def test_models_with_a_shorter_context_are_left_out():
    result = fit("rtx-4090", models=["gpt2"])
    assert "gpt2" in result.short
    assert not result.fitting
    assert "4 models have a shorter context than 8,192 tokens." in REPORT.text(result)
    assert "1 model has a shorter context than" in REPORT.text(fit("rtx-4090", models="gpt2-xl"))


def test_the_device_of_this_machine_is_found(monkeypatch):
    rows = "NVIDIA GeForce RTX 4090, 24564, 3105, 10501, 450.00, 8.9, 4, 16, 550.1\n"
    monkeypatch.setattr(local, "_output", lambda command: rows if command[0] == "nvidia-smi" else "")
    assert local.local_device().name == "rtx-4090"
    monkeypatch.setattr(local.sys, "platform", "darwin")
    answers = {"machdep.cpu.brand_string": "Apple M4 Max\n", "hw.memsize": f"{64 * 2**30}\n"}
    monkeypatch.setattr(local, "_output", lambda command: answers.get(command[-1], ""))
    device = local.local_device()
    assert device.name == "m4-max"
    assert device.capacity == pytest.approx(64 * 2**30 * 107.52 / 128)


def test_without_a_gpu_a_device_must_be_named(monkeypatch):
    monkeypatch.setattr(local, "_output", lambda _: "")
    with pytest.raises(InputError, match=r"^hardware must be named here: no GPU was found"):
        fit()


def test_the_command(capsys):
    asked = ["fit", "rtx-4090", "--model", "qwen3-8b", "--context", "32k"]
    assert main(asked) == 0
    text = capsys.readouterr().out
    assert "32,768 tokens" in text
    assert "llmviewer analyze qwen3-8b" in " ".join(text.split())
    assert main([*asked, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["models"][0]["model"] == "qwen3-8b"
    assert main([*asked, "--format", "csv"]) == 0
    (row, *_) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert float(row["tokens_per_s"]) == pytest.approx(document["models"][0]["tokens_per_s"])
    assert "Models that run on" in REPORT.html(llmviewer.fit("rtx-4090", models=["qwen3-8b"]))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--context", "long"], "--context must be a whole number of tokens, such as 8192 or 32k; got 'long'"),
        (["--context", "0"], "--context must be a whole number of at least 1; got 0"),
        (["--tokens-per-s", "-1"], "--tokens-per-s must be at least 0; got -1"),
        (["--model", "nope"], "no model that generates begins with 'nope'"),
        (["--engine", "mlx"], "mlx was measured on devices of apple"),
        (["--quant", "W99"], "bits must be"),
    ],
)
def test_mistakes_get_one_line(capsys, options, said):
    assert main(["fit", "rtx-4090", *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1
