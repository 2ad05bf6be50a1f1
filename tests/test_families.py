"""Language models that do not ship and are near others: parameters and OPs of matrix products as transformers 5.23 and
torch's flop counter have them of small configs, and what they do otherwise by hand.

The counter takes attention over whole scores and runs the head at every position.
"""

from __future__ import annotations

from fractions import Fraction

import pytest

from llmviewer.errors import InputError
from llmviewer.forms import TARGET, evaluate
from llmviewer.model import kv_cache_bytes
from llmviewer.operators.attention import QK, SV
from llmviewer.operators.linear import Linear
from llmviewer.operators.masks import CAUSAL
from llmviewer.workload import Workload

from .strategies import built

SIZES = {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
PAIR = {"vocab_size": 1000, "d_model": 64, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 80,
        "max_position_embeddings": 50}  # fmt: skip
CONFIGS = {
    "gpt_neo": {"vocab_size": 1000, "hidden_size": 64, "num_layers": 4, "num_heads": 4,
                "attention_types": [[["global", "local"], 2]], "window_size": 6},
    "openai-gpt": {"vocab_size": 1000, "n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 50},
    "xglm": {"vocab_size": 1000, "d_model": 64, "ffn_dim": 96, "num_layers": 4, "attention_heads": 4},
    "biogpt": SIZES | {"intermediate_size": 96, "max_position_embeddings": 50},
    "vaultgemma": SIZES | {"intermediate_size": 96, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 6},
    "cwm": SIZES | {"intermediate_size": 96, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 6},
    **dict.fromkeys(
        ("helium", "jais2"), SIZES | {"intermediate_size": 96, "num_key_value_heads": 2, "head_dim": 16}
    ),
    "ministral": SIZES | {"intermediate_size": 96, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 6},
    "umt5": {"vocab_size": 1000, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 4, "num_heads": 4,
             "tie_word_embeddings": True},
    "blenderbot": PAIR,
    "blenderbot-small": PAIR,
    **dict.fromkeys(("plbart", "mbart", "pegasus", "m2m_100"), PAIR),
    "t5gemma": {
        "encoder": SIZES | {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
                            "num_key_value_heads": 2, "head_dim": 16},
        "decoder": SIZES | {"intermediate_size": 96, "num_key_value_heads": 2, "head_dim": 16},
    },
    "mpnet": SIZES | {"num_hidden_layers": 3, "intermediate_size": 96, "max_position_embeddings": 50},
    "data2vec-text": SIZES | {"num_hidden_layers": 3, "intermediate_size": 96, "max_position_embeddings": 50},
}  # fmt: skip
COUNTED = {  # parameters, and OPs of products with weights and of attention for two prompts of 12 tokens
    "gpt_neo": (394368, 12509184, 294912),
    "openai-gpt": (267136, 12509184, 294912),
    "xglm": (181504, 8577024, 294912),
    "biogpt": (184832, 8577024, 294912),
    "vaultgemma": (187456, 8970240, 294912),
    "cwm": (251456, 8970240, 294912),
    "helium": (251456, 8970240, 294912),
    "jais2": (228864, 7790592, 294912),
    "ministral": (251456, 8970240, 294912),
    "umt5": (410496, 9201664, 321536),
    "blenderbot": (261488, 4605952, 167424),
    "blenderbot-small": (261488, 4605952, 167424),
    "plbart": (261744, 4605952, 167424),
    "mbart": (262000, 4605952, 167424),
    "pegasus": (261488, 4605952, 167424),
    "m2m_100": (255088, 4605952, 167424),
    "t5gemma": (323440, 3459072, 174080),
    "mpnet": (159648, 4145152, 221184),
    "data2vec-text": (159648, 4145152, 221184),
}


def _graph(kind, **changes):
    return built(**{"model_type": kind} | CONFIGS[kind] | changes)


@pytest.mark.parametrize("kind", CONFIGS)
def test_parameters_are_those_of_transformers(kind):
    assert _graph(kind).parameters == COUNTED[kind][0]


@pytest.mark.parametrize("kind", CONFIGS)
def test_ops_of_matrix_products_equal_torchs_to_the_digit(kind):
    w = Workload.prefill(batch=2, prompt=12)
    found = [Fraction(0), Fraction(0)]
    for block, op in _graph(kind):
        ops = block.repeat * Fraction(evaluate(op.work().ops.on(block.stream), w))
        if isinstance(op, QK | SV):
            mask = op.heads.mask
            cells = CAUSAL.cells if mask.is_cached and block.stream != TARGET else mask.cells
            pairs = Fraction(evaluate(mask.pairs.on(block.stream), w))
            found[1] += ops * Fraction(evaluate(cells.on(block.stream), w)) / pairs
        elif isinstance(op, Linear):
            found[0] += ops * (12 if op.name == "lm_head" and block.stream != TARGET else 1)
    assert tuple(found) == COUNTED[kind][1:]


@pytest.mark.parametrize(
    ("kind", "held"),
    [
        ("gpt_neo", 2 * 2 * 64 * (9 + 6)),  # every other layer has a window of six
        ("openai-gpt", 4 * 2 * 64 * 9),
        ("xglm", 4 * 2 * 64 * 9),
        ("biogpt", 4 * 2 * 64 * 9),
        ("vaultgemma", 2 * 2 * 32 * (9 + 6)),
        ("cwm", 2 * 32 * (9 + 3 * 6)),
        ("helium", 4 * 2 * 32 * 9),
        ("jais2", 4 * 2 * 32 * 9),
        ("ministral", 4 * 2 * 32 * 6),
    ],
)
def test_kv_cache_of_nine_tokens_by_hand(kind, held):
    assert kv_cache_bytes(_graph(kind), batch=1, context=9) == 2 * held


def test_every_layer_of_umt5_has_a_table_of_distances():
    more = _graph("umt5", relative_attention_num_buckets=33).parameters - _graph("umt5").parameters
    assert more == 2 * 4 * 4
    assert _graph("umt5", tie_word_embeddings=False).parameters - _graph("umt5").parameters == 64 * 1000


def test_both_sides_of_t5gemma_have_windows_in_every_other_layer():
    graph = _graph("t5gemma", encoder=CONFIGS["t5gemma"]["encoder"] | {"sliding_window": 3})
    w = Workload.prefill(batch=1, prompt=12)
    pairs = {
        block.name: evaluate(op.heads.mask.pairs.on(block.stream), w) for block, op in graph if op.name == "qk_matmul"
    }
    seen = sum(min(q + 3, 11) - max(q - 3, 0) + 1 for q in range(12))
    assert (pairs["encoder_local"], pairs["encoder_global"]) == (seen, 12 * 12)


def test_layers_of_mpnet_share_a_table_of_distances():
    more = _graph("mpnet", relative_attention_num_buckets=33).parameters - _graph("mpnet").parameters
    assert more == 4


def test_norms_of_gpt_stand_after_the_additions():
    (layer,) = (block for block in _graph("openai-gpt").blocks if block.layers)
    assert [op.name for op in layer.operators if op.kind in ("norm", "add")] == [
        "attn_add", "attn_norm", "mlp_add", "mlp_norm"
    ]  # fmt: skip


@pytest.mark.parametrize("types", [[["global"], 4], [[["global", "near"], 2]], [[["global", "local"], 3]], 4])
def test_invalid_layer_kinds_are_refused(types):
    with pytest.raises(InputError) as caught:
        _graph("gpt_neo", attention_types=types)
    said = "attention_types: must be lists of global and local, and how often, for 4 layers"
    assert str(caught.value) == f"config.json: {said}"
