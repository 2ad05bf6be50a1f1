"""Encoders with rotated positions: parameters of small models as transformers 5.24 counts them, and FLOPs of a pass
over 2 x 24 tokens as torch's counter has them, of each head; published sizes.
"""

from __future__ import annotations

import pytest

from llmviewer.errors import InputError
from llmviewer.forms import evaluate
from llmviewer.model_files import load_model
from llmviewer.resource import Unit
from llmviewer.workload import Workload

from .strategies import built

SIZES = {"vocab_size": 1000, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
         "num_attention_heads": 4}  # fmt: skip
HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
CLASSES = {
    "nomic_bert": ("NomicBert", {"type_vocab_size": 2}),
    "gte": ("Gte", {"type_vocab_size": 0}),
    "jina_embeddings_v3": ("JinaEmbeddingsV3", {}),
    "eurobert": ("EuroBert", {"num_key_value_heads": 2}),
}
COUNTED = {  # (parameters, FLOPs) of each head
    "nomic_bert": ((169472, 10911744), (174760, 17448960), (173762, 10928640), (169602, 10924032)),
    "gte": ((170304, 10911744), (175592, 17448960), (174594, 10928640), (170434, 10924032)),
    "jina_embeddings_v3": ((156384, 9158656), (157512, 15679488), (156514, 9159168), (152354, 9154560)),
    "eurobert": ((156608, 9732096), (220608, 15876096), (160898, 10137600), (156738, 9744384)),
}
CASES = [(kind, head, counted) for kind in COUNTED for head, counted in zip(HEADS, COUNTED[kind], strict=True)]
NOMIC = {  # fields of the published files
    "model_type": "nomic_bert", "vocab_size": 1000, "n_embd": 64, "n_inner": 96, "n_layer": 4, "n_head": 4,
    "activation_function": "swiglu", "type_vocab_size": 2, "rotary_emb_fraction": 1.0, "qkv_proj_bias": False,
    "mlp_fc1_bias": False, "mlp_fc2_bias": False,
}  # fmt: skip
MOE = NOMIC | {
    "activation_function": "gelu", "type_vocab_size": 1, "qkv_proj_bias": True, "mlp_fc1_bias": True,
    "mlp_fc2_bias": True, "num_experts": 8, "moe_top_k": 2, "moe_every_n_layers": 2,
}  # fmt: skip


@pytest.mark.parametrize(("kind", "head", "counted"), CASES)
def test_small_models_are_counted_as_transformers_and_torch_count_them(kind, head, counted):
    name, more = CLASSES[kind]
    graph = built(model_type=kind, **SIZES, **more, architectures=[name + head])
    w = Workload.prefill(batch=2, prompt=24)
    flops = sum(
        block.repeat * evaluate(form, w)
        for block, op in graph
        for resource, form in op.work().amounts
        if resource.unit is Unit.MATRIX
    )
    assert (graph.parameters, flops) == counted


def test_nomic_and_transformers_field_names_are_equivalent():
    renamed = {"model_type": "nomic_bert", **SIZES, "num_hidden_layers": 4, "type_vocab_size": 2}
    assert built(**NOMIC).parameters == built(**renamed).parameters


def test_nomic_mlp_gate_follows_the_config():
    """All MLPs of transformers have a gate, whatever the activation; of width 64, it is 64 x 96 in each of 4."""
    gated = built(model_type="nomic_bert", **SIZES | {"num_hidden_layers": 4}, type_vocab_size=2, hidden_act="gelu")
    assert gated.parameters == built(**NOMIC).parameters == built(**NOMIC | {"activation_function": "geglu"}).parameters
    assert gated.parameters - built(**NOMIC | {"activation_function": "gelu_new"}).parameters == 4 * 64 * 96


def test_every_second_layer_of_nomic_has_experts():
    """Width 64: a router, 8 experts of two matrices and one bias, where a plain MLP has two matrices and biases."""
    h, inner = 64, 96
    attention = 4 * (h * h + h) + 4 * h
    moe = 8 * h + 8 * 2 * h * inner + h
    graph = built(**MOE)
    assert graph.parameters == 1001 * h + 2 * h + 4 * attention + 2 * (moe + 2 * h * inner + inner + h)
    assert [block.layers for block in graph.blocks[1:3]] == [(0, 2), (1, 3)]


@pytest.mark.parametrize(
    ("name", "millions"), [("nomic-embed-text-v1.5", 137), ("nomic-embed-text-v2-moe", 475), ("eurobert-210m", 212),
                           ("gte-multilingual-base", 305)]
)  # fmt: skip
def test_models_that_ship_have_their_published_sizes(name, millions):
    assert load_model(name).parameters / 1e6 == pytest.approx(millions, abs=0.6)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (NOMIC | {"rotary_emb_fraction": 0.5}, "rotary_emb_fraction: must be 1: learned positions beside rotated"),
        (NOMIC | {"prenorm": True}, "prenorm: must be false: no published model of this architecture is so"),
        (NOMIC | {"mlp_fc2_bias": True}, "mlp_fc2_bias: must be as mlp_fc1_bias"),
        (NOMIC | {"activation_function": "wishful"}, "activation_function: must be one of "),
        ({"model_type": "new", **SIZES, "position_embedding_type": "absolute"}, "position_embedding_type: must be "),
    ],
)
def test_invalid_rotary_bert_configs_are_refused(config, message):
    with pytest.raises(InputError) as error:
        built(**config)
    assert message in str(error.value)
