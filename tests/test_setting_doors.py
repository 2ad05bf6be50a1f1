"""A Setting and a Request in place of names and options give the same result in every function that takes them."""

import pytest

import llmviewer
from llmviewer import Request, Setting
from llmviewer.errors import InputError

ENGINE = {"quant": "fp8", "engine": "vllm"}
REQUEST = Request(batch=4, prompt=512, gen=32)
LENGTHS = {"prompt": 512, "gen": 32}


def test_a_comparison_has_a_cell_for_each_setting():
    settings = [Setting.of("llama-3.1-8b", device, **ENGINE) for device in ("h100-sxm", "l40s")]
    doors = llmviewer.compare(settings, REQUEST)
    names = llmviewer.compare(
        "llama-3.1-8b", ["h100-sxm", "l40s"], quants=["fp8"], engine="vllm", batch=4, **LENGTHS
    )  # fmt: skip
    assert list(doors.rows()) == list(names.rows())
    assert doors.engine == "vllm"
    mixed = llmviewer.compare([settings[0], Setting.of("llama-3.1-70b", "h100-sxm", tp=4)], REQUEST)
    assert [cell.layout.devices for cell in mixed.cells] == [1, 4]


def test_a_choice_ranks_in_the_precision_of_a_setting():
    asked = {"hardware": ["h100-sxm", "l40s"], "users": 4, **LENGTHS}
    doors = llmviewer.choose(Setting.of("llama-3.1-8b", "l4", **ENGINE), REQUEST, hardware=asked["hardware"])
    names = llmviewer.choose("llama-3.1-8b", quants=["fp8"], engine="vllm", **asked)
    assert doors.to_dict() == names.to_dict()


def test_a_plan_is_of_the_setting_and_its_device():
    setting = Setting.of("llama-3.1-70b", "h100-sxm", layout="tp=4", **ENGINE)
    asked = {"rate": 2, "ttft": "mean=1", "tpot": "mean=0.05", "confirm": False}
    doors = llmviewer.plan(setting, Request(prompt=1000, gen=100), **asked)
    names = llmviewer.plan(
        "llama-3.1-70b", prompt=1000, gen=100, hardware=["h100-sxm"], layouts=["tp=4"], quants=["fp8"], engine="vllm",
        **asked,
    )  # fmt: skip
    assert doors.to_dict() == names.to_dict()


def test_a_sweep_begins_at_a_setting():
    over = {"batch": [1, 8], "kv_len": [512, 4096]}
    doors = llmviewer.sweep(Setting.of("llama-3.1-8b", "l40s", quant="fp8", tp=2), over=over)
    names = llmviewer.sweep("llama-3.1-8b", "l40s", over, quant="fp8", tp=2)
    assert doors.columns.keys() == names.columns.keys()
    assert all((doors.columns[name] == names.columns[name]).all() for name in names.columns if name != "quant")


def test_experts_are_split_from_a_setting():
    asked = {"expert_devices": 8, "batch": 256}
    doors = llmviewer.afd(Setting.of("qwen3-30b-a3b", "h100-sxm", quant="fp8", layout="tp=2"), **asked)
    names = llmviewer.afd("qwen3-30b-a3b", "h100-sxm", "h100-sxm", quant="fp8", attention_layout="tp=2", **asked)
    assert doors.to_dict() == names.to_dict()


def test_a_kernel_runs_on_the_device_of_a_setting():
    sizes = {"M": 64, "N": 4096, "K": 4096}
    doors = llmviewer.kernel("gemm", Setting.of("llama-3.1-8b", "h100-sxm", library="vllm", quant="fp8"), sizes)
    names = llmviewer.kernel("gemm", "h100-sxm", sizes, library="vllm", quant="fp8")
    assert list(doors) == list(names)


def test_options_beside_a_setting_are_refused():
    setting = Setting.of("llama-3.1-8b", "l40s")
    for call in (
        lambda: llmviewer.sweep(setting, "l4", over={"batch": [1]}),
        lambda: llmviewer.choose(setting, library="vllm"),
        lambda: llmviewer.plan(setting, rate=1, engine="vllm"),
    ):
        with pytest.raises(InputError, match="must be left out after a Setting, which has it"):
            call()
    with pytest.raises(InputError, match="offload of the Setting is not supported here"):
        llmviewer.choose(Setting.of("llama-3.1-8b", "l40s", offload="weights=0.5"))
    with pytest.raises(InputError, match="models must be Settings before a Request"):
        llmviewer.compare("llama-3.1-8b", REQUEST)
