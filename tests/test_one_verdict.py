"""The same settings through every command: whether they fit, how many requests, and times of one sequence agree."""

import json
from dataclasses import replace

import numpy as np
import pytest

import llmviewer
from llmviewer.cli import main
from llmviewer.errors import InputError
from llmviewer.request import Request
from llmviewer.server_memory import capacity, reserves_memory, server_of
from llmviewer.serving.steps import Steps
from llmviewer.setting import Setting
from llmviewer.variants.evaluation import Evaluation

PROMPT, GEN = 512, 64
# (model, device, options): dense, mixtures of experts, latent attention, hybrids, quantized, layouts, small and large
SETTINGS = [
    ("llama-3.1-8b", "h100-sxm", {}),
    ("llama-3.1-8b", "h100-sxm", {"engine": "vllm"}),
    ("llama-3.1-8b", "h100-sxm", {"engine": "sglang"}),
    ("llama-3.1-8b", "h100-sxm", {"engine": "tensorrt-llm"}),
    ("llama-3.1-8b", "a10", {"engine": "vllm"}),
    ("llama-3.1-8b", "l4", {"engine": "vllm", "quant": "fp8"}),
    ("llama-3.1-8b", "rtx-4090", {"engine": "llama.cpp", "quant": "Q4_K_M"}),
    ("llama-3.1-8b", "rtx-4090", {"quant": "W4A16g128"}),
    ("llama-3.1-8b", "rtx-4090", {"engine": "vllm", "quant": "W4A16g128"}),
    ("llama-3.1-8b", "m3-max", {"quant": "W4A16g64"}),
    ("llama-3.1-8b", "t4", {"quant": "W4A16g128"}),
    ("llama-3.1-8b", "h100-sxm", {"engine": "vllm", "memory_fraction": 0.5}),
    ("llama-3.1-8b", "h100-sxm", {"engine": "vllm", "quant": "fp8KV8"}),
    ("llama-3.1-8b", "mi300x", {"engine": "vllm"}),
    ("llama-3.1-70b", "h100-sxm", {"engine": "vllm", "layout": "tp=4"}),
    ("llama-3.1-70b", "h100-sxm", {"engine": "vllm", "layout": "tp=2"}),
    ("llama-3.1-70b", "h100-sxm", {"engine": "vllm", "layout": "tp=2", "quant": "fp8"}),
    ("llama-3.1-70b", "h100-sxm", {"engine": "vllm"}),
    ("llama-3.1-70b", "h100-sxm", {"layout": "tp=4"}),
    ("llama-3.1-70b", "h200-sxm", {"engine": "sglang", "layout": "tp=4"}),
    ("llama-3.1-70b", "a100-sxm-80gb", {"engine": "sglang", "layout": "tp=4"}),
    ("llama-3.1-70b", "b200", {"engine": "tensorrt-llm", "layout": "tp=2"}),
    ("llama-3.1-70b", "rtx-4090", {"quant": "W4A16g128"}),
    ("llama-3.1-70b", "rtx-4090", {"quant": "W4A16g128", "layout": "tp=4"}),
    ("llama-3.1-405b", "h100-sxm", {"quant": "fp8", "layout": "tp=8", "engine": "vllm"}),
    ("llama-3.1-405b", "h100-sxm", {"layout": "tp=8", "engine": "vllm"}),
    ("qwen3-32b", "h100-sxm", {"quant": "fp8", "layout": "tp=2", "engine": "vllm"}),
    ("qwen3-32b", "l40s", {"quant": "fp8", "engine": "vllm"}),
    ("qwen3-32b", "rtx-5090", {"quant": "nvfp4", "engine": "vllm"}),
    ("qwen3-0.6b", "t4", {"engine": "vllm"}),
    ("qwen3-30b-a3b", "h100-sxm", {"engine": "vllm"}),
    ("qwen3-30b-a3b", "h100-sxm", {"engine": "sglang", "quant": "fp8"}),
    ("qwen3-30b-a3b", "a10", {"engine": "vllm"}),
    ("qwen3-30b-a3b", "rtx-4090", {"quant": "W4A16g128"}),
    ("qwen3-235b-a22b", "h100-sxm", {"quant": "fp8", "layout": "tp=4 ep=4", "engine": "vllm"}),
    ("qwen3-235b-a22b", "h200-sxm", {"quant": "fp8", "layout": "tp=4", "engine": "sglang"}),
    ("mixtral-8x7b", "h100-sxm", {"layout": "tp=2", "engine": "vllm"}),
    ("mixtral-8x7b", "a100-sxm-80gb", {"engine": "vllm"}),
    ("gpt-oss-20b", "h100-sxm", {"engine": "vllm"}),
    ("gpt-oss-20b", "rtx-4090", {}),
    ("gpt-oss-120b", "h100-sxm", {"layout": "tp=2", "engine": "vllm"}),
    ("gpt-oss-120b", "l40s", {"engine": "vllm"}),
    ("gpt-oss-120b", "b200", {"engine": "tensorrt-llm"}),
    ("deepseek-v3", "h200-sxm", {"layout": "tp=8", "engine": "sglang"}),
    ("deepseek-v3", "h200-sxm", {"layout": "tp=8", "engine": "vllm"}),
    ("deepseek-v3", "h100-sxm", {"layout": "tp=8", "engine": "vllm"}),
    ("deepseek-v3", "h200-sxm", {"layout": "dp=8 ep=8", "engine": "sglang"}),
    ("deepseek-v2-lite", "l40s", {"engine": "vllm"}),
    ("gemma-3-27b", "h100-sxm", {"engine": "vllm"}),
    ("jamba-1.5-mini", "h100-sxm", {"layout": "tp=4"}),
    ("mamba-2.8b", "l4", {}),
    ("llama-3.1-8b", "h100-sxm", {"engine": "vllm", "techniques": ["eagle"]}),
    ("llama-3.1-8b", "l4", {"engine": "vllm", "quant": "fp8", "techniques": ["lora:adapters=8,rank=16"]}),
    ("deepseek-v3", "h200-sxm", {"layout": "tp=8", "engine": "sglang", "techniques": ["mtp"]}),
    ("deepseek-v3", "h200-sxm", {"layout": "dp=8 ep=8", "engine": "vllm"}),
    ("gemma-3-27b", "h200-sxm", {"engine": "sglang"}),
    ("qwen2.5-vl-7b", "l4", {"engine": "vllm"}),
    ("qwen3.5-9b", "rtx-4060", {"engine": "llama.cpp", "quant": "Q4_K_M"}),  # embeddings in host memory
    ("gpt-oss-120b", "h100-sxm", {"engine": "vllm"}),  # padded experts
    ("falcon-40b", "a100-sxm-80gb", {"layout": "tp=2", "engine": "vllm"}),
]


def name_of(value):
    if isinstance(value, dict):
        return " ".join(f"{key}={text}" for key, text in value.items()) or "plain"
    return value


@pytest.mark.parametrize(("model", "device", "options"), SETTINGS, ids=name_of)
def test_every_command_gives_one_verdict(model, device, options):
    setting = Setting.of(model, device, **options)
    ranks = setting.layout.dp
    request = Request(batch=ranks, prompt=PROMPT, gen=GEN)
    analysis = llmviewer.analyze(setting, request)
    fits, largest = analysis.memory.fits, analysis.memory.max_batch
    server, tokens = capacity(setting, PROMPT + GEN), PROMPT + GEN

    compared = llmviewer.compare(
        model, device, quants=[options.get("quant", "published")], batch=ranks, prompt=PROMPT, gen=GEN, bound=False,
        layout=options.get("layout", ""),
        **{key: value for key, value in options.items() if key not in ("quant", "layout")},
    )  # fmt: skip
    (cell,) = compared.cells
    assert bool(cell.fits[0]) is fits
    assert cell.largest.batch == min(largest, 1 << 24)
    assert cell.ttft_s[0] == pytest.approx(analysis.generation.ttft_s)
    assert cell.tpot_s[0] == pytest.approx(analysis.generation.tpot_s)
    times = cell.expected
    if analysis.evaluation.expected:
        assert times.ttft.expected[0] == pytest.approx(float(analysis.evaluation.expected.ttft_s), rel=1e-6)
        assert times.tpot.expected[0] == pytest.approx(float(analysis.evaluation.expected.tpot_s), rel=1e-6)

    quant, layout = options.get("quant", "published"), options.get("layout", "")
    others = {key: value for key, value in options.items() if key not in ("quant", "layout")}
    if not layout:
        chosen = llmviewer.choose(
            model, users=1, prompt=PROMPT, gen=GEN, hardware=[device], quants=[quant], bound=not options.get("engine"),
            **others,
        )  # fmt: skip
        assert bool(chosen.ranked or chosen.unmeasured) is fits
        assert fits or chosen.rejected[0].factor == "memory"
    planned = llmviewer.plan(
        model, rate=1e-3, prompt=PROMPT, gen=GEN, hardware=[device], quants=[quant], layouts=[layout], batches=[2],
        max_devices=setting.layout.devices, confirm=False, **others,
    )  # fmt: skip
    assert bool(planned.within_targets or planned.unmeasured) is fits
    assert fits or planned.rejected[0].factor == "memory"

    base = Evaluation.of(setting, request)  # of advise, of its variants and of the page
    assert bool(base.fits) is fits
    assert base.memory.max_batch == largest

    if reserves_memory(setting):
        assert fits is (server.concurrency >= ranks)
        held = server_of(setting).requests(tokens)
        assert largest == int(held)
        assert server.concurrency == min(int(held / ranks), server_of(setting).limit) * ranks
        assert Steps(setting).kv_budget_bytes(1) == server.pool_bytes
    if not fits:
        with pytest.raises(InputError, match="does not fit"):
            llmviewer.simulate(setting, rate=1, prompt_lengths=PROMPT, gen_lengths=GEN, requests=ranks)
        return
    run = llmviewer.simulate(
        replace(setting, bound=True), concurrency=ranks, prompt_lengths=PROMPT, gen_lengths=GEN, requests=ranks,
        policy="prefill-first",
    )  # fmt: skip
    if setting.techniques:  # drafts read the prompt too, which is in TTFT here and not there
        return
    assert np.mean(run.ttft_s) == pytest.approx(analysis.generation.ttft_s, rel=0.02)
    assert np.mean(run.tpot_s) == pytest.approx(analysis.generation.tpot_s, rel=0.02)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["simulate", "llama-3.1-70b", "h100-sxm", "--rate", "1"], "fits with --tp 2, or with --quant fp8, or with"),
        (
            ["simulate", "llama-3.1-8b", "h100-sxm", "--rate", "max", "--prompt", "1000000"],
            "a request of 1000128 tokens",
        ),
        (["simulate", "llama-3.1-70b", "h100-sxm", "--concurrency", "4", "--engine", "vllm"], "or on 1 x b200"),
        (["analyze", "llama-3.1-70b", "rtx-4090", "--batch", "max"], "weights 141 GB"),
    ],
)
def test_misfit_is_a_result_with_exit_code_0(capsys, arguments, text):
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Does not fit: ")
    assert text in " ".join(out.split())
    assert "tok/s" not in out
    assert err == ""
    for as_json in (["--format", "json"], ["--format=json"]):
        assert main([*arguments, *as_json]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["fits"] is False
        assert text in answer["reason"]


def test_report_of_a_misfit_has_no_throughput(capsys):
    assert main(["analyze", "llama-3.1-70b", "rtx-4090"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert not any(line.startswith("throughput") for line in lines)
    place = [next(i for i, line in enumerate(lines) if line.startswith(word)) for word in ("memory", "TTFT")]
    assert place == sorted(place)
