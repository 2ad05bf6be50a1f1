"""compare(): every cell equals its own analyze(); crossings and sensitivities against brute force."""

import csv
import io
import json
import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import llmviewer
from llmviewer.analyzing.costs import hourly
from llmviewer.cli import main
from llmviewer.comparing.breakdown import ALL, GROUPS, RESOURCES
from llmviewer.comparing.cells import memory_share
from llmviewer.comparing.comparison import compare
from llmviewer.comparing.fleet import fleets
from llmviewer.devices.files import hardware_names, load_hardware
from llmviewer.devices.hardware import Fact, Hardware
from llmviewer.errors import InputError
from llmviewer.generation import generation
from llmviewer.reports.comparison import REPORT
from llmviewer.reports.comparison_tables import expectations
from llmviewer.resource import MEMORY, matrix, vector
from llmviewer.roofline import plan
from llmviewer.setting import Setting
from llmviewer.transforms.quantize import PUBLISHED
from llmviewer.units import seconds
from llmviewer.workload import Workload

from .cases import first_fast

DEVICES = ("h100-sxm", "rtx-4090", "v100-sxm2-16gb", "i9-13900k", "m2-ultra", "tpu-v5e")
MODELS = ("llama-2-7b", "mixtral-8x7b", "deepseek-v2-lite", "jamba-v0.1", "gpt-oss-20b")


@pytest.fixture(scope="module")
def two():
    return compare("llama-2-13b", ["h100-sxm", "rtx-4090"], quants=[PUBLISHED, "W4A16g128"], batch=[1, 8], gen=64)


def alone(cell, batch, *, prompt=1024, gen=64, kv_len=None):
    quant = None if cell.given_quant == PUBLISHED else cell.given_quant
    return llmviewer.analyze(cell.model, cell.hardware, batch=batch, prompt=prompt, gen=gen, quant=quant, kv_len=kv_len)


@pytest.mark.parametrize("model", first_fast(MODELS, "analyzes each cell alone"))
def test_every_cell_equals_its_own_analysis(model):
    found = compare(model, DEVICES, quants=[PUBLISHED, "W8A8KV8"], batch=[1, 3], prompt=700, gen=50)
    assert [(c.given_quant, c.hardware.name) for c in found.cells] == [
        (quant, device) for quant in (PUBLISHED, "W8A8KV8") for device in DEVICES
    ]
    for cell in found.cells:
        for place, batch in enumerate(found.batches):
            one = alone(cell, batch, prompt=700, gen=50)
            for name in ("ttft_s", "tpot_s", "latency_s", "tokens_per_s"):
                assert getattr(cell, name)[place] == pytest.approx(getattr(one.generation, name), rel=1e-12)
            assert cell.total_bytes[place] == pytest.approx(one.memory.total_bytes, rel=1e-15)
            assert cell.fits[place] == one.memory.fits
            assert cell.largest.batch == one.memory.max_batch
            assert cell.weight_bytes == one.memory.weight_bytes


def test_expected_times_of_a_cell_equal_its_own_analysis():
    found = compare("mixtral-8x7b", DEVICES, quants=["W8A8KV8"], batch=[1, 30], prompt=700, gen=300)
    known = [cell for cell in found.cells if cell.expected]
    assert {cell.hardware.name for cell in known} == {"h100-sxm", "rtx-4090", "v100-sxm2-16gb", "m2-ultra"}
    for cell in known:
        for place, batch in enumerate(found.batches):
            one = alone(cell, batch, prompt=700, gen=300)
            for name in ("ttft", "tpot"):
                interval = getattr(cell.expected, name)
                for end, side in (("", "expected"), ("_low", "low"), ("_high", "high")):
                    said = getattr(one.generation, f"expected_{name}{end}_s")
                    assert getattr(interval, side)[place] == pytest.approx(said, rel=1e-6)  # gemm counts in 32 bits
            assert cell.ttft_s[place] <= cell.expected.ttft.low[place]
        assert cell.expected.source == one.phases.prefill.total.expectation_source


def test_batches_can_be_an_array():
    plain, array = (compare("gpt2", ["t4"], batch=batch, bound=True) for batch in ([1, 2], np.array([1, 2])))
    assert plain.batches == array.batches == (1, 2)


def test_rows_have_bounds_and_optional_expected_times():
    asked = {"batch": [1, 8], "prompt": 100, "gen": 9}
    both, bound = (compare("llama-3-8b", ["h100-sxm", "tpu-v5e"], bound=bound, **asked) for bound in (False, True))
    of_h100, other, of_tpu, _ = both.rows()
    assert of_h100["ttft_s"] < of_h100["expected_ttft_low_s"] < of_h100["expected_ttft_s"]
    assert of_h100["expected_tpot_s"] < of_h100["expected_tpot_high_s"] < other["expected_tpot_high_s"]
    assert of_h100["expectation_source"] == "calibrated on h100-sxm trtllm"
    assert of_tpu["expected_ttft_s"] is of_tpu["expectation_source"] is None
    assert {row["expected_tpot_s"] for row in bound.rows()} == {None}
    title = "Expected times"
    assert title in REPORT.text(both)
    assert title not in REPORT.text(bound)
    assert max(map(len, REPORT.text(both).splitlines())) <= 80
    read = compare("bert-base-uncased", ["h100-sxm"], prompt=100).cells[0]
    assert read.expected.tpot is None
    table = expectations(compare("bert-base-uncased", ["h100-sxm"], prompt=100), [read])
    assert [item.text for item in table.body[0][7:9]] == ["-", "-"]


def test_report_names_the_source_device_of_transferred_expectations():
    def told(*names):
        return " ".join(REPORT.text(compare("llama-3.1-8b", names)).split())

    found = compare("llama-3.1-8b", ["mi300x"])
    source = found.expected(found.cells[0]).source.removeprefix("transferred from ")
    assert f"(median: of all their libraries): mi300x mostly as {source}. JSON" in told("h100-sxm", "mi300x")
    assert "mostly as" not in told("h100-sxm", "b200")
    assert "mostly as" not in told("mi300x", "rtx-4090", "l4", "b300", "a10")


def test_a_library_and_profiles_are_those_of_analyze(capsys):
    asked = [compare("llama-3-8b", ["h100-sxm"], library=name) for name in ("vllm", "")]
    vllm, best = (found.cells[0] for found in asked)
    assert [found.inputs.get("library") for found in asked] == ["vllm", None]
    assert (vllm.library, best.library) == ("vllm", "trtllm")
    assert vllm.expected.source == "calibrated on h100-sxm vllm"
    assert vllm.ttft_s == best.ttft_s
    assert main(["compare", "llama-3-8b", "h100", "--library", "vlm"]) == 2
    assert capsys.readouterr().err.startswith("llmviewer: no kernels of a library 'vlm' were measured")
    assert main(["compare", "llama-3-8b", "h100", "--profile", "none.yaml"]) == 2
    assert capsys.readouterr().err == "llmviewer: none.yaml: no such file\n"
    assert main(["compare", "llama-3-8b", "h100", "--bound"]) == 0
    assert "expect" not in capsys.readouterr().out


@pytest.mark.slow("looks at every number")
def test_every_device_that_ships_takes_as_long_in_a_fleet_as_alone():
    for cell in compare("llama-3.1-8b", hardware_names(), quants=["W8A8"], batch=2, gen=9, bound=True).cells:
        one = generation(cell.setting.plan, cell.setting.decode_plan, batch=2, prompt=1024, gen=9)
        assert cell.ttft_s[0] == pytest.approx(one.ttft_s, rel=1e-12), cell.hardware.name
        assert cell.tpot_s[0] == pytest.approx(one.tpot_s, rel=1e-12), cell.hardware.name


@pytest.mark.parametrize("device", DEVICES)
def test_a_fleet_of_one_is_a_plan(device):
    setting = Setting.of("mixtral-8x7b", device, quant="fp8")
    (fleet,), refused = fleets([setting.graph], [setting.hardware])
    assert refused == {}
    batch = np.arange(1.0, 9)
    for workload in (Workload.prefill(batch=batch, prompt=100), Workload.decode(batch=batch, kv_len=100)):
        estimate = plan(setting.graph, setting.hardware).estimate(workload)
        np.testing.assert_allclose(np.ravel(fleet.time_s(workload)), estimate.time_s, rtol=1e-13)
        waits = fleet.waits(workload)
        np.testing.assert_allclose(np.ravel(sum(waits.values())), estimate.time_s, rtol=1e-13)
        for place in range(len(batch)):
            expected = {}
            for row in estimate.operators:
                key = row.operator.kind, row.limiting[place].unit
                expected[key] = expected.get(key, 0) + row.repeat * row.time_s[place]
            found = {key: float(np.broadcast_to(t, (1, 8))[0, place]) for key, t in waits.items()}
            assert {k: v for k, v in found.items() if v} == pytest.approx({k: v for k, v in expected.items() if v})


def test_time_shares_equal_those_of_the_analysis(two):
    for cell in two.cells:
        for name, own in cell.passes.items():
            for place, batch in enumerate(two.batches):
                phase = getattr(alone(cell, batch, kv_len=1024 + 32).phases, name)
                assert own.time_s[place] == pytest.approx(phase.total.bound_time_s, rel=1e-12)
                assert own.bound(place) == phase.total.bound
                attention = sum(op.bound_time_s for op in phase.operators if op.kind == "attention")
                assert own.share(place, group="attention") == pytest.approx(attention / phase.total.bound_time_s)
                for bound, time_s in phase.total.time_by_bound_s.items():
                    assert own.spent(bound=bound)[place] == pytest.approx(time_s)
            assert sum(own.share(group=g) for g in GROUPS) == pytest.approx(1)


def test_sensitivities_are_derivatives():
    found = compare("llama-3.1-8b", ["l40s"], batch=40, prompt=300, gen=64)
    (cell,) = found.cells
    for name, own in cell.passes.items():
        shares = own.sensitivity()
        assert sum(shares.values()) == pytest.approx(1)
        for resource in RESOURCES:
            rates = {k: v * (1.000001 if k.unit == resource else 1) for k, v in cell.hardware.rates.items()}
            faster = replace(cell.hardware, rates=rates)
            (other,) = compare(cell.model, [faster], batch=40, prompt=300, gen=64).cells
            change = -np.log(other.passes[name].time_s[0] / own.time_s[0]) / np.log(1.000001)
            assert change == pytest.approx(shares[resource], abs=1e-4), (name, resource)


def test_largest_batch_and_its_throughput_equal_the_analysis():
    device = load_hardware("l40s")
    (cell,) = compare("llama-3.1-8b", [device], prompt=2000, gen=100).cells
    largest = alone(cell, 1, prompt=2000, gen=100).memory.max_batch
    assert cell.largest.batch == largest
    rate = alone(cell, largest, prompt=2000, gen=100).generation.tokens_per_s
    assert cell.largest.tokens_per_s == pytest.approx(rate)
    more = replace(device, capacity=1.1 * device.capacity)
    (other,) = compare("llama-3.1-8b", [more], prompt=2000, gen=100).cells
    assert other.largest.batch > largest
    assert cell.largest.capacity == pytest.approx(np.log(other.largest.tokens_per_s / rate) / np.log(1.1))


def test_where_nothing_fits_there_is_no_throughput():
    (cell,) = compare("llama-3.1-70b", ["rtx-4090"]).cells
    assert cell.largest.batch == 0
    assert np.isnan(cell.largest.tokens_per_s)
    assert not cell.fits[0]


@pytest.mark.parametrize(
    ("device", "quant"),
    first_fast([("l4", "W4A16g128"), ("rtx-4090", "fp8"), ("i9-13900k", PUBLISHED)], "looks at every number"),
)
def test_crossings_equal_a_scan_of_every_batch(device, quant):
    found = compare("llama-3.1-8b", [device], quants=[quant], prompt=256, gen=64)
    (cell,) = found.cells
    said = {(c.phase, c.axis, c.group): (c.at, c.before, c.after) for c in found.crossings}
    numbers = range(1, 601)
    many = compare("llama-3.1-8b", [device], quants=[quant], batch=numbers, prompt=256, gen=64).cells[0]
    seen = 0
    for phase in ("prefill", "decode"):
        for group in (ALL, *cell.passes[phase].groups):
            bounds = [many.passes[phase].bound(place, group) for place in range(len(numbers))]
            change = next((n for n, bound in zip(numbers, bounds, strict=True) if bound != bounds[0]), None)
            expected = (change, bounds[0], bounds[change - 1]) if change else None
            found_here = said.get((phase, "batch", group))
            if expected or (found_here and found_here[0] <= 600):
                assert found_here == expected, (phase, group)
                seen += 1
    assert seen
    for length in (
        n for (phase, axis, group), (n, *_) in said.items() if (phase, axis, group)[::2] == ("prefill", ALL)
    ):
        before, after = (
            compare("llama-3.1-8b", [device], quants=[quant], prompt=n, gen=64).cells[0].prefill.bound()
            for n in (length - 1, length)
        )
        assert before != after


def test_the_map_of_bounds_is_that_of_the_passes():
    found = compare("llama-3.1-8b", ["l4"], batch=[1, 64, 512], prompt=1000, gen=48)
    (cell,) = found.cells
    shares = memory_share(cell, "decode", [1, 64, 512], [1024, 2048])
    assert shares.shape == (2, 3)
    for place in range(3):
        assert shares[0, place] == pytest.approx(cell.decode.share(place, resource="memory"))
    prefill = memory_share(cell, "prefill", [1], [1000])
    assert prefill[0, 0] == pytest.approx(cell.prefill.share(0, resource="memory"))


def test_memory_bound_decode_ranks_devices_by_bandwidth():
    cells = [c for c in compare("llama-2-13b", hardware_names(), prompt=512, gen=512).cells if c.fits[0]]
    bound = [c for c in cells if c.decode.share(resource="memory") > 0.9999]
    assert len(bound) > len(cells) - 3  # wafers and the like compute what they hold
    by_speed = sorted(bound, key=lambda c: c.tpot_s[0])
    bandwidths = [c.hardware.bandwidth() for c in by_speed]
    assert all(a >= b * (1 - 1e-9) for a, b in pairwise(bandwidths))


def test_device_without_a_unit_for_a_data_type_is_refused_and_others_are_compared():
    lacking = Hardware(
        name="int8-only", title="int8 only", rates={MEMORY: 1e12, matrix("int8"): 1e14, vector("fp16"): 1e13},
        capacity=1e12,
    )  # fmt: skip
    found = compare("llama-2-7b", [lacking, "l4"])
    refused, answered = found.cells
    assert refused.refused.startswith("int8-only has no unit for ")
    assert refused.passes == {}
    assert np.isnan(refused.ttft_s).all()
    assert answered.refused == ""
    assert found.runnable == (answered,)
    assert next(found.rows())["refused"] == refused.refused
    assert "int8-only cannot run llama-2-7b" in REPORT.markdown(found)


def test_what_ifs_equal_those_of_analyze_and_refuse_devices_without_the_number():
    changes = ["matrix.fp8=2x", "memory.bandwidth=2x"]
    found = compare("llama-2-7b", ["a100-sxm-80gb", "h100-sxm"], quants=["fp8"], hardware_set=changes)
    lacking, changed = found.cells
    one = llmviewer.analyze("llama-2-7b", "h100-sxm", quant="fp8", hardware_set=changes).generation
    assert (changed.ttft_s[0], changed.expected.tpot.expected[0]) == pytest.approx((one.ttft_s, one.expected_tpot_s))
    assert lacking.refused.startswith("matrix.fp8=2x: a100-sxm-80gb has no matrix.fp8 to multiply; ")
    assert found.to_dict()["inputs"]["hardware_set"] == changes
    one = compare("llama-2-7b", ["a100-sxm-80gb", "h100-sxm"], quants=["fp8"], hardware_set=[f"h100-sxm:{changes[0]}"])
    assert [cell.hardware.changes for cell in one.cells] == [(), (changes[0],)]
    assert "flash attention, what if matrix.fp8=2x, memory.bandwidth=2x\n" in REPORT.markdown(found)
    follows = REPORT.text(compare("gpt2", "h100-sxm", hardware_set=["cores.count=2x"]))
    assert "The what-ifs also change, on h100-sxm: matrix rates 2x" in follows


def priced(**numbers):
    device = load_hardware("l4")
    facts = tuple(Fact(key=key.replace("_", "."), text="", value=value, source="") for key, value in numbers.items())
    return replace(device, facts=(*(f for f in device.facts if not f.key.startswith("price")), *facts))


def test_tokens_per_joule_and_per_dollar_by_hand():
    rented, bought, free = priced(price_cloud=0.5), priced(price_purchase=8766.0), priced()
    assert hourly(rented, 3) == 0.5
    assert hourly(bought, 2) == 0.5
    assert np.isnan(hourly(bought, None))
    assert np.isnan(hourly(free, 3))
    found = compare("gpt2", [rented, bought, free], years=2)
    rows = list(found.rows())
    assert rows[0]["tokens_per_dollar"] == pytest.approx(7200 * rows[0]["tokens_per_s"])
    assert rows[1]["tokens_per_dollar"] == rows[0]["tokens_per_dollar"]
    assert rows[2]["tokens_per_dollar"] is None
    assert rows[0]["tokens_per_joule_at_tdp"] == pytest.approx(rows[0]["tokens_per_s"] / 72)


def test_a_model_that_does_not_generate_has_one_pass():
    (cell,) = compare("bert-base-uncased", ["l4"], prompt=512).cells
    assert set(cell.passes) == {"prefill"}
    assert np.isnan(cell.tpot_s[0])
    assert cell.tokens_per_s[0] == pytest.approx(512 / cell.ttft_s[0])


def test_without_a_second_token_there_is_no_decode():
    (cell,) = compare("gpt2", ["l4"], gen=1).cells
    assert set(cell.passes) == {"prefill"}
    assert np.isnan(cell.tpot_s[0])
    assert cell.latency_s[0] == cell.ttft_s[0]


def test_documents_are_complete_and_have_no_nan(two):
    document = json.loads(json.dumps(two.to_dict(), allow_nan=False))
    assert document["inputs"] == {
        "quants": [PUBLISHED, "W4A16g128"],
        "batches": [1, 8],
        "prompt": 1024,
        "gen": 64,
        "years": None,
    }
    assert len(document["rows"]) == len(two.cells) * 2 == len(two.to_frame())
    first = document["rows"][0]
    assert (first["model"], first["quant"], first["hardware"], first["batch"]) == (
        "llama-2-13b", PUBLISHED, "h100-sxm", 1,
    )  # fmt: skip
    assert first["decode_bound"] == "memory"
    assert first["decode_memory_share"] == 1
    assert {g["group"] for g in document["groups"]} <= set(GROUPS)
    crossing = next(
        c for c in document["crossings"] if (c["phase"], c["group"], c["axis"]) == ("decode", "linear", "batch")
    )
    assert (crossing["before"], crossing["after"]) == ("memory", "compute")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"models": []}, "models: nothing to compare"),
        ({"hardware": []}, "hardware: nothing to compare"),
        ({"quants": []}, "quants: nothing to compare"),
        ({"batch": 0}, "batch must be a whole number of at least 1; got 0"),
        ({"years": 0}, "years must be a positive number; got 0"),
        ({"gen": 1.5}, "gen must be a whole number of at least 1; got 1.5"),
        ({"models": None}, "models must be text or a Model, or a list of such; got None"),
        ({"hardware": ["l4", -1]}, "hardware must be text or a Hardware, or a list of such; got -1"),
        ({"layout": 2}, "layout must be text or a Layout, or a list of such; got 2"),
        ({"years": "x"}, "years must be a positive number; got 'x'"),
        ({"library": None}, "library must be text; got None"),
        ({"techniques": "x"}, "techniques must be a list of text or a mapping or a Technique; got 'x'"),
        ({"hardware_set": "x"}, "hardware_set must be a list of text; got 'x'"),
        (
            {"hardware_set": ["matrix.fp4=2x"]},
            "matrix.fp4=2x: l4 has no matrix.fp4 to multiply; give a quantity with its unit",
        ),
        ({"techniques": [0]}, "techniques must be a list of text or a mapping or a Technique; got 0 among them"),
    ],
)
def test_mistakes_get_a_line(arguments, message):
    with pytest.raises(InputError) as caught:
        compare(**{"models": "gpt2", "hardware": "l4", **arguments})
    assert str(caught.value) == message


def run(capsys, *arguments):
    code = main(arguments)
    out = capsys.readouterr()
    return code, out.out, out.err


def test_the_command_prints_tables_80_wide(capsys):
    asked = ("llama-2-13b", "h100-sxm", "rtx-4090", "--quant", "published", "--quant", "W4A16g128")
    code, out, err = run(capsys, "compare", *asked)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert "W4A16g128 rtx-4090  137 ms 7.77 ms" in out
    assert "published rtx-4090 27.1 GB 25.8 GB 1.05x          none" in out
    assert re.search(r"W4A16g128 rtx-4090 +\(57\) +\(216\)", out)  # 17 fit
    assert "Prefill, attention of llama-2-13b published: memory-bound on h100-sxm and compute-bound on rtx-4090." in (
        " ".join(out.split())
    )


def test_one_setting_at_several_batches_bears_the_name_of_its_device_alone(capsys):
    code, out, _ = run(capsys, "compare", "deepseek-v3", "h200-sxm", "--tp", "8", "--batch", "1,64")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "\ndevice   batch " in out
    assert "\nh200-sxm    64 " in out


def test_the_command_takes_batches_models_and_all_devices(capsys):
    _, out, _ = run(
        capsys, "compare", "gpt2", "all", "--also", "opt-350m", "--batch", "1..8*2", "--bound", "--format", "csv"
    )
    rows = list(csv.DictReader(io.StringIO(out)))
    assert len(rows) == 2 * len(hardware_names()) * 4
    assert {row["model"] for row in rows} == {"gpt2", "opt-350m"}
    assert [row["batch"] for row in rows[:4]] == ["1", "2", "4", "8"]


def test_names_may_have_commas_between(capsys):
    assert main(["compare", "gpt2,opt-350m", "l4,t4", "a10", "--bound", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["model"], row["hardware"]) for row in rows] == [
        (model, device) for model in ("gpt2", "opt-350m") for device in ("l4", "t4", "a10")
    ]


def test_a_folder_gets_all_three_reports_and_a_file_its_own(capsys, tmp_path):
    code, _, err = run(capsys, "compare", "gpt2", "l4", "t4", "-o", str(tmp_path / "out"))
    assert (code, err) == (0, f"{tmp_path}/out: comparison.html, comparison.md, comparison.csv\n")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "comparison.html", "comparison.md", "comparison.csv",
    }  # fmt: skip
    assert (tmp_path / "out" / "comparison.md").read_text().startswith("# GPT-2 (124M) on l4, t4: batch 1, 1024 input")
    run(capsys, "compare", "gpt2", "l4", "-o", str(tmp_path / "a.json"))
    assert json.loads((tmp_path / "a.json").read_text())["rows"][0]["hardware"] == "l4"


def test_mistakes_on_the_command_line_exit_with_2(capsys, tmp_path):
    code, _, err = run(capsys, "compare", "gpt2", "l4", "--batch", "x")
    assert code == 2
    assert err.startswith("llmviewer: --batch=x: must be whole numbers")
    (tmp_path / "file").write_text("")
    code, _, err = run(capsys, "compare", "gpt2", "l4", "-o", str(tmp_path / "file" / "below"))
    assert (code, err) == (2, f"llmviewer: {tmp_path}/file/below: cannot be made: Not a directory\n")


@pytest.fixture(scope="module")
def page(two):
    return REPORT.html(two)


def test_page_makes_no_requests_and_is_deterministic(two, page):
    assert not re.findall(r"<(?:img|iframe|object|embed|base|link rel=.stylesheet)", page)
    assert re.findall(r"<link [^>]*href=.([^\"']*)", page) == ["data:,"]
    assert page.count('"showSendToCloud": false') == 4 + 3  # two phases, rooflines and bars; three cells that fit
    assert REPORT.html(two) == page


def test_report_ranks_by_expected_time_not_by_bound():
    devices = ["a100-pcie-80gb", "rtx-pro-6000"]
    found = compare("llama-3.1-70b", devices, quants=["W16A16"], layout=["tp=2"], batch=[2, 4])
    bounds, expected = ([float(each[0]) for each in pair] for pair in (
        [cell.tpot_s for cell in found.cells], [cell.expected.tpot.expected for cell in found.cells],
    ))  # fmt: skip
    assert (bounds[0] < bounds[1], expected[0] < expected[1]) == (True, False)
    times = f"{seconds(expected[1])} expected, {seconds(bounds[1])} at the bound; W16A16 with tp=2, batch 2"
    card = "<dt>shortest TPOT, expected</dt><dd>rtx-pro-6000</dd><dd>"
    assert f"{card}{times}</dd>" in REPORT.html(found)
    bare = REPORT.html(replace(found, bound=True))
    lowest = f"a100-pcie-80gb</dd><dd>{seconds(bounds[0])} at the bound; W16A16"
    assert f"<dt>shortest TPOT</dt><dd>{lowest}" in bare


def test_the_page_has_every_table_of_the_text(two, page):
    for table in REPORT.tables(two):
        assert f"<h2>{table.title}</h2>" in page
        for row in table.body:
            assert all(f">{item.text.replace('<', '&lt;').replace('>', '&gt;')}<" in page for item in row)


@pytest.mark.slow("draws in a browser")
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_page_fits_the_browser_width_and_makes_no_requests(browser, page, tmp_path, width, scheme):
    file = tmp_path / "comparison.html"
    file.write_text(page, encoding="utf-8")
    tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    asked, complaints = [], []
    tab.on("request", lambda request: asked.append(request.url))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("console", lambda message: complaints.append(message.text))
    tab.goto(file.as_uri())
    tab.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length >= 7")
    assert (asked, complaints) == ([file.as_uri()], [])
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    tab.close()


def test_each_at_the_largest_batch_that_fits(capsys):
    asked = {"prompt": 4096, "gen": 64}
    devices = ["h100-sxm", "rtx-3060-12gb", "rtx-4090"]
    found = compare("llama-3.1-8b", devices, quants=["published", "fp8"], batch="max", **asked)
    rows = list(found.rows())
    assert [row["batch"] for row in rows] == [max(row["max_batch"], 1) for row in rows]
    assert [row["fits"] for row in rows] == [True, False, True, True, True, True]
    for row in rows:
        if row["fits"]:
            quant = None if row["quant"] == "published" else row["quant"]
            alone = llmviewer.analyze("llama-3.1-8b", row["hardware"], quant=quant, batch="max", **asked)
            assert alone.request.batch == row["batch"]
            assert row["ttft_s"] == pytest.approx(alone.generation.ttft_s)
            assert row["expected_tpot_s"] == pytest.approx(alone.generation.expected_tpot_s, rel=1e-3)
            assert row["tokens_per_s"] == pytest.approx(row["max_batch_tokens_per_s"])
    assert found.to_dict()["inputs"]["batches"] == ["max"]
    assert main(["compare", "llama-3.1-8b", *devices, "--batch", "max", "--prompt", "4096", "--gen", "64"]) == 0
    said = capsys.readouterr().out
    assert "the largest batch that fits, 4096 input" in " ".join(said.split())
    line = next(line for line in said.splitlines() if line.startswith("h100-sxm"))
    assert line.split()[1] == str(rows[0]["batch"])
    assert f"batch {rows[3]['batch']}" in REPORT.html(found)
