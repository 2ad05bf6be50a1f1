"""Tables of launches and of expected ratios give what direct evaluation gives."""

import numpy as np
import pytest

from llmviewer.forms import ADDITIVE, CONTEXT_INDEPENDENT, Feature
from llmviewer.serving.launch_tables import _TOTALS, TabulatedPlan
from llmviewer.serving.running_batch import _MaxGaps
from llmviewer.serving.step_times import _RatioGrid
from llmviewer.serving.steps import Steps
from llmviewer.setting import Setting
from llmviewer.workload import Spans, Workload

SETTINGS = {
    "dense": ("llama-3.1-8b", {}),
    "sliding windows": ("gpt-oss-120b", {}),
    "experts and latent attention": ("deepseek-v3", {"layout": "tp=8 ep=8"}),
    "recurrent": ("mamba-2.8b", {}),
    "key-value sharing and tokens of the prompt's end": ("phi-4-mini-flash", {}),
}
ARGUMENTS = {
    "pairs": (100.0,), "cells": (np.inf,), "kv_tokens": (100.0,), "kv_streams": (64.0, 50.0, 100.0),
    "kv_pages": (16.0, np.inf), "chunked_pairs": (128.0,), "chunked_kv": (128.0,), "chosen_kv": (32.0,),
    "touched_kv": (0.1,), "near_pairs": (64.0,), "chunk_pairs": (64.0,),
}  # fmt: skip


def random_groups(generator):
    """A step with up to three prefill chunks and, mostly, decoding sequences."""
    groups = []
    if generator.random() < 0.8:
        context = float(generator.integers(1, 5000)) + float(generator.random())
        groups.append(Spans(batch=float(generator.integers(1, 200)), q_len=1.0, kv_len=context, logits=1.0))
    for _ in range(int(generator.integers(0 if groups else 1, 4))):
        size = int(generator.choice([16, 128, 512, 2048]))
        past = int(generator.choice([0, 512, 4096]))
        logits = float(generator.integers(0, 2))
        groups.append(Spans(batch=1.0, q_len=float(size), kv_len=float(past + size), logits=logits))
    return tuple(groups)


@pytest.mark.parametrize(("model", "options"), SETTINGS.values(), ids=SETTINGS)
def test_tabulated_plans_equal_plans_to_the_last_bit(model, options):
    setting = Setting.of(model, "h200-sxm", **options)
    generator = np.random.default_rng(0)
    for plan in {id(plan): plan for plan in (setting.plan, setting.decode_plan)}.values():
        table = TabulatedPlan(plan)
        for _ in range(200):
            groups = random_groups(generator)
            assert table.time_s(groups) == float(plan.time_s(Workload(groups)))


def test_features_that_depend_on_totals_alone_are_tabulated():
    assert _TOTALS.keys() >= CONTEXT_INDEPENDENT
    assert all(hasattr(Workload, name) for name in (*_TOTALS, *ADDITIVE))


@pytest.mark.parametrize("name", sorted(ADDITIVE))
def test_additive_features_are_sums_over_groups(name):
    feature, generator = Feature(name, ARGUMENTS.get(name, ())), np.random.default_rng(1)
    for _ in range(50):
        groups = random_groups(generator)
        apart = sum(float(feature.of(Workload((group,)))) for group in groups)
        assert float(feature.of(Workload(groups))) == pytest.approx(apart, rel=1e-12)


def test_single_steps_equal_entries_of_arrays():
    """Steps of arrays, which the closed forms evaluate, are those that the simulation evaluates one at a time."""
    for model, options in SETTINGS.values():
        steps = Steps(Setting.of(model, "h200-sxm", **options), expected=True)
        context = np.array([100.5, 3000.25])
        chunk = Spans(batch=1.0, q_len=256.0, kv_len=1024.0, logits=0.0)
        together = steps.mixed_s((steps.decoding_group(16.0, context), chunk))
        apart = [steps.step_s([(steps.decoding_group(16.0, kv_len), chunk)]) for kv_len in context.tolist()]
        assert together == pytest.approx(apart, rel=1e-12)


def test_ratios_of_single_values_equal_those_of_arrays():
    generator = np.random.default_rng(2)
    grid = _RatioGrid(np.array([1.0, 4.0, 5.0, 64.0]), np.array([16.0, 128.0, 1024.0]), generator.random((4, 3)))
    x, y = (np.concatenate([points, 200 * generator.random(50)]) for points in ([1, 4, 64, 0.5], [16, 128, 1024, 1]))
    assert grid(x, y).tolist() == [grid(*pair) for pair in zip(x.tolist(), y.tolist(), strict=True)]


def test_the_longest_gap_since_a_step_is_that_of_all_gaps():
    generator, gaps, recorded = np.random.default_rng(3), _MaxGaps(), []
    for start in range(300):
        gap_s = float(generator.integers(1, 50))
        gaps.record(start, gap_s)
        recorded.append(gap_s)
        joined_at = int(generator.integers(0, start + 1))
        assert gaps.max_after(joined_at) == max(recorded[joined_at + 1 :], default=0.0)
