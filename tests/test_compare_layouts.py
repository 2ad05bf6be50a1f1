"""compare() and choose() over layouts: cells equal analyze(); links as a resource; the fewest devices."""

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest

import llmviewer
from llmviewer.cli import main
from llmviewer.comparing.breakdown import RESOURCES
from llmviewer.comparing.cells import LAYOUT, LINK
from llmviewer.comparing.choice import choose
from llmviewer.comparing.comparison import compare
from llmviewer.devices.files import hardware_names, load_hardware
from llmviewer.errors import InputError
from llmviewer.parallel.layout import Layout
from llmviewer.reports.choice import REPORT as CHOICE
from llmviewer.reports.comparison import REPORT
from llmviewer.transforms.quantize import PUBLISHED

from .cases import first_fast

DEVICES = ("h100-sxm", "mi300x", "l40s", "tpu-v5e")


def unlinked(name="l4"):
    """A device of which no links are known."""
    device = load_hardware(name)
    links = ("scale_up.", "scale_out.", "host.")
    return replace(device, name=f"{name}-alone", facts=tuple(f for f in device.facts if not f.key.startswith(links)))


def with_links(name, times):
    """Device whose links are `times` times as fast, latency included."""
    device = load_hardware(name)

    def faster(fact):
        if fact.key.startswith(("scale_up.", "scale_out.", "host.")):
            if fact.key.endswith(".bandwidth"):
                return replace(fact, value=fact.value * times)
            if fact.key.endswith(".latency"):
                return replace(fact, value=fact.value / times)
        return fact

    return replace(device, facts=tuple(map(faster, device.facts)))


def alone(cell, batch, *, prompt, gen, kv_len=None):
    quant = None if cell.given_quant == PUBLISHED else cell.given_quant
    asked = {"batch": batch, "prompt": prompt, "gen": gen, "kv_len": kv_len}
    return llmviewer.analyze(cell.model, cell.hardware, quant=quant, layout=cell.layout, **asked)


@pytest.mark.parametrize(
    ("model", "layouts"),
    first_fast(
        [
            ("llama-3.1-8b", ["tp=4", "tp=2 pp=2", "pp=4", "tp=2 dp=2", "cp=2", Layout(tp=2, overlap=True)]),
            ("mixtral-8x7b", ["tp=4 ep=4", "tp=2 dp=4 ep=8"]),
            ("deepseek-v2-lite", ["tp=2", "dp=4 ep=4"]),
            ("jamba-v0.1", ["tp=2"]),
            ("bert-base-uncased", ["tp=2", "pp=2"]),
        ],
        "analyzes each cell alone",
        2,
    ),
)
def test_every_cell_equals_the_analysis_with_its_layout(model, layouts):
    found = compare(model, DEVICES, quants=["W8A8"], layout=layouts, batch=[1, 13], prompt=700, gen=50)
    assert len(found.cells) == len(layouts) * len(DEVICES)
    for cell in found.cells:
        assert cell.refused == ""
        for place, batch in enumerate(found.batches):
            one = alone(cell, batch, prompt=700, gen=50)
            for name in ("ttft_s", "tpot_s", "latency_s", "tokens_per_s"):
                said = getattr(one.generation, name)
                assert np.isnan(getattr(cell, name)[place]) if said is None else True
                if said is not None:
                    assert getattr(cell, name)[place] == pytest.approx(said, rel=1e-12), name
            assert cell.total_bytes[place] == pytest.approx(one.memory.total_bytes, rel=1e-15)
            assert cell.largest.batch == one.memory.max_batch


def test_pipeline_pass_time_equals_the_analysis():
    found = compare(
        "llama-3.1-8b", ["h100-sxm", "l40s"], layout=["pp=3", "tp=2 pp=2"], batch=[1, 7], prompt=300, gen=64
    )
    for cell in found.cells:
        for place, batch in enumerate(found.batches):
            phases = alone(cell, batch, prompt=300, gen=64, kv_len=300 + 32).phases
            for name, own in cell.passes.items():
                assert own.time_s[place] == pytest.approx(getattr(phases, name).time_s, rel=1e-12)


def test_expected_times_of_a_cell_equal_the_analysis_with_its_layout():
    found = compare("llama-3.1-8b", ["h100-sxm"], layout=["tp=2", "pp=2"], batch=[1, 6], prompt=300, gen=20)
    for cell in found.cells:
        for place, batch in enumerate(found.batches):
            one = alone(cell, batch, prompt=300, gen=20).generation
            assert cell.expected.ttft.expected[place] == pytest.approx(one.expected_ttft_s, rel=1e-6)
            assert cell.expected.tpot.expected[place] == pytest.approx(one.expected_tpot_s, rel=1e-6)


@pytest.mark.parametrize("layout", ["tp=8", "tp=4 pp=2"])
def test_sensitivities_to_links_are_derivatives(layout):
    asked = {"layout": layout, "batch": 6, "prompt": 300, "gen": 64}
    (cell,) = compare("llama-3.1-70b", ["l40s"], **asked).cells
    (other,) = compare("llama-3.1-70b", [with_links("l40s", 1.000001)], **asked).cells
    for name, own in cell.passes.items():
        shares = own.sensitivity()
        assert sum(shares[resource] for resource in RESOURCES) == pytest.approx(1)
        change = -np.log(other.passes[name].time_s[0] / own.time_s[0]) / np.log(1.000001)
        assert change == pytest.approx(shares["link"], abs=1e-4)
        assert shares["link"] > 0.001


def test_where_links_take_over_is_a_crossing():
    found = compare("llama-3.1-70b", ["l40s"], layout="tp=8", gen=64)
    (crossing,) = (c for c in found.crossings if (c.phase, c.group, c.axis) == ("prefill", "all", "prompt"))
    assert (crossing.before, crossing.after) == ("memory", "link")
    sides = [
        compare("llama-3.1-70b", ["l40s"], layout="tp=8", prompt=n, gen=64).cells[0].prefill.bound()
        for n in (crossing.at - 1, crossing.at)
    ]
    assert sides == ["memory", "link"]


def test_cost_and_energy_count_all_devices():
    asked = {"batch": [8], "prompt": 200, "gen": 20, "years": 3}
    one, two = compare("llama-3.1-8b", ["h100-sxm"], layout=["", "tp=2"], **asked).cells
    for worth in (lambda cell, rate: cell.per_joule(rate), lambda cell, rate: cell.per_dollar(rate, 3)):
        assert worth(two, 100.0) == pytest.approx(worth(one, 100.0) / 2)
    assert two.layout.devices == 2


def test_device_without_links_is_refused_in_its_cell_only():
    found = compare("llama-3.1-8b", [unlinked(), "h100-sxm"], layout=["", "tp=2"], prompt=100, gen=9)
    cells = {(cell.hardware.name, str(cell.layout)): cell for cell in found.cells}
    refused = cells["l4-alone", "tp=2"]
    assert refused.obstacle == LINK
    assert "l4-alone has no " in refused.refused
    assert len(found.runnable) == 3
    assert np.isnan(refused.total_bytes).all()
    assert "l4-alone cannot run llama-3.1-8b published with tp=2: l4-alone has no" in REPORT.markdown(found)
    row = next(row for row in found.rows() if row["refused"])
    assert row["ttft_s"] is row["total_bytes"] is row["fits"] is None
    json.dumps(found.to_dict(), allow_nan=False)


def test_indivisible_model_is_refused_in_its_cell_only():
    found = compare(["llama-3.1-8b", "qwen2.5-14b"], ["h100-sxm"], layout="tp=16", prompt=100, gen=9)
    able, refused = found.cells
    assert able.refused == ""
    assert (refused.obstacle, refused.refused[:19]) == (LAYOUT, "tp=16 does not divi")


def test_single_device_cells_do_not_depend_on_other_layouts():
    lone = compare("llama-3.1-8b", ["h100-sxm"], prompt=100, gen=9)
    both = compare("llama-3.1-8b", ["h100-sxm"], layout=["", "tp=2"], prompt=100, gen=9)
    (row,), (beside, laid) = lone.rows(), both.rows()
    assert (laid["layout"], laid["devices"], beside["layout"]) == ("tp=2", 2, "one device")
    assert {key: value for key, value in beside.items() if key not in ("layout", "devices")} == row
    assert "layouts" not in lone.inputs
    assert both.inputs["layouts"] == ["one device", "tp=2"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layout": "tp=3"}, "tp=3 does not divide the 32 heads of q_proj in layer; try tp=2 or 4"),
        ({"layout": []}, "layout: nothing to compare"),
        ({"layout": ["tp=2", Layout(tp=2)]}, "layout: tp=2 is given twice; give each once"),
        ({"layout": "tp2"}, "layout 'tp2': must be degrees of tp, pp, ep, dp, cp, such as tp=8 pp=2; got 'tp2'"),
        ({"hardware": ["h100", "h100-sxm"]}, "hardware: h100-sxm is given twice; give each once"),
        ({"models": ["llama-3-8b"] * 2}, "models: llama-3-8b is given twice; give each once"),
        ({"quants": ["fp8", "fp8"]}, "quants: fp8 is given twice; give each once"),
        ({"batch": [1, 2, 1]}, "batch: 1 is given twice; give each once"),
    ],
)
def test_mistakes_get_a_line(arguments, message):
    with pytest.raises(InputError) as caught:
        compare(**{"models": "llama-3-8b", "hardware": "l4", **arguments})
    assert str(caught.value) == message


def test_layout_that_no_device_supports_is_refused_in_one_line():
    with pytest.raises(InputError, match=r"^l4-alone has no "):
        compare("llama-3-8b", unlinked(), layout="tp=2")


def test_misfits_are_listed_before_the_times():
    found = compare("llama-3.1-70b", ["l40s", "h100-sxm"], layout=["tp=2"], batch=[1, 64])
    for text in (REPORT.text(found), REPORT.markdown(found)):
        before, _, others = text.partition("Does not fit")
        assert "tokens/s" not in before  # what does not fit comes first
        times = others.partition("Time and memory")[2]
        assert "h100-sxm" in times
        assert "48.3" not in times  # nothing of the smaller one
        apart = [line.replace("|", " ").split() for line in others.splitlines() if " GB " in line][:3]
        assert [line[:7] for line in apart] == [
            ["l40s", "1", "70.8", "GB", "48.3", "GB", "1.47x"],
            ["l40s", "64", "89.3", "GB", "48.3", "GB", "1.85x"],
            ["h100-sxm", "64", "89.3", "GB", "85.5", "GB", "1.04x"],
        ]
        assert apart[0][7:] == ["none", "--tp", "4"]
        assert apart[2][7:] == [str(found.cells[1].largest.batch), "--tp", "4"]
    assert [row["fits"] for row in found.rows()] == [False, False, True, False]
    assert all(row["ttft_s"] > 0 for row in found.rows())
    assert "Does not fit" in REPORT.html(found)
    fitting = REPORT.text(compare("gpt2", ["l4", "h100-sxm"]))
    assert "tokens/s memory [GB]" in fitting
    assert "Does not fit" not in fitting


@pytest.mark.parametrize(
    ("device", "tp", "told"),
    first_fast(
        [
            ("l40s", 2, True),
            ("rtx-3090", 2, False),
            ("rtx-3090", 4, True),
            ("h100-sxm", 8, False),
            ("h100-sxm", 16, False),
        ],
        "compares many layouts",
    ),
)
def test_unknown_devices_per_host_are_noted_for_layouts_only(device, tp, told):
    found = compare("opt-350m", device, layout=[Layout(tp=tp)], bound=True)
    said = f"Unknown number of devices per host for {device}: assumes that all devices of a layout share a host."
    assert (said in REPORT.remarks(found)) == told
    (one,) = choose("opt-350m", hardware=[device], max_devices=tp, bound=True).ranked
    assert one.cell.layout.devices == 1
    assert said not in CHOICE.remarks(choose("opt-350m", hardware=[device], max_devices=tp, bound=True))


def test_where_nothing_fits_there_are_no_times():
    text = REPORT.text(compare("llama-3.1-405b", ["l40s", "h100-sxm"]))
    assert "Time and memory" not in text
    assert "At the largest batch" not in text
    assert "none" in text
    assert max(map(len, text.splitlines())) <= 80


def test_report_suggests_depreciation_when_purchase_prices_are_ignored():
    (bought,) = (name for name in ("rtx-4080",) if "price.purchase" in load_hardware(name).numbers)
    told = "--depreciation YEARS counts purchase prices."
    assert told in " ".join(REPORT.text(compare("gpt2", bought)).split())
    assert told not in " ".join(REPORT.text(compare("gpt2", bought, years=3)).split())


def test_the_command_sets_layouts_side_by_side_80_wide(capsys):
    asked = ["compare", "llama-3.1-70b", "h100-sxm", "rtx-4090", "--tp", "2,8", "--bound"]
    assert main(asked) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "layout tp=2, tp=8: batch 1" in " ".join(out.split())
    assert "communication" in out
    assert "P link" in out
    assert main(["compare", "llama-3.1-70b", "h100-sxm", "--tp", "1..8*2", "--pp", "1,2", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["devices"] for row in rows] == ["1", "2", "2", "4", "4", "8", "8", "16"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tp", "x"], "--tp x: must be whole numbers, or ranges such as 1..256, "),
        (["--tp", "0"], "--tp must be "),
        (["--tp", "1..99"], "--tp 1..99: must be at most 64 values; got 99"),
        (["--tp", "2,2"], "layout: tp=2 is given twice; give each once"),
        (["--tp", "2", "--collective", "x"], "--collective must be one of auto, ring, tree, "),
    ],
)
def test_mistakes_on_the_command_line_exit_with_2(capsys, options, message):
    assert main(["compare", "llama-3-8b", "h100-sxm", *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"llmviewer: {message}")
    assert err.count("\n") == 1


def test_the_page_shows_layouts():
    found = compare("llama-3.1-8b", ["h100-sxm"], layout=["tp=2", "tp=4"], prompt=100, gen=9)
    page = REPORT.html(found)
    assert "what bounds decode" in page
    assert "compute or links" in page
    assert "tp=4" in page


# choose()


@pytest.fixture(scope="module")
def seventy():
    return choose("llama-3.1-70b", quants=[PUBLISHED], max_devices=8, bound=True)


@pytest.mark.slow("compares many layouts")
def test_max_devices_1_equals_the_default_choice():
    asked = {"quants": [PUBLISHED, "fp8"], "bound": True, "prompt": 200, "gen": 40}
    single, same = choose("llama-2-13b", **asked), choose("llama-2-13b", max_devices=1, **asked)
    several = choose("llama-2-13b", max_devices=4, **asked)
    assert list(single.rows()) == list(same.rows())
    counted = {one.cell.hardware.name: one for one in several.ranked}
    for one in single.ranked:
        assert counted[one.cell.hardware.name].cell.layout.devices == 1
        assert counted[one.cell.hardware.name].merit == one.merit
    assert len(several.ranked) > len(single.ranked)


def test_seventy_billion_in_16_bits_take_two_of_80_gb_or_eight_of_24(seventy):
    counted = {one.cell.hardware.name: one.cell.layout.devices for one in seventy.ranked}
    assert counted["h100-sxm"] == counted["a100-sxm-80gb"] == 2
    assert counted["rtx-4090"] == 8  # six at least, by which 64 heads cannot be cut
    assert counted["mi300x"] == 1
    looked_at = [one.cell.hardware.name for one in (*seventy.ranked, *seventy.rejected)]
    assert sorted((*looked_at, *seventy.unavailable)) == sorted(hardware_names())


def test_chosen_device_counts_are_minimal(seventy):
    counts = [one.cell.layout.devices for one in seventy.ranked]
    for one in (seventy.ranked[counts.index(n)] for n in (1, 2, 4, 8)):
        n = one.cell.layout.devices
        cell = alone(one.cell, 1, prompt=1024, gen=128)
        assert cell.memory.fits
        assert one.merit == pytest.approx(cell.generation.tokens_per_s)
        if n > 1:
            fewer = llmviewer.analyze(one.cell.model, one.cell.hardware, layout=Layout(tp=n // 2))
            assert not fewer.memory.fits


def test_tensor_parallel_degree_is_the_smallest_divisor_of_heads_that_fits():
    """112 heads of 176 billion parameters in 16 bits: five of 80 GB would hold them, and seven can."""
    (one,) = choose("bloom-176b", hardware=["h100-sxm"], quants=[PUBLISHED], max_devices=8, bound=True).ranked
    assert one.cell.layout == Layout(tp=7)
    assert one.merit == pytest.approx(alone(one.cell, 1, prompt=1024, gen=128).generation.tokens_per_s)
    (none,) = choose("bloom-176b", hardware=["h100-sxm"], quants=[PUBLISHED], max_devices=6, bound=True).rejected
    assert (none.factor, none.cell.layout.devices) == ("memory", 4)


def test_missing_links_disqualify_a_device_that_needs_several():
    (one,) = choose("llama-3.1-70b", hardware=[unlinked("h100-sxm")], quants=[PUBLISHED], max_devices=4).rejected
    assert (one.factor, one.reason) == ("link", "link: no known link joins 2 of them")
    (two,) = choose("llama-3.1-70b", hardware=[unlinked("l4")], quants=[PUBLISHED], max_devices=4).rejected
    assert two.factor == "memory"  # four would not do either
    (three,) = choose("llama-3.1-70b", hardware=[unlinked("h100-sxm")], quants=[PUBLISHED]).rejected
    assert three.factor == "memory"
    timed = {"hardware": [unlinked("h100-sxm")], "quants": ["W4A16g128"], "max_devices": 4}  # which one has memory for
    alone, half, tenth = (choose("llama-3.1-70b", tpot=tpot, **timed).rejected for tpot in (1, 6e-3, 1.1e-3))
    assert [[one.factor for one in found] for found in (alone, half, tenth)] == [[], ["link"], ["time per token"]]


def test_links_disqualify_where_they_miss_the_target():
    asked = {"quants": [PUBLISHED], "prompt": 1024, "gen": 64, "ttft": 0.1, "max_devices": 8}
    (able,) = choose("llama-3.1-70b", hardware=["h100-sxm"], **asked).ranked
    assert able.cell.ttft_s[0] <= 0.1
    (slow,) = choose("llama-3.1-70b", hardware=[with_links("h100-sxm", 0.01)], **asked).rejected
    assert slow.factor == "link"
    assert slow.reason.startswith("link: time to first token ")
    assert slow.reason.endswith(" without the time of links")


def test_limits_are_of_all_devices():
    asked = {"quants": [PUBLISHED], "hardware": ["h100-sxm"], "max_devices": 2}
    assert choose("llama-3.1-70b", power=1400, **asked).ranked
    (one,) = choose("llama-3.1-70b", power=1300, **asked).rejected
    assert one.reason == "power: 1400 W, 1.08x the 1300 W allowed, with 2 devices"
    (saving,) = choose("llama-3.1-70b", by="energy", **asked).ranked
    assert saving.merit == pytest.approx(float(saving.cell.result.expected.tokens_per_s[0]) / 1400)
    assert saving.bound_merit == pytest.approx(float(saving.cell.tokens_per_s[0]) / 1400)


@pytest.mark.slow("compares many layouts")
def test_choose_command_reports_device_counts(capsys):
    asked = ["choose", "llama-3.1-70b", "--max-devices", "8", "--bound", "--quant", "published"]
    assert main(asked) == 0
    out = capsys.readouterr().out
    assert "at most 8 devices of a kind" in " ".join(out.split())
    assert "The smallest number of devices that qualifies, up to 8 on one host" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80
    assert "memory, over what is available: " in out.partition("Devices that do not qualify")[2]
    assert main([*asked, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["inputs"]["max_devices"] == 8
    assert {row["devices"] for row in document["devices"] if row["rank"]} == {1, 2, 4, 8}
    assert main(["choose", "gpt2", "--max-devices", "0"]) == 2
    assert capsys.readouterr().err == "llmviewer: --max-devices must be a whole number of at least 1; got 0\n"


@pytest.mark.slow("compares many layouts")
def test_the_page_of_a_choice_shows_how_many(seventy):
    page = CHOICE.html(seventy)
    assert "on one host with tensor parallelism; costs and powers are those of all devices" in " ".join(page.split())
