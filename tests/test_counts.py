"""OPs and bytes of every operator against arithmetic by hand, for a prefill, a decode step and a chunk with a past."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmviewer.architectures.blocks.attention import SelfAttention
from llmviewer.architectures.blocks.decoder import Decoder, Layer
from llmviewer.architectures.blocks.feed_forward import Mlp
from llmviewer.architectures.blocks.parts import NormKind, Parts
from llmviewer.devices.files import load_hardware
from llmviewer.forms import evaluate
from llmviewer.graph import Block, Graph
from llmviewer.model_files import load_model
from llmviewer.model_index import index
from llmviewer.operators.attention import FlashAttention, Heads
from llmviewer.operators.base import Operator
from llmviewer.operators.elementwise import Quantize
from llmviewer.operators.masks import Causal
from llmviewer.operators.sampling import Sample
from llmviewer.precision import FP16, FP32, NAMED, Format
from llmviewer.roofline import estimate
from llmviewer.transforms.flash_attention import flash_attention
from llmviewer.transforms.quantize import parse_quantization, quantize
from llmviewer.workload import Workload

#                                              tokens  pairs            cells         cached   logits
PREFILL = Workload.prefill(batch=2, prompt=3)  # 2*3   2*(1+2+3) = 12   2*3*3 = 18    2*3 = 6  2
DECODE = Workload.decode(batch=2, kv_len=5)  # 2*1     2*5 = 10         2*1*5 = 10    2*5 = 10 2
CHUNK = Workload.chunk(batch=1, chunk=2, past=3)  # 2  4+5 = 9          2*5 = 10      5        1
LONG = Workload.prefill(batch=1, prompt=20)

PARTS = Parts(format=FP16)
X = PARTS.tensor("x", 8)
HEADS = Heads(num_heads=4, num_kv_heads=2, head_dim=8)  # queries 4*8 = 32 wide, keys and values 2*8 = 16


def _attention(heads: Heads = HEADS, **kind: bool | int) -> dict[str, Operator]:
    return {op.name: op for op in SelfAttention(heads=heads, **kind).operators(PARTS, X)}


def _mlp(act: str, **kind: bool) -> dict[str, Operator]:
    return {op.name: op for op in Mlp(inner=12, act=act, **kind).operators(PARTS, X)}


ATTENTION = _attention(rotary_dim=8)
PARTLY_ROTATED = _attention(rotary_dim=4)
ALIBI = _attention(alibi=True)
FUSED_QKV = _attention(fused_qkv=True, qkv_bias=True)
WINDOWED = _attention(replace(HEADS, mask=Causal(2)))
GATED = _mlp("silu", gated=True)


def _plain(act: str) -> Operator:
    return _mlp(act, bias=True)["mlp_act"]


def _flash(on_chip_bytes: float, parts: dict[str, Operator] = ATTENTION) -> FlashAttention:
    """The attention of `parts` in one launch. Queries that share a KV head take 32/2 * (2 + 4) = 96 B a token."""
    operators = tuple(parts.values())
    (block,) = flash_attention(on_chip_bytes)(
        Graph((Block(name="b", operators=operators, input="x", output="o_proj"),))
    ).blocks
    (found,) = (op for op in block.operators if isinstance(op, FlashAttention))
    return found


def _counted(op: Operator, w: Workload) -> tuple[float, float, float, float]:
    work = op.work()
    forms = (work.ops, work.weight_bytes, work.activation_bytes, work.kv_bytes)
    return tuple(evaluate(form, w) for form in forms)


LINEAR = PARTS.linear("up_proj", X, PARTS.tensor("up_proj", 12), bias=True)
LAYER = Layer(mixer=SelfAttention(heads=HEADS), feed_forward=Mlp(inner=12, act="relu"))
LM_HEAD = Decoder(vocab=10, hidden=8, layers=[LAYER], tied=True).graph(FP16).blocks[-1].operators[-1]
RMS_NORM, LAYER_NORM = PARTS.norm("norm", X), PARTS.norm("norm", X, kind=NormKind.LAYER)
ADD, ADD_THREE = PARTS.add("add", X, PARTS.tensor("y", 8)), PARTS.add("add", X, *(PARTS.tensor(n, 8) for n in "yz"))
EMBEDDING = PARTS.embed("embed_tokens", {"tokens": 10}, 8)
POSITIONS = PARTS.embed("embed_tokens", {"tokens": 10, "positions": 20}, 8)
QUANTIZE = Quantize(name="quantize", inputs=(X,), outputs=(replace(X, name="x.int8", format=NAMED["int8"]),))
TOKEN = replace(LM_HEAD.outputs[0], name="token", width=1, format=FP32)  # its number, of 4 B
SAMPLE = Sample(name="sample", inputs=LM_HEAD.outputs, outputs=(TOKEN,))
GREEDY = replace(SAMPLE, greedy=True)


@pytest.mark.parametrize(
    ("op", "w", "ops", "weight_bytes", "activation_bytes", "kv_bytes"),
    [
        # [tokens, 8] @ [8, 12] + [12]; fp16 is 2 B
        (LINEAR, PREFILL, 2 * 6 * 8 * 12, 2 * (8 * 12 + 12), 2 * 6 * (8 + 12), 0),
        (LINEAR, DECODE, 2 * 2 * 8 * 12, 2 * (8 * 12 + 12), 2 * 2 * (8 + 12), 0),
        (LINEAR, CHUNK, 2 * 2 * 8 * 12, 2 * (8 * 12 + 12), 2 * 2 * (8 + 12), 0),
        # v_proj: [tokens, 8] @ [8, 16], its output is what the cache holds
        (ATTENTION["v_proj"], PREFILL, 2 * 6 * 8 * 16, 2 * 8 * 16, 2 * 6 * 8, 2 * 6 * 16),
        (ATTENTION["v_proj"], DECODE, 2 * 2 * 8 * 16, 2 * 8 * 16, 2 * 2 * 8, 2 * 2 * 16),
        (ATTENTION["v_proj"], CHUNK, 2 * 2 * 8 * 16, 2 * 8 * 16, 2 * 2 * 8, 2 * 2 * 16),
        # k_proj: its output is rotated first, so it is no cache yet
        (ATTENTION["k_proj"], PREFILL, 2 * 6 * 8 * 16, 2 * 8 * 16, 2 * 6 * (8 + 16), 0),
        # one projection for q (32), k (16) and v (16), not rotated: k and v go to the cache; one bias of 64
        (FUSED_QKV["qkv_proj"], PREFILL, 2 * 6 * 8 * 64, 2 * (8 * 64 + 64), 2 * 6 * (8 + 32), 2 * 6 * 32),
        (FUSED_QKV["qkv_proj"], DECODE, 2 * 2 * 8 * 64, 2 * (8 * 64 + 64), 2 * 2 * (8 + 32), 2 * 2 * 32),
        # lm_head: [logits, 8] @ [8, 10]
        (LM_HEAD, PREFILL, 2 * 2 * 8 * 10, 2 * 8 * 10, 2 * 2 * (8 + 10), 0),
        (LM_HEAD, DECODE, 2 * 2 * 8 * 10, 2 * 8 * 10, 2 * 2 * (8 + 10), 0),
        (LM_HEAD, CHUNK, 2 * 1 * 8 * 10, 2 * 8 * 10, 2 * 1 * (8 + 10), 0),
        # RMSNorm: square, sum, scale, weight
        (RMS_NORM, PREFILL, 4 * 6 * 8, 2 * 8, 2 * 6 * (8 + 8), 0),
        (RMS_NORM, DECODE, 4 * 2 * 8, 2 * 8, 2 * 2 * (8 + 8), 0),
        (RMS_NORM, CHUNK, 4 * 2 * 8, 2 * 8, 2 * 2 * (8 + 8), 0),
        # LayerNorm: mean, subtract, square, sum, scale, weight, bias
        (LAYER_NORM, PREFILL, 7 * 6 * 8, 2 * (8 + 8), 2 * 6 * (8 + 8), 0),
        (LAYER_NORM, DECODE, 7 * 2 * 8, 2 * (8 + 8), 2 * 2 * (8 + 8), 0),
        (LAYER_NORM, CHUNK, 7 * 2 * 8, 2 * (8 + 8), 2 * 2 * (8 + 8), 0),
        # x + y: two reads, one write; x + y + z: three reads, one write, two additions
        (ADD, PREFILL, 6 * 8, 0, 2 * 6 * 3 * 8, 0),
        (ADD, DECODE, 2 * 8, 0, 2 * 2 * 3 * 8, 0),
        (ADD, CHUNK, 2 * 8, 0, 2 * 2 * 3 * 8, 0),
        (ADD_THREE, PREFILL, 2 * 6 * 8, 0, 2 * 6 * 4 * 8, 0),
        # silu(gate) * up: 4 + 1 OPs, two reads, one write, all 12 wide
        (GATED["mlp_act"], PREFILL, 5 * 6 * 12, 0, 2 * 6 * 3 * 12, 0),
        (GATED["mlp_act"], DECODE, 5 * 2 * 12, 0, 2 * 2 * 3 * 12, 0),
        (GATED["mlp_act"], CHUNK, 5 * 2 * 12, 0, 2 * 2 * 3 * 12, 0),
        # relu, gelu, gelu by tanh: one read, one write
        (_plain("relu"), PREFILL, 1 * 6 * 12, 0, 2 * 6 * 2 * 12, 0),
        (_plain("gelu"), DECODE, 5 * 2 * 12, 0, 2 * 2 * 2 * 12, 0),
        (_plain("gelu_tanh"), CHUNK, 9 * 2 * 12, 0, 2 * 2 * 2 * 12, 0),
        # rotation of 4 + 2 heads of 8: three OPs an element; q (32) both ways, k (16) in, and out to the cache
        (ATTENTION["rope"], PREFILL, 3 * 6 * 6 * 8, 0, 2 * 6 * (32 + 32 + 16), 2 * 6 * 16),
        (ATTENTION["rope"], DECODE, 3 * 2 * 6 * 8, 0, 2 * 2 * (32 + 32 + 16), 2 * 2 * 16),
        (ATTENTION["rope"], CHUNK, 3 * 2 * 6 * 8, 0, 2 * 2 * (32 + 32 + 16), 2 * 2 * 16),
        # 4 of 8 elements rotated: the others of q stay where they are, those of k go to the cache all the same
        (PARTLY_ROTATED["rope"], PREFILL, 3 * 6 * 6 * 4, 0, 2 * 6 * (16 + 16 + 16), 2 * 6 * 16),
        (PARTLY_ROTATED["rope"], DECODE, 3 * 2 * 6 * 4, 0, 2 * 2 * (16 + 16 + 16), 2 * 2 * 16),
        (PARTLY_ROTATED["rope"], CHUNK, 3 * 2 * 6 * 4, 0, 2 * 2 * (16 + 16 + 16), 2 * 2 * 16),
        # a row of the table for each token; with positions a row of two tables, and their sum
        (EMBEDDING, PREFILL, 0, 2 * 6 * 8, 2 * 6 * 8, 0),
        (EMBEDDING, DECODE, 0, 2 * 2 * 8, 2 * 2 * 8, 0),
        (EMBEDDING, CHUNK, 0, 2 * 2 * 8, 2 * 2 * 8, 0),
        (POSITIONS, PREFILL, 6 * 8, 2 * 6 * 8 * 2, 2 * 6 * 8, 0),
        (POSITIONS, DECODE, 2 * 8, 2 * 2 * 8 * 2, 2 * 2 * 8, 0),
        # q . k: 8 multiply-adds for each of 4 heads and pair; q in, whole score matrices out, keys of 16
        (ATTENTION["qk_matmul"], PREFILL, 2 * 8 * 4 * 12, 0, 2 * (6 * 32 + 4 * 18), 2 * 6 * 16),
        (ATTENTION["qk_matmul"], DECODE, 2 * 8 * 4 * 10, 0, 2 * (2 * 32 + 4 * 10), 2 * 10 * 16),
        (ATTENTION["qk_matmul"], CHUNK, 2 * 8 * 4 * 9, 0, 2 * (2 * 32 + 4 * 10), 2 * 5 * 16),
        # five OPs a pair; score matrices in and out; ALiBi adds a bias
        (ATTENTION["softmax"], PREFILL, 5 * 4 * 12, 0, 2 * 2 * 4 * 18, 0),
        (ATTENTION["softmax"], DECODE, 5 * 4 * 10, 0, 2 * 2 * 4 * 10, 0),
        (ATTENTION["softmax"], CHUNK, 5 * 4 * 9, 0, 2 * 2 * 4 * 10, 0),
        (ALIBI["softmax"], PREFILL, 6 * 4 * 12, 0, 2 * 2 * 4 * 18, 0),
        # probs . v: as q . k
        (ATTENTION["sv_matmul"], PREFILL, 2 * 8 * 4 * 12, 0, 2 * (6 * 32 + 4 * 18), 2 * 6 * 16),
        (ATTENTION["sv_matmul"], DECODE, 2 * 8 * 4 * 10, 0, 2 * (2 * 32 + 4 * 10), 2 * 10 * 16),
        (ATTENTION["sv_matmul"], CHUNK, 2 * 8 * 4 * 9, 0, 2 * (2 * 32 + 4 * 10), 2 * 5 * 16),
        # a window of 2: pairs 2*(1+2+2), 2*2, 2+2; keys at hand 2*3, 2*2, 3 (of the first query 2, and one more)
        (WINDOWED["qk_matmul"], PREFILL, 64 * 10, 0, 2 * (6 * 32 + 4 * 2 * 3 * 3), 2 * 6 * 16),
        (WINDOWED["qk_matmul"], DECODE, 64 * 4, 0, 2 * (2 * 32 + 4 * 2 * 1 * 2), 2 * 4 * 16),
        (WINDOWED["qk_matmul"], CHUNK, 64 * 4, 0, 2 * (2 * 32 + 4 * 2 * 3), 2 * 3 * 16),
        # one launch: 2*2*8 + 5 OPs a pair and head; q in, out written, keys and values read once
        (_flash(float("inf")), PREFILL, (4 * 8 + 5) * 4 * 12, 0, 2 * 6 * 2 * 32, 2 * 6 * 2 * 16),
        (_flash(float("inf")), DECODE, (4 * 8 + 5) * 4 * 10, 0, 2 * 2 * 2 * 32, 2 * 10 * 2 * 16),
        (_flash(float("inf")), CHUNK, (4 * 8 + 5) * 4 * 9, 0, 2 * 2 * 2 * 32, 2 * 5 * 2 * 16),
        (_flash(float("inf"), ALIBI), DECODE, (4 * 8 + 6) * 4 * 10, 0, 2 * 2 * 2 * 32, 2 * 10 * 2 * 16),
        (_flash(float("inf"), WINDOWED), CHUNK, (4 * 8 + 5) * 4 * 4, 0, 2 * 2 * 2 * 32, 2 * 3 * 2 * 16),
        # room for 2 queries (200 // 96) or for 6 keys with values (200 // 32), which can stay while queries pass
        (_flash(200), PREFILL, (4 * 8 + 5) * 4 * 12, 0, 2 * 6 * 2 * 32, 2 * 6 * 2 * 16),
        (_flash(200), DECODE, (4 * 8 + 5) * 4 * 10, 0, 2 * 2 * 2 * 32, 2 * 10 * 2 * 16),
        (_flash(200), CHUNK, (4 * 8 + 5) * 4 * 9, 0, 2 * 2 * 2 * 32, 2 * 5 * 2 * 16),
        # a prompt of 20 has ten tiles of 2, which see 2, 4, ... 20 keys: 110
        (_flash(200), LONG, (4 * 8 + 5) * 4 * 210, 0, 2 * 20 * 2 * 32, 2 * 110 * 2 * 16),
        # room for 1 query or 2 keys: every query reads what it sees
        (_flash(70), PREFILL, (4 * 8 + 5) * 4 * 12, 0, 2 * 6 * 2 * 32, 2 * 12 * 2 * 16),
        (_flash(70), CHUNK, (4 * 8 + 5) * 4 * 9, 0, 2 * 2 * 2 * 32, 2 * 9 * 2 * 16),
        # fp16 in, int8 out
        (QUANTIZE, PREFILL, 0, 0, 6 * 8 * (2 + 1), 0),
        (QUANTIZE, DECODE, 0, 0, 2 * 8 * (2 + 1), 0),
        (QUANTIZE, CHUNK, 0, 0, 2 * 8 * (2 + 1), 0),
        # temperature, five of softmax, a threshold and a running sum for each of 10 logits; a token of 4 B
        (SAMPLE, PREFILL, 8 * 2 * 10, 0, 2 * (2 * 10 + 4), 0),
        (SAMPLE, CHUNK, 8 * 1 * 10, 0, 2 * 10 + 4, 0),
        # the largest: a comparison each
        (GREEDY, DECODE, 2 * 10, 0, 2 * (2 * 10 + 4), 0),
    ],
)
def test_operator_counts_equal_arithmetic_by_hand(
    op: Operator, w: Workload, ops: float, weight_bytes: float, activation_bytes: float, kv_bytes: float
) -> None:
    assert _counted(op, w) == (ops, weight_bytes, activation_bytes, kv_bytes)


@pytest.mark.parametrize(
    ("op", "quant", "w", "conversion_ops"),
    [
        ("up_proj", "W4", PREFILL, 2 * 8 * 12),  # de-quantizing subtracts and scales each weight, once a launch
        ("up_proj", "W4", DECODE, 2 * 8 * 12),
        ("up_proj", "W8A8", PREFILL, 0),  # both are int8: nothing to convert
        ("up_proj", "W4A8", CHUNK, 2 * 8 * 12),  # int4 weights are widened to int8
        ("norm", "W8A8", PREFILL, 3 * 6 * 8),  # the norm writes int8: finds the largest, scales, rounds
        ("norm", "W4", PREFILL, 0),
        ("mlp_act", "W8A8", DECODE, 3 * 2 * 12),
        ("v_proj", "KV8", CHUNK, 3 * 2 * 16),  # writes the cache in int8
        ("v_proj", "W4KV8", CHUNK, 2 * 8 * 16 + 3 * 2 * 16),
        ("rope", "KV4", DECODE, 3 * 2 * 16),
        ("qk_matmul", "KV8", DECODE, 2 * 10 * 16),  # 10 cached keys of 16 numbers become fp16 again
        ("sv_matmul", "KV8", PREFILL, 2 * 6 * 16),
        ("qk_matmul", "W8A8", DECODE, 0),  # queries and keys stay fp16
        ("sv_matmul", "W8A8", DECODE, 3 * 2 * 32),  # o_proj wants its input in int8
    ],
)
def test_conversions_are_counted_apart_from_the_models_arithmetic(
    op: str, quant: str, w: Workload, conversion_ops: float
) -> None:
    norm = PARTS.norm("norm", X)
    attention = SelfAttention(heads=HEADS, rotary_dim=8).operators(PARTS, norm.outputs[0])
    mlp = Mlp(inner=12, act="silu", gated=True).operators(PARTS, norm.outputs[0])
    add = PARTS.add("add", X, attention[-1].outputs[0], mlp[-1].outputs[0])
    plain = Graph((Block(name="layer", operators=(norm, *attention, *mlp, add), input="x", output="add", layers=(0,)),))
    before = {o.name: o for _, o in plain}[op].work()
    after = {o.name: o for _, o in plain.then(quantize(parse_quantization(quant)))}[op].work()
    assert evaluate(after.conversion_ops, w) == conversion_ops
    assert evaluate(after.ops, w) == evaluate(before.ops, w)


@pytest.mark.parametrize(
    ("fmt", "bits"),
    [
        (FP32, 32),
        (FP16, 16),
        (Format("int4", 4, "int4", group=128, scale_bits=16, zero_bits=4), 4.15625),  # 4 + (16 + 4) / 128
        (Format("int8", 8, "int8", group=64, scale_bits=16, zero_bits=8), 8.375),  # 8 + (16 + 8) / 64
        (Format("nf4", 4, "table", group=64, scale_bits=8, scale_group=256), 4.126953125),  # 4 + (8 + 32 / 256) / 64
        (Format("int3", 3, "int4", group=32, scale_bits=16, zero_bits=3), 3.59375),  # 3 + 19 / 32
    ],
)
def test_stored_bits_include_scales_and_zero_points(fmt: Format, bits: float) -> None:
    assert fmt.stored_bits == bits


def test_grouped_weights_carry_their_scales_into_bytes() -> None:
    up = Graph((Block(name="layer", operators=(LINEAR,), input="x", output="up_proj", layers=(0,)),))
    ((_, op),) = up.then(quantize(parse_quantization("W4A16g128")))
    assert evaluate(op.work().weight_bytes, DECODE) == 8 * 12 * 4.15625 / 8 + 2 * 12  # the bias stays fp16


@pytest.mark.parametrize(
    ("model", "written", "read"),
    [
        # layers * kv heads * head size * (key and value) * 2 B; batch 2, 5 tokens of which the last is new
        ("llama-2-7b", 2 * 1 * 32 * 32 * 128 * 2 * 2, 2 * 5 * 32 * 32 * 128 * 2 * 2),  # 32 of 32 heads
        ("llama-3-8b", 2 * 1 * 32 * 8 * 128 * 2 * 2, 2 * 5 * 32 * 8 * 128 * 2 * 2),  # 8 of 32: grouped
        ("falcon-7b", 2 * 1 * 32 * 1 * 64 * 2 * 2, 2 * 5 * 32 * 1 * 64 * 2 * 2),  # 1 of 71: multi-query
    ],
)
@pytest.mark.parametrize("attention", ["eager", "flash"])
def test_kv_cache_traffic_of_a_decode_step_follows_the_kv_heads(
    model: str, written: int, read: int, attention: str
) -> None:
    graph = load_model(model).graph
    if attention == "flash":
        graph = graph.then(flash_attention(float("inf")))
    rows = estimate(graph, DECODE, load_hardware("a100-sxm-80gb")).operators
    attending = [row for row in rows if row.operator.kind == "attention"]
    assert sum(row.repeat * row.kv_bytes for row in attending) == read
    assert sum(row.repeat * row.kv_bytes for row in rows) == read + written


@pytest.mark.parametrize(
    ("model", "kv_bytes"),
    [
        ("llama-2-7b", 524288),  # 2 * 32 layers * 32 heads * 128 * 2 B
        ("llama-3-8b", 131072),  # 2 * 32 * 8 * 128 * 2
        ("llama-2-70b", 327680),  # 2 * 80 * 8 * 128 * 2
        ("falcon-7b", 8192),  # 2 * 32 * 1 * 64 * 2
        ("mistral-7b-v0.1", 131072),  # 2 * 32 * 8 * 128 * 2
        ("qwen2.5-0.5b", 12288),  # 2 * 24 * 2 * 64 * 2
        ("gpt2", 73728),  # 2 * 12 * 12 * 64 * 4 B: published in fp32
    ],
)
def test_kv_bytes_per_token(model: str, kv_bytes: int) -> None:
    assert load_model(model).kv_bytes_per_token == kv_bytes


def test_kv_bytes_per_token_beyond_windows() -> None:
    """MiMo-V2-Flash: 9 of 48 layers see all, with 4 heads of 192 and 128; the others have 8 in a window of 128."""
    model = load_model("mimo-v2-flash")
    every, windowed = 9 * 4 * (192 + 128) * 2, 39 * 8 * (192 + 128) * 2
    assert model.kv_bytes_per_token == every + windowed == 222_720
    assert model.kv_bytes_per_token_beyond_windows == every == 23_040
    assert load_model("mistral-7b-v0.1").kv_bytes_per_token_beyond_windows == 0  # all layers have a window
    assert all(facts.kv_bytes_per_token_beyond_windows <= facts.kv_bytes_per_token for facts in index().values())


def test_weight_bytes_of_llama_2_7b() -> None:
    embedding = 32000 * 4096
    layer = 4 * 4096 * 4096 + 3 * 4096 * 11008 + 2 * 4096  # q, k, v, o; gate, up, down; two norms
    parameters = embedding + 32 * layer + 4096 + 32000 * 4096
    assert parameters == 6738415616
    graph = load_model("llama-2-7b").graph
    assert graph.parameters == parameters
    rows = estimate(graph, Workload.decode(batch=3, kv_len=7), load_hardware("a100-sxm-80gb")).operators
    read = sum(row.repeat * row.weight_bytes for row in rows)
    assert read == 2 * (parameters - embedding + 3 * 4096)  # every weight once, but three rows of the embedding


def test_ops_of_one_decode_step_of_llama_2_7b() -> None:
    matrices = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008) + 32000 * 4096
    attention = 32 * 32 * 7 * (4 * 128 + 5)  # layers * heads * keys * (two products, softmax)
    norms = (2 * 32 + 1) * 4 * 4096
    adds = 2 * 32 * 4096
    activation = 32 * 5 * 11008
    rope = 32 * 3 * 2 * 4096
    result = estimate(load_model("llama-2-7b").graph, Workload.decode(batch=1, kv_len=7), load_hardware("h100-sxm"))
    assert result.sum("ops") == 2 * matrices + attention + norms + adds + activation + rope


def test_keys_and_values_of_a_head_that_fit_on_the_chip_are_read_once_whatever_the_queries_take() -> None:
    """131072 keys and values of 128 in fp16 are 67 MB; the queries of 8 heads that share them would be 805 MB."""
    graph = load_model("llama-3-70b").graph.then(flash_attention(121_634_816))  # H100: registers, L1, L2
    (attention,) = (op for _, op in graph if isinstance(op, FlashAttention))
    w = Workload.prefill(batch=1, prompt=131072)
    assert evaluate(attention.work().kv_bytes, w) == 131072 * 2 * 8 * 128 * 2
