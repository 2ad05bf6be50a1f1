"""The class of a config: heads and passes by `architectures`, against counts by hand."""

import json

import pytest

from llmviewer import analyze
from llmviewer._layout import data_dir
from llmviewer.documents import read_yaml
from llmviewer.errors import InputError
from llmviewer.forms import evaluate
from llmviewer.model_files import load_model
from llmviewer.operators.attention import QK
from llmviewer.operators.linear import LMHead
from llmviewer.parallel.layout import Layout
from llmviewer.workload import Workload

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, VOCAB = 64, 96, 3, 4, 2, 500
SMALL = {
    "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB, "torch_dtype": "bfloat16",
}  # fmt: skip
KV = HIDDEN // HEADS * KV_HEADS
LAYER = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * KV + 3 * HIDDEN * INNER + 2 * HIDDEN
BODY = VOCAB * HIDDEN + LAYERS * LAYER + HIDDEN  # embedding, layers, last norm
GEMMA = {  # google/embeddinggemma-300m
    "architectures": ["Gemma3TextModel"], "model_type": "gemma3_text", "use_bidirectional_attention": True,
    "hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 24, "num_attention_heads": 3,
    "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512, "vocab_size": 262144, "dtype": "float32",
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 4,
}  # fmt: skip


@pytest.fixture
def read(tmp_path):
    def load(**config):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({**SMALL, **config}))
        return load_model(str(path))

    return load


@pytest.mark.parametrize(
    ("named", "fields", "head"),
    [
        ("LlamaForCausalLM", {}, VOCAB * HIDDEN),
        ("LlamaModel", {}, 0),
        ("LlamaForSequenceClassification", {"id2label": {"0": "LABEL_0"}}, HIDDEN),
        ("LlamaForSequenceClassification", {}, 2 * HIDDEN),
        ("LlamaForTokenClassification", {"num_labels": 7}, 7 * HIDDEN + 7),
        ("LlamaForQuestionAnswering", {}, 2 * HIDDEN + 2),
        ("Qwen2ForRewardModel", {}, HIDDEN * HIDDEN + HIDDEN + HIDDEN + 1),
        ("Qwen2ForProcessRewardModel", {}, HIDDEN * HIDDEN + HIDDEN + 2 * HIDDEN + 2),
        ("InternLM2ForRewardModel", {}, HIDDEN),
        ("LlamaBidirectionalModel", {}, 0),
        ("LlamaEncoderModel", {}, 0),
        ("LlamaBidirectionalForSequenceClassification", {"num_labels": 1}, HIDDEN),
    ],
)
def test_the_head_is_that_of_the_class(read, named, fields, head):
    model = read(model_type="llama", architectures=[named], **fields)
    assert model.parameters == BODY + head
    assert model.generates == named.endswith("ForCausalLM")
    assert model.kv_bytes_per_token == (2 * 2 * LAYERS * KV if model.generates else 0)


@pytest.mark.parametrize(
    ("fields", "both_ways"),
    [
        ({"architectures": ["LlamaModel"]}, False),
        ({"architectures": ["LlamaModel"], "is_causal": False}, True),
        ({"architectures": ["LlamaBidirectionalModel"]}, True),
        ({"architectures": ["LlamaForCausalLM"], "is_causal": False}, True),
    ],
)
def test_one_pass_attends_to_as_many_keys_as_its_mask_leaves(read, fields, both_ways):
    model = read(model_type="llama", **fields)
    assert not model.generates
    tokens = 10
    (qk,) = (op for _, op in model.graph if isinstance(op, QK))
    pairs = tokens * tokens if both_ways else tokens * (tokens + 1) // 2
    assert evaluate(qk.heads.mask.pairs, Workload.prefill(batch=1, prompt=tokens)) == pairs


def test_embedding_gemma_sees_256_tokens_to_either_side_or_all(tmp_path):
    """transformers halves the window where attention is bidirectional: |i - j| < 512 // 2 + 1."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GEMMA))
    model, tokens = load_model(str(path)), 1000
    assert model.parameters == 302_863_104
    assert not model.generates
    near = sum(abs(i - j) < 512 // 2 + 1 for i in range(tokens) for j in range(tokens))
    masks = {block.name: op.heads.mask for block, op in model.graph if isinstance(op, QK)}
    pairs = {name: evaluate(mask.pairs, Workload.prefill(batch=1, prompt=tokens)) for name, mask in masks.items()}
    assert pairs == {"local": near, "global": tokens * tokens}
    assert analyze(str(path), "h100-sxm", prompt=tokens).phases.decode is None


def test_published_models_by_hand(read):
    """e5-mistral-7b-instruct has no head; a reward model of Llama 3 8B has one score in its place."""
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
    mistral = read(model_type="mistral", architectures=["MistralModel"], **sizes, num_key_value_heads=8,
                   vocab_size=32000, sliding_window=4096)  # fmt: skip
    assert mistral.parameters == 7_110_660_096
    assert not mistral.generates
    reward = read(model_type="llama", architectures=["LlamaForSequenceClassification"], **sizes,
                  num_key_value_heads=8, vocab_size=128256, id2label={"0": "LABEL_0"})  # fmt: skip
    assert reward.parameters == 7_504_928_768


def test_a_draft_of_eagle_3_fuses_three_hidden_states(read):
    words = 100
    model = read(model_type="llama", architectures=["LlamaForCausalLMEagle3"], num_hidden_layers=1,
                 draft_vocab_size=words)  # fmt: skip
    attended = 2 * HIDDEN * (HIDDEN + 2 * KV) + HIDDEN * HIDDEN
    layer = attended + 3 * HIDDEN * INNER + 3 * HIDDEN  # norms of embedding, hidden state and MLP input
    assert model.parameters == VOCAB * HIDDEN + 3 * HIDDEN * HIDDEN + layer + HIDDEN + words * HIDDEN
    assert model.generates
    assert model.kv_bytes_per_token == 2 * 2 * KV


def test_a_draft_of_eagle_has_the_head_of_its_model(read):
    model = read(model_type="llama", architectures=["EagleLlamaForCausalLM"], num_hidden_layers=1, bias=False)
    assert model.parameters == VOCAB * HIDDEN + 2 * HIDDEN * HIDDEN + LAYER - HIDDEN


def test_a_draft_with_other_layers_is_refused(read):
    with pytest.raises(InputError, match="model_type: must be llama or mistral, whose layers drafts of EAGLE have"):
        read(model_type="deepseek_v3", architectures=["Eagle3DeepseekV2ForCausalLM"])


@pytest.mark.parametrize(
    ("named", "note"),
    [
        ("LlamaModel", "the class LlamaModel has no head: one pass, no decode"),
        ("LlamaForWhatever", "the class LlamaForWhatever is not known: counts as a causal language model"),
    ],
)
def test_note_states_the_effect_of_a_class(read, named, note):
    assert read(model_type="llama", architectures=[named]).notes == (note,)


@pytest.mark.parametrize("named", ["MedusaModel", "DeepseekV3ForCausalLMNextN", "Qwen3NextMTP", "Eagle3Speculator"])
def test_classes_of_model_parts_are_refused_with_a_hint(read, named):
    if named.startswith("Eagle3"):
        assert "drafts for another model" in read(model_type="llama", architectures=[named]).notes[0]
        return
    with pytest.raises(InputError, match=f"architectures: {named} is .*give the model itself"):
        read(model_type="llama", architectures=[named])


def test_attention_that_is_not_known_both_ways_is_refused(read):
    fields = {"num_hidden_layers": 2, "is_causal": False, "architectures": ["Llama4ForCausalLM"]}
    with pytest.raises(InputError, match="is_causal: must be true: attention to chunks of 8192"):
        read(model_type="llama4_text", **fields)


def test_a_language_model_of_bert_keeps_its_head(read):
    bert = {"model_type": "bert", "hidden_size": 64, "intermediate_size": 96}
    words, bare = (read(**bert, architectures=[named]) for named in ("BertLMHeadModel", "BertModel"))
    pooler, transform = 64 * 64 + 64, 64 * 64 + 64 + 2 * 64
    assert words.parameters - bare.parameters == transform + VOCAB - pooler


@pytest.mark.parametrize("name", ["gemma-4-e2b", "deepseek-v2-lite", "qwen3-next-80b-a3b", "gemma-3-4b", "bamba-9b"])
def test_headless_models_of_every_kind_run_one_pass(tmp_path, name):
    """Borrowed keys, latents, states and images: analyzed on one device and on two."""
    path = tmp_path / "config.json"
    config = read_yaml(data_dir("models") / f"{name}.yaml").data["config"]
    path.write_text(json.dumps({**config, "architectures": ["SomethingModel"]}))
    for tp in (1, 2):
        result = analyze(str(path), "h200", prompt=100, layout=Layout(tp=tp))
        assert result.phases.decode is None
    whole = load_model(name)
    head = sum(w.numel for _, op in whole.graph if isinstance(op, LMHead) for w in op.weights if not w.tied)
    assert load_model(str(path)).parameters == whole.parameters - head


def test_unknown_class_of_a_headless_family_is_noted(read):
    fields = {"model_type": "clip", "architectures": ["CLIPForWhatever"], "text_config": {}}
    model = read(**fields, vision_config={})
    note = "the class CLIPForWhatever is not known: counts as the bare model of clip"
    assert note in model.notes


def test_modules_of_sentence_transformers_make_a_decoder_an_embedder(read, tmp_path):
    kinds = ("Transformer", "Pooling", "Dense", "Normalize")
    modules = [{"idx": place, "type": f"sentence_transformers.models.{kind}"} for place, kind in enumerate(kinds)]
    (tmp_path / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    model = read(model_type="qwen3", architectures=["Qwen3ForCausalLM"])
    (tmp_path / "modules.json").unlink()
    assert model.graph == read(model_type="qwen3", architectures=["Qwen3Model"]).graph
    where = tmp_path / "modules.json"
    assert f"{where}: an embedder of sentence-transformers, without the head of Qwen3ForCausalLM" in model.notes
    assert f"{where}: 1 dense layer after the pooling not counted" in model.notes
    where.write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match=r"modules.json: must be a list of modules, each with a type"):
        read(model_type="qwen3", architectures=["Qwen3ForCausalLM"])


def test_a_decoder_with_cross_attention_by_itself_is_refused(read):
    with pytest.raises(InputError, match="add_cross_attention: must be false: cross-attention of a decoder by itself"):
        read(model_type="gpt2", add_cross_attention=True)


@pytest.mark.parametrize(
    ("model_type", "null", "same"),
    [
        ("falcon_h1", {"mamba_conv_bias": None}, {"mamba_conv_bias": False}),
        ("ernie4_5", {"head_dim": None}, {"head_dim": HIDDEN // HEADS}),
        ("deepseek_v4", {"n_shared_experts": 3}, {"n_shared_experts": 1}),
        ("nemotron_h", {"n_shared_experts": 3}, {"n_shared_experts": 1}),
    ],
)
def test_config_fields_equivalent_in_transformers_count_the_same(read, model_type, null, same):
    sizes = {"num_hidden_layers": 4, "num_key_value_heads": 1}
    one, other = (read(model_type=model_type, **sizes, **fields) for fields in (null, same))
    assert one.parameters == other.parameters


def test_queries_without_a_latent_are_projected_directly(read):
    sizes = {"kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
    direct, latent = (read(model_type="minicpm3", **sizes, q_lora_rank=rank) for rank in (None, 24))
    wide = HEADS * 16  # of all queries
    assert latent.parameters - direct.parameters == LAYERS * (HIDDEN * 24 + 24 + 24 * wide - HIDDEN * wide)


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
def test_windows_are_those_of_the_listed_layers_or_none_where_null(read, model_type):
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    windowed = {"model_type": model_type, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 3}
    listed = read(**windowed, layer_types=kinds).graph
    found = [(block.layers, op.heads.mask.window) for block, op in listed if isinstance(op, QK)]
    assert found == [((0, 2), 7), ((1,), float("inf"))]
    assert read(**{**windowed, "sliding_window": None, "max_window_layers": 0}).attention == "GQA"


@pytest.mark.parametrize(
    ("model_type", "field", "value", "known"),
    [
        ("mamba", "hidden_act", "relu", "silu, swish"),
        ("mpt", "norm_type", "rmsnorm", "low_precision_layernorm, layernorm"),
        ("modernbert", "classifier_pooling", "max", "cls, mean"),
        ("eurobert", "classifier_pooling", "max", "late, bos, mean"),
        ("cohere2_moe", "expert_selection_fn", "none", "softmax, sigmoid"),
    ],
)
def test_field_value_selecting_an_unsupported_structure_is_refused(read, model_type, field, value, known):
    with pytest.raises(InputError, match=f"{field}: must be one of {known}; got '{value}'"):
        read(model_type=model_type, **{field: value})


def test_a_list_of_counts_is_limited_as_a_count_is(read):
    with pytest.raises(InputError, match=r"depths: must be from 0 to 10000 each; got \(900000000000, 1, 9, 1\)"):
        read(model_type="florence2", vision_config={"depths": [900_000_000_000, 1, 9, 1]})
    with pytest.raises(
        InputError, match=rf"embed_dim: must be at most {2**53} each, the largest that is counted exactly"
    ):
        read(model_type="florence2", vision_config={"embed_dim": [10**400, 256, 512, 1024]})
