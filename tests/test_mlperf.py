"""MLPerf Inference, Offline: whole servers at full load, checked by many; none is above the bound, most as expected.

Nothing was fitted to these numbers. mlperf_offline.csv has, of the closed division, the best result of each device in a
round: tokens written a second by all `devices`. From mlcommons/inference_results_v4.0, _v4.1, _v5.1 and _v6.1
(summary.json, summary_results.json, mlperf_log_summary.txt), and for v5.0 from openshift-psap/performance-dashboard,
mlperf-data/mlperf-5.0.csv. `tp` is as submitters configured it; where that was not found, copies lie as serves most.

Lengths are means: answers of the reference implementations (mlcommons/inference, language/*/README.md), those of
DeepSeek-R1 with the spread of a submission (v6.1, NVIDIA, report.txt); prompts of llama-3.1-405b as published
(mlcommons.org/2025/04/llm-inference-v5), the others of samples of the data sets, to within 5 % (performance-dashboard,
mlperf-data/summaries). 4 bits are taken as those of weights and activations, caches in 8 bits.
"""

import csv
import re
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from llmviewer.errors import InputError
from llmviewer.serving.lengths import parse_lengths
from llmviewer.serving.saturation import all_at_start, best_chunks
from llmviewer.serving.steps import Steps
from llmviewer.setting import Setting

from .documented import names, rows

with (Path(__file__).parent / "mlperf_offline.csv").open() as lines:
    ROWS = list(csv.DictReader(lines))


@cache
def served(model, device, quant, layout, prompt, gen, *, expected):
    """Tokens a second of each device, at the bound or as expected; 0 where a copy does not fit so, or that is not
    known.
    """
    try:
        setting = Setting.of(model, device, quant=quant, layout=layout)
    except InputError:
        return 0
    steps = Steps(setting, expected=expected)
    if expected and steps.unknown:
        return 0
    traffic = all_at_start((parse_lengths(prompt, "prompt"), parse_lengths(gen, "gen")), 1000, seed=0)
    _, closed = best_chunks(steps, traffic, block=16)
    return closed.max_rate * float(np.mean(traffic.gen)) / setting.layout.devices


def layouts(row):
    sizes = [int(row["tp"])] if row["tp"] else [size for size in (1, 2, 4, 8) if size <= int(row["devices"])]
    shared = (
        [f"dp={size} ep={size}" for size in sizes if size > 1]
        if row["model"] in ("deepseek-r1", "gpt-oss-120b")
        else []
    )
    return [f"tp={size}" for size in sizes] + shared


def ratio(row, *, expected):
    """Measured throughput over the bound or the expected one, with the layout that serves most; None where that
    is not known.
    """
    model, device, quant, prompt, gen = (row[name] for name in ("model", "device", "quant", "prompt", "gen"))
    most = max(served(model, device, quant, layout, prompt, gen, expected=expected) for layout in layouts(row))
    return float(row["measured"]) / int(row["devices"]) / most if most else None


def expected(wanted):
    found = [ratio(row, expected=True) for row in ROWS if wanted(row)]
    return [each for each in found if each]


@pytest.mark.slow("serves every published load")
def test_no_result_is_above_the_bound():
    assert len(ROWS) > 60
    assert max(ratio(row, expected=False) for row in ROWS) < 1


@pytest.mark.slow("serves every published load")
@pytest.mark.parametrize("model", ["llama-3.1-405b", "llama-3.1-8b", "llama-2-70b"])
def test_dense_models_are_served_as_expected(model):
    """NVIDIA's devices with NVLink and AMD's of 2025, in the newest round of each."""
    newest = {row["device"]: row["round"] for row in ROWS if row["model"] == model}  # rows are in the order of rounds
    found = expected(
        lambda row: (
            row["model"] == model
            and row["round"] == newest[row["device"]]
            and row["device"].startswith(("h100-sxm", "h200", "gh200-", "b", "gb", "mi35"))
        )
    )
    assert len(found) >= 3
    assert median(found) == pytest.approx(1, abs=0.12)
    assert max(abs(ratio - 1) for ratio in found) < 0.3


@pytest.mark.slow("serves every published load")
def test_mixture_results_approach_the_expected_time_in_newer_rounds():
    """DeepSeek-R1 was served at two thirds of what is expected in its first round, and as expected in the newest."""
    first, newest = (expected(lambda row, which=which: row["model"] == "deepseek-r1" and row["round"] == which)
                     for which in ("v5.1", "v6.1"))  # fmt: skip
    assert 0.5 < median(first) < 0.8
    assert median(newest) == pytest.approx(1, abs=0.15)


@pytest.mark.slow("serves every published load")
def test_page_states_the_newest_result_of_each_device():
    newest = {(row["model"], row["device"]): row for row in ROWS}
    model, told = "", set()
    for title, devices, speeds in rows("serving.md", "| model | devices | measured / expected |"):
        model = title.lower().replace(" ", "-") or model
        asked = [(model, device) for device in names(devices)]
        ours = [f"{ratio(newest[each], expected=True):.2f}" for each in asked]
        assert re.findall(r"[0-9.]+", speeds.partition("(")[0]) == ours, (model, devices)
        told.update(asked)
    assert told == {each for each, row in newest.items() if ratio(row, expected=True)}
