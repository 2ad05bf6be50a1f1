"""Engines of users at home, as measured: local_engines.csv, to which nothing was fitted.

llama-bench writes single tokens after few others (128 of them: 64 on average) and reads prompts that nothing is before.
Tables of discussions 4167 (Apple), 10879 (Vulkan), 15013 (CUDA) and 15021 (ROCm) of ggml-org/llama.cpp were read where
others quote them. A `quant` such as Q4_0 is that of a GGUF file, whose types are laid out here as llama-quantize does.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from llmviewer import analyze
from llmviewer.expectation.device import find
from llmviewer.hardware_files import load_hardware
from llmviewer.model_files import load_model
from llmviewer.resource import matrix

from .gguf_bytes import F16, F32, Q4_K, Q6_K, Q8_0, header

POINTS = Path(__file__).with_name("local_engines.csv")
FEW = Path(__file__).with_name("local_few_tokens.csv")  # prompts read a few tokens at a time (llama-bench -ub)
Q4_0, Q5_K = 2, 13
TYPES = {"F16": (F16, F16), "Q8_0": (Q8_0, Q8_0), "Q4_0": (Q4_0, Q6_K), "Q4_K_M": (Q4_K, Q6_K)}  # usual, of the head
SIZES = {  # layers, hidden, heads, key heads, width of the MLP, vocabulary
    "llama-2-7b": (32, 4096, 32, 32, 11008, 32000),
    "llama-3-8b": (32, 4096, 32, 8, 14336, 128256),
    "llama-3-70b": (80, 8192, 64, 8, 28672, 128256),
}
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


@cache
def gguf(folder: Path, name: str, quant: str):
    """A model as llama-quantize stores it: of Q4_K_M, half of what is most sensitive has 6 bits."""
    layers, hidden, heads, key_heads, inner, vocabulary = SIZES[name]
    keys = hidden // heads * key_heads
    usual, head = TYPES[quant]
    tensors = {
        "token_embd.weight": ((hidden, vocabulary), usual),
        "output_norm.weight": ((hidden,), F32),
        "output.weight": ((hidden, vocabulary), head),
    }
    for layer in range(layers):
        eighth = layers // 8
        more = quant == "Q4_K_M" and (layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2)
        wide = Q6_K if more else usual
        values = Q5_K if quant == "Q4_K_M" and layers == 80 and not more else wide
        shapes = {
            "attn_norm": ((hidden,), F32), "ffn_norm": ((hidden,), F32), "attn_q": ((hidden, hidden), usual),
            "attn_k": ((hidden, keys), usual), "attn_v": ((hidden, keys), values),
            "attn_output": ((hidden, hidden), usual), "ffn_gate": ((hidden, inner), usual),
            "ffn_up": ((hidden, inner), usual), "ffn_down": ((inner, hidden), wide),
        }  # fmt: skip
        tensors |= {f"blk.{layer}.{stem}.weight": found for stem, found in shapes.items()}
    metadata = {
        "general.architecture": "llama", "llama.block_count": layers, "llama.context_length": 8192,
        "llama.embedding_length": hidden, "llama.feed_forward_length": inner, "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": key_heads, "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": vocabulary,
    }  # fmt: skip
    path = folder / f"{name}.{quant}.gguf"
    path.write_bytes(header(metadata, tensors))
    return load_model(str(path))


def predicted(folder: Path) -> Iterator[Point]:
    with POINTS.open() as file:
        for row in csv.DictReader(file):
            model, quant, changes = row["model"], row["quant"] or None, ()
            if quant in TYPES:
                model = gguf(folder, model, quant)
                integers = row["engine"] in INTEGERS and quant != "F16"
                # cuBLAS adds up in fp16 for llama.cpp, which GeForce cards do at twice the rate of the file
                changes = ("matrix.fp16=2x",) if (row["engine"], quant) == ("llama.cpp CUDA", "F16") else ()
                quant = "*=A8g32" if integers else None
            asked = {"prompt": int(row["prompt"]), "gen": 1} if row["prompt"] else {"prompt": 8, "gen": 2}
            at = {} if row["prompt"] else {"kv_len": int(row["kv_len"])}
            phases = analyze(model, row["device"], quant=quant, hardware_set=changes, **asked, **at).phases
            total = (phases.prefill if row["prompt"] else phases.decode).total
            tokens = int(row["prompt"]) if row["prompt"] else 1
            yield Point(
                engine=row["engine"], device=row["device"], quant=row["quant"], prompt=bool(row["prompt"]),
                measured_s=tokens / float(row["tokens_per_s"]), bound_s=total.bound_time_s,
                expected_s=total.expected_time_s, low_s=total.expected_low_s, high_s=total.expected_high_s,
            )  # fmt: skip


@pytest.fixture(scope="module")
def points(tmp_path_factory):
    return list(predicted(tmp_path_factory.mktemp("gguf")))


def test_nothing_was_measured_faster_than_the_bound(points):
    assert len(points) > 200
    assert [p for p in points if p.measured_s < p.bound_s] == []


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """(device, tokens of a pass, bound / measured, expected / measured), whatever is before them in a short prompt."""
    folder = tmp_path_factory.mktemp("few")
    with FEW.open() as file:
        rows = list(csv.DictReader(file))
    found = []
    for row in rows:
        model, tokens = gguf(folder, row["model"], row["quant"]), int(row["tokens"])
        total = analyze(model, row["device"], quant="*=A8g32", prompt=tokens, gen=1).phases.prefill.total
        measured_s = tokens / float(row["tokens_per_s"])
        found.append((row["device"], tokens, total.bound_time_s / measured_s, total.expected_time_s / measured_s))
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
