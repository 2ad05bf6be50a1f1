"""Engines of users at home, as measured: local_engines.csv, to which nothing was fitted.

llama-bench writes single tokens after few others (128 of them: 64 on average) and reads prompts that nothing is before.
Tables of discussions 4167 (Apple), 10879 (Vulkan), 15013 (CUDA) and 15021 (ROCm) of ggml-org/llama.cpp were read where
others quote them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from llmviewer import analyze
from llmviewer.devices.files import load_hardware
from llmviewer.expectation.device import find
from llmviewer.resource import matrix
from llmviewer.setting import Setting
from llmviewer.workload import Workload

from .documented import names, rows, text

POINTS = Path(__file__).with_name("local_engines.csv")
FEW = Path(__file__).with_name("local_few_tokens.csv")  # prompts read a few tokens at a time (llama-bench -ub)
# Kernels that quantize activations to 8 bits and multiply integers; F16 weights are multiplied as they are. Those of
# Metal widen weights instead.
INTEGERS = {"llama.cpp CUDA", "llama.cpp Vulkan", "llama.cpp ROCm"}


@dataclass(frozen=True, kw_only=True)
class Point:
    engine: str
    device: str
    quant: str
    prompt: bool
    measured_s: float
    bound_s: float
    expected_s: float
    low_s: float
    high_s: float

    @property
    def ratio(self) -> float:
        return self.expected_s / self.measured_s

    @property
    def inside(self) -> bool:
        return self.low_s <= self.measured_s <= self.high_s


def predicted() -> Iterator[Point]:
    with POINTS.open() as file:
        for row in csv.DictReader(file):
            quant, changes = row["quant"] or None, ()
            if quant == "F16":
                # cuBLAS adds up in fp16 for llama.cpp, which GeForce cards do at twice the rate of the file
                quant, changes = "fp16", ("matrix.fp16=2x",) if row["engine"] == "llama.cpp CUDA" else ()
            elif "llama.cpp" in row["engine"]:
                quant += ",A8g32" if row["engine"] in INTEGERS else ",Afp16"
            prompt = int(row["prompt"] or 0)
            if prompt:
                workload = Workload.prefill(batch=1, prompt=prompt)
            else:
                workload = Workload.decode(batch=1, kv_len=int(row["kv_len"]), prompt=8)
            phase = "prefill" if prompt else "decode"
            bound_s, *found = one_pass(row["model"], row["device"], quant, phase, workload, changes=changes)
            yield Point(
                engine=row["engine"], device=row["device"], quant=row["quant"], prompt=bool(prompt),
                measured_s=(prompt or 1) / float(row["tokens_per_s"]), bound_s=bound_s,
                **dict(zip(("expected_s", "low_s", "high_s"), found, strict=True)),
            )  # fmt: skip


def one_pass(model, device, quant, phase, workload, *, changes=()):
    """The bound, what is expected, and from where to where four fifths lie. [s]"""
    setting = Setting.of(model, device, quant=quant, hardware_set=changes)
    found = setting.expected_time(phase, workload, 1)
    return float(setting.time_s(phase, workload, 1)), *(each.item() for each in (found.expected, found.low, found.high))


@pytest.fixture(scope="module")
def points():
    return list(predicted())


def test_nothing_was_measured_faster_than_the_bound(points):
    assert len(points) > 200
    assert [p for p in points if p.measured_s < p.bound_s] == []


@pytest.fixture(scope="module")
def few():
    """(device, tokens of a pass, bound / measured, expected / measured), whatever is before them in a short prompt."""
    with FEW.open() as file:
        rows = list(csv.DictReader(file))
    found = []
    for row in rows:
        tokens, quant = int(row["tokens"]), f"{row['quant']},A8g32"
        bound_s, expected_s, *_ = one_pass(
            row["model"], row["device"], quant, "prefill", Workload.prefill(batch=1, prompt=tokens)
        )
        measured_s = tokens / float(row["tokens_per_s"])
        found.append((row["device"], tokens, bound_s / measured_s, expected_s / measured_s))
    return found


def test_a_few_tokens_take_no_less_than_the_bound(few):
    assert len(few) == 64
    assert max(bound for *_, bound, _ in few) < 1


@pytest.mark.parametrize(
    ("devices", "low", "high"),
    [(("rtx-3090", "rtx-4090", "rtx-5090"), 0.75, 0.95), (("mi100", "v100-pcie-32gb"), 0.45, 0.7)],
)
def test_a_few_tokens_take_about_as_long_as_expected(few, devices, low, high):
    """Kernels of llama.cpp for 3 to 64 tokens are slower than those that libraries have for narrow weights."""
    assert low < np.median([expected for device, *_, expected in few if device in devices]) < high


def test_tokens_are_written_about_as_fast_as_expected(points):
    """Four in five within the interval, as it says."""
    written = [p for p in points if not p.prompt]
    assert 0.9 < np.median([p.ratio for p in written]) < 1
    assert np.mean([p.inside for p in written]) > 0.75
    for engine, low, high in (("llama.cpp CUDA", 0.9, 1.1), ("llama.cpp Vulkan", 0.9, 1.1), ("MLX", 0.9, 1.2)):
        assert low < np.median([p.ratio for p in written if p.engine == engine]) < high


@pytest.mark.parametrize(("quant", "low", "high"), [("F16", 0.9, 1.1), ("Q8_0", 0.8, 1), ("Q4_0", 0.7, 0.9)])
def test_tokens_on_macs(points, quant, low, high):
    """Two dies of an Ultra, and fewer bytes beside as many launches, are further from it."""
    assert (
        low < np.median([p.ratio for p in points if p.quant == quant and not p.prompt and "Metal" in p.engine]) < high
    )


def test_prompts_on_macs(points):
    read = [p for p in points if p.prompt and p.engine == "llama.cpp Metal"]
    assert 0.95 < np.median([p.ratio for p in read]) < 1.15
    assert np.mean([p.inside for p in read]) > 0.7


@pytest.mark.parametrize("name", ["m3", "m3-pro", "m3-ultra", "m4", "m4-pro", "m4-max", "m5-max"])
def test_macs_whose_cache_is_not_published_have_that_of_a_relative(name):
    device = find(name)
    assert device.assumed == ("l3.capacity of m3-max",)
    assert device.l2 == find("m3-max").l2
    sources = [op.expectation_source for op in analyze("llama-2-7b", name).phases.decode.operators]
    assert any(f"assumed {device.assumed[0]}" in source for source in sources)


def test_the_assumed_cache_makes_no_difference_to_tokens():
    """Weights stream past it: with the 8 MiB that M1 and M2 have, a token takes as long to 1 %."""
    usual, small = (
        analyze("llama-2-7b", "m2", quant="W4A16g32", hardware_set=changes).phases.decode.total.expected_time_s
        for changes in (("l3.capacity=48 MiB",), ("l3.capacity=8 MiB",))
    )
    assert usual == pytest.approx(small, rel=0.01)


def test_without_matrix_units_one_row_is_no_tile():
    """fp16 weights of a 7B model read at four fifths of the bandwidth, not multiplied with 64 rows of zeros."""
    assert matrix("fp16") not in load_hardware("m2-max").rates
    total = analyze("llama-2-7b", "m2-max", prompt=8, gen=2, kv_len=64).phases.decode.total
    assert 1.15 < total.expected_time_s / total.bound_time_s < 1.4


def test_the_page_says_how_far_off_engines_are(points):
    engine = ""
    for title, weights, *told in rows("serving.md", "| engine | weights |"):
        engine = title.partition(" (")[0].replace(",", "") or engine
        for prompt in (False, True):
            asked = [p for p in points if p.engine == engine and p.prompt == prompt]
            asked = [p for p in asked if p.quant == weights] or asked
            ours, inside = told[2 * prompt : 2 * prompt + 2]
            if not asked:
                assert ours == inside == ""
                continue
            ratios = [p.ratio for p in asked]
            least, middle, most = np.quantile(ratios, (0.1, 0.5, 0.9))
            assert ours == f"{middle:.2f} ({least:.2f} to {most:.2f})", (engine, weights, prompt)
            share = f"{100 * np.mean([p.inside for p in asked]):.0f} %"
            assert inside == (share if prompt else f"{share} of {len(asked)}"), (engine, weights, prompt)
    halves = [[p for p in points if p.prompt == prompt] for prompt in (False, True)]
    middles = [f"{np.median([p.ratio for p in half]):.2f}" for half in halves]
    inside = [f"({100 * np.mean([p.inside for p in half]):.0f} % inside)" for half in halves]
    told = f"{middles[0]} for tokens {inside[0]} and {middles[1]} for prompts {inside[1]}"
    assert f"the median of all is {told}" in text("serving.md")


def test_the_page_says_how_far_off_a_few_tokens_are(few):
    for devices, count, told, _ in rows("serving.md", "| device | passes |"):
        ratios = [expected for device, *_, expected in few if device in names(devices)]
        assert int(count) == len(ratios), devices
        assert told == f"{min(ratios):.2f}, {np.median(ratios):.2f}, {max(ratios):.2f}", devices
