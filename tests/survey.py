"""Tables and figures of surveys of LLM inference, for tests and for benchmarks/paper.py."""

from __future__ import annotations

import json

import numpy as np
import yaml

from llmviewer._layout import ROOT
from llmviewer.model_files import load_model
from llmviewer.workload import Workload

# "LLM Inference Unveiled" (arXiv:2402.16363)

# LLaMA-2-7b in fp16, batch 1, 2048 tokens, on an RTX A6000 of 155 TOP/s and 768 GB/s:
# phase, operator, OPs, bytes, OP/B, attainable [TOP/s], bound, time [us]
TABLE_1 = [
    ("prefill", "q_proj", 68_719_476_736, 67_108_864, 1024.0, 155.0, "compute", 443.351),
    ("prefill", "k_proj", 68_719_476_736, 67_108_864, 1024.0, 155.0, "compute", 443.351),
    ("prefill", "v_proj", 68_719_476_736, 67_108_864, 1024.0, 155.0, "compute", 443.351),
    ("prefill", "o_proj", 68_719_476_736, 67_108_864, 1024.0, 155.0, "compute", 443.351),
    ("prefill", "gate_proj", 184_683_593_728, 152_043_520, 1214.6759, 155.0, "compute", 1191.507),
    ("prefill", "up_proj", 184_683_593_728, 152_043_520, 1214.6759, 155.0, "compute", 1191.507),
    ("prefill", "down_proj", 184_683_593_728, 152_043_520, 1214.6759, 155.0, "compute", 1191.507),
    ("prefill", "qk_matmul", 34_359_738_368, 301_989_888, 113.7778, 87.3813, "memory", 393.216),
    ("prefill", "sv_matmul", 34_359_738_368, 301_989_888, 113.7778, 87.3813, "memory", 393.216),
    ("prefill", "softmax", 671_088_640, 536_870_912, 1.25, 0.96, "memory", 699.051),
    ("prefill", "attn_norm", 58_720_256, 33_554_432, 1.75, 1.344, "memory", 43.691),
    ("prefill", "attn_add", 8_388_608, 33_554_432, 0.25, 0.192, "memory", 43.691),
    ("decode", "q_proj", 33_554_432, 33_570_816, 0.9995, 0.7676, "memory", 43.712),
    ("decode", "k_proj", 33_554_432, 33_570_816, 0.9995, 0.7676, "memory", 43.712),
    ("decode", "v_proj", 33_554_432, 33_570_816, 0.9995, 0.7676, "memory", 43.712),
    ("decode", "o_proj", 33_554_432, 33_570_816, 0.9995, 0.7676, "memory", 43.712),
    ("decode", "gate_proj", 90_177_536, 90_207_744, 0.9997, 0.7677, "memory", 117.458),
    ("decode", "up_proj", 90_177_536, 90_207_744, 0.9997, 0.7677, "memory", 117.458),
    ("decode", "down_proj", 90_177_536, 90_207_744, 0.9997, 0.7677, "memory", 117.458),
    ("decode", "qk_matmul", 16_777_216, 16_916_480, 0.9918, 0.7617, "memory", 22.027),
    ("decode", "sv_matmul", 16_777_216, 16_916_480, 0.9918, 0.7617, "memory", 22.027),
    ("decode", "softmax", 327_680, 262_144, 1.25, 0.96, "memory", 0.341),
    ("decode", "attn_norm", 28_672, 16_384, 1.75, 1.344, "memory", 0.021),
    ("decode", "attn_add", 4_096, 16_384, 0.25, 0.192, "memory", 0.021),
]
# what the paper prints of them: OPs, bytes, OP/B, attainable OP/s
PRINTED_1 = {
    ("prefill", ("q_proj", "k_proj", "v_proj", "o_proj")): ("69G", "67M", "1024", "155T"),
    ("prefill", ("gate_proj", "up_proj", "down_proj")): ("185G", "152M", "1215", "155T"),
    ("prefill", ("qk_matmul", "sv_matmul")): ("34G", "302M", "114", "87T"),
    ("prefill", ("softmax",)): ("671M", "537M", "1.25", "960G"),
    ("prefill", ("attn_norm",)): ("59M", "34M", "1.75", "1T"),
    ("prefill", ("attn_add",)): ("8M", "34M", "0.25", "192G"),
    ("decode", ("q_proj", "k_proj", "v_proj", "o_proj")): ("34M", "34M", "1", "768G"),
    ("decode", ("gate_proj", "up_proj", "down_proj")): ("90M", "90M", "1", "768G"),
    ("decode", ("qk_matmul", "sv_matmul")): ("17M", "17M", "0.99", "762G"),
    ("decode", ("softmax",)): ("328K", "262K", "1.25", "960G"),
    ("decode", ("attn_norm",)): ("29K", "16K", "1.75", "1T"),
    ("decode", ("attn_add",)): ("4K", "16K", "0.25", "192G"),
}
# Figures 6 to 8 print no numbers; these are of the public tool that drew them (github.com/hahnyuan/LLM-Viewer), for
# LLaMA-2-13b.
TOOL = ("matrix.fp16=154.8385 TOP/s",)  # half of 309.677, as the public tool has it
FIGURE_6 = [  # phase, batch, tokens, total [GB], of which weights, cache, activations; totals of precisions over it
    ("decode", 1, 1024, 26.21, (0.968, 0.032, 0.000), 0.274, 0.250, 0.250),
    ("decode", 1, 4096, 28.73, (0.883, 0.117, 0.000), 0.338, 0.250, 0.250),
    ("decode", 16, 1024, 38.80, (0.654, 0.346, 0.000), 0.510, 0.250, 0.250),
    ("prefill", 1, 1024, 26.53, (0.956, 0.032, 0.012), 0.283, 0.259, 0.250),
    ("prefill", 1, 4096, 32.02, (0.793, 0.105, 0.103), 0.406, 0.327, 0.250),
    ("prefill", 16, 1024, 43.90, (0.578, 0.306, 0.116), 0.566, 0.337, 0.250),
]
BATCHES = (1, 8, 16, 32, 48, 63)
FIGURE_7 = [  # weights, decode step at a context of 1024 [ms] at these batches
    ("W16", (34.59, 42.48, 51.49, 69.51, 87.54, 104.43)),
    ("W8", (17.86, 25.75, 34.76, 52.78, 70.80, 87.70)),
    ("W4", (9.49, 17.38, 26.39, 44.41, 62.44, 80.76)),
    ("W2", (5.31, 13.20, 22.21, 41.02, 61.50, 80.72)),
    ("W1", (3.22, 11.10, 20.51, 41.00, 61.50, 80.72)),
]
LENGTHS = (16, 32, 64, 128, 256, 512, 1023)
FIGURE_8 = [  # weights, prefill of one prompt of these lengths [ms]
    ("W16", (33.76, 34.07, 34.70, 36.07, 45.52, 92.80, 193.71)),
    ("W8", (17.03, 17.33, 17.97, 22.49, 45.31, 92.59, 193.49)),
    ("W4", (8.66, 8.97, 11.18, 22.38, 45.20, 92.48, 193.39)),
    ("W2", (4.48, 5.57, 11.12, 22.33, 45.15, 92.43, 193.33)),
    ("W1", (2.78, 5.54, 11.10, 22.30, 45.12, 92.40, 193.31)),
]

# "A Survey on Efficient Inference for Large Language Models" (arXiv:2404.14294)

TABLE_2 = {  # our model; complexity of the prefill and of a decode step
    "Transformer": ("llama-2-7b", "n^2 d", "n d"),
    "Mamba": ("mamba-2.8b", "n d^2", "d^2"),
    "RetNet": ("retnet-7b", "n d^2", "d^2"),
    "RWKV": ("rwkv-4-7b", "n d^2", "d^2"),
}
TABLE_5 = {  # tokens a pass and speed-up, least and most; impossible maxima (above the tokens) left out
    "speculative:draft=llama-68m,gamma=4": ((1.77, 1.05), (2.02, 1.77)),
    "lookahead:window=15,ngram=5,guesses=15": ((1.92, 1.12), (2.14, 1.30)),
    "self-speculative:layers=0.3": ((1.64, 1.01), (1.74, 1.23)),
    "retrieval": ((2.18, 1.72), (2.31, 2.27)),
    "medusa": ((2.52, 2.04), None),
    "eagle:version=1": ((3.47, 2.77), None),
}
VICUNA = ("llama-7b", "llama-13b", "llama-30b")  # sizes 7, 13 and 33 billion


def described(tmp_path, **config):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", "torch_dtype": "float16", **config}), encoding="utf-8")
    return load_model(str(path))


def scaled(tmp_path, name, scale):
    """A model that ships, `scale` times as wide."""
    config = yaml.safe_load((ROOT / "models" / f"{name}.yaml").read_text(encoding="utf-8"))["config"]
    widths = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "num_heads",
              "attention_hidden_size", "time_step_rank", "decoder_embed_dim", "decoder_value_embed_dim",
              "decoder_ffn_embed_dim", "decoder_retention_heads")  # fmt: skip
    return described(tmp_path, **{key: scale * value if key in widths and value else value
                                  for key, value in config.items()})  # fmt: skip


def slope(found, phase, sizes, *, field="ops", kinds=None):
    """The exponent of an amount over lengths, fitted to the longest of them."""
    amounts = []
    for n in sizes:
        asked = Workload.prefill(batch=1, prompt=n) if phase == "prefill" else Workload.decode(batch=1, kv_len=n)
        rows = found.plan_of(phase).estimate(asked).operators
        amounts.append(
            sum(float(r.repeat * getattr(r, field)) for r in rows if kinds is None or r.operator.kind in kinds)
        )
    return float(np.polyfit(np.log(sizes), np.log(amounts), 1)[0])
