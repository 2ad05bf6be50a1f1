"""Errors that a user can cause: where, what must hold, what was given, what to do.

Tests assert the facts; `pytest tests/test_errors.py --write-messages` keeps the whole texts in golden/messages.json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from llmviewer._layout import data_dir
from llmviewer.analyzing.analysis import analyze
from llmviewer.analyzing.disaggregation import disaggregate
from llmviewer.analyzing.one_kernel import kernel as estimate
from llmviewer.devices.files import load_hardware
from llmviewer.documents import read_yaml
from llmviewer.errors import InputError
from llmviewer.model_files import load_model
from llmviewer.serving.advice import advise
from llmviewer.serving.planning import plan
from llmviewer.serving.saturation import max_throughput
from llmviewer.serving.simulation import simulate
from llmviewer.techniques import Requirement

from .cases import for_each

CHIP = """\
name: chip
title: Chip
vendor: nobody
kind: gpu
architecture: none
released: 2024
status: shipping
sources:
  sheet: {title: Chip datasheet, year: 2024}
vector: {source: sheet, fp32: 10 TOP/s}
matrix: {source: sheet, fp16: 100 TOP/s}
memory:
  source: sheet
  capacity: 16 GiB
  bandwidth: 320 GB/s
  bus_width: 256
"""
CONFIG = {
    "model_type": "llama",
    "torch_dtype": "float16",
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 10,
}


@pytest.fixture
def chip(tmp_path):
    """Writes chip.yaml, with one text in place of another, and returns its path."""

    def write(old="", new=""):
        assert CHIP.count(old) >= 1
        path = tmp_path / "chip.yaml"
        path.write_text(CHIP.replace(old, new, 1) if old else CHIP, encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def config(tmp_path):
    """Writes config.json with fields changed, those that are None left out, and returns its path."""

    def write(**fields):
        path = tmp_path / "config.json"
        kept = {key: value for key, value in {**CONFIG, **fields}.items() if value is not None}
        path.write_text(json.dumps(kept), encoding="utf-8")
        return str(path)

    return write


def _error(call, *args, **kwargs):
    with pytest.raises(InputError) as caught:
        call(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_messages_are_kept_of_tests_that_exist():
    folder = Path(__file__).parent
    sources = "".join(path.read_text(encoding="utf-8") for path in folder.glob("test_*.py"))
    kept = json.loads((folder / "golden" / "messages.json").read_text(encoding="utf-8"))
    assert [name for name in kept if f"def {name.partition('[')[0]}(" not in sources] == []


def test_the_files_that_the_errors_are_made_from_load(chip, config):
    assert load_hardware(chip()).bandwidth() == 320e9
    assert load_model(config()).parameters == 2 * 10 * 8 + 2 * (4 * 8 * 8 + 3 * 8 * 16 + 2 * 8) + 8


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("llama-2-7", "llama-2-7b or llama-2-70b"),
        ("lama-2-7b", "llama-2-7b or llama-2-70b or llama-1-7b"),
        ("opt", "opt-13b or opt-30b or opt-66b or opt-1.3b or opt-125m or opt-175b"),
        ("gpt2x", "gpt2 or gpt2-xl or gpt-3"),
    ],
)
def test_error_for_an_unknown_model_suggests_the_nearest_names(name, nearest):
    assert _error(load_model, name).startswith(f"no model {name!r}: did you mean {nearest}?")
    assert "config.json" in _error(load_model, name)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("h10", "h100 or h100-nvl or h100-pcie"),
        ("rtx409", "rtx-4090 or rtx-4090-d or rtx-5090"),
        ("NVIDIA_A100", "a100-40g or a100-80g or a100-pcie or a100-80gb-pcie"),
        ("intel b580x", "b580 or b50 or b570"),
    ],
)
def test_error_for_an_unknown_device_suggests_the_nearest_names(name, nearest):
    assert _error(load_hardware, name).startswith(f"no hardware {name!r}: did you mean {nearest}?")


def test_error_for_a_vendor_name_shows_how_to_list_its_devices():
    assert _error(load_hardware, "Nvidia") == (
        "no hardware 'Nvidia': give one of its devices, which `llmviewer hardware Nvidia` lists"
    )


@pytest.mark.parametrize(("name", "one"), [("a100", "a100-80gb"), ("v100", "v100-sxm2 or"), ("nvidia a100", "a100")])
def test_prefix_of_a_name_suggests_it(name, one):
    assert one in _error(load_hardware, name)


def test_error_for_an_unknown_name_names_the_listing_command():
    assert "llmviewer models" in _error(load_model, "qqqq")
    assert "llmviewer hardware" in _error(load_hardware, "qqqq")


def test_error_for_a_name_without_similar_names_suggests_none():
    assert "no name is like it (`llmviewer models` lists all" in _error(load_model, "\u65e5\u672c")


def test_error_for_a_module_path_states_the_import_name():
    said = "/x/mine.py:tower: must be importable by name; in the folder of the file give mine:tower"
    assert _error(load_model, "/x/mine.py:tower") == said
    said = f"{__file__}: must be importable by name; in the folder of the file give test_errors:CALLABLE"
    assert _error(load_model, __file__) == said


def test_last_part_of_a_dotted_name_is_suggested():
    with pytest.raises(InputError, match=r"did you mean memory\.bandwidth or "):
        load_hardware("h100-sxm", ["bandwidth=2x"])


@for_each(
    "given, facts",
    [
        ({"model": None}, ("got None",)),
        ({"model": ["line\nline"]}, ("got ['line\\nline']",)),
        ({"model": [0] * 50}, ("got [0, 0, 0",)),
        ({"hardware": ["h100-sxm"]}, ("got ['h100-sxm']",)),
        ({"quant": 4}, ("got 4",)),
        ({"layout": {"tp": 2}}, ("got {'tp': 2}",)),
        ({"hardware_set": "memory.bandwidth=2x"}, ("got 'memory.bandwidth=2x'",)),
    ],
)
def test_arguments_of_analyze_must_have_the_right_type(golden, given, facts):
    with pytest.raises(InputError) as caught:
        analyze(**{"model": "llama-2-7b", "hardware": "h100-sxm"} | given)
    golden(str(caught.value), *given, *facts)


@pytest.mark.parametrize(("load", "name"), [(load_model, "model"), (load_hardware, "hardware")])
def test_model_and_hardware_arguments_must_be_text(load, name):
    assert _error(load, {"name": 1}) == f"{name} must be text; got {{'name': 1}}"


def test_a_name_that_is_too_long_for_a_file_is_none():
    assert _error(load_model, "a" * 5000).startswith("no model 'aaa")
    assert _error(load_hardware, "a" * 5000).startswith("no hardware 'aaa")


def test_an_empty_name_is_no_folder():
    assert _error(load_model, "").startswith("no model ''")


def test_a_folder_of_the_name_of_a_model_does_not_hide_it(tmp_path, monkeypatch):
    (tmp_path / "gpt2").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_model("gpt2").parameters == 124439808


@for_each(
    "old, new, facts",
    [
        ("bandwidth:", "bandwith:", ("memory.bandwith", "bandwidth")),
        ("memory:", "memmory:", ("memmory", "memory or shared_memory")),
        ("fp32:", "fp33:", ("vector.fp33", "fp32")),
        ("320 GB/s", "320 GB", ("memory.bandwidth", "got '320 GB'")),
        ("320 GB/s", "320 TOP/s", ("memory.bandwidth", "got '320 TOP/s'")),
        ("320 GB/s", "320 GBps", ("memory.bandwidth", "got '320 GBps'")),
        ("320 GB/s", "320", ("memory.bandwidth", "got 320")),
        ("320 GB/s", "-320 GB/s", ("memory.bandwidth", "got '-320 GB/s'")),
        ("320 GB/s", "0 GB/s", ("memory.bandwidth", "got '0 GB/s'")),
        ("320 GB/s", "nan GB/s", ("memory.bandwidth", "got 'nan GB/s'")),
        ("320 GB/s", "1e999 GB/s", ("memory.bandwidth", "got '1e999 GB/s'")),
        ("320 GB/s", ".nan", ("memory.bandwidth", "got nan")),
        ("bus_width: 256", "bus_width: .nan", ("memory.bus_width", "got NaN")),
        ("bus_width: 256", "bus_width: 256.5", ("memory.bus_width", "got 256.5")),
        ("bus_width: 256", "bus_width: -256", ("memory.bus_width", "got -256")),
        ("released: 2024", "released: soon", ("released", "got 'soon'")),
        ("  bandwidth: 320 GB/s\n", "", ("memory.bandwidth", "missing")),
        ("vector: {source: sheet, fp32: 10 TOP/s}\n", "", ("vector.fp32", "missing")),
        ("vendor: nobody\n", "", ("vendor", "missing")),
        ("{source: sheet, fp32", "{source: shet, fp32", ("vector.source", "got 'shet'")),
        ("{source: sheet, fp32", "{fp32", ("vector.source", "missing")),
        (
            "title: Chip\nvendor: nobody\nkind: gpu\n",
            "kind: gpu\nhost: {bandwidth: 64 GB/s}\n",
            ("title, vendor, host.source", "missing"),
        ),
        (CHIP[CHIP.index("vector:") :], "", ("vector.fp32, memory.capacity, memory.bandwidth", "missing")),
        (
            CHIP[CHIP.index("  sheet") :],
            "  sheet: {page: 3}\nvector: {fp32: 10 TOP/s}\nmemory: {capacity: 16 GiB}\n",
            ("sources.sheet.year, vector.source", "missing"),
        ),
        (
            "fp32: 10 TOP/s}\n",
            "fp32: {note: at boost}}\nhost: {bandwidth: {note: one way}}\n",
            ("host.source, vector.fp32.value, host.bandwidth.value", "missing"),
        ),
        ("year: 2024", "year: later", ("sources.sheet.year", "got 'later'")),
        (", year: 2024", "", ("sources.sheet.year", "missing")),
        ("name: chip", "name: chop", ("name", "got 'chop'")),
        ("kind: gpu", "kind: gpus", ("kind", "got 'gpus'")),
        ("vendor: nobody", "aliases: chap", ("aliases", "got 'chap'")),
    ],
)
def test_a_hardware_file_that_is_wrong(chip, golden, old, new, facts):
    path = chip(old, new)
    if "aliases" in new:
        path = chip(old, f"{old}\n{new}")
    golden(_error(load_hardware, path).replace(path, "chip.yaml"), *facts)


@for_each(
    "text, facts",
    [
        (CHIP.replace("  capacity:", "  capacity: 8 GiB\n  capacity:"), ("is not YAML: 'capacity' stands twice",)),
        (CHIP + "name: chip\n", ("is not YAML: 'name' stands twice",)),
        ("", ("got null",)),
        ("- a\n", ('got ["a"]',)),
        ("a: [1\n", ("is not YAML: did not find expected ',' or ']'",)),
        ("a:\n\tb: 1\n", ("is not YAML: found character that cannot start any token",)),
    ],
)
def test_a_file_that_is_no_mapping(tmp_path, golden, text, facts):
    path = tmp_path / "chip.yaml"
    path.write_text(text, encoding="utf-8")
    golden(_error(load_hardware, str(path)).replace(str(path), "chip.yaml"), *facts)


@pytest.mark.parametrize("content", [b"? [a]\n: b\n", b"a: \x07\n", b"\xff\xfe\x00"])
def test_a_file_that_is_no_text_or_has_keys_that_are_no_names_is_an_error_of_one_line(tmp_path, content):
    path = tmp_path / "chip.yaml"
    path.write_bytes(content)
    assert _error(load_hardware, str(path)).startswith(str(path))


def test_a_file_that_is_not_there_or_a_folder(tmp_path):
    for load, name in ((load_hardware, "no.yaml"), (load_model, "no.yaml"), (load_model, "no.json")):
        assert _error(load, str(tmp_path / name)) == f"{tmp_path / name}: no such file"
    folder = tmp_path / "folder.yaml"
    folder.mkdir()
    assert _error(load_hardware, str(folder)) == f"{folder}: is a folder; give a file"


def test_a_file_that_is_too_long_to_read_or_none(tmp_path):
    for load, name in ((load_hardware, "long.yaml"), (load_model, "long.yaml"), (load_model, "long.json")):
        with (tmp_path / name).open("wb") as file:
            file.truncate(2**26 + 1)
        assert _error(load, str(tmp_path / name)) == (
            f"{tmp_path / name}: must have at most 67108864 bytes; has 67108865"
        )
    os.mkfifo(tmp_path / "pipe.json")
    os.mkfifo(tmp_path / "pipe.gguf")
    for name in ("pipe.json", "pipe.gguf"):
        assert _error(load_model, str(tmp_path / name)) == f"{tmp_path / name}: is a device or a pipe; give a file"


@pytest.mark.parametrize("field", ["batch", "prompt", "gen", "kv_len"])
@pytest.mark.parametrize("value", [0, -1, 1.5, 2.0, "1", True, float("nan")])
def test_a_number_of_the_workload_must_be_whole_and_at_least_one(field, value):
    error = f"{field} must be a whole number of at least 1; got {value!r}"
    assert _error(analyze, "gpt2", "t4", **{field: value}) == error


@pytest.mark.parametrize(
    ("workload", "length"),
    [({"prompt": 2**40, "gen": 2}, 2**40 + 2), ({"prompt": 8, "kv_len": 2**40}, 2**40)],
)
def test_all_tokens_of_a_workload_must_be_few_enough_to_count(workload, length):
    error = "batch x tokens of a sequence must be at most 9007199254740992, the largest that is counted exactly; got "
    assert _error(analyze, "gpt2", "t4", batch=2**40, **workload) == f"{error}{2**40} x {length}"


@for_each(
    "quant, facts",
    [
        ("W", ("got 'W'",)),
        ("W4Q8", ("got 'W4Q8'",)),
        ("W4W8", ("got 'W4W8'",)),
        ("4 bit", ("got '4 bit'",)),
        ("4bit", ("got '4bit'",)),
        ("AWQ", ("got 'AWQ'",)),
        ("q4_k_l", ("q4_k_s or q4_k_m or q3_k_l",)),
        ("Wfp7", ("got 'Wfp7'",)),
        ("W-4", ("got 'W-4'",)),
        ("W4A16g", ("got 'W4A16g'",)),
        ("W4A16 W8", ("got 'W4A16 W8'",)),
        ("down_proj=", ("got ''",)),
        ("W9A8", ("got 9",)),
        ("W0", ("got 0",)),
        ("W4,down_proj=W44", ("got 44",)),
        ("W16g128", ("got 16 bits",)),
        ("Wnf4g64", ("got nf4",)),
        ("=W4", ("OPERATORS=SCHEME",)),
        ("W4,down_proj", ("'down_proj': must be OPERATORS=SCHEME",)),
        ("W4,,W8", ("'': must be OPERATORS=SCHEME",)),
        ("fp8,KV8", ("write fp8KV8",)),
        ("W4,o_proj=KV8", ("KV must be set for whole layers",)),
    ],
)
def test_a_quantization_that_does_not_parse(golden, quant, facts):
    golden(_error(analyze, "llama-2-7b", "t4", quant=quant), *facts)


@for_each(
    "change, facts",
    [
        ("memory.bandwidth", ("must be KEY=VALUE",)),
        ("", ("must be KEY=VALUE",)),
        ("memory.bandwith=2x", ("memory.bandwidth or ",)),
        ("memory.bandwidth=2 GB", ("got '2 GB'",)),
        ("memory.bandwidth=2", ("got '2'",)),
        ("memory.bandwidth=", ("got ''",)),
        ("memory.bandwidth=-1x", ("got '-1x'",)),
        ("memory.bandwidth=nan GB/s", ("got 'nan GB/s'",)),
        ("memory.bandwidth=1e30 TB/s", ("got '1e30 TB/s'",)),
        ("vector.fp32=1e-30 OP/s", ("got '1e-30 OP/s'",)),
        ("memory.bandwidth=0x", ("got 0",)),
        ("memory.bandwidth=0.0x", ("got 0",)),
        ("matrix.fp8=2x", ("no matrix.fp8 to multiply",)),
        ("memory.bus_width=1.5", ("got '1.5'",)),
    ],
)
def test_invalid_what_if_is_refused(golden, change, facts):
    golden(_error(analyze, "gpt2", "t4", hardware_set=(change,)), change or "a what-if", *facts)


def test_error_for_a_what_if_on_a_text_field_does_not_suggest_the_same_field():
    assert "did you mean memory.type" not in _error(analyze, "gpt2", "t4", hardware_set=("memory.type=HBM",))


def test_what_if_error_does_not_end_in_a_semicolon():
    assert not _error(analyze, "gpt2", "t4", hardware_set=("=2x",)).endswith(";")


@pytest.mark.parametrize("factor", ["9" * 400, "0." + "0" * 320 + "1"])
def test_a_factor_must_leave_a_rate_that_is_a_number(factor):
    _error(analyze, "gpt2", "t4", hardware_set=(f"memory.bandwidth={factor}x",))


def test_a_what_if_needs_a_device_by_name():
    error = "hardware_set needs hardware given by name; change a Hardware with dataclasses.replace"
    t4, changes = load_hardware("t4"), ("memory.bandwidth=2x",)
    assert _error(analyze, "gpt2", t4, hardware_set=changes) == error
    assert _error(advise, "gpt2", t4, hardware_set=changes) == error
    assert _error(estimate, "gemm", t4, {"M": 1, "N": 64, "K": 64}, hardware_set=changes) == error


@for_each(
    "call, changed, facts",
    [
        (simulate, {"years": "3"}, ("got '3'",)),
        (max_throughput, {"years": "3"}, ("got '3'",)),
        (simulate, {"policy": 3}, ("got 3",)),
        (simulate, {"expert_skew": "3"}, ("got '3'",)),
        (plan, {"years": "3"}, ("got '3'",)),
        (plan, {"batches": 0}, ("got 0",)),
        (plan, {"batches": "8"}, ("got '8'",)),
        (plan, {"quants": 8}, ("got 8",)),
        (plan, {"layouts": 2}, ("got 2",)),
        (plan, {"hardware": 4}, ("got 4",)),
        (plan, {"hardware_set": "memory.bandwidth=2x"}, ("got 'memory.bandwidth=2x'",)),
        (disaggregate, {"model": 5}, ("got 5",)),
        (disaggregate, {"batch": np.array([1, 2])}, ("got array([1, 2])",)),
        (analyze, {"batch": np.array([1, 2])}, ("got array([1, 2])",)),
        (advise, {"without": "speed"}, ("got 'speed'",)),
        (advise, {"without": 1}, ("got 1",)),
        (advise, {"profiles": "mine.yaml"}, ("got 'mine.yaml'",)),
        (estimate, {"kernel": 5}, ("got 5",)),
    ],
)
def test_arguments_of_the_wrong_type_are_refused_by_every_function(golden, call, changed, facts):
    usual = {
        analyze: {"model": "gpt2", "hardware": "l4"},
        simulate: {"model": "gpt2", "hardware": "l4", "rate": 1},
        max_throughput: {"model": "gpt2", "hardware": "l4"},
        plan: {"model": "gpt2", "hardware": "l4", "rate": 1},
        disaggregate: {"model": "gpt2", "prefill_hardware": "l4", "decode_hardware": "l4"},
        advise: {"model": "gpt2", "hardware": "l4"},
        estimate: {"kernel": "gemm", "hardware": "l4", "sizes": {"M": 1, "N": 64, "K": 64}},
    }
    golden(_error(call, **{**usual[call], **changed}), *changed, *facts)


def test_one_of_several_need_not_be_a_list():
    assert _error(plan, "gpt2", rate=1, hardware="no-such").startswith("no hardware 'no-such': ")
    assert _error(advise, "gpt2", "l4", techniques=["magic"]).startswith("no technique 'magic': ")
    assert advise("gpt2", "l4", without="model").without == (Requirement.NEW_WEIGHTS,)
    found = plan("gpt2", rate=1, hardware="l4", quants="fp8", layouts="", max_devices=1)
    assert (found.considered, found.quants) == (1, ("fp8",))


@for_each(
    "field, facts",
    [
        ("attention", ("got 'FLASH2'",)),
        ("accounting", ("got 'FLASH2'",)),
    ],
)
def test_an_unknown_attention_or_accounting(golden, field, facts):
    golden(_error(analyze, "gpt2", "t4", **{field: "FLASH2"}), field, *facts)


def test_a_device_without_a_unit_for_the_operands(chip):
    path = chip("fp32: 10 TOP/s}\nmatrix: {source: sheet, fp16: 100 TOP/s}", "fp32: 10 TOP/s}\nmatrix: {source: sheet}")
    assert analyze("gpt2", path).phases.decode.operators[2].compute_dtype == "fp32"
    wide = _error(analyze, "gpt2", path, quant="Wfp64A16")
    assert wide == (
        "chip has no unit for matrix fp64; it has memory, vector fp32. "
        "Choose another precision with --quant or another device"
    )


@for_each(
    "fields, facts",
    [
        ({"model_type": "minicpm", "intermediate_size": None}, ("intermediate_size", "missing")),
        ({"model_type": None}, ("model_type", "missing")),
        ({"model_type": 3}, ("model_type", "got 3")),
        ({"hidden_size": "8"}, ("hidden_size", "got '8'")),
        ({"hidden_size": 8.5}, ("hidden_size", "got 8.5")),
        ({"hidden_size": -8}, ("hidden_size", "got -8")),
        ({"hidden_size": 0}, ("hidden_size", "got 0")),
        ({"hidden_size": True}, ("hidden_size", "got true")),
        ({"hidden_size": [8]}, ("hidden_size", "got [8]")),
        ({"hidden_size": float("nan")}, ("hidden_size", "got NaN")),
        ({"torch_dtype": "int8"}, ("torch_dtype", "got 'int8'")),
        ({"hidden_act": "mish"}, ("hidden_act", "got 'mish'")),
        ({"tie_word_embeddings": "yes"}, ("tie_word_embeddings", "got 'yes'")),
        ({"model_type": "mistral", "sliding_window": 0}, ("sliding_window", "got 0")),
    ],
)
def test_a_config_that_is_wrong(config, golden, fields, facts):
    path = config(**fields)
    golden(_error(load_model, path).replace(path, "config.json"), *facts)


@pytest.mark.parametrize(
    "fields",
    [
        {"num_attention_heads": 3},  # 8 does not divide over 3 heads, and head_dim is not given
        {"num_attention_heads": 16},  # heads of no size
        {"num_attention_heads": 4, "num_key_value_heads": 3},  # 4 heads cannot share 3
        {"num_key_value_heads": 8},  # more KV heads than heads
        {"model_type": "gptj", "n_embd": 8, "n_layer": 1, "n_head": 2, "rotary_dim": 100},  # more than a head has
    ],
)
def test_config_with_impossible_head_counts_is_refused(config, fields):
    path = config(**fields)
    assert _error(load_model, path).startswith(f"{path}: ")


@for_each(
    "text, facts",
    [
        ("{", ("is not JSON",)),
        ("", ("is not JSON: Expecting value",)),
        ("[]", ("got []",)),
        ("null", ("got null",)),
        ("{}", ("model_type: is missing", "missing")),
    ],
)
def test_a_config_that_is_no_json_object(tmp_path, golden, text, facts):
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    golden(_error(load_model, str(path)).replace(str(path), "config.json"), *facts)


TODO = "give package.module:callable to trace its module, or describe it in a YAML file (`llmviewer docs models`)"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model_type": "lama"}, "'lama'; it is spelt like llama or mllama or llama4; "),
        ({"model_type": "quux", "architectures": ["LlamaForCausalLM"]}, "'quux'; by its class it is a llama; "),
        ({"model_type": "quux", "kv_lora_rank": 512, "qk_rope_head_dim": 64, "n_routed_experts": 8,
          "first_k_dense_replace": 1, "moe_layer_freq": 1},
         "'quux'; by its fields it is nearest to deepseek_v2 (moe_layer_freq, kv_lora_rank, "),
        ({"model_type": "quux", "num_local_experts": 8, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.1},
         "'quux'; by its fields it is nearest to "),
        ({"model_type": "quux", "ssm_state_size": 128, "mamba_num_heads": 8},
         "'quux'; by its fields it is nearest to nemotron_h (mamba_num_heads, ssm_state_size); "),
    ],
)  # fmt: skip
def test_error_for_an_unknown_architecture_names_the_nearest_family(config, fields, said):
    path = config(**fields)
    error = _error(load_model, path)
    assert error.startswith(f"{path}: model_type: no architecture for {said}")
    assert error.endswith(TODO)
    assert _error(load_model, config(**fields, auto_map={"AutoConfig": "code.Config"})) == (
        f"{error}; the code that its auto_map names is never run"
    )


def test_ties_between_nearest_families_resolve_alphabetically(config):
    """Whatever the order in which a run of Python has the fields of a set: with this seed sums of floats differ."""
    published = dict(read_yaml(data_dir("models") / "glm-4-9b.yaml").section("config").data)
    code = "import sys; from llmviewer.model_files import load_model; load_model(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, config(**published | {"model_type": "quux"})],
        env=os.environ | {"PYTHONHASHSEED": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "by its fields it is nearest to glm (partial_rotary_factor, " in done.stderr


def test_a_folder_without_a_config(tmp_path):
    error = f"{tmp_path}: is a folder without a config.json; give a folder with one, or the file"
    assert _error(load_model, str(tmp_path)) == error


LORA = {"peft_type": "LORA", "base_model_name_or_path": "meta-llama/Llama-2-7b-hf", "r": 8,
        "target_modules": ["q_proj", "model.layers.0.self_attn.v_proj", "model.layers.1.self_attn.v_proj"]}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, ("is a LoRA adapter, not a model; give its base model, meta-llama/Llama-2-7b-hf, --with "
         "lora:rank=8,targets=q_proj+v_proj")),
        ({"base_model_name_or_path": None, "target_modules": "all-linear"},
         "is a LoRA adapter, not a model; give its base model, --with lora:rank=8"),
        ({"base_model_name_or_path": "a\nb", "r": None, "target_modules": None},
         "is a LoRA adapter, not a model; give its base model, --with lora"),
        ({"peft_type": "IA3"}, ("is an adapter, not a model, of a kind that nothing here counts; give its base model, "
         "meta-llama/Llama-2-7b-hf")),
    ],
)  # fmt: skip
def test_error_for_an_adapter_names_its_base_model_and_technique(tmp_path, fields, said):
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / file).write_text(json.dumps({**LORA, **fields}))
        for given in (tmp_path, tmp_path / file):
            assert _error(load_model, str(given)) == f"{given}: {said}"


def test_a_field_that_nothing_reads_is_noted(config):
    path = config(mystery={"bits": 4})
    assert load_model(path).notes == (f"fields of {path} that nothing here reads: mystery",)


@pytest.mark.parametrize(
    ("fields", "dtype", "why"),
    [
        ({}, "bf16", "as most llama models that ship"),
        ({"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 2, "n_positions": 9}, "fp16",
         "in which models are usually served"),
        ({"model_type": "arcee"}, "fp16", "in which models are usually served"),
    ],
)  # fmt: skip
def test_config_without_a_dtype_is_noted(config, fields, dtype, why):
    path = config(**fields, torch_dtype=None)
    model = load_model(path)
    assert model.format.name == dtype
    assert f"no torch_dtype in its config: counts as {dtype}, {why}" in model.notes
    assert load_model(config(**fields, torch_dtype="float32")).format.name == "fp32"


def test_options_without_effect_or_kernel_are_noted():
    notes = analyze("llama-2-7b", "t4", quant="W4A16g4096", mla="absorbed").notes
    assert "mla absorbed has no effect: llama-2-7b has no latent attention" in notes
    assert "quantization groups of 4096 do not divide rows of 11008 (down_proj): kernels refuse or pad them" in notes
    assert (
        "weights of q_proj, k_proj, v_proj, o_proj and 3 more in int4 (one scale per 128) are converted and "
        "multiplied in fp16: activations are in fp16, and matrix units need both operands in one type"
    ) in analyze("llama-2-7b", "t4", quant="W4A16g128").notes
    changes = ["scale_up.bandwidth=2x", "power.tdp=2x", "price.cloud=2x", "sparse.bf16=2x"]
    noted = analyze("llama-2-7b", "h100-sxm", hardware_set=changes).notes
    assert (
        "scale_up.bandwidth=2x: has no effect on one device; use it with --tp or another degree of parallelism" in noted
    )
    assert "price.cloud=2x: changes no time; compare, choose and plan use it" in noted
    assert "sparse.bf16=2x: affects only analyses with --with sparsity" in noted
    assert any(note.startswith("power.tdp=2x: changes no bound, and expected times only") for note in noted)
    noted = analyze("llama-2-7b", "h100-sxm", layout="tp=2", hardware_set=["scale_up.bandwidth=2x"]).notes
    assert not [note for note in noted if "sends nothing" in note]
    assert "30,000 tokens are more than the 1,500 positions of whisper-tiny" in (
        analyze("whisper-tiny", "t4", prompt=30000).notes
    )


def test_more_tokens_than_positions_are_noted():
    found = analyze("gpt2", "t4", prompt=1000, gen=100)
    assert "1,100 tokens are more than the 1,024 positions of gpt2" in found.notes
    assert not [note for note in analyze("gpt2", "t4", prompt=1000, gen=24).notes if "positions" in note]
