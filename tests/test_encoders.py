"""Encoders, and encoders beside decoders: counts against torch, caches by hand, and reports of models with one pass.

oracle/encoders.json is made by make_encoders.py: FLOPs of torch's counter on transformers' own models. Attention counts
all pairs there, as encoders have it; only ModernBERT's windows are full products too, so that ours are scaled to them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import llmviewer
from llmviewer.cli import main
from llmviewer.devices.files import load_hardware
from llmviewer.errors import InputError
from llmviewer.forms import SOURCE, TARGET, evaluate
from llmviewer.generation import decode_s
from llmviewer.memory import Footprint
from llmviewer.model import kv_cache_bytes
from llmviewer.model_files import load_model
from llmviewer.operators.attention import QK, SV, FlashAttention, Heads
from llmviewer.operators.base import Role
from llmviewer.operators.linear import Linear
from llmviewer.operators.masks import Bidirectional
from llmviewer.reports.analysis import REPORT
from llmviewer.roofline import plan
from llmviewer.transforms.flash_attention import flash_attention
from llmviewer.workload import Workload

from .cases import for_each
from .strategies import built

ORACLE = Path(__file__).parent / "oracle"
MODELS = json.loads((ORACLE / "encoders.json").read_text(encoding="utf-8"))["models"]
CASES = [(name, case) for name, model in MODELS.items() for case in model["cases"]]
HEAD_OF_THEIR_OWN = ("flan-t5-base", "flan-t5-xl", "mt5-base")  # whose matrix transformers ties to the embedding
OPERATOR = (  # how a module's path in transformers ends, and the name of the operator
    (r"(?:EncDecAttention|encoder_attn)\.([qkv])(?:_proj)?", r"cross_\1_proj"),
    (r"(?:EncDecAttention|encoder_attn)\.(?:o|out_proj)", "cross_o_proj"),
    (r"(?:EncDecAttention|encoder_attn)", "cross_attention"),
    (r"(?:SelfAttention|self_attn)\.([qkv])(?:_proj)?", r"\1_proj"),
    (r"attention(?:\.self)?\.([qkv])(?:uery|ey|alue|_lin)", r"\1_proj"),
    (r"(?:SelfAttention\.o|self_attn\.out_proj|attention\.out_lin|attention(?:\.output)?\.dense|attn\.Wo)", "o_proj"),
    (r"attn\.Wqkv", "qkv_proj"),
    (r"(?:SelfAttention|self_attn|attention(?:\.self)?|\.attn)", "attention"),
    (r"experts\.expert_0\.wi", "expert_up_proj"),
    (r"experts\.expert_0\.wo", "expert_down_proj"),
    (r"router\.classifier", "router"),
    (r"wi_0", "gate_proj"),
    (r"(?:wi_1|\.wi|fc1|lin1|intermediate\.dense|\.ffn)", "up_proj"),
    (r"mlp\.Wi", "gate_up_proj"),
    (r"(?:\.wo|fc2|lin2|layer\.\*\.output\.dense|ffn_output|mlp\.Wo)", "down_proj"),
    (r"embedding_hidden_mapping_in", "embed_project"),
    (r"(?:transform\.dense|lm_head\.dense|vocab_transform|predictions\.dense|head\.dense)", "head_dense"),
    (r"pooler\.dense", "pooler_dense"),
    (r"(?:predictions\.decoder|lm_head\.decoder|vocab_projector|^decoder|lm_head|proj_out)", "lm_head"),
    (r"(conv[12])", r"\1"),
)
T5 = {"d_model": 64, "d_kv": 8, "d_ff": 96, "num_layers": 4, "num_decoder_layers": 2, "num_heads": 6, "vocab_size": 999}
BERT = {
    "model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96,
    "vocab_size": 999, "max_position_embeddings": 50,
}  # fmt: skip
BART = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "vocab_size": 999,
}  # fmt: skip


def block(graph, name):
    (found,) = (b for b in graph.blocks if b.name == name)
    return found


def operators(graph, name):
    return {op.name: op for op in block(graph, name).operators}


def _side(name, path):
    if not load_model(name).is_encoder_decoder:
        return ""
    return "encoder" if re.match(r"(?:model\.)?encoder\.", path) else "decoder"


def _named(path):
    return next(re.sub(f".*?{end}$", found, path) for end, found in OPERATOR if re.search(f"{end}$", path))


def encoders():
    return [name for name in MODELS if not load_model(name).generates]


def pairs():
    return [name for name in MODELS if load_model(name).is_encoder_decoder]


def _workload(case):
    batch, prompt = case["batch"], case["prompt"]
    if case["phase"] == "prefill":
        return Workload.prefill(batch=batch, prompt=prompt)
    return Workload.decode(batch=batch, kv_len=prompt + 1, prompt=prompt)


@for_each("name", MODELS)
def test_parameters_equal_those_of_transformers(name):
    graph = load_model(name).graph
    (matrix,) = {w.shape for _, op in graph for w in op.weights if w.name == "lm_head.weight"} or {(0, 0)}
    own = matrix[0] * matrix[1] if name in HEAD_OF_THEIR_OWN else 0
    assert graph.parameters == MODELS[name]["parameters"] + own


def test_parameters_equal_those_of_published_checkpoints():
    """Recorded with the checkpoint of a classifier of one class that was made from it."""
    fields = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    positions = {"vocab_size": 250002, "max_position_embeddings": 8194, "type_vocab_size": 1, "num_labels": 1}
    made = built(
        model_type="xlm-roberta", architectures=["XLMRobertaForSequenceClassification"], **fields, **positions
    )  # fmt: skip
    assert made.parameters == 567_755_777


@for_each("name, case", CASES)
def test_ops_of_every_matrix_product_equal_those_of_torch(name, case):
    workload = _workload(case)
    ours, theirs = Counter(), Counter()
    for path, flops in case["by_module"].items():
        theirs[_side(name, path), _named(path)] += flops
    sides = {SOURCE: "encoder", TARGET: "decoder"}
    for part, op in load_model(name).graph:
        key, ops = op.name, op.work().ops
        if isinstance(op, QK | SV):
            key = re.sub("(qk|sv)_matmul", "attention", op.name)
            heads = op.heads
            ops = 2 * heads.num_heads * heads.head_dim * heads.mask.cells
        elif not isinstance(op, Linear):
            continue
        if amount := part.repeat * evaluate(ops.on(part.stream), workload):
            ours[sides.get(part.stream, ""), key] += amount
    assert ours == theirs
    assert sum(ours.values()) == case["flops"]


@pytest.mark.slow("counts in torch again")
def test_encoders_json_equals_a_torch_recount(recounted):
    """One of each kind is recounted: versions are pinned. Needs the extra `oracle`; skipped without it."""
    recounted("make_encoders.py", "distilbert-base-uncased", "modernbert-base", "t5-small", "bart-base", "whisper-tiny")


def test_cross_attention_sizes_are_the_same_in_the_decoder_workload():
    for workload in (Workload.prefill(batch=3, prompt=7), Workload.decode(batch=3, kv_len=12, prompt=7)):
        for seen in (workload, workload.target()):
            assert (seen.cross_pairs(), seen.source_kv(), seen.source_tokens()) == (21, 21, 21)
    unread = Workload.decode(batch=3, kv_len=5, prompt=7)
    assert (unread.target().cross_pairs(), unread.target().source_kv(), unread.target().source_tokens()) == (0, 0, 15)


@pytest.mark.parametrize(("prompt", "written"), [(512, 1), (30, 100), (1, 1)])
def test_t5_cache_holds_cross_attention_and_decoder_tokens(prompt, written):
    """Keys and values of 12 heads of 64 in 12 layers, in 16 bits: of the prompt, and of the decoder's own tokens."""
    graph = load_model("t5-base").graph
    token = 12 * 2 * 12 * 64 * 2
    cached = kv_cache_bytes(graph, batch=3, context=prompt + written, prompt=prompt)
    assert cached == 3 * token * (prompt + written + 1)  # the first token is the one that decoding starts with


def test_memory_of_t5_by_hand():
    model = load_model("t5-small")
    footprint = Footprint.of(model.graph)
    weights = 2 * model.parameters  # tied matrices once
    cache = 6 * 2 * 8 * 64 * 2 * (100 + 10 + 1)
    live = 100 * 2 * (2048 + 2048 + 512)  # of the encoder's MLP, before its activation and after, and the residual
    assert footprint.total_bytes(batch=1, prompt=100, gen=10) == weights + cache + live


@pytest.mark.parametrize("device", ["h100-sxm", "t4", "i9-13900k"])
@pytest.mark.parametrize(("name", "prompt"), [("t5-base", 300), ("whisper-tiny", 1500), ("switch-base-8", 77)])
def test_the_time_of_decoding_is_the_sum_over_its_steps(name, prompt, device):
    hardware = load_hardware(device)
    laid_out = plan(load_model(name).graph.then(flash_attention(hardware.on_chip_bytes)), hardware)
    steps = [laid_out.time_s(Workload.decode(batch=5, kv_len=prompt + i, prompt=prompt)) for i in range(1, 200)]
    found = decode_s(laid_out, batch=5, first=prompt + 1, last=prompt + 199, prompt=prompt)
    assert found == pytest.approx(sum(steps), rel=1e-12)


@for_each("name", pairs)
def test_an_encoder_does_nothing_in_a_decode_step_and_has_no_row_there(name):
    graph = load_model(name).graph
    step = Workload.decode(batch=4, kv_len=130, prompt=100)
    beside = [b for b in graph.blocks if b.stream == SOURCE]
    assert beside
    for part in beside:
        for op in part.operators:
            work = op.work().on(part.stream)
            assert evaluate(work.ops, step) == evaluate(work.nbytes, step) == 0
    shown = llmviewer.analyze(name, "h100-sxm", prompt=100, gen=30)
    names = {part.name for part in beside}
    read, wrote = ({op.block for op in phase.operators} for _, phase in shown.phases)
    assert names <= read
    assert not names & wrote
    assert not {"cross_k_proj", "cross_v_proj"} & {op.name for op in shown.phases.decode.operators}
    assert all(op.bound_time_s > 0 for _, phase in shown.phases for op in phase.operators)


def test_scores_of_t5_have_a_bias_but_across():
    graph = built(model_type="t5", **T5)
    for name in ("encoder", "decoder"):
        softmax = operators(graph, name)["softmax"]
        assert softmax.bias
        assert [(w.shape, w.tied) for w in softmax.weights] == [((32, 6), True)]
    across = operators(graph, "decoder")["cross_softmax"]
    assert (across.bias, across.weights) == (False, ())
    held = [w for _, op in graph for w in op.weights if w.name == "relative_attention_bias.weight" and not w.tied]
    assert len(held) == 2  # each stack has its table, once


def test_cross_attention_reads_the_encoder_with_its_own_projections():
    graph = built(model_type="t5", **T5)
    decoder = operators(graph, "decoder")
    prefill, step = Workload.prefill(batch=2, prompt=10), Workload.decode(batch=2, kv_len=14, prompt=10)
    k_proj = decoder["cross_k_proj"].work().on(TARGET)
    assert evaluate(k_proj.ops, prefill) == 2 * 20 * 64 * 48
    assert evaluate(k_proj.weight_bytes, prefill) == 2 * 64 * 48
    assert evaluate(k_proj.activation_bytes, prefill) == 2 * 20 * 64
    assert evaluate(k_proj.kv_bytes, prefill) == 2 * 20 * 48
    assert evaluate(k_proj.nbytes, step) == evaluate(k_proj.ops, step) == 0
    q_proj = decoder["cross_q_proj"].work().on(TARGET)
    assert evaluate(q_proj.ops, prefill) == evaluate(q_proj.ops, step) == 2 * 2 * 64 * 48
    (fused,) = (
        op
        for part, op in flash_attention(1e6)(graph)
        if part.name == "decoder" and isinstance(op, FlashAttention) and op.name == "cross_attention"
    )
    assert evaluate(fused.work().on(TARGET).kv_bytes, step) == 2 * 10 * 2 * 48 * 2


def test_the_encoder_of_t5_alone_is_an_encoder():
    alone = built(model_type="t5", architectures=["T5EncoderModel"], **T5)
    whole = built(model_type="t5", **T5)
    assert [b.name for b in alone.blocks] == ["embedding", "encoder", "norm"]
    beside = sum(b.repeat * w.numel for b in whole.blocks[:3] for op in b.operators for w in op.weights if not w.tied)
    assert alone.parameters == beside


def test_experts_of_switch_stand_in_every_second_layer_and_take_one_token_each():
    graph = load_model("switch-base-8").graph
    assert {b.name: b.layers for b in graph.blocks if b.layers} == {
        "encoder_dense": (0, 2, 4, 6, 8, 10), "encoder_moe": (1, 3, 5, 7, 9, 11),
        "decoder_dense": (0, 2, 4, 6, 8, 10), "decoder_moe": (1, 3, 5, 7, 9, 11),
    }  # fmt: skip
    few = built(model_type="switch_transformers", **T5, num_sparse_encoder_layers=5, num_sparse_decoder_layers=1)
    names = {b.name for b in few.blocks if b.layers}  # more than there are layers is none, as transformers has it
    assert names == {"encoder", "decoder_dense", "decoder_moe"}
    up = operators(graph, "encoder_moe")["expert_up_proj"].work().on(SOURCE)
    assert evaluate(up.ops, Workload.prefill(batch=2, prompt=10)) == 2 * 20 * 768 * 3072
    assert evaluate(up.weight_bytes, Workload.decode(batch=2, kv_len=14, prompt=10)) == 0


def test_convolutions_of_whisper_by_hand():
    """80 bands and 3 taps over 3000 frames, then 384 channels and 3 taps over every second frame."""
    front = operators(load_model("whisper-tiny").graph, "encoder_embedding")
    prefill = Workload.prefill(batch=1, prompt=1500)
    ops = {name: evaluate(op.work().on(SOURCE).ops, prefill) for name, op in front.items()}
    assert ops["conv1"] == 2 * 3000 * 384 * 80 * 3
    assert ops["conv2"] == 2 * 1500 * 384 * 384 * 3
    moved = evaluate(front["conv1"].work().on(SOURCE).activation_bytes, prefill)
    assert moved == 2 * 3000 * (80 + 384)
    assert [w.name for w in operators(load_model("whisper-tiny").graph, "encoder")["k_proj"].weights] == [
        "k_proj.weight"
    ]


def test_modernbert_looks_64_tokens_to_either_side_in_two_layers_of_three():
    graph = load_model("modernbert-base").graph
    assert {b.name: len(b.layers) for b in graph.blocks if b.layers} == {"first": 1, "local": 14, "global": 7}
    near = operators(graph, "local")["qk_matmul"].heads
    assert near.mask == Bidirectional(64)
    pairs = sum(abs(i - j) <= 64 for i in range(300) for j in range(300))
    assert evaluate(near.pairs, Workload.prefill(batch=1, prompt=300)) == 12 * pairs
    assert "attn_norm" not in operators(graph, "first")
    assert "attn_norm" in operators(graph, "global")


def test_layers_of_albert_are_held_once_and_run_each():
    graph = load_model("albert-base-v2").graph
    own, shared = block(graph, "layer"), block(graph, "shared")
    assert (own.repeat, shared.repeat) == (1, 11)
    assert [op.work() for op in own.operators] == [op.work() for op in shared.operators]
    layer = 4 * 768 * 768 + 2 * 768 * 3072
    stored = {
        quant: llmviewer.analyze("albert-base-v2", "l4", quant=quant).memory.weight_bytes for quant in ("W8", "W16")
    }
    assert stored["W16"] - stored["W8"] == layer + 2 * 768 * 128  # beside the layer, a projection into it and one out
    assert not any(w.device_bytes for op in shared.operators for w in op.weights)
    groups = built(
        model_type="albert", **{k: v for k, v in BERT.items() if k != "model_type"} | {"num_hidden_layers": 6},
        num_hidden_groups=2, inner_group_num=2,
    )  # fmt: skip
    assert (block(groups, "layer").repeat, block(groups, "shared").repeat) == (4, 8)


@pytest.mark.parametrize(
    ("config", "head"),
    [
        ({"architectures": ["BertForMaskedLM"]}, ["head_dense", "head_act", "head_norm", "lm_head"]),
        ({"architectures": ["BertModel"]}, ["pooler_dense", "pooler_act"]),
        ({}, ["pooler_dense", "pooler_act"]),
        ({"architectures": ["BertForSequenceClassification"]}, ["pooler_dense", "pooler_act", "classifier"]),
        ({"architectures": ["BertForTokenClassification"]}, ["classifier"]),
        (
            {"architectures": ["BertForPreTraining"]},
            ["head_dense", "head_act", "head_norm", "lm_head", "pooler_dense", "pooler_act", "classifier"],
        ),
    ],
)
def test_the_head_is_that_of_the_class_that_the_config_names(config, head):
    assert list(operators(built(**BERT, **config), "head")) == head


def test_token_heads_run_per_token_and_pooled_heads_per_sequence():
    words = operators(built(**BERT, architectures=["BertForMaskedLM"]), "head")
    pooled = operators(
        built(**BERT, architectures=["BertForSequenceClassification"], id2label={0: 0, 1: 1, 2: 2}), "head"
    )
    prefill = Workload.prefill(batch=3, prompt=20)
    assert evaluate(words["lm_head"].work().ops, prefill) == 2 * 60 * 64 * 999
    assert evaluate(pooled["pooler_dense"].work().ops, prefill) == 2 * 3 * 64 * 64
    assert evaluate(pooled["classifier"].work().ops, prefill) == 2 * 3 * 64 * 3


def test_bart_as_a_decoder_has_no_encoder_and_holds_its_cross_attention():
    decoder = built(**BART, model_type="bart", architectures=["BartForCausalLM"])
    each = 2 * BART["decoder_layers"] * BART["d_model"] * 2
    assert kv_cache_bytes(decoder, batch=3, context=50) == 3 * 50 * each
    assert not any(block.stream in (SOURCE, TARGET) for block in decoder.blocks)


def test_bert_as_a_decoder_keeps_keys_and_values_and_makes_logits_of_one_token():
    decoder = built(**BERT, is_decoder=True, architectures=["BertLMHeadModel"])
    assert decoder.parameters == built(**BERT, architectures=["BertLMHeadModel"]).parameters
    each = 2 * BERT["num_hidden_layers"] * BERT["hidden_size"] * 2
    assert kv_cache_bytes(decoder, batch=3, context=50) == 3 * 50 * each
    head = next(op for _, op in decoder if op.name == "lm_head")
    prompt = Workload.prefill(batch=1, prompt=40)
    assert evaluate(head.work().ops, prompt) == 2 * BERT["hidden_size"] * BERT["vocab_size"]
    bare = built(**BERT, is_decoder=True, architectures=["BertModel"])
    assert kv_cache_bytes(bare, batch=3, context=50) == 0


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (
            BERT | {"architectures": ["BertForWhatever"]},
            (
                "config.json: architectures: must end with one of ForMaskedLM, LMHeadModel, ForCausalLM, "
                "ForPreTraining, ForSequenceClassification, ForTokenClassification, ForQuestionAnswering, "
                "ForMultipleChoice, ForNextSentencePrediction, Model; "
                "got 'BertForWhatever'"
            ),
        ),
        (
            BERT | {"model_type": "mpnet", "is_decoder": True},
            "config.json: is_decoder: must be false: this encoder is not known as a decoder; got true",
        ),
        (
            BERT | {"is_decoder": True, "add_cross_attention": True},
            (
                "config.json: add_cross_attention: must be false: cross-attention of a decoder by itself is not known; "
                "got true"
            ),
        ),
        (
            BERT | {"position_embedding_type": "relative_key"},
            "config.json: position_embedding_type: must be one of absolute; got 'relative_key'",
        ),
        (
            T5 | {"model_type": "t5", "is_decoder": True},
            "config.json: is_decoder: must be false: a decoder by itself is not known here; got true",
        ),
        (
            BART | {"model_type": "bart", "architectures": ["BartForSequenceClassification"]},
            (
                "config.json: architectures: must end with one of ForConditionalGeneration, ForCausalLM, MTModel, "
                "Model; got 'BartForSequenceClassification'"
            ),
        ),
        (
            BART | {"model_type": "marian", "share_encoder_decoder_embeddings": False},
            "config.json: share_encoder_decoder_embeddings: must be true: two tables of words are not known here",
        ),
        (
            BART | {"model_type": "marian", "decoder_vocab_size": 5},
            "config.json: decoder_vocab_size: must be the vocab_size 999, as both sides share one table; got 5",
        ),
        (
            BERT | {"model_type": "modernbert", "layer_types": ["full_attention"]},
            "config.json: layer_types: must be 2 of sliding_attention and full_attention; got 1 of them",
        ),
    ],
)
def test_unsupported_encoder_configs_are_refused_in_one_line(config, line):
    with pytest.raises(InputError, match=f"^{re.escape(line)}$"):
        built(**config)


@for_each("name", encoders)
def test_an_encoder_has_one_pass_and_keeps_nothing(name):
    found = llmviewer.analyze(name, "a100-sxm-80gb", prompt=200, batch=3)
    assert found.phases.decode is None
    assert [phase for phase, _ in found.phases] == ["prefill"]
    assert (found.request.gen, found.request.kv_len) == (None, None)
    assert found.memory.kv_cache_bytes == 0
    assert not any(t.role is Role.KV_CACHE for _, op in found.model.graph for t in (*op.inputs, *op.outputs))
    whole = found.generation
    assert whole.tpot_s is None
    assert whole.latency_s == whole.ttft_s == pytest.approx(found.phases.prefill.total.bound_time_s, rel=1e-12)
    assert whole.tokens_per_s == 600 / whole.latency_s


def test_reports_of_an_encoder_know_no_decoding():
    found = llmviewer.analyze("bert-base-uncased", "h100-sxm", prompt=512)
    document = found.to_dict()
    assert document["phases"]["decode"] is None
    assert document["model"]["generates"] is False
    assert json.loads(json.dumps(document))["generation"]["tpot_s"] is None
    assert {line.split(",")[0] for line in REPORT.csv(found).splitlines()[1:]} == {"prefill"}
    markdown, page = REPORT.markdown(found), REPORT.html(found)
    assert "## One pass: 512 tokens at context 512" in markdown
    assert "| one pass |" in markdown
    body = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert "One pass" in body
    for text in (markdown, body):
        for word in ("Decode:", "decode is", "Prefill", "time per output token", "generated"):
            assert word not in text
    assert "one pass over the prompt, no decode: bert-base-uncased does not generate" in found.notes


def _line(capsys, *arguments):
    code = main(arguments)
    return code, capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("analyze", "bert-base-uncased", "h100-sxm", "--kv-len", "9"),
            "--kv-len is for decode steps, and bert-base-uncased does not generate; leave it out",
        ),
        (
            ("sweep", "bert-base-uncased", "h100-sxm", "--over", "gen=1,2"),
            "gen: bert-base-uncased has no decode steps; leave it out",
        ),
        (
            ("sweep", "bert-base-uncased", "h100-sxm", "--over", "batch=1,2", "--kv-len", "7"),
            "--kv-len: bert-base-uncased has no decode steps; leave it out",
        ),
        (
            ("analyze", "t5-base", "h100-sxm", "--prompt", "100", "--kv-len", "100"),
            "--kv-len must be more than the 100 tokens of the prompt, which the encoder of t5-base reads; got 100",
        ),
        (
            ("sweep", "t5-base", "h100-sxm", "--over", "kv_len=90,200", "--prompt", "100"),
            "--kv-len must exceed the 100 prompt tokens, which the encoder processes; got 90",
        ),
        (
            ("plot", "decode-time", "bert-base-uncased", "h100-sxm"),
            "bert-base-uncased does not generate: it has no decode step",
        ),
        (
            ("plot", "roofline", "bert-base-uncased", "h100-sxm", "--phase", "decode"),
            "bert-base-uncased does not generate: it has no decode step",
        ),
    ],
)
def test_commands_unsupported_for_encoders_are_refused_in_one_line(capsys, tmp_path, monkeypatch, arguments, line):
    monkeypatch.chdir(tmp_path)
    code, out = _line(capsys, *arguments)
    assert (code, out.out, out.err) == (2, "", f"llmviewer: {line}\n")


def test_a_sweep_of_an_encoder_has_one_pass():
    frame = llmviewer.sweep("bert-base-uncased", "h100-sxm", {"prompt": [64, 512], "batch": [1, 8]}).to_frame()
    assert not [column for column in frame if "decode" in column or column in ("kv_len", "gen", "tpot_s")]
    alone = llmviewer.analyze("bert-base-uncased", "h100-sxm", prompt=512, batch=8)
    last = frame.iloc[-1]
    assert last.ttft_s == pytest.approx(alone.generation.ttft_s, rel=1e-12)
    assert last.total_bytes == alone.memory.total_bytes


def test_a_sweep_of_a_pair_equals_analyses_one_by_one():
    frame = llmviewer.sweep("t5-small", "l4", {"prompt": [50, 400], "batch": [1, 8]}, gen=20).to_frame()
    for row in frame.itertuples():
        alone = llmviewer.analyze("t5-small", "l4", prompt=row.prompt, batch=row.batch, gen=20)
        assert row.latency_s == pytest.approx(alone.generation.latency_s, rel=1e-12)
        assert row.decode_step_s == pytest.approx(alone.phases.decode.total.bound_time_s, rel=1e-12)
        assert row.total_bytes == alone.memory.total_bytes


def test_encoder_and_decoder_each_count_their_own_positions():
    def passed(**asked):
        return any("positions" in note for note in llmviewer.analyze("bart-large", "l4", **asked).notes)

    assert not passed(prompt=1000, gen=1000)
    assert passed(prompt=1025, gen=10)
    assert passed(prompt=10, gen=1025)


def test_generation_over_arrays_of_prompts_has_each_prompts_own_cross_attention():
    hardware = load_hardware("l4")
    laid_out = plan(load_model("t5-small").graph.then(flash_attention(hardware.on_chip_bytes)), hardware)
    prompts = np.array([10.0, 300.0])
    together = decode_s(laid_out, batch=2, first=prompts + 1, last=prompts + 30, prompt=prompts)
    for prompt, found in zip(prompts, together, strict=True):
        alone = decode_s(laid_out, batch=2, first=prompt + 1, last=prompt + 30, prompt=prompt)
        assert found == pytest.approx(alone, rel=1e-12)


GOLDEN = {
    ("bert-base-uncased", "--batch", "8", "--prompt", "512"): [
        "one pass           >= 1.34 ms, expected ",
        "throughput         <= 3,046,",
        "One pass: 4,096 tokens at context 512, >= 1.34 ms, expected",
        "attention    12 78.8G     -  302M  -   261 memory  fp16 90.1us",
        "lm_head       1  192G 46.9M  256M  -   633 compute fp16  179us",
    ],
    ("t5-base", "--prompt", "512", "--gen", "64"): [
        "TTFT               >= 264 us, expected",
        "E2E latency        >= 5.31 ms, expected ",
        "throughput         <= 12,0",
        "cross_k_proj                     12 7.25G 14.2M 9.44M 9.44M   219 memory fp16  9.85us",
        "cross_attention 12 19.2M     - 36.9k 18.9M  1.02 memory fp16  5.64us",
    ],
}


@pytest.mark.parametrize("arguments", GOLDEN)
def test_report_of_an_encoder_keeps_its_lines(capsys, arguments):
    """Up to what is expected, which a fit changes."""
    model, *options = arguments
    code, out = _line(capsys, "analyze", model, "h100-sxm", "--all", *options)
    assert (code, out.err) == (0, "")
    lines = out.out.splitlines()
    assert [start for start in GOLDEN[arguments] if not any(line.startswith(start) for line in lines)] == []


def test_heads_that_see_both_ways_keep_no_cache():
    heads = Heads(num_heads=2, num_kv_heads=2, head_dim=4, mask=Bidirectional())
    assert not heads.mask.is_cached
    assert evaluate(heads.pairs, Workload.prefill(batch=3, prompt=5)) == 2 * 3 * 25


@pytest.mark.parametrize(("gen", "told"), [(448, False), (449, True)])
def test_a_decoder_has_positions_of_its_own(gen, told):
    notes = llmviewer.analyze("whisper-tiny", "h100", prompt=1500, gen=gen).notes
    assert (f"{gen} generated tokens are more than the 448 positions of its decoder" in notes) == told
    assert not any("1,500 positions" in note for note in notes)
