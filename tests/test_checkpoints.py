"""Checkpoints by their headers, written byte by byte: what they hold becomes formats and memory, or one clear line."""

from __future__ import annotations

import json
import struct
from math import prod

import pytest

from llmviewer.errors import InputError
from llmviewer.ggml import TYPES
from llmviewer.memory import weight_bytes
from llmviewer.model_files import load_model
from llmviewer.operators.linear import Linear
from llmviewer.setting import Setting

from .gguf_bytes import F16, F32, Q4_K, Q6_K, header, text

HIDDEN, KV, INNER, VOCAB, LAYERS = 256, 128, 512, 1000, 4
BITS = {F32: 32, F16: 16, Q4_K: 4.5, Q6_K: 6.5625}
METADATA = {
    "general.architecture": "llama",
    "general.name": "Tiny",
    "general.quantized_by": ["nobody", "someone"],
    "llama.block_count": LAYERS,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": INNER,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.context_length": 2048,
    "tokenizer.ggml.tokens": ["token"] * VOCAB,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.ggml.scores": [0.0] * VOCAB,
}
CONFIG = {
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
}
MATRICES = {  # module: rows, columns
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (KV, HIDDEN),
    "self_attn.v_proj": (KV, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}
SIZES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "I64": 8, "I32": 4, "U32": 4, "I16": 2, "U8": 1, "I8": 1}


def _mixed():
    """The tensors of a K-quant: values, and what comes down, in six bits in some layers."""
    tensors = {
        "token_embd.weight": ((HIDDEN, VOCAB), Q4_K),
        "output_norm.weight": ((HIDDEN,), F32),
        "output.weight": ((HIDDEN, VOCAB), Q6_K),
        "rope_freqs.weight": ((32,), F32),
    }
    for i in range(LAYERS):
        parts = {
            "attn_norm": ((HIDDEN,), F32),
            "ffn_norm": ((HIDDEN,), F32),
            "attn_q": ((HIDDEN, HIDDEN), Q4_K),
            "attn_k": ((HIDDEN, KV), Q4_K),
            "attn_v": ((HIDDEN, KV), Q6_K if i % 2 else Q4_K),
            "attn_output": ((HIDDEN, HIDDEN), Q4_K),
            "ffn_gate": ((HIDDEN, INNER), Q4_K),
            "ffn_up": ((HIDDEN, INNER), Q4_K),
            "ffn_down": ((INNER, HIDDEN), Q6_K if i == 0 else Q4_K),
        }
        tensors |= {f"blk.{i}.{name}.weight": part for name, part in parts.items()}
    return tensors


@pytest.fixture
def gguf(tmp_path):
    """Writes a GGUF file, or the bytes given, and returns its path."""

    def write(data=None, *, metadata=None, tensors=None, version=3):
        path = tmp_path / "tiny.gguf"
        kept = {key: value for key, value in {**METADATA, **(metadata or {})}.items() if value is not None}
        path.write_bytes(header(kept, _mixed() if tensors is None else tensors, version) if data is None else data)
        return str(path)

    return write


def _graph(model, quant=None):
    return Setting.of(model, "h100-sxm", quant=quant).graph


def _formats(model):
    """{operator: {format of its matrix: layers}}"""
    found = {}
    for block, op in _graph(model):
        if isinstance(op, Linear):
            layers = found.setdefault(op.name, {}).setdefault(str(op.weight.format), [])
            layers.extend(block.layers or (None,))
    return {name: {fmt: sorted(layers, key=str) for fmt, layers in of.items()} for name, of in found.items()}


def _error(path):
    with pytest.raises(InputError) as caught:
        load_model(str(path))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("version", [2, 3])
def test_a_gguf_file_is_a_model_in_the_memory_of_its_tensors(gguf, version):
    model = load_model(gguf(version=version))
    held = {name: part for name, part in _mixed().items() if name != "rope_freqs.weight"}
    assert weight_bytes(_graph(model)) == sum(prod(shape) * BITS[kind] / 8 for shape, kind in held.values())
    assert model.parameters == sum(prod(shape) for shape, _ in held.values())
    assert (model.title, model.max_context, model.notes) == ("Tiny", 2048, ())
    assert str(model.quantization) == (
        "published: q4_k weights; q6_k weights: v_proj of 2 layers, down_proj of 1 layer"
    )  # fmt: skip


def test_types_of_gguf_tensors_are_per_layer(gguf):
    formats = _formats(load_model(gguf()))
    assert formats["v_proj"] == {"q4_k": [0, 2], "q6_k": [1, 3]}
    assert formats["down_proj"] == {"q4_k": [1, 2, 3], "q6_k": [0]}
    assert formats["q_proj"] == {"q4_k": [0, 1, 2, 3]}
    assert formats["lm_head"] == {"q6_k": [None]}


def test_a_gguf_file_without_a_head_ties_it_to_the_embedding(gguf):
    tensors = {name: part for name, part in _mixed().items() if name != "output.weight"}
    model = load_model(gguf(tensors=tensors))
    held = {name: part for name, part in tensors.items() if name != "rope_freqs.weight"}
    assert weight_bytes(_graph(model)) == sum(prod(shape) * BITS[kind] / 8 for shape, kind in held.values())
    assert _formats(model)["lm_head"] == {"q4_k": [None]}


def test_requested_precision_replaces_that_of_the_file(gguf):
    model = load_model(gguf())
    assert _formats(model)["q_proj"] == {"q4_k": [0, 1, 2, 3]}
    assert weight_bytes(_graph(model, "W16A16")) == 2 * model.parameters


def test_parameters_that_are_not_the_graphs_are_noted(gguf):
    tensors = _mixed()
    tensors["blk.0.extra.weight"] = tensors.pop("blk.1.attn_k.weight")
    tensors["blk.2.attn_k.weight"] = ((HIDDEN, 2 * KV), Q4_K)
    path = gguf(tensors=tensors)
    model = load_model(path)
    (note,) = model.notes
    assert note == (
        f"{path} holds {model.parameters + HIDDEN * KV} parameters, +{HIDDEN * KV} to the {model.parameters} counted; "
        "not counted: blk.0.extra.weight; not in it: blk.1.attn_k.weight; of another size: blk.2.attn_k.weight"
    )


def test_a_gguf_file_of_experts(gguf):
    tensors = {name: part for name, part in _mixed().items() if ".ffn_" not in name or "norm" in name}
    for i in range(LAYERS):
        tensors |= {f"blk.{i}.ffn_{p}_exps.weight": ((HIDDEN, INNER, 8), Q4_K) for p in ("gate", "up")}
        tensors |= {
            f"blk.{i}.ffn_down_exps.weight": ((INNER, HIDDEN, 8), Q6_K),
            f"blk.{i}.ffn_gate_inp.weight": ((HIDDEN, 8), F32),
        }
    model = load_model(gguf(tensors=tensors, metadata={"llama.expert_count": 8, "llama.expert_used_count": 2}))
    assert (model.model_type, model.notes) == ("mixtral", ())
    held = {name: part for name, part in tensors.items() if name != "rope_freqs.weight"}
    assert weight_bytes(_graph(model)) == sum(prod(shape) * BITS[kind] / 8 for shape, kind in held.values())
    assert _formats(model)["router"] == {"fp32": [0, 1, 2, 3]}


@pytest.mark.parametrize(
    ("kind", "name", "bits"),
    [
        (0, "fp32", 32), (1, "fp16", 16), (2, "q4_0", 4.5), (3, "q4_1", 5), (6, "q5_0", 5.5), (7, "q5_1", 6),
        (8, "q8_0", 8.5), (10, "q2_k", 2.625), (11, "q3_k", 3.4375), (12, "q4_k", 4.5), (13, "q5_k", 5.5),
        (14, "q6_k", 6.5625), (16, "iq2_xxs", 2.0625), (17, "iq2_xs", 2.3125), (18, "iq3_xxs", 3.0625),
        (19, "iq1_s", 1.5625), (20, "iq4_nl", 4.5), (21, "iq3_s", 3.4375), (22, "iq2_s", 2.5625), (23, "iq4_xs", 4.25),
        (29, "iq1_m", 1.75), (30, "bf16", 16), (34, "tq1_0", 1.6875), (35, "tq2_0", 2.0625), (39, "mxfp4", 4.25),
        (40, "nvfp4", 4.5),
    ],
)  # fmt: skip
def test_bits_of_ggml_types_with_their_scales(kind, name, bits):
    fmt = TYPES[kind].format
    assert (str(fmt), fmt.stored_bits) == (name, bits)


def test_every_cut_of_a_header_is_one_line(gguf):
    whole = header({**METADATA, "tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.scores": [0.0]}, _mixed())
    for size in (*range(120), *range(120, len(whole), 37), len(whole) - 1):
        error = _error(gguf(whole[:size]))
        assert "tiny.gguf: " in error
        assert any(word in error for word in ("truncated", "too few for", "must be a GGUF file"))
    load_model(gguf(whole))


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", "must be a GGUF file; it is empty"),
        (b"PK\x03\x04....", r"must be a GGUF file; it begins with b'PK\x03\x04'"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0),
         "is of version 1; must be GGUF version 2 or 3, little-endian"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
         "is big-endian; must be GGUF version 2 or 3, little-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**62, 0),
         "has 24 bytes, too few for 4611686018427387904 tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**62),
         "has 24 bytes, too few for 4611686018427387904 metadata entries"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63),
         "has 32 bytes, too few for 9223372036854775808 bytes of a text"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("key") + struct.pack("<I", 77),
         "has metadata of type 77, which is no GGUF type"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("key") + struct.pack("<IIQ", 9, 9, 1),
         "has an array of type 9, which is not supported"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("key") + struct.pack("<IIQ", 9, 4, 2**40),
         "has 51 bytes, too few for 1099511627776 entries of an array"),
    ],
)  # fmt: skip
def test_bytes_that_are_no_gguf_file(gguf, data, error):
    path = gguf(data)
    assert _error(path) == f"{path}: {error}"


@pytest.mark.parametrize(
    ("tensor", "error"),
    [
        (((HIDDEN, VOCAB), 99), "tensor 'token_embd.weight' has the unknown type 99"),
        (((HIDDEN, -1), Q4_K), "tensor 'token_embd.weight' has the impossible shape [256, -1]"),
        (((2**40, 2**40), Q4_K),
         "tensor 'token_embd.weight' has the impossible shape [1099511627776, 1099511627776]"),
        (((100, 10), Q4_K), "tensor 'token_embd.weight' has rows of 100, no multiple of the 256 of q4_k"),
        (((), Q4_K), "tensor 'token_embd.weight' must have 1 to 4 dimensions; got 0"),
        (((1,) * 5, F32), "tensor 'token_embd.weight' must have 1 to 4 dimensions; got 5"),
    ],
)  # fmt: skip
def test_invalid_gguf_tensor_is_refused(gguf, tensor, error):
    path = gguf(tensors={**_mixed(), "token_embd.weight": tensor})
    assert _error(path) == f"{path}: {error}"


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ({"general.architecture": None}, "general.architecture: is missing"),
        ({"general.architecture": "rwkv7"}, "general.architecture: 'rwkv7' is not supported; "),
        ({"llama.block_count": None}, "llama.block_count: is missing"),
        ({"llama.block_count": 0}, "llama.block_count: must be a whole number of at least 1; got 0"),
        ({"llama.attention.head_count_kv": [2, 4]},
         "llama.attention.head_count_kv: must be one number for all layers; got [2, 4]"),
        ({"split.count": 3}, "split.count: is one part of a split file; merge the parts with llama-gguf-split --merge"),
    ],
)  # fmt: skip
def test_metadata_that_no_model_has(gguf, metadata, error):
    path = gguf(metadata=metadata)
    assert _error(path).startswith(f"{path}: {error}")


def test_a_file_that_is_not_there(tmp_path):
    assert _error(tmp_path / "no.gguf") == f"{tmp_path}/no.gguf: no such file"
    assert _error(tmp_path / "no.safetensors") == f"{tmp_path}/no.safetensors: no such file"


def _plain(dtype="BF16"):
    """The tensors of a checkpoint as trained."""
    tensors = {name: ("BF16", [VOCAB, HIDDEN]) for name in ("model.embed_tokens.weight", "lm_head.weight")}
    tensors["model.norm.weight"] = ("BF16", [HIDDEN])
    for i in range(LAYERS):
        tensors |= {f"model.layers.{i}.{name}.weight": (dtype, list(shape)) for name, shape in MATRICES.items()}
        norms = ("input_layernorm", "post_attention_layernorm")
        tensors |= {f"model.layers.{i}.{name}.weight": ("BF16", [HIDDEN]) for name in norms}
    return tensors


def _matrices(change):
    """The tensors, with every matrix of a layer replaced by the result of `change` for its rows and columns."""
    tensors = {name: part for name, part in _plain().items() if "_proj." not in name}
    for i in range(LAYERS):
        for name, (rows, columns) in MATRICES.items():
            made = change(rows, columns)
            tensors |= {f"model.layers.{i}.{name}.{leaf}": part for leaf, part in made.items()}
    return tensors


def _nbytes(tensors):
    return sum(prod(shape) * SIZES[dtype] for dtype, shape in tensors.values())


def _safetensors(path, tensors):
    entries = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape) in tensors.items():
        end = at + prod(shape) * SIZES.get(dtype, 1)
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    header = json.dumps(entries).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)


@pytest.fixture
def checkpoint(tmp_path):
    """Writes config.json and model.safetensors, and returns their folder."""

    def write(tensors, *, quantization=None, config=None):
        fields = {**CONFIG, **(config or {}), **({"quantization_config": quantization} if quantization else {})}
        (tmp_path / "config.json").write_text(json.dumps(fields), encoding="utf-8")
        _safetensors(tmp_path / "model.safetensors", tensors)
        return str(tmp_path)

    return write


def test_a_folder_with_a_checkpoint_agrees_with_its_config(checkpoint):
    folder = checkpoint(_plain())
    model = load_model(folder)
    assert weight_bytes(_graph(model)) == _nbytes(_plain()) == 2 * model.parameters
    assert (str(model.quantization), model.notes) == ("as published", ())
    assert load_model(f"{folder}/model.safetensors") == model


def test_a_checkpoint_of_many_files(checkpoint, tmp_path):
    folder = checkpoint(_plain())
    names = list(_plain())
    parts = {"model-00001-of-00002.safetensors": names[:9], "model-00002-of-00002.safetensors": names[9:]}
    (tmp_path / "model.safetensors").unlink()
    for file, held in parts.items():
        _safetensors(tmp_path / file, {name: _plain()[name] for name in held})
    index = {"metadata": {"total_size": 1}, "weight_map": {name: file for file, held in parts.items() for name in held}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    assert load_model(folder).notes == ()
    error = f"{folder}/model-00001-of-00002.safetensors: is one part of a checkpoint; give its folder"
    assert _error(f"{folder}/model-00001-of-00002.safetensors") == error
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    assert _error(folder) == (
        f"{folder}/model.safetensors.index.json: weight_map: names model-00002-of-00002.safetensors, which is "
        "missing; download it, or give the config.json"
    )
    assert load_model(f"{folder}/config.json").notes == ()
    index["weight_map"]["lm_head.weight"] = "../../secret"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    assert _error(folder).endswith("weight_map: must name files beside it; got '../../secret'")


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
PACKED = {
    "quant_method": "compressed-tensors",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "group_size": 128, "symmetric": False},
        }
    },
}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
MLX = {"quant_method": "mlx", "group_size": 64, "bits": 4, "lm_head": False, "model.embed_tokens": False}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}


@pytest.mark.parametrize(
    ("quantization", "change", "fmt"),
    [
        (FP8, lambda rows, columns: {"weight": ("F8_E4M3", [rows, columns]),
                                     "weight_scale_inv": ("F32", [rows // 128, columns // 128])}, "fp8_e4m3 g16384"),
        (GPTQ, lambda rows, columns: {"qweight": ("I32", [columns // 8, rows]), "g_idx": ("I32", [columns]),
                                      "qzeros": ("I32", [columns // 128, rows // 8]),
                                      "scales": ("F16", [columns // 128, rows])}, "int4 g128"),
        (BNB, lambda rows, columns: {"weight": ("U8", [rows * columns // 2, 1]),
                                     "weight.absmax": ("F32", [rows * columns // 64]),
                                     "weight.quant_map": ("F32", [16]),
                                     "weight.quant_state.bitsandbytes__nf4": ("U8", [80])}, "nf4"),
        (AWQ, lambda rows, columns: {"qweight": ("I32", [columns, rows // 8]),
                                     "qzeros": ("I32", [columns // 128, rows // 8]),
                                     "scales": ("F16", [columns // 128, rows])}, "int4 g128"),
        (PACKED, lambda rows, columns: {"weight_packed": ("I32", [rows, columns // 8]),
                                        "weight_scale": ("BF16", [rows, columns // 128]),
                                        "weight_zero_point": ("I32", [rows // 8, columns // 128]),
                                        "weight_shape": ("I64", [2])}, "int4 g128"),
        (NVFP4, lambda rows, columns: {"weight": ("U8", [rows, columns // 2]),
                                       "weight_scale": ("F8_E4M3", [rows, columns // 16]),
                                       "weight_scale_2": ("F32", []), "input_scale": ("F32", [])}, "nvfp4"),
        (NVFP4, lambda rows, columns: {"weight_packed": ("U8", [rows, columns // 2]),
                                       "weight_scale": ("F8_E4M3", [rows, columns // 16]),
                                       "weight_global_scale": ("F32", [1]),
                                       "input_global_scale": ("F32", [1])}, "nvfp4"),
        (MXFP4, lambda rows, columns: {"weight_blocks": ("U8", [rows, columns // 32, 16]),
                                       "weight_scales": ("U8", [rows, columns // 32])}, "mxfp4"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True},
         lambda rows, columns: {"weight": ("I8", [rows, columns]), "SCB": ("F32", [rows]),
                                "weight_format": ("U8", [])}, "int8"),
        (MLX, lambda rows, columns: {"weight": ("U32", [rows, columns // 8]), "scales": ("BF16", [rows, columns // 64]),
                                     "biases": ("BF16", [rows, columns // 64])}, "int4 g64"),
        ({"quant_method": "novel"}, lambda rows, columns: {"qweight": ("I32", [columns // 8, rows])}, "packed"),
        ({"quant_method": "novel"}, lambda rows, columns: {"W_q": ("U8", [rows * columns // 2]),
                                                           "scale": ("F16", [rows * columns // 64]),
                                                           "zero": ("F16", [rows * columns // 64])}, "packed"),
        ({"quant_method": "novel"}, lambda rows, columns: {"weight._data": ("I8", [rows, columns]),
                                                           "weight._scale": ("F16", [rows, 1]),
                                                           "input_scale": ("F16", []), "output_scale": ("F16", [])},
         "int8"),
        ({"quant_method": "novel"}, lambda rows, columns: {"codes": ("U8", [rows, columns // 8, 1]),
                                                           "codebooks": ("F16", [1, 256, 1, 8]),
                                                           "scales": ("F16", [rows, 1, 1, 1])}, "packed"),
        ({"quant_method": "novel"}, lambda rows, columns: {"weight": ("F8_E4M3", [rows, columns])}, "fp8_e4m3"),
    ],
)  # fmt: skip
def test_memory_is_that_of_the_tensors(checkpoint, quantization, change, fmt):
    tensors = _matrices(change)
    model = load_model(checkpoint(tensors, quantization=quantization))
    assert weight_bytes(_graph(model)) == pytest.approx(_nbytes(tensors), rel=1e-12)
    assert not [note for note in model.notes if "holds" in note]
    formats = _formats(model)
    assert formats["q_proj"] == {fmt: [0, 1, 2, 3]}
    assert formats["lm_head"] == {"bf16": [None]}


def test_unquantized_matrix_of_a_file_overrides_the_config(checkpoint):
    def change(rows, columns):
        return {"weight": ("BF16", [rows, columns])}

    tensors = _matrices(change)
    model = load_model(checkpoint(tensors, quantization=FP8))
    assert weight_bytes(_graph(model)) == _nbytes(tensors)


def test_embeddings_that_mlx_quantizes(checkpoint):
    def packed(rows, columns):
        return {
            "weight": ("U32", [rows, columns // 8]),
            **dict.fromkeys(("scales", "biases"), ("BF16", [rows, columns // 64])),
        }

    tensors = _matrices(packed)
    for name in ("lm_head", "model.embed_tokens"):
        del tensors[f"{name}.weight"]
        tensors |= {f"{name}.{leaf}": part for leaf, part in packed(VOCAB, HIDDEN).items()}
    quantization = {"group_size": 64, "bits": 4}
    model = load_model(checkpoint(tensors, quantization=quantization))
    assert weight_bytes(model.published) == _nbytes(tensors)
    assert model.notes == ()
    tied = {name: part for name, part in tensors.items() if "lm_head" not in name}
    folder = checkpoint(tied, quantization=quantization, config={"tie_word_embeddings": True})
    assert weight_bytes(load_model(folder).published) == weight_bytes(load_model(f"{folder}/config.json").published)
    assert weight_bytes(load_model(folder).published) == _nbytes(tied)


def test_fused_modules_of_a_file_are_split_among_their_matrices(checkpoint):
    tensors = {name: part for name, part in _plain().items() if not any(f"{p}_proj" in name for p in ("gate", "up"))}
    for i in range(LAYERS):
        tensors[f"model.layers.{i}.mlp.gate_up_proj.weight"] = ("BF16", [2 * INNER, HIDDEN])
    model = load_model(checkpoint(tensors))
    assert model.notes == ()
    assert weight_bytes(_graph(model)) == _nbytes(tensors)


@pytest.mark.parametrize("layers", [LAYERS - 1, LAYERS + 1])
def test_a_checkpoint_of_other_layers_than_its_config_is_refused(checkpoint, layers):
    folder = checkpoint(_plain(), config={"num_hidden_layers": layers})
    said = f"has {LAYERS} layers, but its config.json has {layers}; one of the two belongs to another model"
    assert _error(folder) == f"{folder}: {said}"


def test_a_checkpoint_of_other_sizes_than_its_config_is_refused(checkpoint):
    folder = checkpoint(_plain(), config={"intermediate_size": INNER // 2})
    name, held = "model.layers.0.mlp.gate_proj.weight", INNER * HIDDEN
    said = f"{name} has {held} elements, and its config.json says {held // 2}; one of the two belongs to another model"
    assert _error(folder) == f"{folder}: {said}"


def test_layers_that_predict_further_tokens_may_be_in_the_file(checkpoint):
    folder = checkpoint(_plain(), config={"num_hidden_layers": LAYERS - 1, "num_nextn_predict_layers": 1})
    assert load_model(folder).graph.layers == LAYERS - 1


def test_tensors_that_are_not_the_graphs_are_noted(checkpoint):
    tensors = _plain()
    del tensors["model.layers.2.self_attn.k_proj.weight"]
    tensors["model.visual.proj.weight"] = ("BF16", [10, 10])
    folder = checkpoint(tensors)
    model = load_model(folder)
    stored = model.parameters + 100 - HIDDEN * KV
    (note,) = model.notes
    assert note == (
        f"{folder} holds {stored} parameters, {100 - HIDDEN * KV} to the {model.parameters} counted; not counted: "
        "model.visual.proj.weight; not in it: k_proj.weight of layer 2"
    )


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", "is no safetensors file, or is truncated: says that its header has 0 bytes and has 0"),
        (b"1234", "is no safetensors file, or is truncated: says that its header has 875770417 bytes and has 0"),
        ((2**62).to_bytes(8, "little") + b"{}",
         "is no safetensors file, or is truncated: says that its header has 4611686018427387904 bytes and has 2"),
        ((2).to_bytes(8, "little") + b"{]", "is no safetensors file: its header is not JSON"),
        ((3).to_bytes(8, "little") + b"\xff\xfe{", "is no safetensors file: its header is not JSON"),
        ((60_000).to_bytes(8, "little") + b"[" * 60_000, "is no safetensors file: its header is not JSON"),
        ((2).to_bytes(8, "little") + b"[]", "is no safetensors file: its header is no JSON object"),
    ],
)  # fmt: skip
def test_bytes_that_are_no_safetensors_file(checkpoint, tmp_path, data, error):
    folder = checkpoint({})
    (tmp_path / "model.safetensors").write_bytes(data)
    assert _error(folder) == f"{folder}/model.safetensors: {error}"


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ([], "x: must be a mapping; got []"),
        ({"shape": [1]}, "x.dtype: is missing"),
        ({"dtype": "F7", "shape": [1]}, "x.dtype: must be one of F64, F32, F16, BF16, "),
        ({"dtype": "F32"}, "x.shape: must be a list of whole numbers of at least 0; got null"),
        ({"dtype": "F32", "shape": [-1]}, "x.shape: must be a list of whole numbers of at least 0; got [-1]"),
        ({"dtype": "F32", "shape": [2**40, 2**40]}, "x.shape: must have at most 9007199254740992 elements; got ["),
    ],
)  # fmt: skip
def test_invalid_safetensors_entry_is_refused(checkpoint, tmp_path, entry, error):
    folder = checkpoint({})
    header = json.dumps({"x": entry}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert _error(folder).startswith(f"{folder}/model.safetensors: {error}")


def test_a_checkpoint_without_a_config(tmp_path):
    _safetensors(tmp_path / "model.safetensors", _plain())
    error = f"{tmp_path}/model.safetensors: needs a config.json in the same folder"
    assert _error(tmp_path / "model.safetensors") == error
