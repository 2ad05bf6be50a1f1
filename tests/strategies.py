"""Strategies of Hypothesis: small models, shipped devices with other rates, workloads, precisions."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import inf

from hypothesis import strategies as st

from llmviewer.architectures import builder
from llmviewer.devices.files import hardware_names, load_hardware
from llmviewer.devices.hardware import Hardware
from llmviewer.documents import Section
from llmviewer.graph import Graph
from llmviewer.precision import FP16, Format
from llmviewer.resource import Unit
from llmviewer.workload import Sequences, Workload

device = cache(load_hardware)

QUANTS = (
    "W16A16", "W8", "W4g128", "W8A8", "W4A8", "W4A4", "KV8", "W4KV4", "W8A8KV8", "fp8", "nf4", "mxfp4", "nvfp4",
    "W1.58A8", "W8A8,up_proj=W16A16", "W8A8,layers.0=W16A16,up_proj=fp8", "W4A16g128,lm_head=W8A8",
    "W8A8,down_proj=fp8",
)  # fmt: skip


def graphs(*, windows: bool = True) -> st.SearchStrategy[Graph]:
    """Small decoders of every architecture that there is, in fp16."""
    return st.sampled_from((_llama, _gpt2, _gptj, _bloom, _falcon, _opt)).flatmap(lambda family: family(windows))


def built(fmt: Format = FP16, **config: object) -> Graph:
    """The model of a config.json with such fields."""
    section = Section(config, "config.json")
    return builder(section)(section, fmt).check()


@st.composite
def _llama(draw: st.DrawFn, windows: bool) -> Graph:
    model_type = draw(st.sampled_from(("llama", "mistral", "qwen2")))
    kv_heads = draw(st.integers(1, 3))
    config: dict[str, object] = {"sliding_window": None}
    if model_type == "mistral" and windows:
        config = {"sliding_window": draw(st.integers(1, 40))}
    if model_type == "qwen2" and windows:
        config = {"use_sliding_window": True, "sliding_window": draw(st.integers(1, 40)), "max_window_layers": 1}
    return built(
        model_type=model_type,
        hidden_size=8 * draw(st.integers(1, 8)),
        intermediate_size=draw(st.integers(1, 100)),
        num_hidden_layers=draw(st.integers(1, 4)),
        num_attention_heads=kv_heads * draw(st.integers(1, 4)),
        num_key_value_heads=kv_heads,
        head_dim=2 * draw(st.integers(1, 16)),
        vocab_size=draw(st.integers(1, 200)),
        tie_word_embeddings=draw(st.booleans()),
        **config,
    )


@st.composite
def _gpt2(draw: st.DrawFn, windows: bool) -> Graph:
    heads = draw(st.integers(1, 4))
    return built(
        model_type="gpt2",
        n_embd=heads * draw(st.integers(1, 16)),
        n_layer=draw(st.integers(1, 4)),
        n_head=heads,
        vocab_size=draw(st.integers(1, 200)),
        n_positions=draw(st.integers(1, 200)),
    )


@st.composite
def _gptj(draw: st.DrawFn, windows: bool) -> Graph:
    heads, head_dim = draw(st.integers(1, 4)), 2 * draw(st.integers(1, 8))
    return built(
        model_type="gptj",
        n_embd=heads * head_dim,
        n_layer=draw(st.integers(1, 4)),
        n_head=heads,
        rotary_dim=2 * draw(st.integers(1, head_dim // 2)),
        vocab_size=draw(st.integers(1, 200)),
    )


@st.composite
def _bloom(draw: st.DrawFn, windows: bool) -> Graph:
    heads = draw(st.integers(1, 4))
    return built(
        model_type="bloom",
        hidden_size=heads * draw(st.integers(1, 16)),
        n_layer=draw(st.integers(1, 4)),
        n_head=heads,
        vocab_size=draw(st.integers(1, 200)),
    )


@st.composite
def _falcon(draw: st.DrawFn, windows: bool) -> Graph:
    kv_heads = draw(st.integers(1, 2))
    heads = kv_heads * draw(st.integers(1, 4))
    return built(
        model_type="falcon",
        hidden_size=heads * 2 * draw(st.integers(1, 8)),
        num_hidden_layers=draw(st.integers(1, 4)),
        num_attention_heads=heads,
        num_kv_heads=kv_heads,
        multi_query=draw(st.booleans()),
        new_decoder_architecture=draw(st.booleans()),
        parallel_attn=draw(st.booleans()),
        alibi=draw(st.booleans()),
        bias=draw(st.booleans()),
        vocab_size=draw(st.integers(1, 200)),
    )


@st.composite
def _opt(draw: st.DrawFn, windows: bool) -> Graph:
    heads = draw(st.integers(1, 4))
    hidden = heads * draw(st.integers(1, 16))
    return built(
        model_type="opt",
        hidden_size=hidden,
        word_embed_proj_dim=draw(st.sampled_from((hidden, 5))),
        do_layer_norm_before=draw(st.booleans()),
        ffn_dim=draw(st.integers(1, 100)),
        num_hidden_layers=draw(st.integers(1, 4)),
        num_attention_heads=heads,
        max_position_embeddings=draw(st.integers(1, 200)),
        vocab_size=draw(st.integers(1, 200)),
    )


def devices() -> st.SearchStrategy[Hardware]:
    """The devices that ship."""
    return st.sampled_from(hardware_names()).map(device)


@st.composite
def balanced_devices(draw: st.DrawFn) -> Hardware:
    """Shipped devices whose memory is slower or faster, and which hold less on the chip, so that bounds change."""
    chosen = draw(devices())
    factor = draw(st.floats(0.01, 100))
    rates = {r: rate * (factor if r.unit is Unit.MEMORY else 1) for r, rate in chosen.rates.items()}
    return replace(chosen, rates=rates, on_chip_bytes=draw(st.sampled_from((inf, 1e6, 1e5, 1e4))))


@st.composite
def sequences(draw: st.DrawFn, most: int = 60) -> Sequences:
    q_len = draw(st.integers(1, most))
    past = draw(st.integers(0, most))
    batch, logits = draw(st.integers(1, 5)), draw(st.integers(0, q_len))
    return Sequences(batch=batch, q_len=q_len, kv_len=past + q_len, logits=logits)


def workloads(most: int = 60) -> st.SearchStrategy[Workload]:
    """One to three groups of sequences in a pass."""
    return st.lists(sequences(most), min_size=1, max_size=3).map(lambda groups: Workload(tuple(groups)))
