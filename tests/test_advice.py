"""The sentence under a phase: what it promises is what analyze() then finds."""

from __future__ import annotations

import re

import pytest

from llmviewer import analyze
from llmviewer.advice import larger_batch

_OFFER = re.compile(r"batch (\d+) \(([\d.]+)x the tokens per second(?:, expect ([\d.]+)x)?\)")


@pytest.mark.parametrize(
    ("name", "device", "asked"),
    [
        ("llama-3.1-8b", "h100-sxm", {"layout": "", "batch": 1}),
        ("llama-3.1-8b", "h100-sxm", {"layout": "dp=8", "batch": 8}),
        ("llama-3.1-8b", "h100-sxm", {"layout": "dp=8", "batch": 256}),
        ("llama-3.1-8b", "h100-sxm", {"layout": "pp=4", "batch": 16}),
        ("llama-3.1-8b", "h100-sxm", {"layout": "pp=2 dp=2", "batch": 3}),
        ("deepseek-v3", "h200-sxm", {"layout": "dp=8 ep=8", "batch": 256}),
        ("llama-3.1-8b", "h100-sxm", {"batch": 2, "techniques": ["beam:width=3"]}),
    ],
)
def test_the_batch_that_is_advised_gives_what_is_promised(name, device, asked):
    asked = {"prompt": 512, "gen": 8, **asked}
    now = analyze(name, device, **asked)
    told = _OFFER.search(now.phases.decode.advice)
    batch = int(told[1])
    then = analyze(name, device, **{**asked, "batch": batch})
    assert batch == larger_batch(asked["batch"], now.memory.max_batch) > asked["batch"]
    assert then.memory.fits
    more, before, after = batch / asked["batch"], now.phases.decode, then.phases.decode
    assert told[2] == f"{more * before.time_s / after.time_s:.2g}"
    assert told[3] == f"{more * before.expected_time_s / after.expected_time_s:.2g}"


def test_no_batch_is_advised_that_does_not_fit():
    most = analyze("llama-3.1-8b", "l4", prompt=512, gen=8).memory.max_batch
    assert "batch" not in analyze("llama-3.1-8b", "l4", batch=most, prompt=512, gen=8).phases.decode.advice
    assert (larger_batch(4, None), larger_batch(4, 100), larger_batch(4, 40)) == (64, 64, 40)
