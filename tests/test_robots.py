"""Models for robots: parameters, OPs, caches and how often they act.

OPs of pi0 are those that torch's flop counter finds on the meta device in transformers.PI0ForConditionalGeneration: its
language model on the prompt, and one denoising step. torch counts attention over all cells of the actions' masks.
"""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

from llmviewer import analyze
from llmviewer.errors import InputError
from llmviewer.forms import evaluate
from llmviewer.model import kv_cache_bytes
from llmviewer.model_files import load_model
from llmviewer.operators.attention import QK, SV
from llmviewer.operators.linear import Linear
from llmviewer.workload import Workload

PROMPT = 3 * 256 + 48  # three cameras and an instruction
PREFIX_OPS = 3_332_496_162_816
STEP_OPS = 38_606_815_232
HIDDEN_PAIRS = 50  # the state does not see the 50 actions
POLICY = {
    "type": "pi0", "input_features": {"observation.state": {"type": "STATE", "shape": [32]}}, "chunk_size": 50,
    "n_action_steps": 50, "paligemma_variant": "gemma_2b", "action_expert_variant": "gemma_300m", "dtype": "bfloat16",
    "max_action_dim": 32, "max_state_dim": 32, "num_inference_steps": 10, "image_resolution": [224, 224],
}  # fmt: skip


def products(model, workload, stream):
    return sum(
        block.repeat * Fraction(evaluate(op.work().ops.on(block.stream), workload))
        for block in model.graph.blocks
        if block.stream.name == stream
        for op in block.operators
        if isinstance(op, Linear | QK | SV)
    )


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("pi0", 3_501_372_176),  # transformers.PI0ForConditionalGeneration
        ("smolvla-450m", 450_046_176),  # num_total_params that LeRobot prints
        ("gr00t-n1.5-3b", 2_724_163_520),  # of the checkpoint on the hub
        ("openvla-7b", 7_541_237_184),  # likewise
    ],
)
def test_parameters_are_the_published_ones(name, parameters):
    assert load_model(name).parameters == parameters


def test_ops_of_the_prompt_and_of_a_denoising_step_are_torchs():
    model = load_model("pi0")
    first = Workload.prefill(batch=1, prompt=PROMPT, images=3)
    later = Workload.decode(batch=1, kv_len=PROMPT + 5, prompt=PROMPT, images=3)
    assert products(model, first, "source") == PREFIX_OPS
    assert products(model, later, "source") == 0
    masked = HIDDEN_PAIRS * 18 * 8 * 256 * 2 * 2  # layers, heads, elements of a head, two products of multiply-adds
    assert products(model, first, "denoising") == products(model, later, "denoising") == STEP_OPS - masked


@pytest.mark.parametrize(
    ("name", "per_token"),
    [
        ("pi0", 18 * 2 * 256 * 2),  # layers, keys and values, one head, bytes
        ("smolvla-450m", (16 + 8) * 2 * 320 * 2),  # and the projected ones of every second layer of the expert
        ("gr00t-n1.5-3b", 8 * 2 * 1536 * 2),  # of the layers that attend to features, whose own are not kept
    ],
)
def test_the_cache_is_that_of_the_prompt_and_does_not_grow(name, per_token):
    model = load_model(name)
    assert model.kv_bytes_per_token == per_token
    for steps in (1, 10):
        cache = kv_cache_bytes(model.graph, batch=3, context=PROMPT + steps, prompt=PROMPT, images=1)
        assert cache == 3 * PROMPT * per_token


@pytest.mark.parametrize(
    ("name", "device", "images", "prompt", "seconds"),
    [
        ("pi0", "rtx-4090", 3, PROMPT, 0.073),  # arXiv:2410.24164, table of inference times, without the network
        ("openvla-7b", "rtx-4090", 1, 256 + 30, 1 / 6),  # arXiv:2406.09246, section 3.4: about 6 Hz in bf16
    ],
)
def test_published_inferences_take_longer_than_the_bound_and_at_most_twice_the_expected_time(
    name, device, images, prompt, seconds
):
    found = analyze(name, device, images=images, prompt=prompt)
    assert found.request.gen == found.model.actions.steps
    assert found.generation.latency_s < seconds < 2 * found.generation.expected_latency_s


def test_note_states_the_inference_rate_of_a_robot_policy():
    found = analyze("pi0", "rtx-4090", images=3, prompt=PROMPT, bound=True)
    latency = found.generation.latency_s
    assert found.notes[0] == (
        f"an inference is 10 denoising steps and makes 50 actions: at most {1 / latency:,.4g} inferences/s, "
        f"{50 / latency:,.4g} actions/s; the time per output token is that of one denoising step"
    )
    other = analyze("pi0", "rtx-4090", images=3, prompt=PROMPT, gen=3, bound=True)
    assert other.notes[0] == "an inference is 10 denoising steps and makes 50 actions: --gen 10 counts one"
    assert analyze("openvla-7b", "rtx-4090", bound=True).notes[0].startswith("an inference is 7 tokens and makes 1 act")


def test_a_policy_of_lerobot_is_read_by_its_type(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(POLICY), encoding="utf-8")
    model = load_model(str(tmp_path))
    assert model.parameters == load_model("pi0").parameters
    assert model.notes == ("a LeRobot policy of type pi0: what its config does not say is as its class has it",)


@pytest.mark.parametrize(
    ("changes", "parameters", "steps"),
    [
        ({"type": "pi05"}, 3_616_757_520, 10),  # of openpi's pi05_base
        ({"type": "pi0_fast", "max_action_tokens": 256}, 2_923_335_408, 256),  # PaliGemma with 257,152 words
    ],
)
def test_other_policies_of_the_family(tmp_path, changes, parameters, steps):
    (tmp_path / "config.json").write_text(json.dumps(POLICY | changes), encoding="utf-8")
    model = load_model(str(tmp_path))
    assert (model.parameters, model.actions.steps) == (parameters, steps)


def test_stages_of_a_pipeline_would_cut_the_expert_from_its_caches():
    with pytest.raises(InputError, match="pp=2: every step of the action expert reads the caches of all layers"):
        analyze("pi0", "h100-sxm", images=3, prompt=PROMPT, layout="pp=2")
    two = analyze("pi0", "h100-sxm", images=3, prompt=PROMPT, layout="tp=2", bound=True)
    one = analyze("pi0", "h100-sxm", images=3, prompt=PROMPT, bound=True)
    assert two.generation.tpot_s < one.generation.tpot_s
