"""A Setting and a Request in place of names and options give the same result in every function that takes them."""

import click
import pytest

import llmviewer
from llmviewer import Request, Setting
from llmviewer.cli import cli
from llmviewer.errors import InputError
from llmviewer.options import (
    PARAMETERS,
    FleetOptions,
    ServedOptions,
    SettingOptions,
    SweepOptions,
)  # fmt: skip
from llmviewer.webapp.results import _setting
from llmviewer.webapp.state import FIELD_TYPES, State

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


# option: (value in Python, text on the command line and in a link, other options that it needs)
SAMPLES = {
    "quant": ("fp8", "fp8", {}),
    "attention": ("eager", "eager", {}),
    "accounting": ("survey", "survey", {}),
    "expert_skew": (0.8, "0.8", {}),
    "hardware_set": (["memory.bandwidth=2x"], "memory.bandwidth=2x", {}),
    "library": ("vllm", "vllm", {}),
    "engine": ("vllm", "vllm", {}),
    "memory_fraction": (0.5, "0.5", {"engine": "vllm"}),
    "max_num_seqs": (32, "32", {"engine": "vllm"}),
    "max_num_batched_tokens": (4096, "4096", {"engine": "vllm"}),
    "max_model_len": (8192, "8192", {"engine": "vllm"}),
    "techniques": (["sparsity"], "sparsity", {}),
    "tp": (2, "2", {}),
    "pp": (2, "2", {}),
    "dp": (2, "2", {}),
    "offload": ("weights=0.5", "weights=0.5", {}),
    "layout": ("tp=2", "tp=2", {}),
    "bound": (True, None, {}),
    "overlap": (True, None, {"tp": 2}),
    "mla": ("absorbed", "absorbed", {}),
    "engine_version": ("0.11", "0.11", {"engine": "vllm"}),
    "experts_kernel": ("triton", "triton", {"engine": "vllm"}),
    "cp": (2, "2", {}),
    "collective": ("ring", "ring", {"tp": 2}),
    "micro_batches": (4, "4", {"pp": 2}),
    "offload_sync": (True, None, {"offload": "weights=0.5"}),
}
COMMANDS = {
    "analyze": (SettingOptions, ["llama-3.1-8b", "h100-sxm"]),
    "simulate": (ServedOptions, ["llama-3.1-8b", "h100-sxm"]),
    "advise": (ServedOptions, ["llama-3.1-8b", "h100-sxm"]),
    "compare": (FleetOptions, ["llama-3.1-8b", "h100-sxm"]),
    "choose": (FleetOptions, ["llama-3.1-8b"]),
    "plan": (FleetOptions, ["llama-3.1-8b", "--rate", "1"]),
    "sweep": (SweepOptions, ["llama-3.1-8b", "h100-sxm", "--over", "batch=1,2"]),
}


def setting_of(**options):
    return Setting.of("llama-3.1-8b", "h100-sxm", **options)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_gives_one_setting_on_the_command_line_and_in_python(name):
    kind, arguments = COMMANDS[name]
    command = cli.get_command(click.Context(cli), name)
    for option in SAMPLES.keys() & kind.__annotations__.keys():
        value, text, others = SAMPLES[option]
        flag = PARAMETERS[option].flag or f"--{option.replace('_', '-')}"
        context = command.make_context(name, [*arguments, flag, *([text] if text else [])])
        assert setting_of(**{option: context.params[option]}, **others) == setting_of(**{option: value}, **others), flag
        assert setting_of(**{option: value}, **others) != setting_of(**others), flag


def test_an_option_gives_one_setting_in_a_link_and_in_python():
    tried = 0
    for option, (value, text, others) in SAMPLES.items():
        key = PARAMETERS[option].link or option
        if text and key in FIELD_TYPES:
            written = f"h100-sxm:{text}" if option == "hardware_set" else text
            needs = "".join(f"&{PARAMETERS[other].link or other}={needed}" for other, needed in others.items())
            state, notices = State.of_link(f"model=llama-3.1-8b&on=h100-sxm&{key}={written}{needs}")
            assert not notices
            assert _setting(state) == setting_of(**{option: value}, **others), option
            tried += 1
    assert tried >= 14
