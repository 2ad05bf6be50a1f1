"""OPs and bytes of kernels, counted by hand at small sizes: (kernel, case, (OPs, bytes) of each operator)."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from llmviewer.kernels.base import case

_CHUNK = {"B": 1, "heads": 4, "kv_heads": 2, "dim": 8, "q": 2, "kv": 5}
_DECODE = {"B": 2, "heads": 4, "kv_heads": 2, "dim": 8, "kv": 5, "page": 16}
_ROPE_CACHE = {"B": 2, "heads": 2, "kv_heads": 1, "dim": 8, "kv": 5, "page": 16}
_MAMBA2 = {"B": 3, "heads": 4, "dim": 8, "state": 16, "groups": 2}
# C . B of 2 groups and its product with x of 4 heads; the state of 4 x 8 x 16 updated and read
_MAMBA2_OPS, _MAMBA2_STATE = 3 * (2 * 2 * 16 + 2 * 4 * 8 + 2 * 2 * 4 * 8 * 16), 2 * 4 * 4 * 8 * 16
_MAMBA2_SMALL = 2 * 3 * 4  # A, D and the bias of the step
_DELTA = {"B": 3, "heads": 4, "key_heads": 2, "key_dim": 8, "dim": 16}
_CHANNELS = {"B": 3, "heads": 4, "key_heads": 4, "key_dim": 8, "dim": 8, "channels": 1}
# 3 tokens of 2 sequences: 6 pairs within a chunk, of C . B of 2 groups and its product with x of 4 heads
_MAMBA2_SCAN = 2 * (6 * (2 * 2 * 16 + 2 * 4 * 8) + 3 * 4 * 4 * 8 * 16)
_DELTA_SCAN = 2 * 4 * (6 * (6 * 8 + 4 * 16) + 3 * 6 * 8 * 16)
_LAYER = {"B": 2, "kv": 5, "hidden": 8, "heads": 2, "kv_heads": 1, "dim": 4, "inner": 16}

COUNTS = [
    ("copy", case("fp16", rows=3, width=5), [(0, 2 * 2 * 15)]),
    ("triad", case("fp32", rows=3, width=5), [(2 * 15, 4 * 3 * 15)]),
    ("gemm", case("fp16", M=3, N=5, K=7), [(2 * 3 * 5 * 7, 2 * (3 * 7 + 5 * 7 + 3 * 5))]),
    # a byte an element, fp32 scales of 3 rows and 5 columns, and an fp16 result
    ("gemm", case("int8", M=3, N=5, K=7), [(2 * 3 * 5 * 7, 3 * 7 + 5 * 7 + 4 * (3 + 5) + 2 * 3 * 5)]),
    ("gemv", case("bf16", M=1, N=5, K=7), [(2 * 5 * 7, 2 * (7 + 5 * 7 + 5))]),
    # 4 bits, and for each of 2 groups of a row a scale of 2 bytes and a zero point of half a byte
    (
        "gemm_w4a16",
        case("fp16", M=3, N=4, K=256, group=128),
        [(2 * 3 * 4 * 256, 2 * 3 * (256 + 4) + 4 * (128 + 2 * 2.5))],
    ),
    # a byte an element and a scale of 2 bytes for each row
    ("gemm_w8a16", case("fp16", M=3, N=4, K=256), [(2 * 3 * 4 * 256, 2 * 3 * (256 + 4) + 4 * (256 + 2))]),
    # 4 bits, and a byte for each 32
    ("gemm_mxfp4", case("fp16", M=3, N=4, K=256), [(2 * 3 * 4 * 256, 2 * 3 * (256 + 4) + 4 * (128 + 8))]),
    # 2 scales of 4 bytes for each row of x; 2 x 2 for the blocks of w
    (
        "gemm_fp8_block",
        case("fp8_e4m3", M=3, N=256, K=256),
        [(2 * 3 * 256 * 256, 3 * (256 + 2 * 4) + 256 * 256 + 4 * 4 + 2 * 3 * 256)],
    ),
    # half a byte an element and a scale of a byte for each 16; a byte and one for each 32; both
    (
        "gemm_nvfp4",
        case("bf16", M=3, N=4, K=256),
        [(2 * 3 * 4 * 256, (3 + 4) * (128 + 16) + 2 * 3 * 4)],
    ),
    (
        "gemm_mxfp8",
        case("bf16", M=3, N=4, K=256),
        [(2 * 3 * 4 * 256, (3 + 4) * (256 + 8) + 2 * 3 * 4)],
    ),
    (
        "gemm_mxfp4_mxfp8",
        case("bf16", M=3, N=4, K=256),
        [(2 * 3 * 4 * 256, 3 * (256 + 8) + 4 * (128 + 8) + 2 * 3 * 4)],
    ),
    # 6 copies of tokens; 4 (1 - (1 - 2/4)^3) = 3.5 experts are reached
    (
        "grouped_gemm",
        case("fp16", M=3, N=5, K=7, experts=4, chosen=2),
        [(2 * 6 * 5 * 7, 2 * (6 * (5 + 7) + 3.5 * 5 * 7))],
    ),
    (
        "fused_moe",
        case("fp16", M=3, N=5, K=7, experts=4, chosen=2),
        [
            ((5 + 2) * 3 * 4, 4 * 3 * (4 + 2 * 2)),  # logits in, 2 weights and 2 numbers a token out
            (2 * 6 * 10 * 7, 2 * (6 * 7 + 3.5 * 10 * 7)),  # gate and up of each copy, kept on the chip
            ((4 + 1) * 6 * 5, 2 * 6 * 5),  # silu and the product, written
            (2 * 6 * 7 * 5, 2 * (6 * (5 + 7) + 3.5 * 7 * 5)),
            (2 * 2 * 3 * 7, 2 * (6 * 7 + 3 * 7) + 4 * 3 * 2 * 2),
        ],
    ),
    # a row and 2 numbers of experts in; 2 copies and their 2 places out
    ("permute", case("fp16", M=3, K=7, experts=4, chosen=2), [(0, 3 * (2 * 7 + 4 * 2 + 2 * 2 * 7 + 4 * 2))]),
    # 2 rows, weights and places in; a row out
    ("combine", case("fp16", M=3, K=7, experts=4, chosen=2), [(2 * 2 * 3 * 7, 3 * (2 * 2 * 7 + 2 * 4 * 2 + 2 * 7))]),
    # fp16 in; a byte an element and 2 scales of 4 bytes a row out
    ("quantize", case("fp8_e4m3", M=3, K=256, group=128), [(0, 3 * (2 * 256 + 256 + 2 * 4))]),
    ("rms_norm", case("fp16", M=3, N=8), [(4 * 3 * 8, 2 * (3 * 8 + 8 + 3 * 8))]),
    # x and the residual read, their sum and y written; the norm reads its weight alone
    ("rms_norm", case("fp16", M=3, N=8, residual=1), [(3 * 8, 2 * 3 * 3 * 8), (4 * 3 * 8, 2 * (8 + 3 * 8))]),
    # bf16 in; a byte an element and a scale of 4 bytes a row out, or 2 scales
    ("norm_quantize", case("fp8_e4m3", M=3, N=8, group=8), [(4 * 3 * 8, 2 * (3 * 8 + 8) + 3 * (8 + 4))]),
    (
        "norm_quantize",
        case("int8", M=3, N=8, group=4, residual=1),
        [(3 * 8, 2 * 3 * 3 * 8), (4 * 3 * 8, 2 * 8 + 3 * (8 + 2 * 4))],
    ),
    ("layer_norm", case("fp16", M=3, N=8), [(6 * 3 * 8, 2 * (3 * 8 + 8 + 3 * 8))]),
    (
        "layer_norm",
        case("fp32", M=3, N=8, bias=1, residual=1),
        [(3 * 8, 4 * 3 * 3 * 8), (7 * 3 * 8, 4 * (2 * 8 + 3 * 8))],
    ),
    # 2 sequences, 3 heads, 2 queries, 5 keys: whole rows, or 4 and 5 keys that are read of 5 written
    ("softmax", case("fp16", B=2, heads=3, q=2, kv=5), [(5 * 6 * 10, 2 * 6 * (10 + 10))]),
    ("softmax", case("fp16", B=2, heads=3, q=2, kv=5, causal=1), [(5 * 6 * 9, 2 * 6 * (9 + 10))]),
    # 4 + 2 heads of 8, in and out
    ("rope", case("fp16", tokens=3, heads=4, kv_heads=2, dim=8, rotary=8), [(3 * 3 * 48, 2 * 3 * 2 * 48)]),
    # 6 of 8 elements of a query turn and 2 are copied; keys go all to the cache
    (
        "rope",
        case("fp16", tokens=3, heads=4, kv_heads=2, dim=8, rotary=6),
        [(3 * 3 * 36, 2 * 3 * (2 * 24 + 2 * 16)), (0, 2 * 3 * 2 * 8)],
    ),
    ("silu_and_mul", case("fp16", M=3, N=8), [(5 * 3 * 8, 2 * 3 * 3 * 8)]),
    ("gelu_and_mul", case("fp16", M=3, N=8), [(6 * 3 * 8, 2 * 3 * 3 * 8)]),
    ("gelu_tanh_and_mul", case("fp16", M=3, N=8), [(10 * 3 * 8, 2 * 3 * 3 * 8)]),
    ("gelu", case("fp16", M=3, N=8), [(5 * 3 * 8, 2 * 2 * 3 * 8)]),
    ("gelu_tanh", case("fp16", M=3, N=8), [(9 * 3 * 8, 2 * 2 * 3 * 8)]),
    ("relu2", case("fp16", M=3, N=8), [(2 * 3 * 8, 2 * 2 * 3 * 8)]),
    # a row of the table for each token; of a table of two, those two
    ("embedding", case("fp16", tokens=3, vocab=10, width=8), [(0, 2 * 2 * 3 * 8)]),
    ("embedding", case("fp16", tokens=3, vocab=10, width=8, positions=2), [(3 * 8, 2 * (3 + 2 + 3) * 8)]),
    # k and v in and out; a cache in fp8 takes a byte an element; a token without a slot is not there
    ("kv_write", case("fp16", tokens=3, kv_heads=2, dim=8, page=16), [(0, 2 * 2 * 2 * 3 * 16)]),
    ("kv_write", case("fp16", tokens=3, kv_heads=2, dim=8, page=16, kv_bits=8), [(0, 2 * (2 + 1) * 3 * 16)]),
    ("kv_write", case("fp16", tokens=3, kv_heads=2, dim=8, page=16, padded=1), [(0, 2 * 2 * 2 * 2 * 16)]),
    # queries at positions 3 and 4 of 5 see 4 + 5 keys, and with a window of 2 two each, of 3 that are read
    ("flash_attention", case("fp16", **_CHUNK), [(4 * 9 * (2 * 8 + 2 * 8 + 5), 2 * (2 * 2 * 32 + 2 * 5 * 16))]),
    (
        "flash_attention",
        case("fp16", **_CHUNK, window=2),
        [(4 * 4 * (2 * 8 + 2 * 8 + 5), 2 * (2 * 2 * 32 + 2 * 3 * 16))],
    ),
    # of another network, all 5 keys for each query; a sink of 2 bytes a head has no product
    ("flash_attention", case("fp16", **_CHUNK, cross=1), [(4 * 10 * 37, 2 * (2 * 2 * 32 + 2 * 5 * 16))]),
    ("flash_attention", case("fp16", **_CHUNK, sinks=1), [(4 * 9 * 37, 2 * (2 * 2 * 32 + 2 * 5 * 16 + 4))]),
    ("decode_attention", case("fp16", **_DECODE, sinks=1), [(2 * 4 * 5 * 37, 2 * (2 * 2 * 32 + 2 * 2 * 5 * 16 + 4))]),
    # one query sees all 5 keys; an fp8 cache takes a byte an element, whose conversion is no OP of the model
    ("decode_attention", case("fp16", **_DECODE), [(2 * 4 * 5 * 37, 2 * (2 * 2 * 32 + 2 * 2 * 5 * 16))]),
    ("decode_attention", case("fp16", **_DECODE, kv_bits=8), [(2 * 4 * 5 * 37, 2 * 2 * 2 * 32 + 2 * 2 * 5 * 16)]),
    # half a byte an element, and for each group of 4 of a token's key and value a scale and a zero of 2 bytes
    (
        "decode_attention",
        case("fp16", **_DECODE, kv_bits=4, group=4),
        [(2 * 4 * 5 * 37, 2 * 2 * 2 * 32 + 2 * 2 * 5 * (16 / 2 + 4 * 2 * 2))],
    ),
    # 4 heads over one latent of 8 and 2 rotated elements, which is read once
    (
        "mla_decode",
        case("fp16", B=2, heads=4, latent=8, rope=2, kv=5, page=16),
        [(2 * 4 * 5 * (2 * 10 + 2 * 8 + 5), 2 * (2 * 4 * 10 + 2 * 5 * 10 + 2 * 4 * 8))],
    ),
    # 4 heads and the sum over them; one scale for a key, weights of 2 bytes, and 3 numbers of the best keys
    (
        "sparse_indexer",
        case("fp16", B=2, heads=4, dim=32, kv=5, page=16, chosen=3),
        [(2 * 5 * (2 * 4 * 33 + 5), 2 * (4 * 32 + 2 * 4 + 5 * (32 + 4) + 4 * 3))],
    ),
    # queries at positions 3 and 4 of 5 see 4 + 5 keys, of which 3 each are best
    (
        "sparse_indexer",
        case("fp16", B=2, q=2, heads=4, dim=32, kv=5, page=16, chosen=3),
        [(2 * 9 * (2 * 4 * 33 + 5), 2 * (2 * (4 * 32 + 2 * 4) + 5 * (32 + 4) + 4 * 6))],
    ),
    # 3 heads: 2 of queries and one of keys are turned, of 8 elements each, and one of values is copied
    ("rope_cache", case("fp16", **_ROPE_CACHE), [(2 * 3 * 3 * 8, 2 * 2 * 2 * 4 * 8)]),
    ("rope_cache", case("fp16", **_ROPE_CACHE, norm=1), [(2 * 3 * 8 * (3 + 4), 2 * 2 * 2 * 4 * 8 + 2 * 2 * 8)]),
    # 3 taps and silu of 5 channels: x in, y out, the state of 2 tokens in and out, weights and bias once
    (
        "causal_conv_update",
        case("fp16", B=2, C=5, taps=3, bias=1),
        [(2 * 5 * (2 * 3 + 4), 2 * (2 * 5 * (1 + 1 + 2 + 2) + 5 * 3 + 5))],
    ),
    (
        "mamba2_update",
        case("fp16", **_MAMBA2),
        [(_MAMBA2_OPS, 3 * (2 * (32 + 64 + 4 + 32) + _MAMBA2_STATE) + _MAMBA2_SMALL)],
    ),
    # with a gate, x of the Scan's result stays on the chip: silu and a product, the gate in and y out
    (
        "mamba2_update",
        case("fp16", **_MAMBA2, gate=1),
        [
            (_MAMBA2_OPS, 3 * (2 * (32 + 64 + 4) + _MAMBA2_STATE) + _MAMBA2_SMALL),
            (3 * 32 * 5, 3 * 2 * (32 + 32)),
        ],
    ),
    # K K^T, Q K^T and W of a token with itself, U and the result; W S, Q S and K^T U
    (
        "gated_delta_update",
        case("fp16", **_DELTA),
        [
            (
                3 * 4 * (6 * 8 + 4 * 16 + 6 * 8 * 16),
                3 * (2 * (2 * 2 * 8 + 4 * 16 + 4 + 4 + 4 * 16) + 2 * 4 * 4 * 8 * 16) + 2 * 2 * 4,
            )
        ],
    ),
    # a decay and a bias of each channel
    (
        "gated_delta_update",
        case("fp16", **_CHANNELS),
        [
            (
                3 * 4 * (6 * 8 + 4 * 8 + 6 * 8 * 8),
                3 * (2 * (3 * 32 + 4 + 32 + 32) + 2 * 4 * 4 * 8 * 8) + 2 * (4 + 32),
            )
        ],
    ),
    # tokens move, and the state of a sequence once, in and out
    (
        "mamba2_scan",
        case("fp16", **_MAMBA2 | {"B": 2}, T=3),
        [(_MAMBA2_SCAN, 2 * (3 * 2 * (32 + 64 + 4 + 32) + _MAMBA2_STATE) + _MAMBA2_SMALL)],
    ),
    # the corrections that pass from one launch to the next are no bytes of the operator
    (
        "gated_delta_scan",
        case("fp16", **_DELTA | {"B": 2}, T=3),
        [(_DELTA_SCAN, 2 * (3 * 2 * (2 * 2 * 8 + 4 * 16 + 4 + 4 + 4 * 16) + 2 * 4 * 4 * 8 * 16) + 2 * 2 * 4)],
    ),
    # a decay and a bias of each channel
    (
        "gated_delta_scan",
        case("fp16", **_CHANNELS | {"B": 2}, T=3),
        [
            (
                2 * 4 * (6 * (6 * 8 + 4 * 8) + 3 * 6 * 8 * 8),
                2 * (3 * 2 * (3 * 32 + 4 + 32 + 32) + 2 * 4 * 4 * 8 * 8) + 2 * (4 + 32),
            )
        ],
    ),
    # a comparison each; 8 OPs each, and a temperature, k, p and u for each row; a token of 4 bytes
    ("argmax", case("bf16", rows=3, vocab=10), [(30, 2 * 30 + 4 * 3)]),
    ("sample", case("bf16", rows=3, vocab=10, k=2, percent=90), [(8 * 30, 2 * 30 + 4 * 4 * 3 + 4 * 3)]),
    # 2 tokens of 8 elements: queries, keys and values are 16, of which 3 heads of 4 turn; 5 cached tokens
    (
        "decoder_layer",
        case("fp16", **_LAYER),
        [
            ((1 + 4) * 2 * 8, 2 * (4 * 2 * 8 + 8)),  # the sum is written, and its norm
            (2 * 2 * 8 * 16, 2 * (2 * (8 + 16) + 8 * 16)),
            (3 * 2 * 3 * 4, 2 * 2 * (16 + 16)),
            (2 * 2 * 5 * (2 * 4 + 2 * 4 + 5), 2 * 2 * (8 + 8 + 5 * (4 + 4))),
            (2 * 2 * 8 * 8, 2 * (2 * (8 + 8) + 8 * 8)),
            ((1 + 4) * 2 * 8, 2 * (4 * 2 * 8 + 8)),
            (2 * 2 * 8 * 32, 2 * (2 * (8 + 32) + 8 * 32)),
            ((4 + 1) * 2 * 16, 2 * 2 * (32 + 16)),
            (2 * 2 * 16 * 8, 2 * (2 * (16 + 8) + 16 * 8)),
        ],
    ),
]  # fmt: skip
