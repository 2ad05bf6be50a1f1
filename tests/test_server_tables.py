"""Whole engines on servers, as their makers publish them: none is above the bound, and what is expected is near.

Nothing was fitted to these numbers but how much devices on one host are in each other's way, on L40S alone; it is held
to A100 with PCIe. Of tables at full load, which name no batch, as many sequences are taken as the memory has room for,
2,048 at most, all read together and written together. server_tables.csv has them by source:

trtllm-0.6   NVIDIA/TensorRT-LLM docs/source/performance.md, commit 138f96d4: static batches
trtllm-0.14  docs/source/performance/perf-overview.md of v0.14: full load, Llama 3.1 and Mixtral
trtllm-1.0   the same of v1.0
nim          docs.nvidia.com/nim/benchmarking/llm/1.0.0/performance, version 1.8.0: 1 to 50 at a time
rocm-vllm    ROCm/vllm docs/dev-docker/README.md, commit 040de12d: whole answers
atom         ROCm/ATOM pull request 409: DeepSeek-R1, time per token
intel        intel.com, model performance data of Gaudi 2 and Gaudi 3, 1.18.0
jetstream    AI-Hypercomputer/jetstream-pytorch benchmarks/summary.md, commit 2ba0dd8b: ShareGPT, as 220 and 200 tokens
"""

import csv
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from llmviewer import analyze
from llmviewer.answering import generated
from llmviewer.memory import memory
from llmviewer.serving.policy import parse_policy
from llmviewer.serving.simulation import serve
from llmviewer.serving.steps import Steps
from llmviewer.serving.traffic import Traffic
from llmviewer.setting import Setting

from .documented import names, rows

ENGINES = {"rocm-vllm": "vllm", "atom": "vllm", "intel": "", "jetstream": ""}
MOST = 2048
with (Path(__file__).parent / "server_tables.csv").open() as lines:
    ROWS = [
        row | {name: int(row[name] or 0) for name in ("tp", "prompt", "gen", "batch")} for row in csv.DictReader(lines)
    ]
EXPECTED = [row for row in ROWS if row["source"] not in ("intel", "jetstream")]
DEVICES = sorted({row["device"] for row in EXPECTED})


@cache
def found(place):
    """(bound, expected) speed of a row over the measured one; expected is None where nothing is."""
    row = ROWS[place]
    quant = None if row["quant"] == "published" else row["quant"]
    engine = ENGINES.get(row["source"], "tensorrt-llm")
    setting = Setting.of(row["model"], row["device"], quant=quant, layout=f"tp={row['tp']}", engine=engine)
    asked = {"prompt": row["prompt"], "gen": row["gen"], "images": 0}
    held = memory(setting.footprint, setting.hardware.capacity, batch=1, **asked)
    batch = row["batch"] or min(held.max_batch, MOST)
    answer = generated(setting, batch=batch, **asked)
    each = (answer.tpot_s, answer.expected_tpot_s) if row["unit"] == "s a token" else (
        answer.latency_s, answer.expected_latency_s)  # fmt: skip
    measured = float(row["measured"])
    measured_s = batch * row["gen"] / measured if row["unit"] == "tok/s" else measured
    return tuple(time_s and measured_s / time_s for time_s in each)


def expected(wanted):
    return [found(place)[1] for place, row in enumerate(ROWS) if row in EXPECTED and wanted(row)]


def test_no_server_is_above_the_bound():
    assert min(found(place)[0] for place in range(len(ROWS))) > 1


@pytest.mark.parametrize("device", DEVICES)
def test_servers_are_as_fast_as_expected_on_average(device):
    assert median(expected(lambda row: row["device"] == device)) == pytest.approx(1, abs=0.25)


def test_most_servers_are_near_what_is_expected():
    errors = [abs(ratio - 1) for ratio in expected(lambda _: True)]
    assert len(errors) > 90
    assert median(errors) < 0.12
    assert np.mean(np.array(errors) < 0.25) > 0.8


@pytest.mark.parametrize("device", ["l40s", "a100-pcie-80gb"])
def test_devices_on_one_host_are_little_in_each_others_way(device):
    """Of eight, half of the time or more is sums over the host's links. Our A100 are in bridges; those of the table
    were hardly, as two of them served little more than half of what two with NVLink did.
    """
    ratios = expected(lambda row: row["device"] == device and row["tp"] == 8)
    assert len(ratios) >= 3
    assert median(ratios) == pytest.approx(1, abs=0.35)
    assert min(ratios) > 0.7


@pytest.mark.parametrize(("device", "batch"), [("gaudi-2", 163), ("gaudi-3", 217)])
def test_what_was_run_fits(device, batch):
    """Memory of Gaudi is in GiB: Intel ran these batches of Llama 2 7B, 128 tokens read and 2048 written."""
    assert analyze("llama-2-7b", device, batch=batch, prompt=128, gen=2048, quant="Wfp8Afp8KVfp8").memory.fits


def test_who_is_sent_away_does_not_come_back_before_others_have_gone_on():
    """Caches that grow in step need a block each at once, more than the room that is kept free."""
    steps = Steps(Setting.of("llama-2-7b", "h100-sxm"))
    count = 256
    alike = Traffic(arrival_s=np.linspace(0, 1e-3, count), prompt=np.full(count, 512), gen=np.full(count, 512))
    served = serve(steps, alike, policy=parse_policy("prefill-first"), max_batch=count, block=16)
    assert served.preempted.sum() > 0
    assert served.preempted.max() <= 2
    assert served.usage.reread < 2 * served.usage.read


def test_the_page_says_how_far_off_servers_are():
    for devices, count, ours, bound in rows("serving.md", "| device | rows | expected / measured"):
        places = [place for place, row in enumerate(ROWS) if row["device"] in names(devices)]
        assert int(count) == len(places), devices
        bounds = [found(place)[0] for place in places]
        assert bound == f"{min(bounds):.1f} to {max(bounds):.1f}", devices
        times = [1 / ratio for place in places if (ratio := found(place)[1])]
        assert ours == (f"{min(times):.2f}, {median(times):.2f}, {max(times):.2f}" if times else ""), devices
