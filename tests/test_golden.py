"""Whole reports, compared with their last reviewed version.

`python tests/test_golden.py` rewrites them; the diff is what to review. A failure lists the cells that moved.
"""

import csv
import io
from pathlib import Path

import pytest

import llmviewer
from llmviewer.reports.analysis import REPORT

GOLDEN = Path(__file__).parent / "golden"
SETTINGS = {
    "llama-2-7b-on-rtx-a6000": {"model": "llama-2-7b", "hardware": "rtx-a6000", "prompt": 2048},
    "llama-2-7b-on-rtx-a6000-survey": {
        "model": "llama-2-7b", "hardware": "rtx-a6000", "prompt": 2048, "kv_len": 2048, "accounting": "survey",
    },
    "llama-3.1-70b-on-h100-sxm-W4A16g128KV8": {
        "model": "llama-3.1-70b", "hardware": "h100-sxm", "quant": "W4A16g128KV8", "batch": 16, "prompt": 8192,
    },
    "qwen2.5-7b-on-l4-fp8": {"model": "qwen2.5-7b", "hardware": "l4", "quant": "fp8", "batch": 4},
    "falcon-40b-on-a100-sxm-80gb-eager": {"model": "falcon-40b", "hardware": "a100-sxm-80gb", "attention": "eager"},
    "opt-350m-on-v100-sxm2-16gb-W8A8": {"model": "opt-350m", "hardware": "v100-sxm2-16gb", "quant": "W8A8"},
    "gpt-j-6b-on-i9-13900k-fp16": {"model": "gpt-j-6b", "hardware": "i9-13900k", "quant": "fp16", "prompt": 128},
    "mistral-7b-v0.1-on-rtx-4090": {"model": "mistral-7b-v0.1", "hardware": "rtx-4090", "prompt": 16384},
    "bloom-7b1-on-t4-W4A4KV4": {"model": "bloom-7b1", "hardware": "t4", "quant": "W4A4KV4"},
}  # fmt: skip


def _near(was, now):
    """Powers and exponentials differ in their last digits from one processor to another."""
    return "" not in (was, now) and float(now) == pytest.approx(float(was), rel=1e-6)


def report(name):
    return REPORT.csv(llmviewer.analyze(**SETTINGS[name]))


@pytest.mark.parametrize("name", SETTINGS)
def test_report_matches_the_golden_file(name):
    was = list(csv.DictReader(io.StringIO((GOLDEN / f"{name}.csv").read_text())))
    now = list(csv.DictReader(io.StringIO(report(name))))
    assert [(row["phase"], row["name"]) for row in now] == [(row["phase"], row["name"]) for row in was]
    moved = [
        f"{a['phase']} {a['name']} {key}: {a[key]} -> {b[key]}"
        for a, b in zip(was, now, strict=True)
        for key in b
        if a.get(key) != b[key] and not (key.startswith("expected_") and _near(a[key], b[key]))
    ]
    assert not moved, "\n".join(moved)


def test_every_golden_file_has_its_setting():
    assert {path.stem for path in GOLDEN.glob("*.csv")} == SETTINGS.keys()


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for each in SETTINGS:
        (GOLDEN / f"{each}.csv").write_text(report(each))
