"""Stored formats from quantization_config of a config.json and modelopt's hf_quant_config.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from ..documents import Section
from ..errors import InputError
from .formats import Stored
from .module_names import layout_of
from .quantization_methods import READERS, kv_cache

MLX: Final = "quantization"  # the key of mlx-lm, the only one in older versions
# Fields without effect on counts: calibration, and memory layouts of kernels.
_IGNORED_FIELDS: Final = """
    quant_method quantization_status format version global_compression_ratio producer checkpoint_format pack_dtype
    desc_act act_group_aware static_groups true_sequential damp_percent damp_auto_increment meta dataset
    model_seqlen block_name_to_quantize cache_block_outputs tokenizer max_input_length use_cuda_fp16 use_exllama
    exllama_config disable_exllama backend do_fuse modules_to_fuse fuse_max_seq_len is_marlin_format
    model_file_base_name model_name_or_path batch_size pad_token_id mse offload_to_disk
    iters nsamples seqlen lr minmax_lr enable_quanted_input autoround_version packing_format low_gpu_mem_usage
    scale_fmt weight_per_tensor act_per_tensor activation_scale_ub
    bnb_4bit_compute_dtype bnb_4bit_quant_storage llm_int8_enable_fp32_cpu_offload llm_int8_threshold
    llm_int8_has_fp16_weight moe_quant_algo pre_quant_scale data_type hyb_act algo_config softmax_quant_spec quant_mode
    export log_severity_level
"""
_TELLING: Final = {  # a field that only one method has: the method, if not named
    "quant_algo": "modelopt",
    "load_in_4bit": "bitsandbytes",
    "load_in_8bit": "bitsandbytes",
    "group_size": "mlx",
}
_ALIASES: Final = {
    "auto-gptq": "gptq",
    "intel/auto-round": "auto-round",
    "modelopt_fp4": "modelopt",
    "nvfp4": "modelopt",
}
_IGNORED: Final = frozenset(_IGNORED_FIELDS.split())


def quantization_section(config: Section, hf_quant_config: Section | None = None) -> Section | None:
    """The quantization section of a config: of the model, its text part, or hf_quant_config.json."""
    config.ignore(MLX)  # a copy, if both are present
    for key in ("quantization_config", MLX):
        if config.get(key) is not None:
            return config.section(key)
    text = config.data.get("text_config")
    if isinstance(text, Mapping) and text.get("quantization_config") is not None:
        return Section(text, config.file, f"{config.prefix}text_config.").section("quantization_config")
    return hf_quant_config.section("quantization") if hf_quant_config else None


def read_published(config: Section, hf_quant_config: Section | None = None) -> Stored:
    """The stored formats of a config, or of the hf_quant_config.json beside it; without rules if neither has any."""
    quantized = quantization_section(config, hf_quant_config)
    stored = read_stored(quantized, config) if quantized else Stored()
    if quantized and hf_quant_config and _method(quantized) == "modelopt" and stored.kv_cache is None:
        stored = replace(stored, kv_cache=kv_cache(hf_quant_config.section("quantization")))
    return replace(stored, layout=layout_of(config))


def read_stored(q: Section, config: Section) -> Stored:
    """The stored formats of a quantization section `q`.

    Raises InputError if a value is impossible.
    """
    method = _method(q)
    reader = READERS.get(method)
    if reader is None:
        methods = ", ".join(sorted(READERS))
        fault = f"quant_method {method!r} is not supported ({methods})" if method else "names no quant_method"
        where = q.prefix.rstrip(".") or "quantization"
        return Stored(unknown=f"{q.file}: {where} {fault}")
    try:
        stored = reader(q, config)
    except re.error as error:
        problem = f"{error.pattern!r} is not a regular expression: {error.msg}"
        raise InputError(f"{q.file}: {q.prefix.rstrip('.')}: {problem}") from None
    unread = sorted(str(key) for key in q if key not in q.read_keys | _IGNORED and q.data[key] not in (None, [], {}))
    fields = ", ".join(f"{q.prefix}{key}" for key in unread)
    notes = (f"fields of {q.file} that nothing here reads: {fields}",) if unread else ()
    return replace(stored, notes=(*stored.notes, *notes))


def _method(q: Section) -> str:
    if q.get("quant_method") is None:
        return next((method for key, method in _TELLING.items() if q.get(key) is not None), "")
    method = q.text("quant_method").lower()
    return _ALIASES.get(method, method)
