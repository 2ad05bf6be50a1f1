"""config.json fields from GGUF metadata, by the architecture's name in llama.cpp.

Keys and tensor names are those of gguf-py/gguf/constants.py and of llama.cpp's converters (conversion/*.py,
https://github.com/ggml-org/llama.cpp), here without the prefixes "ARCHITECTURE." and "blk.N.". Missing values are null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from ..documents import Section
from ..errors import InputError, suggest
from ..precision import BF16
from ..records import frozen
from .gguf_files import Gguf


@frozen
class Header:
    """A GGUF file, as readers of fields see it."""

    file: Gguf

    @property
    def name(self) -> str:
        return self.file.metadata.text("general.architecture")

    @property
    def metadata(self) -> Section:
        return self.file.metadata

    def number(self, key: str, *, least: int = 0) -> int | None:
        """The whole number of a key; it may be a list, one per layer, of equal numbers."""
        full_key = f"{self.name}.{key}"
        value = self.metadata.get(full_key)
        if value is None:
            return None
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise self.metadata.error(full_key, f"must be one number for all layers; got {value}")
            return Section({full_key: value[0]}, self.metadata.file).integer(full_key, least=least)
        return self.metadata.integer(full_key, least=least)

    def holds(self, tensor: str) -> bool:
        """Whether the file has a tensor, in any layer."""
        return tensor in self.file.tensors or any(_in_layer(name) == tensor for name in self.file.tensors)


def _in_layer(name: str) -> str:
    return name.split(".", 2)[-1] if name.startswith("blk.") else ""


Reader: TypeAlias = Callable[[Header], Any]  # gives the value of a config.json field
Fields: TypeAlias = Mapping[str, Reader]


def always(value: Any) -> Reader:
    """A constant, whatever the header has."""
    return lambda _: value


def number(key: str) -> Reader:
    """The number of a key of the architecture; null if missing."""
    return lambda header: header.number(key)


def count(key: str, default: int | None = None) -> Reader:
    """A number; `default` or null if 0 or missing."""
    return lambda header: header.number(key) or default


def required(key: str) -> Reader:
    """A number of at least 1. Its reader raises InputError if it is missing."""

    def read(header: Header) -> int:
        value = header.number(key, least=1)
        if value is None:
            raise header.metadata.error(f"{header.name}.{key}", "is missing")
        return value

    return read


def either(key: str, value: str, otherwise: Reader) -> Reader:
    """`value` if the number of a key is above 0, else `otherwise`."""
    return lambda header: value if header.number(key) else otherwise(header)


def several(key: str) -> Reader:
    """A number if above 1, else null."""
    return lambda header: n if (n := header.number(key) or 0) > 1 else None


def first(*readers: Reader) -> Reader:
    """The first value of `readers` that is not null."""
    return lambda header: next((value for read in readers if (value := read(header)) is not None), None)


def share(part: Reader, total: Reader) -> Reader:
    """The quotient, as a whole number if it is one."""

    def read(header: Header) -> float | None:
        over, under = part(header), total(header)
        return None if not over or not under else over / under if over % under else over // under

    return read


def difference(total: Reader, part: Reader) -> Reader:
    """The total without a part; null if the total is missing."""

    def read(header: Header) -> int | None:
        minuend = total(header)
        return None if minuend is None else minuend - (part(header) or 0)

    return read


def has_tensor(tensor: str) -> Reader:
    """Whether the file has a tensor, in any layer."""
    return lambda header: header.holds(tensor)


def lacks(tensor: str) -> Reader:
    """Whether the file lacks a tensor in every layer."""
    return lambda header: not header.holds(tensor)


def has_tensor_or_null(tensor: str) -> Reader:
    """True if the file has a tensor, in any layer; else null."""
    return lambda header: header.holds(tensor) or None


def flag(key: str) -> Reader:
    """The value of a key of the architecture, as it is; null if missing."""
    return lambda header: header.metadata.get(f"{header.name}.{key}")


def rows(tensor: str) -> Reader:
    """Rows of a table: its last dimension in GGUF."""
    return lambda header: t.shape[-1] if (t := header.file.tensors.get(tensor)) else None


def layer_kinds(header: Header) -> list[str] | None:
    """Kinds of layers with or without a window: from one flag per layer, or a period whose last layer has none."""
    value, layers = header.metadata.get(f"{header.name}.attention.sliding_window_pattern"), _LAYERS(header)
    if isinstance(value, list):
        slides = value[:layers]
    elif (every := header.number("attention.sliding_window_pattern")) is not None:
        slides = [(index + 1) % max(every, 1) != 0 for index in range(layers)]
    else:
        return None
    return ["sliding_attention" if one else "full_attention" for one in slides]


# Multi-token prediction layers follow the others and are counted with them.
_LAYERS: Final = difference(required("block_count"), number("nextn_predict_layers"))
_HIDDEN: Final = required("embedding_length")
_HEADS: Final = required("attention.head_count")
_KV_HEADS: Final = count("attention.head_count_kv")
_GROUPS: Final = several("attention.head_count_kv")
_HEAD_DIM: Final = first(count("attention.key_length"), share(_HIDDEN, _HEADS))
_INNER: Final = count("feed_forward_length")
_ROTATED: Final = share(count("rope.dimension_count"), _HEAD_DIM)
_WINDOW: Final = count("attention.sliding_window")
_GEMMA2_WINDOW: Final = 4096  # of early files, which lack it
_QUERY_BIAS: Final = "attn_q.bias"
_QKV_BIAS: Final = "attn_qkv.bias"

_BASE: Final[Fields] = {
    "max_position_embeddings": count("context_length"),
    "hidden_size": _HIDDEN,
    "num_hidden_layers": _LAYERS,
}
_ATTENTION: Final[Fields] = {
    **_BASE,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _KV_HEADS,
    "head_dim": _HEAD_DIM,
}
_DENSE: Final[Fields] = {**_ATTENTION, "intermediate_size": _INNER}
_BIASED: Final[Fields] = {**_DENSE, "attention_bias": has_tensor(_QUERY_BIAS)}
_GPT: Final[Fields] = {
    "n_embd": _HIDDEN,
    "n_layer": _LAYERS,
    "n_head": _HEADS,
    "n_inner": _INNER,
    "n_positions": rows("position_embd.weight"),
}
_CHOSEN: Final[Fields] = {"num_experts_per_tok": count("expert_used_count")}
_LOCAL: Final[Fields] = {**_CHOSEN, "num_local_experts": count("expert_count")}
_QWEN: Final[Fields] = {
    **_CHOSEN,
    "num_experts": count("expert_count"),
    "moe_intermediate_size": count("expert_feed_forward_length"),
}
_SHARED_WIDTH: Final = count("expert_shared_feed_forward_length")
_ROUTED: Final[Fields] = {
    **_CHOSEN,
    "n_routed_experts": count("expert_count"),
    "n_shared_experts": number("expert_shared_count"),
    "moe_intermediate_size": count("expert_feed_forward_length"),
    "first_k_dense_replace": number("leading_dense_block_count"),
}
_WINDOWED: Final[Fields] = {"sliding_window": _WINDOW, "layer_types": layer_kinds}
_DELTA: Final[Fields] = {
    "linear_conv_kernel_dim": count("ssm.conv_kernel"),
    "linear_key_head_dim": count("ssm.state_size"),
    "linear_num_key_heads": count("ssm.group_count"),
    "linear_num_value_heads": count("ssm.time_step_rank"),
    "linear_value_head_dim": share(count("ssm.inner_size"), count("ssm.time_step_rank")),
    "full_attention_interval": count("full_attention_interval"),
    "partial_rotary_factor": _ROTATED,
}
_STATES: Final[Fields] = {
    **_BASE,
    "state_size": count("ssm.state_size"),
    "conv_kernel": count("ssm.conv_kernel"),
    "use_conv_bias": has_tensor("ssm_conv1d.bias"),
    "use_bias": has_tensor("ssm_in.bias"),
}
_ROPE_DIM: Final = count("rope.dimension_count")


def _readers(model_type: str | Reader, *parts: Fields, **fields: Reader) -> Fields:
    """Readers of the fields of a model_type; of two parts with one field the last applies."""
    named = model_type if callable(model_type) else always(model_type)
    return {"model_type": named, **{key: read for part in (*parts, fields) for key, read in part.items()}}


ARCHITECTURES: Final[Mapping[str, Fields]] = {
    "arcee": _readers("arcee", _BIASED),
    "baichuan": _readers("baichuan", _DENSE),
    "bloom": _readers("bloom", _BASE, n_head=_HEADS),
    "chatglm": _readers("glm", _DENSE, attention_bias=has_tensor(_QKV_BIAS), partial_rotary_factor=_ROTATED),
    "cohere2": _readers("cohere2", _BIASED, _WINDOWED),
    "command-r": _readers("cohere", _BIASED, use_qk_norm=has_tensor("attn_q_norm.weight")),
    "deepseek2": _readers(
        "deepseek_v3",
        _BASE,
        _ROUTED,
        num_attention_heads=_HEADS,
        intermediate_size=_INNER,
        q_lora_rank=count("attention.q_lora_rank"),
        kv_lora_rank=count("attention.kv_lora_rank"),
        qk_rope_head_dim=_ROPE_DIM,
        qk_nope_head_dim=difference(first(count("attention.key_length_mla"), count("attention.key_length")), _ROPE_DIM),
        v_head_dim=first(count("attention.value_length_mla"), count("attention.value_length")),
    ),
    "dots1": _readers("dots1", _BIASED, _ROUTED),
    "ernie4_5": _readers("ernie4_5", _DENSE, use_bias=has_tensor(_QUERY_BIAS)),
    "ernie4_5-moe": _readers(
        "ernie4_5_moe",
        _DENSE,
        use_bias=has_tensor(_QUERY_BIAS),
        moe_num_experts=count("expert_count"),
        moe_k=count("expert_used_count"),
        moe_intermediate_size=count("expert_feed_forward_length"),
        moe_num_shared_experts=number("expert_shared_count"),
        moe_layer_interval=count("interleave_moe_layer_step"),
        moe_layer_start_index=number("leading_dense_block_count"),
    ),
    "exaone": _readers("exaone", _DENSE),
    "exaone4": _readers("exaone4", _DENSE, _WINDOWED),
    "falcon": _readers(
        "falcon",
        _BASE,
        num_attention_heads=_HEADS,
        num_kv_heads=_GROUPS,
        new_decoder_architecture=lambda header: bool(_GROUPS(header)),
        num_ln_in_parallel_attn=lambda header: header.holds("attn_norm_2.weight") + 1 if _GROUPS(header) else None,
        bias=has_tensor(_QKV_BIAS),
        ffn_hidden_size=_INNER,
    ),
    "gemma": _readers("gemma", _DENSE),
    "gemma2": _readers("gemma2", _DENSE, _WINDOWED, sliding_window=count("attention.sliding_window", _GEMMA2_WINDOW)),
    "gemma3": _readers("gemma3_text", _DENSE, _WINDOWED),
    "glm4": _readers("glm4", _BIASED, partial_rotary_factor=_ROTATED),
    "glm4moe": _readers(
        "glm4_moe", _BIASED, _ROUTED, partial_rotary_factor=_ROTATED, use_qk_norm=has_tensor("attn_q_norm.weight")
    ),
    "gpt-oss": _readers(
        "gpt_oss",
        _ATTENTION,
        _LOCAL,
        _WINDOWED,
        attention_bias=has_tensor(_QUERY_BIAS),
        intermediate_size=count("expert_feed_forward_length"),
    ),
    "gpt2": _readers("gpt2", _GPT),
    "gptneox": _readers(
        "gpt_neox",
        _BASE,
        num_attention_heads=_HEADS,
        intermediate_size=_INNER,
        attention_bias=has_tensor(_QKV_BIAS),
        rotary_pct=_ROTATED,
        use_parallel_residual=flag("use_parallel_residual"),
    ),
    "granite": _readers("granite", _BIASED),
    "granitemoe": _readers("granitemoe", _BIASED, _LOCAL, shared_intermediate_size=_SHARED_WIDTH),
    "hunyuan-dense": _readers("hunyuan_v1_dense", _DENSE),
    "hunyuan-moe": _readers(
        "hunyuan_v1_moe",
        _DENSE,
        num_experts=count("expert_count"),
        moe_topk=count("expert_used_count"),
        moe_intermediate_size=count("expert_feed_forward_length"),
        num_shared_expert=count("expert_shared_count"),
        use_qk_norm=has_tensor("attn_q_norm.weight"),
    ),
    "internlm2": _readers("internlm2", _DENSE, bias=has_tensor(_QUERY_BIAS)),
    "llama": _readers(
        either("expert_count", "mixtral", either("attention.sliding_window", "mistral", always("llama"))),
        _DENSE,
        _LOCAL,
        attention_bias=has_tensor_or_null(_QUERY_BIAS),
        mlp_bias=has_tensor_or_null("ffn_up.bias"),
        sliding_window=_WINDOW,
    ),
    "mamba": _readers(
        "mamba", _STATES, intermediate_size=count("ssm.inner_size"), time_step_rank=count("ssm.time_step_rank")
    ),
    "mamba2": _readers(
        "mamba2",
        _STATES,
        num_heads=count("ssm.time_step_rank"),
        head_dim=share(count("ssm.inner_size"), count("ssm.time_step_rank")),
        expand=share(count("ssm.inner_size"), _HIDDEN),
        n_groups=count("ssm.group_count"),
    ),
    "minicpm": _readers("minicpm", _BIASED),
    "minimax-m2": _readers(
        "minimax_m2",
        _ATTENTION,
        _LOCAL,
        intermediate_size=count("expert_feed_forward_length"),
        rotary_dim=_ROPE_DIM,
        use_qk_norm=has_tensor("attn_q_norm.weight"),
    ),
    "mistral3": _readers("ministral3", _DENSE, sliding_window=_WINDOW),
    "nemotron": _readers("nemotron", _BIASED, mlp_bias=has_tensor("ffn_up.bias"), partial_rotary_factor=_ROTATED),
    "olmo": _readers("olmo", _DENSE),
    "olmo2": _readers(either("attention.sliding_window", "olmo3", always("olmo2")), _DENSE, _WINDOWED),
    "olmoe": _readers("olmoe", _DENSE, _CHOSEN, num_experts=count("expert_count")),
    "phi2": _readers("phi", _DENSE, partial_rotary_factor=_ROTATED),
    "phi3": _readers("phi3", _DENSE, partial_rotary_factor=_ROTATED, sliding_window=_WINDOW),
    "phimoe": _readers(
        "phimoe",
        _BIASED,
        _LOCAL,
        lm_head_bias=has_tensor("output.bias"),
        partial_rotary_factor=_ROTATED,
        sliding_window=_WINDOW,
    ),
    "qwen2": _readers("qwen2", _DENSE),
    "qwen2moe": _readers(
        "qwen2_moe", _DENSE, _QWEN, qkv_bias=has_tensor(_QUERY_BIAS), shared_expert_intermediate_size=_SHARED_WIDTH
    ),
    "qwen3": _readers("qwen3", _BIASED),
    "qwen35": _readers("qwen3_5_text", _BIASED, _DELTA),
    "qwen35moe": _readers("qwen3_5_moe_text", _BIASED, _QWEN, _DELTA, shared_expert_intermediate_size=_SHARED_WIDTH),
    "qwen3moe": _readers("qwen3_moe", _BIASED, _QWEN),
    "qwen3next": _readers("qwen3_next", _BIASED, _QWEN, _DELTA, shared_expert_intermediate_size=_SHARED_WIDTH),
    "seed_oss": _readers("seed_oss", _BIASED, attention_out_bias=has_tensor("attn_output.bias")),
    "smollm3": _readers("smollm3", _BIASED),
    "stablelm": _readers(
        "stablelm",
        _DENSE,
        partial_rotary_factor=_ROTATED,
        qk_layernorm=has_tensor("attn_q_norm.weight"),
        use_parallel_residual=lacks("ffn_norm.weight"),  # metadata say true even if config.json has no value
        use_qkv_bias=has_tensor(_QUERY_BIAS),
    ),
    "starcoder": _readers("gpt_bigcode", _GPT, multi_query=lambda header: not _GROUPS(header)),
    "starcoder2": _readers("starcoder2", _DENSE, use_bias=has_tensor(_QUERY_BIAS), sliding_window=_WINDOW),
}

# Keys that change the amount of work: files with keys that their architecture does not read are refused.
COSTLY: Final = (
    "expert_count", "expert_shared_count", "attention.sliding_window", "attention.shared_kv_layers",
    "attention.kv_lora_rank", "attention.indexer.top_k", "ssm.state_size", "moe_latent_size",
    "embedding_length_per_layer_input", "kda.head_dim", "shortconv.l_cache",
)  # fmt: skip


def gguf_config(file: Gguf) -> Section:
    """The config.json of the model in a GGUF file.

    Raises InputError if the architecture is not supported, a number is missing, or a number that changes the amount of
    work would be ignored.
    """
    metadata, header = file.metadata, Header(file)
    if metadata.integer("split.count", 1, least=0) > 1:
        raise metadata.error(
            "split.count", "is one part of a split file; merge the parts with llama-gguf-split --merge"
        )
    if header.name not in ARCHITECTURES:
        routes = "a config.json or a YAML file of the model works too"
        raise metadata.error(
            "general.architecture",
            f"{header.name!r} is not supported; {suggest(header.name, ARCHITECTURES)} ({routes})",
        )
    if "token_embd.weight" not in file.tensors:
        raise InputError(f"{metadata.file}: must have a tensor token_embd.weight, whose shape gives the vocabulary")
    config = {field: read(header) for field, read in ARCHITECTURES[header.name].items()}
    for key in COSTLY:
        full_key = f"{header.name}.{key}"
        if full_key not in metadata.read_keys and (value := header.number(key)):
            raise metadata.error(full_key, f"must be 0 or absent: not supported for {header.name}; got {value}")
    return Section(
        {
            **config,
            "vocab_size": file.tensors["token_embd.weight"].shape[-1],
            "tie_word_embeddings": "output.weight" not in file.tensors,
            "torch_dtype": "bfloat16" if any(t.format == BF16 for t in file.tensors.values()) else "float16",
        },
        metadata.file,
    )
