"""Every file of hardware/ and models/: it loads, its sources resolve, its numbers are physically possible."""

from __future__ import annotations

import re
from collections import Counter
from math import isinf

import pytest

from llmviewer._layout import data_dir
from llmviewer.devices.checks import violations
from llmviewer.devices.files import hardware_names, load_hardware
from llmviewer.documents import read_yaml
from llmviewer.model_files import load_model, model_names
from llmviewer.resource import MEMORY, Resource, Unit, matrix, vector

from .cases import for_each, gpus

UNSAID = "no torch_dtype in its config: counts as fp16, in which models are usually served"


def nvidia():
    return gpus("nvidia")


def _value(name, key):
    return next((fact.value for fact in load_hardware(name).facts if fact.key == key), None)


def test_at_least_80_devices_and_50_models_ship():
    assert len(hardware_names()) >= 80
    assert len(model_names()) >= 50


@for_each("name", hardware_names)
def test_every_device_loads_by_its_name_and_its_aliases(name):
    device = load_hardware(name)
    assert device.name == name
    assert device.title
    for alias in device.aliases:
        assert load_hardware(alias) == load_hardware(alias.upper()) == device


@for_each("name", model_names)
def test_every_model_loads_by_its_name_and_its_aliases(name):
    model = load_model(name)
    assert model.name == name
    assert model.source
    assert model.notes in ((), (UNSAID,))  # no field of a shipped config goes unread
    for alias in model.aliases:
        assert load_model(alias) == load_model(alias.upper()) == model


@pytest.mark.parametrize(("kind", "names"), [("hardware", hardware_names()), ("models", model_names())])
def test_no_two_files_claim_a_name(kind, names):
    claimed = Counter(names)
    for name in names:
        claimed.update(alias.lower() for alias in read_yaml(data_dir(kind) / f"{name}.yaml").texts("aliases"))
    assert [name for name, times in claimed.items() if times > 1] == []


@for_each("name", hardware_names)
def test_the_numbers_of_every_device_fit_together(name):
    assert violations(load_hardware(name)) == ()


@for_each("name", hardware_names)
def test_every_hardware_file_states_its_number_conventions(name):
    comment = (data_dir("hardware") / f"{name}.yaml").read_text(encoding="utf-8").split("\nname:")[0]
    assert comment.startswith("# ")
    for said in ("clock", "multiply-add is", "two OPs", "one way"):
        assert said in " ".join(comment.replace("\n#", " ").split())


@for_each("name", nvidia)
def test_ridge_points_of_gpus_are_ordered_and_plausible(name):
    device = load_hardware(name)
    ridge = {resource: rate / device.bandwidth() for resource, rate in device.rates.items() if resource != MEMORY}
    assert 1 < ridge[vector("fp32")] < 200
    for wide, narrow in (("tf32", "fp16"), ("fp16", "fp8"), ("int8", "int4")):
        if {matrix(wide), matrix(narrow)} <= ridge.keys():
            assert ridge[matrix(wide)] < ridge[matrix(narrow)] or (name, narrow) == ("l40s", "int4")
    if matrix("fp16") in ridge:
        assert ridge[vector("fp32")] < ridge[matrix("fp16")]
        assert 30 < ridge[matrix("fp16")] < 1300  # the H20 and the Jetson Thor


@for_each("name", gpus)
def test_the_chip_of_a_gpu_holds_less_than_a_gigabyte_and_less_than_the_memory(name):
    device = load_hardware(name)
    assert 1e6 < device.on_chip_bytes < 1e9 or isinf(device.on_chip_bytes)
    assert device.capacity > 4e9


@for_each("name", hardware_names)
def test_bandwidth_is_the_width_of_the_bus_times_a_possible_rate_a_pin(name):
    width = _value(name, "memory.bus_width")
    if width:  # not published for every device
        assert 0.8 < load_hardware(name).bandwidth() * 8 / width / 1e9 <= 32  # [Gbit/s]


@for_each("name", nvidia)
def test_the_matrix_rate_is_a_whole_number_of_ops_a_core_and_clock(name):
    """A power of two for each of the cores at the clock it holds at, within the rounding of the datasheets."""
    cores, clock = _value(name, "cores.count"), _value(name, "clock.matrix") or _value(name, "clock.boost")
    if cores and clock and (rate := _value(name, "matrix.fp16")):
        ops = rate / (cores * clock)
        nearest = min((256, 512, 1024, 2048, 4096, 8192), key=lambda n: abs(n - ops))
        assert ops == pytest.approx(nearest, rel=0.03)


@for_each("name", nvidia)
def test_a_pair_of_cards_is_bridged_and_a_switch_joins_more(name):
    kind = {fact.key: fact.value for fact in load_hardware(name).facts}
    if "scale_up.topology" in kind:
        assert ("bridge" in kind["scale_up.type"]) == (kind["scale_up.topology"] == "pair" or name == "h200-nvl")


@for_each("name", hardware_names)
def test_every_rate_of_the_file_reaches_the_roofline(name):
    device = load_hardware(name)
    for fact in device.facts:
        section, _, key = fact.key.partition(".")
        if section in ("matrix", "vector"):
            assert device.rates[Resource(Unit(section), key)] == fact.value


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("a100-sxm-80gb", "matrix.fp16", 312e12),  # NVIDIA A100 whitepaper
        ("a100-sxm-80gb", "memory.bandwidth", 2039e9),
        ("a100-sxm-40gb", "memory.bandwidth", 1555e9),
        ("a100-pcie-80gb", "memory.bandwidth", 1935e9),
        ("h100-sxm", "matrix.fp16", 989.4e12),  # NVIDIA H100 whitepaper v1.04
        ("h100-sxm", "matrix.fp8", 1978.9e12),
        ("h200-sxm", "memory.bandwidth", 4.8e12),
        ("v100-sxm2-32gb", "matrix.fp16", 125e12),
        ("t4", "matrix.int8", 130e12),
        ("rtx-a6000", "memory.bandwidth", 768e9),
        ("rtx-4090", "memory.bandwidth", 1008e9),
        ("rtx-3090", "memory.bandwidth", 936e9),
        ("l4", "memory.bandwidth", 300e9),
        ("rtx-5090", "matrix.fp16", 209.5e12),  # NVIDIA RTX Blackwell whitepaper, fp32 accumulation
        ("rtx-pro-6000", "matrix.fp16", 503.8e12),
        ("rtx-pro-6000", "memory.bandwidth", 1792e9),
        ("b200", "matrix.fp4", 9e15),  # NVIDIA Blackwell datasheet, half of the sparse rate
        ("gb200", "matrix.fp8", 5e15),
        ("gh200", "memory.bandwidth", 4e12),
        ("a30", "matrix.int8", 330.3e12),
        ("rtx-a5000", "sparse.fp16", 222.2e12),
    ],
)
def test_dense_rates_of_datasheets(name, key, value):
    assert _value(name, key) == pytest.approx(value, rel=0.001)


def test_int4_units_ended_with_ada():
    for name in nvidia():
        device = load_hardware(name)
        if device.architecture in ("hopper", "blackwell", "blackwell ultra", "rubin"):
            assert matrix("int4") not in device.rates


SIZE = re.compile(r"(?:^|-)(\d+)b(\d)$|(?:^|-)(\d+(?:\.\d+)?)([bm])(?=-|$)")


@for_each("name", model_names)
def test_model_parameters_match_the_size_in_their_names(name):
    found = [match for match in SIZE.finditer(name) if name != "olmoe-1b-7b"]  # which has 1 B active, 7 B in all
    if not found:
        return
    whole, tenths, number, unit = found[0].groups()  # 7b1 is 7.1 billion
    billions = float(f"{whole}.{tenths}") if whole else float(number) * (1 if unit == "b" else 1e-3)
    assert load_model(name).parameters / 1e9 == pytest.approx(billions, rel=0.35)  # falcon-rw-1b has 1.3


@for_each("name", model_names)
def test_models_have_the_shapes_of_what_they_do(name):
    model = load_model(name)
    decoder = model.generates and not model.is_encoder_decoder
    assert (2 if decoder else 4) <= model.graph.layers <= 128  # LLaMA 68M has two, Whisper tiny four
    assert model.max_context >= 1024 or not decoder or "state" in model.attention
    assert (model.kv_bytes_per_token > 0) == model.generates or model.attention == "state"
    sparse = any(op.kind == "experts" for _, op in model.graph)
    towers = model.has_tower or model.image_input_tokens  # they are not run for a token
    assert model.active_parameters <= model.parameters
    assert (model.active_parameters < model.parameters) == sparse or towers
