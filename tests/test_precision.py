"""Notation, stored bits, the type that operands are multiplied in, and what quantization does to a graph."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmviewer
from llmviewer.cli.analyze import analyze
from llmviewer.devices.files import load_hardware
from llmviewer.errors import InputError
from llmviewer.forms import evaluate
from llmviewer.ggml import BY_NAME
from llmviewer.memory import weight_bytes
from llmviewer.model_files import load_model
from llmviewer.operators.linear import Linear
from llmviewer.precision import BF16, FP16, FP32, HALF, NAMED, WIDER, Format, Scheme, notation, parse_scheme, product
from llmviewer.resource import matrix, vector
from llmviewer.setting import Setting
from llmviewer.transforms.flash_attention import flash_attention
from llmviewer.transforms.quantize import parse_quantization, quantize
from llmviewer.workload import Workload

ROOT = Path(__file__).parent.parent
INT8, FP8 = NAMED["int8"], NAMED["fp8_e4m3"]
INT4_G128 = Format("int4", 4, "int4", group=128, scale_bits=16, zero_bits=4)


@pytest.mark.parametrize(
    ("text", "weight", "activation", "kv_cache"),
    [
        ("W4A16g128", INT4_G128, HALF, None),
        ("w4a16", NAMED["int4"], HALF, None),
        ("W4g128", INT4_G128, None, None),
        ("W4-g128", INT4_G128, None, None),
        ("W4A16_g128", INT4_G128, HALF, None),
        ("W4g128A16", INT4_G128, HALF, None),
        ("W8A8", INT8, INT8, None),
        (" W8A8 ", INT8, INT8, None),
        ("A8W8", INT8, INT8, None),
        ("W4A8", NAMED["int4"], INT8, None),
        ("W4KV4", NAMED["int4"], None, NAMED["int4"]),
        ("KV8", None, None, INT8),
        ("KVfp8", None, None, FP8),
        ("W8A8KV8", INT8, INT8, INT8),
        ("W8A8-KVfp8_e5m2", INT8, INT8, NAMED["fp8_e5m2"]),
        ("W4KV8g64", NAMED["int4"], None, Format("int8", 8, "int8", group=64, scale_bits=16, zero_bits=8)),
        ("W1.58A8", Format("int1.58", 1.58, "int4"), INT8, None),
        ("W3g128", Format("int3", 3, "int4", group=128, scale_bits=16, zero_bits=3), None, None),
        ("W4A16g128s8", replace(INT4_G128, scale_bits=8), HALF, None),
        ("W4g64s32z0", Format("int4", 4, "int4", group=64, scale_bits=32), None, None),
        ("W4A16g64s8z8d256", replace(INT4_G128, group=64, scale_bits=8, zero_bits=8, scale_group=256), HALF, None),
        ("W6", Format("int6", 6, "int8"), None, None),
        ("Wnf4A16", NAMED["nf4"], HALF, None),
        ("Wfp8A8", FP8, INT8, None),  # A8 is int8 whatever W is
        ("Wfp8Afp8", FP8, FP8, None),
        ("Wmxfp4Afp8", NAMED["mxfp4"], FP8, None),
        ("W16A16", HALF, HALF, None),
        ("W4A16g128KV8", INT4_G128, HALF, INT8),
        ("W8A8KV16", INT8, INT8, HALF),
        ("W32A32", FP32, FP32, None),
        ("fp16", FP16, FP16, None),
        ("bfloat16", BF16, BF16, None),
        ("fp8", FP8, FP8, None),
        ("FP8_E5M2", NAMED["fp8_e5m2"], NAMED["fp8_e5m2"], None),
        ("int8", INT8, INT8, None),
        ("int4", NAMED["int4"], None, None),
        ("nf4", NAMED["nf4"], None, None),
        ("mxfp4", NAMED["mxfp4"], None, None),
        ("nvfp4", NAMED["nvfp4"], NAMED["nvfp4"], None),
        ("fp8KV8", FP8, FP8, INT8),
        ("FP8-KVfp8", FP8, FP8, FP8),
        ("int4KV8g64", NAMED["int4"], None, Format("int8", 8, "int8", group=64, scale_bits=16, zero_bits=8)),
    ],
)
def test_notation_of_the_field(text, weight, activation, kv_cache):
    scheme = parse_scheme(text)
    assert (scheme.text, scheme.weight, scheme.activation, scheme.kv_cache) == (text, weight, activation, kv_cache)


@pytest.mark.parametrize("text", ["W4A16g0", "W4g0", "KV8g00", "w8a8-g0"])
def test_a_group_has_at_least_one_value(text):
    with pytest.raises(InputError, match=rf"^quantization '{text}': a group must have at least one value; got g0+$"):
        parse_scheme(text)


@pytest.mark.parametrize(
    ("text", "must"),
    [
        ("W4g128s0", "a scale must have 1 to 32 bits; got s0"),
        ("W4g128s64", "a scale must have 1 to 32 bits; got s64"),
        ("W4g128z64", "a zero point must have 0 to 32 bits; got z64"),
        ("W4g128d0", "a scale of scales must have at least one; got d0"),
    ],
)
def test_scales_and_zero_points_have_bits(text, must):
    with pytest.raises(InputError, match=rf"^quantization '{text}': {must}$"):
        parse_scheme(text)


@given(st.text(st.sampled_from("wakvKW0123456789.gszdfpint_- "), max_size=12))
def test_any_text_is_a_scheme_or_an_error(text):
    with suppress(InputError):
        scheme = parse_scheme(text)
        for fmt in (scheme.weight, scheme.activation, scheme.kv_cache):
            assert fmt is None or 1 <= fmt.bits <= fmt.stored_bits
        again = parse_scheme(notation(scheme))
        assert replace(again, text=text) == scheme


_FORMATS = st.sampled_from(
    [None, HALF, FP32, INT8, INT4_G128, FP8, NAMED["mxfp4"], NAMED["nf4"], parse_scheme("A8g32").activation]
)


@given(_FORMATS, _FORMATS, _FORMATS)
def test_notation_round_trips(weight, activation, kv_cache):
    scheme = Scheme(weight=weight, activation=activation, kv_cache=kv_cache)
    text = notation(scheme)
    assert bool(text) == any((weight, activation, kv_cache))
    if text:
        assert replace(parse_scheme(text), text=scheme.text) == scheme


@pytest.mark.parametrize(
    "text",
    ["W4A16g128", "W8A8", "fp8", "bf16", "nvfp4", "W4Afp8g128", "W4A8KV8", "KV8", "A8g32W8", "W4A16g128s8z0d256"],
)
def test_a_notation_is_as_the_field_writes_it(text):
    assert notation(parse_scheme(text)) == text


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("fp64", 64),
        ("fp32", 32),
        ("fp16", 16),
        ("bf16", 16),
        ("fp8_e4m3", 8),
        ("fp8_e5m2", 8),
        ("int8", 8),
        ("int4", 4),
        ("nf4", 4.5),  # 4 + 32 / 64
        ("mxfp8", 8.25),  # 8 + 8 / 32
        ("mxfp6", 6.25),
        ("mxfp4", 4.25),
        ("nvfp4", 4.5),  # 4 + 8 / 16
    ],
)
def test_stored_bits_of_named_formats(name, bits):
    assert NAMED[name].stored_bits == bits


@pytest.mark.parametrize(
    ("text", "bits"),
    [("W4g128", 4.15625), ("W4g32", 4.625), ("W8g128", 8.1875), ("Wfp8g128", 8.125), ("W2g64", 2.28125), ("W3", 3)],
)
def test_stored_bits_of_groups(text, bits):
    """A 16-bit scale, and for integers a zero point of their own width."""
    assert parse_scheme(text).weight.stored_bits == bits


def test_a_format_is_shown_with_its_group_unless_its_name_has_one():
    assert str(INT4_G128) == "int4 g128"
    assert str(parse_scheme("W3g64").weight) == "int3 g64"
    assert (str(NAMED["nf4"]), str(NAMED["mxfp4"]), str(INT8), str(BF16)) == ("nf4", "mxfp4", "int8", "bf16")


@pytest.mark.parametrize(
    ("a", "b", "dtype"),
    [
        ("fp16", "fp16", "fp16"),
        ("bf16", "bf16", "bf16"),
        ("int8", "int8", "int8"),
        ("int4", "int4", "int4"),
        ("fp8_e4m3", "fp8_e5m2", "fp8"),
        ("nvfp4", "mxfp4", "fp4"),
        ("fp16", "int8", "fp16"),  # W8A16: a low-bit unit needs all operands in its type
        ("bf16", "int4", "bf16"),
        ("bf16", "nf4", "bf16"),
        ("fp32", "int8", "fp32"),
        ("int8", "int4", "int8"),
        ("fp8_e4m3", "mxfp4", "fp8"),
        ("fp8_e4m3", "int8", "fp16"),  # neither holds the other
        ("int8", "nf4", "fp16"),  # a look-up code is multiplied as what it stands for
        ("nf4", "nf4", "fp16"),
        ("fp8_e4m3", "int4", "fp8"),  # e4m3 holds every whole number up to 16
    ],
)
def test_operands_are_multiplied_in_the_narrowest_type_that_holds_both(a, b, dtype):
    assert product(NAMED[a], NAMED[b]) == dtype
    assert product(NAMED[b], NAMED[a]) == dtype


@given(st.sampled_from(sorted(NAMED)), st.sampled_from(sorted(NAMED)))
def test_the_order_of_operands_does_not_matter(a, b):
    assert product(NAMED[a], NAMED[b]) == product(NAMED[b], NAMED[a])


def test_wider_types_represent_all_values_of_narrower_ones():
    for wide in WIDER.values():
        for dtype in wide:
            assert set(WIDER[dtype]) - {"fp64"} <= {*wide, "fp16", "bf16"}  # these two stand in for each other


def _dtypes(device, quant, operator="up_proj", model="llama-3-8b"):
    """The type that the operands ask for and the one that the device computes in."""
    rows = Setting.of(model, device, quant=quant).plan.operators
    (row,) = (row for row in rows if row.operator.name == operator)
    return row.work.operand_unit, row.compute


@pytest.mark.parametrize(
    ("device", "quant", "wanted", "compute"),
    [
        ("h100-sxm", "W16A16", "bf16", "bf16"),
        ("h100-sxm", "W8A16", "bf16", "bf16"),
        ("h100-sxm", "fp8", "fp8", "fp8"),
        ("h100-sxm", "W4A4", "int4", "int8"),  # no int4 units
        ("h100-sxm", "nvfp4", "fp4", "fp8"),
        ("a100-sxm-80gb", "W4A4", "int4", "int4"),
        ("a100-sxm-80gb", "W4A8", "int8", "int8"),
        ("a100-sxm-80gb", "fp8", "fp8", "fp16"),  # no fp8 units: 312 TOP/s in fp16
        ("v100-sxm2-32gb", "W16A16", "bf16", "fp16"),  # no bf16 units
        ("v100-sxm2-32gb", "W8A8", "int8", "fp16"),  # 125 TOP/s of matrix units, 62 of DP4A
        ("t4", "W8A8", "int8", "int8"),
        ("h100-sxm", "W4Afp8", "fp8", "fp8"),  # as W4A8 kernels on Hopper do
    ],
)
def test_a_device_without_a_type_computes_in_its_fastest_that_holds_it(device, quant, wanted, compute):
    assert _dtypes(device, quant) == (matrix(wanted), matrix(compute))


def test_products_in_fp32_do_not_wait_for_tensor_cores_that_only_have_fp64():
    """2 * 4096**3 OPs at the 75 TOP/s of B300's vector units; its tensor cores have 1.25 in fp64."""
    device = load_hardware("b300")
    assert (device.rates[matrix("fp64")], device.supply(matrix("fp32"))) == (1.25e12, vector("fp32"))
    (found,) = llmviewer.kernel("gemm", "b300", {"M": 4096, "N": 4096, "K": 4096}, quant="fp32")
    assert found.bound_time_s == pytest.approx(2 * 4096**3 / 75e12)


def test_a_processor_without_matrix_units_computes_on_its_vector_units():
    _, compute = _dtypes("i9-13900k", "W16A16")
    assert str(compute) == "vector fp32"
    _, compute = _dtypes("i9-13900k", "W8A8")
    assert str(compute) == "vector int8"


def _formats(quant, model="llama-2-7b", device="a100-sxm-80gb"):
    """Per block and matrix product: bits of weights, of inputs."""
    graph = Setting.of(model, device, quant=quant).graph.check()
    return {
        (block.name, op.name): (op.weight.format.bits, op.inputs[0].format.bits)
        for block, op in graph
        if isinstance(op, Linear)
    }


def test_a_scheme_goes_to_every_matrix_product_but_the_head():
    formats = _formats("W4A8")
    assert formats.pop(("head", "lm_head")) == (16, 16)
    assert set(formats.values()) == {(4, 8)}
    assert {name for _, name in formats} == {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    }  # fmt: skip


def test_an_override_holds_for_the_operators_it_names():
    formats = _formats("W4A16,down_proj=W8A8,lm_head=W8,*_proj=W2,o_proj=W3")
    assert formats["layer", "down_proj"] == (2, 8)  # the last that speaks of weights, and of activations
    assert formats["layer", "o_proj"] == (3, 16)
    assert formats["head", "lm_head"] == (8, 16)
    assert _formats("W4,[qkv]_proj=W8")["layer", "v_proj"] == (8, 16)


def test_an_override_alone_leaves_the_rest_as_published():
    formats = _formats("down_proj=W8")
    assert formats.pop(("layer", "down_proj")) == (8, 16)
    assert set(formats.values()) == {(16, 16)}
    assert _formats("published,down_proj=W8") == _formats("down_proj=W8")
    formats = _formats("down_proj=W8", model="gpt2")  # published in fp32
    assert formats.pop(("layer", "down_proj")) == (8, 32)
    assert set(formats.values()) == {(32, 32)}


def test_an_override_of_layers_cuts_the_model_there():
    formats = _formats("W4,layers.0-3=W8A8,layers.31.down_proj=W16A16")
    assert formats["layer.0-3", "up_proj"] == (8, 8)
    assert formats["layer.4-30", "down_proj"] == (4, 16)
    assert formats["layer.31", "up_proj"] == (4, 16)
    assert formats["layer.31", "down_proj"] == (16, 16)
    graph = Setting.of("llama-2-7b", "a100-sxm-80gb", quant="W4,layers.0-3=W8A8").graph
    assert [(b.name, b.layers, b.repeat) for b in graph.blocks] == [
        ("embedding", (), 1), ("layer.0-3", (0, 1, 2, 3), 4), ("layer.4-31", tuple(range(4, 32)), 28), ("head", (), 1),
    ]  # fmt: skip
    assert graph.layers == 32


@pytest.mark.parametrize(
    ("quant", "error"),
    [
        (
            "W4,q_porj=W8",
            ("quantization 'q_porj=W8' matches no matrix product; did you mean q_proj or v_proj or o_proj?"),
        ),
        ("W4,layers.32=W8", "quantization 'layers.32=W8': layers must be from 0 to 31"),
        (
            "W4,layers.5-3=W8",
            "quantization 'layers.5-3=W8': layers must be in ascending order, as in layers.0-3",
        ),
        (
            "W4,layers.5.q_porj=W8",
            ("quantization 'layers.5.q_porj=W8' matches no matrix product; did you mean q_proj or v_proj or o_proj?"),
        ),
        (
            "W4,softmax=W8",
            (
                "quantization 'softmax=W8' matches no matrix product; "
                "there is down_proj, gate_proj, k_proj, lm_head, o_proj, q_proj, up_proj, v_proj"
            ),
        ),
    ],
)
def test_an_override_that_matches_nothing_is_an_error(quant, error):
    with pytest.raises(InputError) as caught:
        _ = Setting.of("llama-2-7b", "a100-sxm-80gb", quant=quant).graph
    assert str(caught.value) == error


def _kv_bits(quant):
    graph = Setting.of("llama-2-7b", "a100-sxm-80gb", quant=quant, attention="eager").graph.check()
    return {b.name: {t.format.bits for t in op.state()} for b, op in graph if op.name == "qk_matmul"}


def test_the_cache_of_layers_can_be_overridden():
    assert _kv_bits("KV8") == {"layer": {8}}
    assert _kv_bits("KV8,layers.0-3=KV4") == {"layer.0-3": {4}, "layer.4-31": {8}}
    assert _kv_bits("layers.0-3=KV4") == {"layer.0-3": {4}, "layer.4-31": {16}}


def test_override_without_a_cache_format_keeps_the_cache_format():
    assert _kv_bits("W4KV4,layers.0-3=W8A16") == {"layer.0-3": {4}, "layer.4-31": {4}}


def test_a_cache_of_single_operators_is_an_error():
    with pytest.raises(InputError) as caught:
        parse_quantization("W4,v_proj=KV8")
    assert str(caught.value) == "quantization 'v_proj=KV8': KV must be set for whole layers, as in layers.0-3=KV8"


def _launches(model, quant):
    graph = Setting.of(model, "a100-sxm-80gb", quant=quant).graph.check()
    return [f"{b.name}.{op.name}" for b, op in graph if op.kind == "quantize"]


def test_activations_are_quantized_by_their_writer_where_only_quantized_products_read_them():
    assert _launches("llama-2-7b", "W8A8") == []
    assert _launches("gpt-j-6b", "W8A8") == []  # one norm feeds q, k, v and the MLP: all of them want int8
    assert _launches("falcon-7b", "W8A8") == []
    graph = Setting.of("llama-2-7b", "a100-sxm-80gb", quant="W8A8").graph
    written = {op.name: op.outputs[0].format.bits for _, op in graph}
    assert {name for name, bits in written.items() if bits == 8} == {"attn_norm", "attention", "mlp_norm", "mlp_act"}


def test_an_activation_that_others_read_as_it_was_gets_a_launch_of_its_own():
    assert _launches("gpt-j-6b", "W8A8,up_proj=W16A16") == ["layer.attn_norm_to_int8"]  # the norm they share
    assert _launches("llama-2-7b", "W8A8,k_proj=W16A16") == ["layer.attn_norm_to_int8"]
    assert _launches("opt-350m", "W8A8")[-2:] == [  # norms after the additions: residual and products read them
        "layer.attn_norm_to_int8",
        "head.hidden_to_int8",
    ]


def test_an_override_of_the_head_is_fused_into_the_last_norm():
    assert _launches("llama-2-7b", "lm_head=W8A8") == []
    graph = Setting.of("llama-2-7b", "a100-sxm-80gb", quant="lm_head=W8A8").graph
    (norm,) = (op for _, op in graph if op.name == "final_norm")
    assert norm.outputs[0].format == INT8
    # conversions of 5 tokens of 4096: largest, scale, round
    assert evaluate(norm.work().conversion_ops, Workload.prefill(batch=1, prompt=5)) == 3 * 5 * 4096


def test_a_launch_of_its_own_reads_sixteen_bits_and_writes_eight():
    graph = Setting.of("falcon-7b", "a100-sxm-80gb", quant="W8A8,up_proj=W16A16").graph  # one norm for all
    (op,) = (op for _, op in graph if op.kind == "quantize")
    w = Workload.prefill(batch=1, prompt=10)
    assert evaluate(op.work().activation_bytes, w) == 10 * 4544 * (2 + 1)
    assert evaluate(op.work().conversion_ops, w) == 10 * 4544 * 3
    assert not op.work().ops


@pytest.mark.parametrize("quant", ["W8A8,k_proj=fp8,v_proj=W16A16", "A8g128W8,k_proj=W8A8"])
def test_two_formats_of_one_activation_get_a_launch_and_a_name_each(quant):
    graph = Setting.of("llama-2-7b", "h100-sxm", quant=quant).graph.check()
    for block in graph.blocks:
        names = [op.name for op in block.operators]
        assert len(names) == len(set(names))


def test_tensors_that_are_neither_operand_nor_cache_keep_the_model_format():
    graph = load_model("llama-2-7b").graph.then(quantize(parse_quantization("W4A4KV4")))
    low = {t.name for _, op in graph for t in op.outputs if t.format.bits < 16}
    assert low == {"attn_norm", "k_cache", "v_cache", "attention", "mlp_norm", "mlp_act"}


def test_biases_and_norms_keep_the_models_format():
    graph = load_model("opt-125m").graph.then(quantize(parse_quantization("W4")))
    bits = {w.name: w.format.bits for _, op in graph for w in op.weights}
    assert bits["up_proj.weight"] == 4
    assert bits["up_proj.bias"] == bits["attn_norm.weight"] == bits["embed_tokens.weight"] == 16


def test_a_tied_head_that_is_quantized_is_held_beside_the_embedding():
    plain, quantized = (
        weight_bytes(Setting.of("llama-3.2-1b", "a100-sxm-80gb", quant=quant).graph) for quant in ("W16", "lm_head=W8")
    )
    assert quantized - plain == 128256 * 2048 * 1


def test_sixteen_bits_are_sixteen_bits_for_a_model_published_in_fp32():
    setting = Setting.of("gpt2", "a100-sxm-80gb", quant="W16A16")
    assert weight_bytes(setting.graph) == 2 * 124439808
    assert {t.format for _, op in setting.graph for t in (*op.inputs, *op.outputs)} == {FP16}
    assert weight_bytes(Setting.of("gpt2", "a100-sxm-80gb").graph) == 4 * 124439808
    assert Setting.of("llama-3-8b", "a100-sxm-80gb", quant="W16A16").graph == load_model("llama-3-8b").graph.then(
        flash_attention(load_hardware("a100-sxm-80gb").on_chip_bytes)
    )


def test_an_fp32_model_with_low_bit_weights_and_16_bit_activations_computes_in_16_bits():
    formats = _formats("W4A16", model="gpt2")
    assert formats["layer", "up_proj"] == (4, 16)
    assert formats["head", "lm_head"] == (16, 16)
    assert _dtypes("a100-sxm-80gb", "W4A16", model="gpt2")[0] == matrix("fp16")


@pytest.mark.parametrize(
    ("quant", "conversion_ops"),
    [
        ("W4", 2 * 4096 * 11008),  # every weight: subtract the zero point, scale
        ("W8A16", 2 * 4096 * 11008),
        ("W8A8", 0),
        ("W4A8", 2 * 4096 * 11008),
        ("fp8", 0),
        ("W16A16", 0),
    ],
)
def test_dequantization_of_weights_is_counted_once_a_launch(quant, conversion_ops):
    graph = Setting.of("llama-2-7b", load_hardware("h100-sxm").name, quant=quant).graph
    (op,) = (op for _, op in graph if op.name == "up_proj")
    for w in (Workload.decode(batch=1, kv_len=9), Workload.prefill(batch=4, prompt=100)):
        assert evaluate(op.work().conversion_ops, w) == conversion_ops


@pytest.mark.parametrize("text", ["Q4_K_XL", "fp9", "fp8W4", "fp8KV8KV4"])
def test_error_for_foreign_format_names_states_the_notation(text):
    with pytest.raises(InputError) as error:
        parse_scheme(text)
    told = str(error.value)
    assert "\n" not in told
    assert " fp8, " in told
    assert "fp4: nvfp4 or mxfp4), or a file type of llama.cpp such as Q4_K_M or Q8_0" in told


def test_standalone_format_names_match_help_and_readme():
    option = next(o for o in analyze.params if o.name == "quant")
    for text in (option.help, (ROOT / "README.md").read_text()):
        pattern = r"(`?fp8`?, `?int8.*?) (?:are|set) weights\s+and\s+activations[,;] (.*?)\s+weights"
        told = re.search(pattern, text, re.DOTALL)
        both, weights = told.groups()
        for names, wide in ((both, False), (weights, True)):
            for name in re.findall(r"\w+\d", names):
                scheme = parse_scheme(name)
                assert scheme.weight
                assert (scheme.activation is None) == wide, name
        assert {*re.findall(r"\w+\d", f"{both} {weights}")} == {
            "fp8", "int8", "mxfp8", "nvfp4", "int4", "nf4", "mxfp6", "mxfp4",
        }  # fmt: skip


@pytest.mark.parametrize(("name", "nbytes"), [("q8_0", 34), ("q5_1", 24), ("q5_0", 22), ("q4_1", 20), ("q4_0", 18)])
def test_caches_may_have_the_block_types_of_llama_cpp(name, nbytes):
    """Bytes of 32 elements (ggml-common.h); they are of caches alone, as weights have file types."""
    cache = parse_scheme(f"KV{name}").kv_cache
    assert cache.stored_bits == 8 * nbytes / 32
    assert cache == BY_NAME[name].format
    assert parse_scheme(f"W4A16g128KV{name}").kv_cache == cache
    assert notation(parse_scheme(f"KV{name}")) == f"KV{name}"
    with pytest.raises(InputError, match="quantization must be bits or formats"):
        parse_scheme(f"W{name}")


def test_a_cache_of_a_file_type_has_the_bytes_of_its_blocks():
    """36 layers of 8 heads of 128, keys and values, 32,768 tokens: 34 bytes of 32 elements."""
    found = llmviewer.analyze("qwen3-8b", "rtx-3090", quant="Q4_K_M,KVq8_0", prompt=32_767, gen=1)
    assert found.memory.kv_cache_bytes == 36 * 2 * 8 * 128 * 32_768 * 34 / 32
