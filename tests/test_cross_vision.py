"""Llama 3.2 Vision, whose cross-attention looks at images in each pass: against torch's flop counter on the class of
transformers (oracle/towers.json), and by hand.
"""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from llmviewer import analyze, sweep
from llmviewer.analyzing.disaggregation import disaggregate
from llmviewer.errors import InputError
from llmviewer.forms import evaluate
from llmviewer.generation import decode_s
from llmviewer.model import kv_cache_bytes
from llmviewer.model_files import load_model
from llmviewer.operators.attention import QK, SV
from llmviewer.operators.linear import Linear
from llmviewer.precision import BF16
from llmviewer.setting import Setting
from llmviewer.workload import Workload

from .strategies import built

NAME = "llama-3.2-11b-vision"
SEEN = 4 * 1601  # tokens of an image
CROSSING = json.loads((Path(__file__).parent / "oracle" / "towers.json").read_text(encoding="utf-8"))["models"][NAME][
    "crossing"
]
SMALL = {
    "model_type": "mllama",
    "text_config": {"vocab_size": 100, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 3,
                    "num_attention_heads": 2, "num_key_value_heads": 1, "cross_attention_layers": [1]},
    "vision_config": {"hidden_size": 6, "intermediate_size": 10, "num_hidden_layers": 2, "num_global_layers": 1,
                      "attention_heads": 2, "image_size": 4, "patch_size": 2, "max_num_tiles": 4,
                      "intermediate_layers_indices": [0], "vision_output_dim": 12},
}  # fmt: skip


def _graph(**changes):
    return built(BF16, **{**SMALL, **changes})


def _counted(w):
    """OPs of matrix products by operator as torch counts them, attention over whole scores, the head everywhere."""
    found = Counter()
    for block, op in load_model(NAME).graph:
        ops = block.repeat * Fraction(evaluate(op.work().ops.on(block.stream), w)) if block.main else 0
        if ops and isinstance(op, QK | SV):
            mask = op.heads.mask
            whole = Fraction(*(int(evaluate(form.on(block.stream), w)) for form in (mask.cells, mask.pairs)))
            found["cross_attn" if block.name == "cross" else "self_attn"] += ops * whole
        elif ops and isinstance(op, Linear):
            found[op.name] += ops * (Fraction(w.tokens()) / w.logits() if op.name == "lm_head" else 1)
    return found


@pytest.mark.parametrize("case", CROSSING)
def test_ops_of_the_language_model_equal_torchs_to_the_digit(case):
    asked = {"batch": case["batch"], "images": case["images"]}
    decodes = case["q_len"] == 1
    prompt = case["kv_len"] - decodes
    w = (
        Workload.decode(kv_len=prompt + 1, prompt=prompt, **asked)
        if decodes
        else Workload.prefill(prompt=prompt, **asked)
    )
    theirs = Counter()
    for path, ops in case["by_module"].items():
        *_, inside, last = ("", *path.split("."))
        theirs[f"cross_{last}" if inside == "cross_attn" else last] += ops
    assert _counted(w) == theirs


def test_parameters_equal_the_hugging_face_count():
    assert load_model(NAME).parameters == 10_670_220_835


def test_counts_of_a_small_one_by_hand():
    """Four tiles of 2 x 2 patches and a token of their own, brought from 5 to 8 tokens each; two of three layers attend
    to text, one of them to the 20 tokens of each image.
    """
    graph = _graph()
    w = Workload.prefill(batch=1, prompt=7, images=2)
    ops = {f"{b.name}.{op.name}": b.repeat * evaluate(op.work().on(b.stream).ops, w) for b, op in graph}
    assert ops["vision_embedding.vision_patch_embed"] == 2 * 2 * 16 * 12 * 6
    assert ops["vision_local.vision_q_proj"] == 2 * 2 * 2 * 32 * 6 * 6
    assert ops["vision_local.vision_qk_matmul"] == 2 * 2 * 2 * 32 * 32 * 6
    assert ops["vision_global.vision_qk_matmul"] == 2 * 2 * 32 * 32 * 6
    assert ops["vision_projector.vision_linear_1"] == 2 * 2 * 20 * 12 * 8
    assert ops["cross.cross_k_proj"] == ops["cross.cross_v_proj"] == 2 * 2 * 20 * 8 * 4
    assert ops["cross.cross_k_norm"] == 4 * 2 * 20 * 4
    assert ops["cross.cross_q_proj"] == 2 * 7 * 8 * 8
    assert ops["cross.cross_qk_matmul"] == ops["cross.cross_sv_matmul"] == 2 * 7 * 40 * 8
    assert ops["cross.cross_o_proj_scale"] == ops["cross.down_proj_scale"] == 7 * 8
    step = Workload.decode(batch=3, kv_len=8, prompt=7, images=2)
    moved = {op.name: evaluate(op.work().on(b.stream).nbytes, step) for b, op in graph if b.name == "cross"}
    assert moved["cross_k_proj"] == moved["cross_v_proj"] == moved["cross_k_norm"] == 0
    assert moved["cross_sv_matmul"] == 2 * 3 * (2 * 40 + 40 * 4 + 8)
    nothing = Workload.decode(batch=3, kv_len=8, prompt=7)
    assert all(evaluate(op.work().on(b.stream).nbytes, nothing) == 0 for b, op in graph if b.name == "cross")


def test_image_keys_are_cached_in_addition_to_text_keys():
    graph = load_model(NAME).graph
    text = kv_cache_bytes(graph, batch=3, context=100)
    assert text == 3 * 100 * 32 * 2 * 1024 * 2
    assert kv_cache_bytes(graph, batch=3, context=100, images=2) - text == 3 * 2 * SEEN * 8 * 2 * 1024 * 2


def test_decode_step_reads_the_image_keys_of_the_prompt():
    with_two, none = (analyze(NAME, "h200-sxm", prompt=200, gen=3, images=n) for n in (2, 0))
    mlp, attention = 3 * 4096 * 14336, 2 * 4096 * 4096 + 2 * 128 + 2 * 4096 + 2
    weights = 2 * 8 * (mlp + attention - 128)  # no keys are made, and so none has its norm
    cache = 8 * 2 * 1024 * 2 * SEEN * 2
    more = with_two.phases.decode.total.bytes - none.phases.decode.total.bytes
    assert with_two.phases.decode.total.weight_bytes - none.phases.decode.total.weight_bytes == weights
    assert with_two.phases.decode.total.kv_bytes - none.phases.decode.total.kv_bytes == cache
    assert more > weights + cache
    assert with_two.memory.kv_cache_bytes - none.memory.kv_cache_bytes == cache
    assert with_two.generation.tpot_s > none.generation.tpot_s
    assert "cross" not in {op.block for op in none.phases.decode.operators if op.bytes}


def test_all_steps_together_are_the_steps_one_by_one():
    setting = Setting.of(NAME, "h200-sxm")
    asked = {"batch": 2, "prompt": 50, "images": np.array([0, 1, 4])}
    each = sum(setting.time_s("decode", Workload.decode(kv_len=n, **asked), 2) for n in range(51, 91))
    assert decode_s(setting.decode_plan, first=51, last=90, **asked) == pytest.approx(each, rel=1e-12)


def test_sweep_and_techniques_count_images():
    points = sweep(NAME, "h200-sxm", {"images": [0, 1, 3], "batch": [1, 4]}, prompt=2000, gen=5).to_frame()
    for row in points.itertuples():
        one = analyze(NAME, "h200-sxm", prompt=2000, batch=row.batch, gen=5, images=row.images)
        assert row.latency_s == pytest.approx(one.generation.latency_s, rel=1e-12)
        assert row.kv_cache_bytes == one.memory.kv_cache_bytes
        arranged = Setting.of(NAME, "h200-sxm").schedule(prompt=2000, batch=row.batch, gen=5, images=row.images)
        assert float(arranged.latency_s) == pytest.approx(row.latency_s, rel=1e-12)


@pytest.mark.parametrize("layout", ["tp=2", "pp=2", "pp=40", "cp=2", "dp=2"])
def test_layouts_shard_the_vision_model(layout):
    alone = analyze(NAME, "h200-sxm", prompt=512, gen=4, images=2, batch=4)
    shared = analyze(NAME, "h200-sxm", prompt=512, gen=4, images=2, batch=4, layout=layout)
    assert shared.memory.kv_cache_bytes < alone.memory.kv_cache_bytes
    assert shared.memory.weight_bytes <= alone.memory.weight_bytes
    text = analyze(NAME, "h200-sxm", prompt=512, gen=4, batch=4, layout=layout)
    assert shared.phases.decode.total.kv_bytes > text.phases.decode.total.kv_bytes > 0


def test_kv_transfer_includes_image_keys_and_values():
    sent = [disaggregate(NAME, "h200-sxm", "h100-sxm", prompt=100, gen=4, images=n).kv_transfer_bytes for n in (0, 2)]
    assert sent[1] - sent[0] == 2 * SEEN * 8 * 2 * 1024 * 2


@pytest.mark.parametrize(
    ("section", "changes", "message"),
    [
        ("vision_config", {"vision_output_dim": 7},
         "vision_config.vision_output_dim: must be the width of all layers that are taken, 12"),
        ("vision_config", {"intermediate_layers_indices": [2]},
         "vision_config.intermediate_layers_indices: must be of the 2 layers; got 2"),
        ("vision_config", {"supported_aspect_ratios": 4},
         "vision_config.supported_aspect_ratios: must be a list of columns and rows of tiles; got 4"),
        ("text_config", {"cross_attention_layers": "all"},
         "text_config.cross_attention_layers: must be a list of whole numbers; got 'all'"),
    ],
)  # fmt: skip
def test_invalid_cross_vision_configs_are_refused(section, changes, message):
    with pytest.raises(InputError) as caught:
        _graph(**{section: {**SMALL[section], **changes}})
    assert str(caught.value) == f"config.json: {message}"


def test_shared_prompt_outputs_each_store_the_image_cache():
    with pytest.raises(InputError, match=f"^best-of: the encoder output of {NAME} is held per answer; give"):
        analyze(NAME, "h200-sxm", prompt=100, gen=4, images=1, techniques=["best-of"])
    one = analyze(NAME, "h200-sxm", prompt=100, gen=4, images=1)
    four = analyze(NAME, "h200-sxm", prompt=100, gen=4, images=1, techniques=["best-of:n=4,prompt=copied"])
    assert four.memory.kv_cache_bytes == 4 * one.memory.kv_cache_bytes


@pytest.mark.parametrize("technique", ["early-exit", "mixture-of-depths"])
@pytest.mark.parametrize("name", [NAME, "t5-base"])
def test_layers_that_see_a_part_of_a_pass_are_not_given_some_tokens_alone(name, technique):
    with pytest.raises(InputError) as caught:
        analyze(name, "h200-sxm", prompt=100, gen=4, techniques=[technique])
    assert str(caught.value) == f"{technique}: layers of {name} already process only a part of the tokens"


def test_note_for_text_only_analysis_suggests_images():
    assert analyze(NAME, "h200-sxm").notes == ("text only: to count images and their encoder, give --images",)
