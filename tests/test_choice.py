"""choose(): who qualifies, in what order, and why the others do not; the two examples of the survey."""

import csv
import io
import json
import re
from dataclasses import replace
from math import isclose

import numpy as np
import pytest

import llmviewer
from llmviewer.cli import main
from llmviewer.comparing.choice import choose, unsold
from llmviewer.comparing.comparison import compare
from llmviewer.devices.files import hardware_names, hardware_yaml, load_hardware
from llmviewer.errors import InputError
from llmviewer.expectation.statistics import rank_correlation
from llmviewer.reports import examples
from llmviewer.reports.choice import REPORT, remarks, tables
from llmviewer.units import fold

NOVEL = {"users": 1, "prompt": 512, "gen": 4096}


@pytest.fixture(scope="module")
def novel():
    return examples.example("novel")


@pytest.fixture(scope="module")
def documents():
    return examples.example("documents")


def test_every_device_is_there_once(novel):
    devices = [one.cell.hardware.name for one in (*novel.ranked, *novel.unmeasured, *novel.rejected)]
    assert sorted((*devices, *novel.unavailable)) == sorted(hardware_names())
    merits = [one.merit for one in novel.ranked]
    assert merits == sorted(merits, reverse=True)


def test_announced_devices_are_left_out_unless_named(novel, tmp_path, monkeypatch, capsys):
    announced = [name for name in hardware_names() if load_hardware(name).status == "announced"]
    assert list(novel.unavailable) == announced
    assert "b100" in announced
    words = " ".join(REPORT.text(novel).split())
    assert f"Not included: {', '.join(announced)} (announced, not yet available; --hardware NAME" in words
    assert main(["choose", "gpt2", "--hardware", "b100, l4", "--bound", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["hardware"] for row in document["devices"]] == ["b100", "l4"]
    assert document["left_out"] == []
    (tmp_path / "mine.yaml").write_text(hardware_yaml("b100", "mine"))
    monkeypatch.setenv("LLMVIEWER_HARDWARE_PATH", str(tmp_path))
    assert list(unsold([load_hardware(name) for name in ("b100", "mine", "l4")])) == ["b100"]


def test_a_model_of_4_bit_weights_is_served_in_them():
    assert choose("gpt-oss-20b", hardware=["h100-sxm"]).quants == ("published",)
    assert choose("deepseek-v3", hardware=["b200"], max_devices=8).quants == ("published", "W4A16g128")
    assert choose("gpt-oss-20b", hardware=["h100-sxm"], quants=["fp8"]).quants == ("fp8",)


def test_headline_states_how_many_devices_have_a_price():
    asked = {"hardware": ["h100-sxm", "rtx-pro-5000", "rtx-4080"], "bound": True}
    by_cost, of_years, by_speed = (choose("llama-2-7b", **asked, **more) for more in (
        {"by": "cost"}, {"by": "cost", "years": 2}, {}
    ))  # fmt: skip
    assert (by_cost.priced, by_speed.priced) == (1, 3)
    first, price = by_cost.ranked[0], 1e6 / by_cost.ranked[0].merit
    assert REPORT.headline(by_cost).endswith(
        "1 of 3 devices qualify, ranked by tokens/USD at the bound. "
        f"Lowest: h100-sxm, {first.cell.quant}, {price:.3g} USD per million output tokens. "
        "Of these 3 devices 1 has a known price; only these are ranked; --depreciation YEARS counts purchase prices too"
    )
    assert "per million output tokens" not in REPORT.headline(by_speed)
    assert of_years.priced == len(of_years.ranked) > 1
    assert "USD/h: the cloud price. Cloud prices of 2026-10. Memory" in REPORT.tables(by_cost)[0].about
    own = choose("llama-2-7b", **asked, by="cost", hardware_set=["h100-sxm:price.cloud=3 USD/h"])
    assert "USD/h: the cloud price. Memory" in REPORT.tables(own)[0].about
    assert "--depreciation" not in REPORT.headline(of_years)
    assert REPORT.headline(by_speed).endswith("ranked by tokens/s at the bound")


def test_the_merit_is_the_best_of_the_precisions_allowed_that_fit(novel):
    quants = {"published": None, "fp8": "fp8", "W8A8": "W8A8", "W4A16g128": "W4A16g128"}
    for name in ("rtx-4090", "l40s", "a100-sxm-80gb"):
        analyses = {
            text: llmviewer.analyze("llama-2-13b", name, prompt=512, gen=4096, quant=quant)
            for text, quant in quants.items()
        }
        able = {text: one.evaluation for text, one in analyses.items() if one.memory.fits}
        rates = {text: float(one.expected.tokens_per_s) for text, one in able.items()}
        (found,) = (one for one in novel.ranked if one.cell.hardware.name == name)
        assert found.merit == pytest.approx(max(rates.values()))
        assert rates[found.cell.quant] == max(rates.values())
        assert found.bound_merit == pytest.approx(float(able[found.cell.quant].bounds.tokens_per_s))


@pytest.mark.slow("ranks all devices twice")
def test_at_the_bound_a_novelist_s_ranking_follows_bandwidth_and_a_company_s_the_peak_as_much():
    uses = (dict(zip(("users", "prompt", "gen"), use, strict=True)) for use in examples.EXAMPLES.values())
    alone, together = (choose(examples.MODEL, bound=True, **use).follows() for use in uses)
    assert max(alone, key=alone.__getitem__) == "memory bandwidth"
    assert alone["memory bandwidth"] > 0.99
    assert together["peak OP/s"] == pytest.approx(together["memory bandwidth"], abs=0.02)
    assert together["peak OP/s"] > alone["peak OP/s"] + 0.05
    assert together["memory bandwidth"] < alone["memory bandwidth"]


def test_kv_cache_capacity_decides_which_devices_serve_many_users(novel, documents):
    assert len(documents.ranked) < len(novel.ranked)
    assert {one.factor for one in documents.rejected} == {"memory"}
    assert all(one.cell.largest.batch < 16 for one in documents.rejected)
    assert all(one.cell.largest.batch >= 16 for one in documents.ranked)


def rejected(choice, name):
    (found,) = (one for one in choice.rejected if one.cell.hardware.name == name)
    return found


def test_rejection_for_memory_states_needed_and_available_bytes():
    found = rejected(choose("llama-2-70b", hardware=["rtx-4090", "h100-sxm"], quants=["published", "fp8"]), "rtx-4090")
    memory = llmviewer.analyze("llama-2-70b", "rtx-4090", quant="fp8").memory
    assert found.factor == "memory"
    assert found.excess == pytest.approx(memory.total_bytes / memory.capacity_bytes)
    assert found.reason == "memory: 70.0 GB, 2.72x the 25.8 GB available"


def test_rejection_for_prefill_activations_suggests_chunked_prefill():
    users = {"users": 40, "prompt": 8192, "gen": 64, "quants": ["published"]}
    found = rejected(choose("llama-3.1-8b", hardware=["h100-sxm"], **users), "h100-sxm")
    held = llmviewer.analyze("llama-3.1-8b", "h100-sxm", batch=40, prompt=8192, gen=64).memory
    assert held.weight_bytes + held.kv_cache_bytes < held.capacity_bytes < held.total_bytes
    assert found.reason == (
        "memory: 90.2 GB, 1.05x the 85.5 GB available; 30.9 GB of it are activations of one prefill of all "
        "prompts; plan prefills in chunks"
    )


@pytest.mark.parametrize(
    ("limits", "name", "reason"),
    [
        ({"power": 300}, "rtx-4090", "power: 450 W, 1.5x the 300 W allowed"),
        ({"budget": 1000}, "rtx-4090", "budget: 1,599 USD, 1.6x the 1,000 USD allowed"),
        (
            {"budget": 1000},
            "unpriced",
            "budget: no purchase price is known; --hardware-set NAME:price.purchase=VALUE gives one",
        ),
        (
            {"by": "cost", "years": 3},
            "unpriced",
            "price: no price is known; --hardware-set NAME:price.cloud=VALUE gives one",
        ),
        ({"by": "cost"}, "arc-b580", "price: no cloud price; --depreciation YEARS counts the purchase price"),
        ({"tpot": 0.001, "quants": ["published"]}, "unpriced", "time per token: 46.0 ms, 46x the 1.00 ms allowed"),
        ({"ttft": 0.1, "quants": ["published"]}, "unpriced", "time to first token: 134 ms, 1.34x the 100 ms allowed"),
        (
            {"ttft": 0.2, "quants": ["published"]},
            "unpriced",
            "time to first token: 211 ms expected, 1.05x the 200 ms allowed",
        ),
        ({"ttft": 0.2, "quants": ["published"], "bound": True}, "unpriced", None),
        ({"ttft": 0.4, "quants": ["published"]}, "unpriced", None),
    ],
)
def test_limits_disqualify_with_their_distance(limits, name, reason):
    device = load_hardware("l4" if name == "unpriced" else name)
    if name == "unpriced":
        device = replace(device, facts=tuple(f for f in device.facts if not f.key.startswith("price")))
    found = choose("llama-2-7b", hardware=[device], **limits)
    assert [one.reason for one in found.rejected] == ([reason] if reason else [])


def test_limits_apply_to_expected_times_and_unmeasured_devices_are_listed_apart():
    names = ["l4", "h100-sxm", "tpu-v5e"]  # of the last no kernel is known
    asked = {"hardware": names, "quants": ["published"]}
    found = choose("llama-2-7b", tpot=0.05, **asked)
    assert [one.cell.hardware.name for one in found.ranked] == ["h100-sxm"]
    assert [one.cell.hardware.name for one in found.unmeasured] == ["tpu-v5e"]
    late = rejected(found, "l4")
    assert late.cell.tpot_s[0] < 0.05 < late.cell.expected.tpot.expected[0]
    assert late.reason == "time per token: 53.9 ms expected, 1.08x the 50.0 ms allowed"
    text = " ".join(REPORT.text(found).split())
    assert "1 of 3 devices qualify, ranked by tokens/s expected; 1 more qualify by bounds alone" in text
    rows = {row["hardware"]: row for row in found.rows()}
    assert [rows[name]["rank"] for name in ("h100-sxm", "tpu-v5e", "l4")] == [1, None, None]
    assert [rows[name]["expected"] for name in ("h100-sxm", "tpu-v5e", "l4")] == [True, False, None]
    assert rows["h100-sxm"]["merit"] < rows["h100-sxm"]["bound_merit"]
    assert rows["tpu-v5e"]["merit"] == rows["tpu-v5e"]["bound_merit"]
    first = choose("llama-2-7b", gen=1, ttft=1, tpot=1e-9, **asked)  # no token follows the first
    assert len(first.ranked) == 2


def test_report_names_the_host_cpu_counted_in_price_and_power():
    found = choose("llama-2-7b", hardware=["gh200", "h100-sxm"], quants=["published"])
    assert "Counted with what it is sold with, in price and power: gh200 (Grace CPU)." in remarks(found)


def test_of_several_faults_the_worst_is_named():
    found = rejected(choose("llama-2-70b", hardware=["rtx-4090"], quants=["published"], power=440), "rtx-4090")
    assert found.factor == "memory"


def test_native_types_alone():
    found = choose("llama-2-7b", hardware=["v100-sxm2-32gb", "rtx-4090"], quants=["fp8"], native=True)
    assert [one.cell.hardware.name for one in found.ranked] == ["rtx-4090"]
    assert rejected(found, "v100-sxm2-32gb").reason == "data type: no fp8 matrix units"
    assert len(choose("llama-2-7b", hardware=["v100-sxm2-32gb"], quants=["fp8"]).ranked) == 1


def test_what_ifs_change_the_ranking_and_disqualify_devices_without_the_number():
    changes = ["matrix.fp8=2x", "memory.bandwidth=4x"]
    found = choose("llama-2-7b", hardware=["t4", "l4", "l40s"], quants=["fp8"], hardware_set=changes)
    for one in found.ranked:
        alone = llmviewer.analyze("llama-2-7b", one.cell.hardware.name, quant="fp8", hardware_set=changes)
        assert one.merit == pytest.approx(float(alone.evaluation.expected.tokens_per_s))
    assert [one.cell.hardware.name for one in found.ranked] == ["l40s", "l4"]
    lacking = rejected(found, "t4")
    assert (lacking.factor, found.to_dict()["inputs"]["hardware_set"]) == ("what-if", changes)
    assert lacking.reason.startswith("what-if: matrix.fp8=2x: t4 has no matrix.fp8 to multiply")


def test_ranking_by_energy_and_by_cost():
    names = ["rtx-4080", "arc-b580", "rx-7900-xtx"]
    by_energy = choose("llama-2-7b", hardware=names, by="energy")
    for one in by_energy.ranked:
        tokens_per_s = one.cell.result.expected.tokens_per_s[0]
        assert one.merit == pytest.approx(tokens_per_s / one.cell.hardware.fact("power.tdp"))
    by_cost = choose("llama-2-7b", hardware=names, by="cost", years=2)
    for one in by_cost.ranked:
        hourly = one.cell.hardware.fact("price.purchase") / (2 * 8766)
        assert one.merit == pytest.approx(3600 * one.cell.result.expected.tokens_per_s[0] / hourly)
        assert one.bound_merit == pytest.approx(3600 * one.cell.tokens_per_s[0] / hourly)
    assert by_cost.merit == "tokens/USD"
    shown, *_ = REPORT.tables(by_cost)
    prices = [row[shown.head.index("USD/h")].key for row in shown.body]
    assert prices == [one.cell.hardware.fact("price.purchase") / (2 * 8766) for one in by_cost.ranked]
    assert "USD/h: the cloud price, else the purchase price over 2 years." in shown.about
    assert "USD/h" not in REPORT.tables(by_energy)[0].head


def test_more_bandwidth_never_costs_a_rank():
    slow = load_hardware("l4")
    rates = {key: 2 * rate if key.unit == "memory" else rate for key, rate in slow.rates.items()}
    fast = replace(slow, name="l4-fast", rates=rates)
    found = choose("llama-2-7b", hardware=[slow, fast, "a10"], **NOVEL)
    order = [one.cell.hardware.name for one in found.ranked]
    assert order.index("l4-fast") < order.index("l4")


def test_spearman_by_hand():
    assert rank_correlation([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 2, 3, 4, 5], [2, 1, 4, 3, 5]) == pytest.approx(1 - 6 * 4 / (5 * 24))
    assert rank_correlation([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(
        np.corrcoef([0, 1.5, 1.5, 3], [0, 1, 2, 3])[0, 1]
    )
    assert np.isnan(rank_correlation([1, 2, 3], [4, 4, 4]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"by": "beauty"}, "by must be one of speed, cost, energy; got 'beauty'"),
        ({"budget": -1}, "budget must be a positive number; got -1"),
        ({"ttft": 0}, "ttft must be a positive number; got 0"),
        ({"users": 0}, "users must be a whole number of at least 1; got 0"),
        ({"users": "x"}, "users must be a whole number of at least 1; got 'x'"),
        ({"tpot": "x"}, "tpot must be a positive number; got 'x'"),
        ({"max_devices": None}, "max_devices must be a whole number of at least 1; got None"),
        ({"max_devices": 1025}, "max_devices must be at most 1024; got 1025"),
        ({"quants": None}, "quants must be text, or a list of such; got None"),
        ({"quants": []}, "quants: nothing to choose from"),
        ({"hardware": 0}, "hardware must be text or a Hardware, or a list of such; got 0"),
        ({"hardware": []}, "hardware: nothing to choose from"),
        ({"model": -1}, "model must be text or a Model; got -1"),
        ({"years": "x"}, "years must be a positive number; got 'x'"),
        ({"profiles": "x"}, "profiles must be a list of text or a path or a Profile; got 'x'"),
        (
            {"model": "bert-base-uncased"},
            "bert-base-uncased must generate tokens to be ranked by them; use llmviewer compare",
        ),
    ],
)
def test_mistakes_get_a_line(arguments, message):
    assert choose("gpt2", hardware="l4", quants="W4A16g128").quants == ("W4A16g128",)  # one need not be a list
    with pytest.raises(InputError) as caught:
        choose(**{"model": "gpt2", "hardware": ["l4"], **arguments})
    assert str(caught.value) == message


def test_devices_with_duplicate_names_are_refused(tmp_path):
    text = hardware_yaml("l4").replace("bandwidth: 300 GB/s", "bandwidth: 600 GB/s")
    (tmp_path / "l4.yaml").write_text(text)
    own = str(tmp_path / "l4.yaml")
    for hardware, message in (
        (["l4", own], f"l4 and {own} are both called l4; leave one out"),
        (["l4", load_hardware(own)], "l4 and a Hardware are both called l4; leave one out"),
        (["l4", "L4"], "hardware: l4 is given twice; give each once"),
    ):
        with pytest.raises(InputError) as caught:
            choose("gpt2", hardware=hardware)
        assert str(caught.value) == message


@pytest.mark.parametrize(("text", "time"), [("0.5", 0.5), ("500ms", 0.5), ("500 ms", 0.5), ("2min", 120.0)])
def test_times_allowed_are_seconds_or_have_a_unit(text, time, capsys):
    assert main(["choose", "gpt2", "--hardware", "l4", "--bound", "--ttft", text, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["inputs"]["ttft_s"] == time


def test_a_time_that_is_none_gets_a_line(capsys):
    assert main(["choose", "gpt2", "--hardware", "l4", "--tpot", "5 weeks"]) == 2
    must = "must be a positive time: 0.5 (seconds), '500 ms' or '2 h'; got '5 weeks'"
    assert capsys.readouterr().err == f"llmviewer: Invalid value for '--tpot': {must}\n"


def test_progress_counts_device_and_precision_pairs():
    told = []
    choose("gpt2", hardware=["l4", "t4"], quants=["published", "W8A8"], progress=lambda *at: told.append(at))
    assert told == [(1, 2), (2, 2)]


def test_the_command_prints_one_list_80_wide(capsys):
    some = "rtx-3090,rtx-4090,rtx-5090,l4,l40s,a10,a100-sxm-80gb,h100-sxm,mi300x,t4"
    use = ("--users", "1", "--prompt", "512", "--gen", "4096")
    code = main(["choose", "llama-2-13b", *use, "--hardware", some])
    out = capsys.readouterr()
    assert (code, out.err) == (0, "")
    assert max(map(len, out.out.splitlines())) <= 80
    assert re.search(r"rtx-4090 +W4A16g128 +87\.9 +111 95\.0 ms 11\.4 ms +11\.1<25\.8 +4 C M", out.out)
    assert "The ranking follows memory bandwidth most: rank correlation " in out.out


def test_a_text_has_the_first_of_the_ranking_and_names_the_others_by_reason(novel):
    text, page = REPORT.text(novel), REPORT.markdown(novel)
    ranked = text.partition("Devices by tokens/s, expected\n")[2].partition("\nTokens and times ")[0].splitlines()[1:]
    assert [line.split()[0] for line in ranked] == [one.cell.hardware.name for one in novel.ranked[:20]]
    assert f"{len(novel.ranked) - 20} more: -o FILE.html, .md, .csv or .json has all." in " ".join(text.split())
    named = " ".join(text.split()).partition("memory, over what is available: ")[2].partition(" By the allowed")[0]
    folds = [f"{one.cell.hardware.name} {fold(one.excess)}" for one in novel.rejected]
    assert named == ", ".join(folds[:20]) + f" and {len(folds) - 20} more"
    assert all(one.reason in page for one in novel.rejected)


def test_single_rejections_are_shown_in_full_and_unknown_prices_last():
    devices = ["l4", "t4", "a2", "gaudi-3", "rtx-4090"]
    found = choose("llama-2-13b", hardware=devices, quants=["published"], budget=2000)
    assert REPORT.text(found).partition("Devices that do not qualify\n")[2].splitlines()[:4] == [
        "gaudi-3: budget: 15,625 USD, 7.81x the 2,000 USD allowed",
        "rtx-4090: memory: 27.1 GB, 1.05x the 25.8 GB available",
        "budget: no purchase price is known; --hardware-set NAME:price.purchase=VALUE",
        "  gives one: l4, t4, a2",
    ]


def test_text_truncates_lists_of_devices_rejected_for_the_same_reason():
    found = choose("llama-3.1-8b", quants=["fp8"], budget=20_000)
    unknown = [one.cell.hardware.name for one in found.rejected if "no purchase price" in one.reason]
    text, (*_, table) = " ".join(REPORT.text(found).split()), tables(found)
    assert f"gives one: {', '.join(unknown[:20])} and {len(unknown) - 20} more" in text
    assert f"closest. {len(unknown) - 20} more: -o FILE.html, .md, .csv or .json has all." in text
    assert all(f"| {name} |" in table.markdown() for name in unknown)


@pytest.mark.slow("ranks all devices")
def test_json_and_csv_have_every_device(capsys, novel):
    document = json.loads(json.dumps(novel.to_dict(), allow_nan=False))
    assert len(document["devices"]) + len(document["left_out"]) == len(hardware_names())
    assert document["devices"][0]["rank"] == 1
    assert document["inputs"]["merit"] == "tokens/s"
    rows = list(csv.DictReader(io.StringIO(REPORT.csv(novel))))
    assert [row["hardware"] for row in rows] == [row["hardware"] for row in document["devices"]]


def test_a_frame_has_a_row_for_each_device_as_json_has(novel):
    frame, devices = novel.to_frame(), novel.to_dict()["devices"]
    assert list(frame.columns) == list(devices[0])
    assert list(frame["hardware"]) == [row["hardware"] for row in devices]


@pytest.mark.slow("ranks all devices")
def test_page_shows_the_ranking_criterion_and_the_best_devices(novel):
    page = REPORT.html(novel)
    assert ">; precisions" not in page
    assert page.count('"showSendToCloud": false') == 2 + 4 + 6
    assert "tokens/s against memory bandwidth" in page
    assert REPORT.html(novel) == page


def test_notebook_repr_omits_the_device_list(novel):
    assert len(repr(novel)) < 2000
    assert len(repr(novel.comparison)) < 2000


@pytest.mark.slow("ranks all devices")
def test_devices_rank_by_expected_time_and_rows_have_the_bound_too(novel):
    rows = list(novel.rows())
    known = [row for row in rows if row["expected_tpot_s"]]
    assert {"h100-sxm", "l40s"} < {row["hardware"] for row in known}
    for row in known:
        assert row["tpot_s"] <= row["expected_tpot_low_s"] <= row["expected_tpot_s"] <= row["expected_tpot_high_s"]
    bound = choose("llama-2-13b", bound=True, **NOVEL)
    names = [{one.cell.hardware.name for one in (*found.ranked, *found.unmeasured)} for found in (novel, bound)]
    assert names[0] == names[1]
    assert all(one.merit < one.bound_merit for one in novel.ranked)
    assert not bound.unmeasured
    text = REPORT.text(novel)
    assert "Expected times" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "xpected" not in REPORT.text(bound)
    assert all(row["expected_tpot_s"] is None for row in bound.rows())


def test_page_shows_the_rejection_reason_when_no_device_qualifies():
    found = choose("llama-2-70b", hardware=["rtx-4090"])
    assert not found.ranked
    page = REPORT.html(found)
    assert f">{found.rejected[0].reason}<" in page
    assert found.rejected[0].reason.startswith("memory: 3")
    assert page.count('"showSendToCloud": false') == 0


@pytest.mark.slow("ranks all devices for the examples")
@pytest.mark.parametrize("name", examples.EXAMPLES)
def test_stored_example_reports_are_up_to_date(name, request, tmp_path):
    examples.write(name, request.getfixturevalue(name), tmp_path)
    remake = "remake them with `python -m llmviewer.reports.examples` and look at the difference"
    assert (tmp_path / f"{name}.md").read_text() == (examples.FOLDER / f"{name}.md").read_text(), remake
    now, kept = (
        list(csv.DictReader(io.StringIO((where / f"{name}.csv").read_text()))) for where in (tmp_path, examples.FOLDER)
    )
    assert len(now) == len(kept), remake
    for ours, theirs in zip(now, kept, strict=True):
        assert ours.keys() == theirs.keys(), remake
        assert [key for key in ours if not same(ours[key], theirs[key])] == [], remake


def same(ours, theirs):
    """Last digits of numbers differ between processors."""
    try:
        return isclose(float(ours), float(theirs), rel_tol=1e-6)
    except ValueError:
        return ours == theirs


def test_devices_without_links_are_rejected_with_an_engine_too():
    devices = ["h100-sxm", "a18-pro", "l4"]
    found = choose("llama-3.1-70b", users=8, hardware=devices, max_devices=8, engine="vllm")
    assert {row["hardware"] for row in found.rows()} == set(devices)
    rows = list(llmviewer.compare("llama-3.1-70b", devices, layout="tp=8", engine="vllm").rows())
    assert [row["fits"] for row in rows] == [True, None, True]
    assert rows[1]["capacity_bytes"] == load_hardware("a18-pro").capacity


def test_launches_found_for_all_devices_together_are_those_of_each():
    """choose() finds launches once for several devices, compare() for each device by itself."""
    ranking = choose("llama-3.2-1b", hardware=["h100-sxm", "l40s", "mi300x", "rtx-4090"], max_devices=2)
    for one in (*ranking.ranked, *ranking.unmeasured):
        (alone,) = compare(
            "llama-3.2-1b", one.cell.hardware.name, quants=[one.cell.given_quant], layout=one.cell.layout
        ).cells
        assert alone.expected.source == one.expected.source
        for side in ("ttft", "tpot"):
            assert getattr(alone.expected, side).numbers() == getattr(one.expected, side).numbers()
    assert len(ranking.ranked) == 4


def test_precisions_that_are_not_expected_are_no_better_than_the_best():
    """Precisions whose bounds are below what is expected of another are left out; here all are expected."""
    found = choose("llama-3.1-8b", hardware=["a100-sxm-80gb", "h100-sxm", "l4", "mi300x", "rtx-4090", "b200"])
    assert len(found.ranked) == 6
    left_out = [cell for cell in found.comparison.cells if not cell.result.is_expected]
    assert left_out
    for one in found.ranked:
        cells = [cell for cell in found.comparison.cells if cell.hardware is one.cell.hardware and cell.fits[0]]
        assert len(cells) == 4
        assert one.merit == max(float(cell.result.expected.tokens_per_s[0]) for cell in cells)
