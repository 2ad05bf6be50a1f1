"""Evaluations and variants: one answer to what a change gains, whoever asks, and laws of the evaluation."""

import re
from dataclasses import replace

import numpy as np
import pytest

from llmviewer import analyze, compare
from llmviewer.comparing import choice
from llmviewer.serving import planning
from llmviewer.serving.advice import advise
from llmviewer.setting import Setting
from llmviewer.techniques import techniques
from llmviewer.transforms.quantize import PUBLISHED
from llmviewer.units import fold
from llmviewer.variants.changes import CACHES, PRECISIONS, larger_batches, more_devices, precisions, technique_change
from llmviewer.variants.evaluation import Evaluation, Objective
from llmviewer.variants.libraries import faster_libraries
from llmviewer.variants.variant import evaluate
from llmviewer.webapp import results
from llmviewer.webapp.state import State
from llmviewer.webapp.views import changes as page

TEXTS = ("W4A16g128", "fp8", "W8A8", "KV8")
_ADVISED = re.compile(r"\(--quant (\S+)\) >= \S+ \w+ \(([\d.]+)x at the bound, ([\d.]+)x expected\)")


@pytest.mark.parametrize(("model", "device", "batch"), [("llama-3.1-8b", "h100-sxm", 1), ("qwen2.5-7b", "l40s", 8)])
def test_gain_of_a_change_is_the_same_in_every_command(model, device, batch):
    """analyze() twice, evaluate(), compare(), advise(), the page, and advice on a single decode step."""
    request = {"batch": batch, "prompt": 512, "gen": 2}
    base = analyze(model, device, **request)
    advised = advise(model, device, wanted="tpot", without=["draft", "model"], research=True, **request)
    lines = {one.name: one for one in (*advised.alone, *advised.no_gain, *advised.too_large)}
    state = State(model=model, on=(device,), **request)
    steps = {
        step.candidate.name: step.variants[device]
        for step in page.ranked_changes(results.device_results(state), state, with_techniques=False)[0]
    }
    without, *cells = compare(model, device, quants=["published", *TEXTS], **request).cells
    told = {quant: gains for quant, *gains in _ADVISED.findall(base.phases.decode.advice)}
    changes = {change.name: change for change in precisions(base.evaluation.setting)}
    for text, cell in zip(TEXTS, cells, strict=True):
        one = evaluate(changes[text], base.evaluation, Objective.TPOT)
        then = analyze(model, device, quant=text, **request).generation
        bound, expected = base.generation.tpot_s / then.tpot_s, base.generation.expected_tpot_s / then.expected_tpot_s
        for variant in (one, lines[text], steps[text]):
            assert variant.gain == pytest.approx(bound, rel=1e-9)
            assert variant.expected_gain == pytest.approx(expected, rel=1e-9)
        assert one.pass_gain("decode") == pytest.approx(bound, rel=1e-9)
        assert one.expected_pass_gain("decode") == pytest.approx(expected, rel=1e-9)
        assert without.tpot_s[0] / cell.tpot_s[0] == pytest.approx(bound, rel=1e-9)
        hoped = [each.expected.tpot.expected for each in (without, cell)]
        assert hoped[0] / hoped[1] == pytest.approx([expected], rel=1e-9)
        assert told.get(text, [fold(bound, 2)[:-1], fold(expected, 2)[:-1]]) == [
            fold(bound, 2)[:-1], fold(expected, 2)[:-1],
        ]  # fmt: skip
    assert "W4A16g128" in told


def evaluation(model, device, batch=4, **options):
    return Evaluation(setting=Setting.of(model, device, **options), batch=batch, prompt=300, gen=40, kv_len=301)


@pytest.mark.parametrize(
    "options", [{}, {"techniques": ["chunked-prefill", "eagle"]}, {"layout": "pp=2"}, {"attention": "eager"}]
)
def test_many_batches_at_once_are_each_of_them(options):
    batches = np.array([1.0, 4.0, 33.0])
    many = evaluation("llama-3.2-1b", "l4", batches, **options)
    for place, batch in enumerate(batches):
        one = evaluation("llama-3.2-1b", "l4", int(batch), **options)
        for name in ("ttft_s", "tpot_s", "latency_s", "tokens_per_s"):
            assert getattr(many.bounds, name)[place] == pytest.approx(getattr(one.bounds, name))
            assert getattr(many.expected, name)[place] == pytest.approx(getattr(one.expected, name))
        assert many.memory_bytes[place] == one.memory_bytes == one.memory.total_bytes


def test_passes_evaluated_together_are_those_evaluated_alone():
    together, alone = evaluation("qwen2.5-7b", "a10"), evaluation("qwen2.5-7b", "a10")
    together.expect_all()
    assert together.intervals == alone.intervals
    for phase in ("prefill", "decode"):
        expected = [one.expected_pass_s(phase) for one in (together, evaluation("qwen2.5-7b", "a10"))]
        assert expected[0] == expected[1]
    assert together.expected_pass_s("prefill") == together.expected_ttft


def test_changes_one_after_another_are_the_options_together():
    base = evaluation("llama-3.1-8b", "h100-sxm", quant="W8A16,lm_head=W16A16")
    changes = {change.name: change for change in (*precisions(base.setting), *more_devices([2]))}
    several = (changes["fp8"], technique_change(techniques()["eagle"]), changes["KV8"], changes["tp=2"])
    for order in (several, several[::-1]):
        one = evaluate(order, base)
        options = {"quant": "Wfp8Afp8KV8,lm_head=W16A16", "layout": "tp=2", "techniques": ["eagle"]}
        assert one.result.setting == Setting.of("llama-3.1-8b", "h100-sxm", **options)
    assert (
        evaluate(several, base).typed
        == "--quant fp8,lm_head=W16A16 --with eagle --quant Wfp8Afp8KV8,lm_head=W16A16 --tp 2"
    )
    nothing = evaluate((), base)
    assert {replace(nothing, objective=one).gain for one in Objective} == {nothing.pass_gain("decode"), 1.0}
    assert set(nothing.work_ratios.values()) == {1.0}


def test_a_larger_batch_is_weighed_by_all_of_its_sequences():
    base = evaluation("llama-3.1-8b", "l4")
    for change in larger_batches(base):
        one, steps = evaluate(change, base), evaluate(change, base, Objective.TPOT)
        assert steps.gain == pytest.approx(change.batch / 4 * base.bounds.tpot_s / one.result.bounds.tpot_s)
        assert one.gain == pytest.approx(evaluate(change, base, Objective.THROUGHPUT).gain)
        assert one.fits
    assert change.batch == base.memory.max_batch


def test_the_fastest_library_is_found_by_trying_each():
    base = replace(evaluation("llama-2-7b", "a100-sxm-80gb", batch=1), prompt=1024, kv_len=1025)
    found = {one.phase: one for one in faster_libraries(base)}
    libraries = base.setting.kernels.default_libraries
    assert len(libraries) > 2
    for phase in ("prefill", "decode"):
        times = {
            name: base.changed(base.setting.having(library=name)).expected_pass_s(phase).expected for name in libraries
        }
        default = times.pop(libraries[0])
        fastest = min(times, key=times.get)
        if phase in found:
            assert found[phase].speed_up == pytest.approx(default / found[phase].expected_time_s)
            assert times[found[phase].library] == pytest.approx(found[phase].expected_time_s)
            assert found[phase].speed_up >= 1.25
        else:
            assert default / times[fastest] < 1.25


def test_precisions_tried_by_default_are_those_of_changes():
    known = {PUBLISHED, *PRECISIONS, *CACHES, *(f"{text}{cache}" for text in PRECISIONS for cache in CACHES)}
    assert {*choice.QUANTS, *planning.QUANTS} <= known
