"""models/*.yaml and Hugging Face config.json files -> Model."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ._layout import data_dir
from .architectures import builder
from .documents import Section, read_json, read_yaml
from .errors import InputError, suggest
from .model import Model
from .precision import BF16, FP16, FP32, Format

_DTYPES: Final = {"float16": FP16, "bfloat16": BF16, "float32": FP32}
_CONTEXT: Final = ("max_position_embeddings", "n_positions", "seq_length")
# Fields of config.json that change what is computed, not how much of it.
_COSTLESS_FIELDS: Final = """
    _name_or_path architectures auto_map transformers_version use_cache torch_dtype dtype model_type pretraining_tp
    bos_token_id eos_token_id pad_token_id sep_token_id unk_token_id decoder_start_token_id tokenizer_class
    task_specific_params gradient_checkpointing keys_to_ignore_at_inference is_decoder
    initializer_range init_std attention_dropout attn_pdrop dropout embd_pdrop resid_pdrop hidden_dropout
    activation_dropout layerdrop bias_dropout_fusion
    summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
    rms_norm_eps layer_norm_eps layer_norm_epsilon norm_epsilon layer_norm_elementwise_affine
    rope_theta rope_scaling rope_parameters rotary scale_attn_weights scale_attn_by_inverse_layer_idx
    reorder_and_upcast_attn attention_softmax_in_fp32 masked_softmax_fusion slow_but_exact offset_alibi
    apply_residual_connection_post_layernorm skip_bias_add skip_bias_add_qkv n_ctx prefix
    max_position_embeddings n_positions seq_length sliding_window max_window_layers use_sliding_window
"""
_COSTLESS: Final = frozenset(_COSTLESS_FIELDS.split())


def model_names() -> tuple[str, ...]:
    """The models that ship."""
    return tuple(sorted(path.stem for path in data_dir("models").glob("*.yaml")))


def load_model(name: str) -> Model:
    """A model by its name or an alias of it, the path of a YAML file or config.json, or a folder with a config.json.

    Raises InputError, with the nearest names, where there is none such, or where the file is wrong.
    """
    path, folder, known, wanted = Path(name), data_dir("models"), model_names(), name.lower()
    if wanted in known:
        return _from_yaml(folder / f"{wanted}.yaml")
    if name.endswith((".yaml", ".yml")):
        return _from_yaml(path)
    if name.endswith(".json"):
        return _from_config(read_json(path), name=path.resolve().parent.name if path.stem == "config" else path.stem)
    if name and path.is_dir():
        if not (path / "config.json").is_file():
            raise InputError(f"{name}: is a folder without a config.json; give a folder with one, or the file")
        return _from_config(read_json(path / "config.json"), name=path.resolve().name)
    aliases = {alias.lower(): path for path in folder.glob("*.yaml") for alias in read_yaml(path).texts("aliases")}
    if wanted in aliases:
        return _from_yaml(aliases[wanted])
    hint = "`llmviewer models` lists all; the path of a config.json works too"
    raise InputError(f"no model {name!r}: {suggest(name, (*known, *aliases))} ({hint})")


def _from_yaml(path: Path) -> Model:
    file = read_yaml(path)
    file.only(("name", "title", "aliases", "source", "parameters", "config"))
    if file.text("name") != path.stem:
        raise file.error("name", f"must be the name of the file, {path.stem}; got {file.text('name')!r}")
    source = file.section("source")
    source.only(("repository", "revision", "file", "note"))
    where = f"{source.text('repository')} {source.text('file')}"
    return _from_config(
        file.section("config"),
        name=path.stem,
        title=file.text("title"),
        aliases=file.texts("aliases"),
        source=where,
    )


def _from_config(
    config: Section, *, name: str, title: str = "", aliases: tuple[str, ...] = (), source: str = ""
) -> Model:
    fmt = _format(config)
    graph = builder(config)(config, fmt).check()
    unread = sorted(key for key in config if key not in config.asked | _COSTLESS and config.data[key] is not None)
    notes = (f"fields of {config.file} that nothing here reads: {', '.join(unread)}",) if unread else ()
    return Model(
        name=name,
        title=title or name,
        model_type=config.text("model_type"),
        graph=graph,
        format=fmt,
        max_context=config.integer(config.first(*_CONTEXT), 0) if any(key in config for key in _CONTEXT) else 0,
        aliases=aliases,
        source=source or config.file,
        notes=notes,
    )


def _format(config: Section) -> Format:
    """What the checkpoint is stored in; 16-bit floats where the config does not say, as the field serves models."""
    key = config.first("torch_dtype", "dtype")
    return _DTYPES[config.choice(key, _DTYPES, "float16")]
