"""Published throughput of whole engines on servers: none is above the bound, and expected values are near.

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

and of SGLang, whose kernels were measured apart from it:

sglang-gpt-oss  lmsys.org/blog, gpt-oss, August 27, 2025 (v0.5.1.post3): one sequence, time per token
sglang-b200     gist BenHamm/78563d0d (v0.5.8.post1), February 2026: one sequence, time per token
inferencex      SemiAnalysisAI/InferenceX issue 870 (v0.5.6 and v0.5.7): so many at a time, lengths of 0.8 to 1 of 1024,
                as 922: time per token on H200, tokens a second on B200
large-ep        lmsys.org/blog, 2025-05-05-large-scale-ep (H100: experts as they were, and evenly; H800: DeepSeek's own
                profile, evenly) and 2025-09-25-gb200-part-2 (GB200): prompts read alone, 16384 tokens on each device,
                and steps that decode; in two batches that overlap, but GB200. With places for 288 experts 72 devices
                have four each, as 64 have for 256, and 48 have six

server_bursts.csv has whole runs, with tokens a second from the first arrival to the last answer:

sglang-h200  sgl-project/sglang benchmark/attention_backend/NVIDIA_H200.md, commit 0c4ec4f9: 200 requests, 16 a second
gpustack     gpustack/gpustack docs/performance-lab/qwen3-14b/h100.md, commit 7ae332aa (SGLang v0.5.5.post1, vLLM
             v0.11.0): all requests at once
"""

import csv
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from llmviewer import analyze
from llmviewer.analyzing.generation import GenerationResult
from llmviewer.memory import memory
from llmviewer.serving.policy import parse_policy
from llmviewer.serving.server import serve
from llmviewer.serving.simulation import simulate
from llmviewer.serving.steps import Steps
from llmviewer.serving.traffic import Traffic
from llmviewer.setting import Setting
from llmviewer.variants.evaluation import Evaluation

from .documented import names, rows

SGLANG = ("sglang-gpt-oss", "sglang-b200", "inferencex", "large-ep")
ENGINES = {"rocm-vllm": "vllm", "atom": "vllm", "intel": "", "jetstream": "", **dict.fromkeys(SGLANG, "sglang")}
MOST = 2048
HERE = Path(__file__).parent
with (HERE / "server_tables.csv").open() as lines:
    ROWS = [row | {name: int(row[name] or 0) for name in ("prompt", "gen", "batch")} for row in csv.DictReader(lines)]
with (HERE / "server_bursts.csv").open() as lines:
    BURSTS = list(csv.DictReader(lines))
EXPECTED = [row for row in ROWS if row["source"] not in ("intel", "jetstream", *SGLANG)]
DEVICES = sorted({row["device"] for row in EXPECTED})


@cache
def found(place):
    """(bound, expected) speed of a row over the measured one; expected is None where nothing is."""
    row = ROWS[place]
    quant = None if row["quant"] == "published" else row["quant"]
    engine = ENGINES.get(row["source"], "tensorrt-llm")
    setting = Setting.of(row["model"], row["device"], quant=quant, layout=row["layout"], engine=engine)
    asked = {"prompt": row["prompt"], "gen": row["gen"], "images": 0}
    held = memory(setting.footprint, setting.hardware.capacity, batch=1, **asked)
    batch = row["batch"] or min(held.max_batch, MOST)
    answer = GenerationResult.of(Evaluation(setting=setting, batch=batch, **asked))
    name, tokens = {
        "s": ("latency_s", 0), "tok/s": ("latency_s", batch * row["gen"]), "s a token": ("tpot_s", 0),
        "prompt tok/s": ("ttft_s", batch * row["prompt"]),
    }[row["unit"]]  # fmt: skip
    measured = float(row["measured"])
    measured_s = tokens / measured if tokens else measured
    each = getattr(answer, name), getattr(answer, f"expected_{name}")
    return tuple(time_s and measured_s / time_s for time_s in each)


@cache
def burst(place):
    """(bound, expected) speed of a run over the measured one."""
    row = BURSTS[place]
    found = simulate(
        row["model"], row["device"], quant=None if row["quant"] == "published" else row["quant"], layout=row["layout"],
        engine=row["engine"], rate=float(row["rate"]), requests=int(row["requests"]), prompt_lengths=row["prompt"],
        gen_lengths=row["gen"], max_batch=MOST,
    )  # fmt: skip
    return tuple(run.tokens_per_s / float(row["measured"]) for run in (found, found.expected))


def expected(wanted):
    return [found(place)[1] for place, row in enumerate(ROWS) if row in EXPECTED and wanted(row)]


@pytest.mark.slow("serves published loads")
def test_no_server_is_above_the_bound():
    assert min(found(place)[0] for place in range(len(ROWS))) > 1
    assert min(burst(place)[0] for place in range(len(BURSTS))) > 1


@pytest.mark.slow("serves published loads")
@pytest.mark.parametrize("device", DEVICES)
def test_servers_are_as_fast_as_expected_on_average(device):
    assert median(expected(lambda row: row["device"] == device)) == pytest.approx(1, abs=0.25)


@pytest.mark.slow("serves published loads")
def test_most_servers_match_expected_throughput():
    errors = [abs(ratio - 1) for ratio in expected(lambda _: True)]
    assert len(errors) > 90
    assert median(errors) < 0.12
    assert np.mean(np.array(errors) < 0.25) > 0.8


@pytest.mark.slow("serves published loads")
@pytest.mark.parametrize("device", ["l40s", "a100-pcie-80gb"])
def test_devices_of_one_host_hardly_slow_each_other_down(device):
    """With eight, half of the time or more is sums over the host's links. Our A100 are in bridges; those of the table
    were hardly, as two of them served little more than half of what two with NVLink did.
    """
    ratios = expected(lambda row: row["device"] == device and row["layout"] == "tp=8")
    assert len(ratios) >= 3
    assert median(ratios) == pytest.approx(1, abs=0.35)
    assert min(ratios) > 0.7


@pytest.mark.parametrize(("device", "batch"), [("gaudi-2", 163), ("gaudi-3", 217)])
def test_measured_batches_fit_in_memory(device, batch):
    """Memory of Gaudi is in GiB: Intel ran these batches of Llama 2 7B, 128 tokens read and 2048 written."""
    assert analyze("llama-2-7b", device, batch=batch, prompt=128, gen=2048, quant="Wfp8Afp8KVfp8").memory.fits


def test_preempted_requests_do_not_resume_before_others_progress():
    """Caches that grow in step need a block each at once, more than the room that is kept free."""
    steps = Steps(Setting.of("llama-2-7b", "h100-sxm"))
    count = 256
    alike = Traffic(arrival_s=np.linspace(0, 1e-3, count), prompt=np.full(count, 512), gen=np.full(count, 512))
    served = serve(steps, alike, policy=parse_policy("prefill-first"), max_batch=count, block=16)
    assert served.preempted.sum() > 0
    assert served.preempted.max() <= 2
    assert served.usage.reread < 2 * served.usage.read


def said(ratios):
    """The columns of a table on the page: what is expected, and bounds."""
    bounds, times = [bound for bound, _ in ratios], [1 / ratio for _, ratio in ratios if ratio]
    between = f"{min(times):.2f}, {median(times):.2f}, {max(times):.2f}" if times else ""
    return [str(len(ratios)), between, f"{min(bounds):.1f} to {max(bounds):.1f}"]


@pytest.mark.slow("serves published loads")
def test_page_states_the_error_of_each_server_row():
    for devices, *ours in rows("serving.md", "| device | rows | expected / measured"):
        own = (place for place, row in enumerate(ROWS) if row["device"] in names(devices))
        assert ours == said([found(place) for place in own if ROWS[place]["source"] not in SGLANG]), devices


@pytest.mark.slow("serves published loads")
def test_page_states_the_error_for_sglang():
    """A row of the page has those of a source, on devices and in a unit."""
    table = rows("serving.md", "| SGLang | devices | rows | expected / measured")
    shown = set()
    for what, devices, *ours in table:
        source, unit = names(what)
        wanted = {"source": {source}, "unit": {unit}, "device": set(names(devices))}
        own = [place for place, row in enumerate(ROWS) if all(row[name] in each for name, each in wanted.items())]
        assert ours == said([found(place) for place in own]), what
        shown.update(own)
    assert len(shown) == sum(row["source"] in SGLANG for row in ROWS)


@pytest.mark.slow("serves published loads")
def test_page_states_the_error_of_each_run():
    for what, engine, *ours in rows("serving.md", "| runs | engine | rows | expected / measured"):
        own = [place for place, row in enumerate(BURSTS) if (row["source"], row["engine"]) == (names(what)[0], engine)]
        assert ours == said([burst(place) for place in own]), what
