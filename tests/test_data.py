"""Every file of hardware/ and models/: it loads, its sources resolve, its numbers are physically possible."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from llmviewer._layout import data_dir
from llmviewer.documents import read_yaml
from llmviewer.hardware_files import hardware_names, load_hardware
from llmviewer.model_files import load_model, model_names
from llmviewer.resource import MEMORY, Resource, Unit, matrix, vector

GPUS = [name for name in hardware_names() if load_hardware(name).kind == "gpu"]
WITH_MATRIX_UNITS = [name for name in hardware_names() if matrix("fp16") in load_hardware(name).rates]
FLOATS = ("fp64", "tf32", "fp16", "fp8", "fp6", "fp4")  # from wide to narrow
INTEGERS = ("int8", "int4", "int1")


def _value(name, key):
    return next((fact.value for fact in load_hardware(name).facts if fact.key == key), None)


def test_there_is_what_the_documentation_promises():
    assert len(hardware_names()) >= 20
    assert len(model_names()) >= 50


@pytest.mark.parametrize("name", hardware_names())
def test_every_device_loads_by_its_name_and_its_aliases(name):
    device = load_hardware(name)
    assert device.name == name
    assert device.title
    for alias in device.aliases:
        assert load_hardware(alias) == load_hardware(alias.upper()) == device


@pytest.mark.parametrize("name", model_names())
def test_every_model_loads_by_its_name_and_its_aliases(name):
    model = load_model(name)
    assert model.name == name
    assert model.source
    assert model.notes == ()  # no field of a shipped config goes unread
    for alias in model.aliases:
        assert load_model(alias) == load_model(alias.upper()) == model


@pytest.mark.parametrize(("kind", "names"), [("hardware", hardware_names()), ("models", model_names())])
def test_no_two_files_claim_a_name(kind, names):
    claimed = Counter(names)
    for name in names:
        claimed.update(alias.lower() for alias in read_yaml(data_dir(kind) / f"{name}.yaml").texts("aliases"))
    assert [name for name, times in claimed.items() if times > 1] == []


@pytest.mark.parametrize("name", hardware_names())
def test_every_number_has_a_source_with_a_title_and_a_year_and_every_source_is_used(name):
    device = load_hardware(name)
    for fact in device.facts:
        assert fact.source in device.sources
    for source in device.sources.values():
        assert source.title
        assert 1970 <= source.year <= 2026
    assert {fact.source for fact in device.facts} == set(device.sources)


@pytest.mark.parametrize("name", hardware_names())
def test_every_file_says_what_its_numbers_are(name):
    comment = (data_dir("hardware") / f"{name}.yaml").read_text(encoding="utf-8").split("\nname:")[0]
    assert comment.startswith("# ")
    for said in ("clock", "multiply-add is", "two OPs", "one way"):
        assert said in " ".join(comment.replace("\n#", " ").split())


@pytest.mark.parametrize("name", hardware_names())
def test_sparse_rates_are_twice_the_dense_ones(name):
    for fact in load_hardware(name).facts:
        section, _, dtype = fact.key.partition(".")
        if section == "sparse":
            assert fact.value == pytest.approx(2 * _value(name, f"matrix.{dtype}"), rel=0.01)


@pytest.mark.parametrize("name", hardware_names())
@pytest.mark.parametrize("family", [FLOATS, INTEGERS])
@pytest.mark.parametrize("unit", ["matrix", "sparse"])
def test_matrix_rates_do_not_fall_as_bits_do(name, family, unit):
    rates = [rate for dtype in family if (rate := _value(name, f"{unit}.{dtype}"))]
    assert rates == sorted(rates)


@pytest.mark.parametrize("name", hardware_names())
def test_the_two_sixteen_bit_types_are_multiplied_alike(name):
    bf16 = _value(name, "matrix.bf16")
    assert bf16 is None or bf16 == _value(name, "matrix.fp16")


@pytest.mark.parametrize("name", WITH_MATRIX_UNITS)
def test_matrix_units_are_faster_than_vector_units(name):
    rates = load_hardware(name).rates
    assert rates[vector("fp32")] < rates[matrix("fp16")]
    assert rates.get(vector("fp16"), 0) < rates[matrix("fp16")]


@pytest.mark.parametrize("name", hardware_names())
def test_ridge_points_are_ordered_and_plausible(name):
    device = load_hardware(name)
    ridge = {resource: rate / device.bandwidth() for resource, rate in device.rates.items() if resource != MEMORY}
    assert 1 < ridge[vector("fp32")] < 200
    for wide, narrow in (("tf32", "fp16"), ("fp16", "fp8"), ("fp16", "int8"), ("int8", "int4")):
        if {matrix(wide), matrix(narrow)} <= ridge.keys():
            assert ridge[matrix(wide)] < ridge[matrix(narrow)]
    if matrix("fp16") in ridge:
        assert 50 < ridge[matrix("fp16")] < 700


@pytest.mark.parametrize("name", hardware_names())
def test_the_chip_holds_less_than_a_gigabyte_and_less_than_the_memory(name):
    device = load_hardware(name)
    assert 1e6 < device.on_chip_bytes < 1e9
    assert device.capacity > 4e9
    usable = _value(name, "memory.usable")
    if usable is not None:
        assert 0.85 * _value(name, "memory.capacity") < usable <= _value(name, "memory.capacity")


@pytest.mark.parametrize("name", hardware_names())
def test_bandwidth_is_the_width_of_the_bus_times_a_possible_rate_a_pin(name):
    width = _value(name, "memory.bus_width")
    if width:  # not published for every device
        assert 0.8 < load_hardware(name).bandwidth() * 8 / width / 1e9 < 32  # [Gbit/s]


@pytest.mark.parametrize("name", GPUS)
def test_the_matrix_rate_is_a_whole_number_of_ops_a_core_and_clock(name):
    """A power of two for each of the cores at the boost clock, within the rounding of the datasheets."""
    cores, clock = _value(name, "cores.count"), _value(name, "clock.boost")
    if cores and clock and (rate := _value(name, "matrix.fp16")):
        ops = rate / (cores * clock)
        nearest = min((256, 512, 1024, 2048, 4096), key=lambda n: abs(n - ops))
        assert ops == pytest.approx(nearest, rel=0.03)


@pytest.mark.parametrize("name", hardware_names())
def test_memory_is_faster_than_the_link_and_the_link_than_the_host(name):
    speeds = [_value(name, f"{part}.bandwidth") for part in ("memory", "link", "host")]
    known = [speed for speed in speeds if speed]
    assert known == sorted(known, reverse=True)


@pytest.mark.parametrize("name", hardware_names())
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
    ],
)
def test_dense_rates_of_datasheets(name, key, value):
    assert _value(name, key) == pytest.approx(value, rel=0.001)


def test_no_hopper_has_int4_units():
    for name in ("h100-sxm", "h100-pcie", "h200-sxm"):
        assert matrix("int4") not in load_hardware(name).rates


SIZE = re.compile(r"(?:^|-)(\d+)b(\d)$|(?:^|-)(\d+(?:\.\d+)?)([bm])(?=-|$)")


@pytest.mark.parametrize("name", model_names())
def test_models_are_as_large_as_their_names_say(name):
    found = [match for match in SIZE.finditer(name) if name != "olmoe-1b-7b"]  # which has 1 B active, 7 B in all
    if not found:
        return
    whole, tenths, number, unit = found[0].groups()  # 7b1 is 7.1 billion
    billions = float(f"{whole}.{tenths}") if whole else float(number) * (1 if unit == "b" else 1e-3)
    assert load_model(name).parameters / 1e9 == pytest.approx(billions, rel=0.35)  # falcon-rw-1b has 1.3


@pytest.mark.parametrize("name", model_names())
def test_models_have_the_shapes_of_decoders(name):
    model = load_model(name)
    state = "state" in model.attention
    assert 6 <= model.graph.layers <= 126
    assert model.max_context >= 1024 or state
    assert model.kv_bytes_per_token > 0 or model.attention == "state"
    sparse = any(op.kind == "experts" for _, op in model.graph)
    assert model.active_parameters < model.parameters if sparse else model.active_parameters == model.parameters
