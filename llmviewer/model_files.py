"""Loading models: models/*.yaml, config.json, GGUF and safetensors files, the Hugging Face hub, callables."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ._layout import data_dir
from .architectures import build
from .architectures.blocks.class_defaults import ClassDefaults
from .devices.files import known_file
from .documents import (
    Section,
    check_path,
    normalized,
    parse_json,
    parse_object,
    parse_yaml,
    path_exists,
    read_json,
    read_text,
    read_yaml,
)
from .errors import InputError, suggest
from .graph import Graph
from .hub import NotOnHubError, fetch, is_repository
from .memory import weight_bytes
from .model import Model
from .model_index import ModelFacts, index
from .precision import BF16, FP16, FP32, Format
from .transforms.quantize import UNQUANTIZED, Quantization, parse_quantization
from .units import counted

if TYPE_CHECKING:
    from .stored.checkpoints import Checkpoint
    from .stored.formats import Stored

_MAX_NAMES_IN_NOTE: Final = 3  # names in a note
_DTYPES: Final = {"float16": FP16, "bfloat16": BF16, "float32": FP32}
_CALLABLE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_MODELOPT: Final = "hf_quant_config.json"  # modelopt's quantization settings
_ADAPTER: Final = "adapter_config.json"  # of an adapter of huggingface/peft
_MODULES: Final = "modules.json"  # of sentence-transformers
_CAUSAL: Final = "ForCausalLM"
_CONTEXT: Final = (
    "max_position_embeddings",
    "n_positions",
    "seq_length",
    "max_seq_len",
    "model_max_length",
    "max_sequence_length",
    "max_context_length",
    "max_source_positions",
)
_PREDICTING: Final = ("num_nextn_predict_layers", "num_mtp_modules", "num_mtp_layers", "mtp_num_hidden_layers")
_DECODERS: Final = ("text_config", "llm_config", "language_config", "thinker_config")  # sections of a decoder
# Fields of config.json without effect on the amount of work.
_IGNORED_FIELDS: Final = """
    _name_or_path architectures auto_map transformers_version use_cache torch_dtype dtype model_type pretraining_tp
    bos_token_id eos_token_id pad_token_id sep_token_id unk_token_id decoder_start_token_id tokenizer_class
    task_specific_params gradient_checkpointing keys_to_ignore_at_inference is_decoder
    initializer_range init_std attention_dropout attn_pdrop dropout embd_pdrop resid_pdrop hidden_dropout
    activation_dropout layerdrop bias_dropout_fusion
    summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
    rms_norm_eps layer_norm_eps layer_norm_epsilon norm_epsilon
    rope_theta rope_scaling rope_parameters rotary scale_attn_weights scale_attn_by_inverse_layer_idx
    reorder_and_upcast_attn attention_softmax_in_fp32 masked_softmax_fusion slow_but_exact offset_alibi
    apply_residual_connection_post_layernorm skip_bias_add skip_bias_add_qkv n_ctx prefix
    max_position_embeddings n_positions seq_length max_seq_len model_max_length
    is_llama_config rope_interleaved sliding_window max_window_layers use_sliding_window
    chunk_size_feed_forward diversity_penalty do_sample early_stopping
    encoder_no_repeat_ngram_size id2label is_encoder_decoder label2id length_penalty max_length min_length
    no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_attentions output_hidden_states
    output_scores pruned_heads remove_invalid_values repetition_penalty return_dict return_dict_in_generate
    temperature tf_legacy_loss tie_encoder_decoder top_k top_p torchscript typical_p use_bfloat16
"""
_IGNORED: Final = frozenset(_IGNORED_FIELDS.split())


@cache
def model_names() -> tuple[str, ...]:
    """Names of the shipped models."""
    return tuple(sorted(path.stem for path in data_dir("models").glob("*.yaml")))


def load_model(name: str) -> Model:
    """The model of a name.

    `name` is a name or alias of a shipped model, with capitals and spaces or not; the path of a YAML file, a
    config.json, a GGUF or safetensors file, or a folder with a config.json; org/name or org/name@revision on the
    Hugging Face hub; or package.module:callable, which returns a torch.nn.Module.

    Raises InputError if there is no such model, with the nearest names, or if the file is invalid.
    """
    if not isinstance(name, str):
        raise InputError(f"model must be text; got {name!r}")
    if name.lower() in model_names():
        return _shipped(_shipped_path(name.lower()))
    if local := _from_path(name):
        return local
    file, colon, named = name.partition(".py:")
    if colon or (name.endswith(".py") and path_exists(name)):
        callable_name = f"{Path(file).name.removesuffix('.py')}:{named or 'CALLABLE'}"
        raise InputError(f"{name}: must be importable by name; in the folder of the file give {callable_name}")
    if names_code(name):
        from .tracing import load_traced

        return load_traced(name)
    if shipped := _shipped_name(name):
        return _shipped(_shipped_path(shipped))
    if path_exists(name):
        endings = ".json, .yaml, .gguf or .safetensors file, or a folder with a config.json"
        raise InputError(f"{name}: must be a model file; give a {endings}")
    check_path(name)
    if "," in name:
        raise InputError(f"no model {name!r}: give one; `llmviewer compare` takes several, and sweeps to a folder do")
    if known_file(name):
        raise InputError(f"no model {name!r}: that is a device; a model comes first (`llmviewer models` lists all)")
    nearest = suggest(name, (*model_names(), *(alias for aliases in _aliases().values() for alias in aliases)))
    if is_repository(name):
        return _from_hub(name, f"of those that ship, {nearest}")
    hint = "`llmviewer models` lists all; the path of a config.json works too"
    raise InputError(f"no model {name!r}: {nearest} ({hint})")


def read_config(name: str) -> Section:
    """The config.json of a model: of a shipped one, or in a file or folder, or on the Hugging Face hub.

    Raises InputError if there is none, as for models that are traced or stored as GGUF.
    """
    path = Path(name)
    if name.endswith((".yaml", ".yml")):
        return read_yaml(path).section("config")
    if path_exists(name) and (name.endswith(".json") or (path / "config.json").is_file()):
        return read_json(path / "config.json" if path.is_dir() else path)
    if shipped := _shipped_name(name):
        return read_yaml(_shipped_path(shipped)).section("config")
    load_model(name)  # raises the error for a name of nothing
    found = None if path_exists(name) or names_code(name) else fetch(name, "config.json")
    if found is None:
        raise InputError(f"{name}: has no config.json, whose fields give the shape; give a model with one")
    return _fetched(found, f"{name} config.json")


def model_of_config(config: Section, name: str, changes: Mapping[str, int] | None = None) -> Model:
    """The model of a config with `changes` to fields of its decoder, without published quantization of checkpoints.

    Raises InputError if its fields contradict each other.
    """
    return _from_config(Section(_changed(config.data, changes or {}), config.file), name=name)


def decoder_fields(config: Section) -> Mapping[str, Any]:
    """The fields of the decoder in a config."""
    return _text(config).data


def _changed(data: Mapping[str, Any], changes: Mapping[str, int]) -> Mapping[str, Any]:
    """The mapping with `changes` in the section of its decoder."""
    key = next((key for key in _DECODERS if data.get(key) is not None), "")
    return {**data, key: _changed(data[key], changes)} if key else {**data, **changes}


def names_code(name: str) -> bool:
    """Whether `name` is package.module:callable. Loading it runs code, so files must not name models this way."""
    return _CALLABLE.fullmatch(name) is not None


def parse_model(text: str, name: str, *, source: str = "") -> Model:
    """The model that the text of a config.json or of a YAML file describes. No file is read.

    name    of the model, with the ending of the file: NAME.json, or NAME.yaml
    source  names the text in errors; `name` if not given

    Raises InputError if the text is invalid, or describes an adapter.
    """
    stem, _, ending = name.rpartition(".")
    if ending == "json":
        return _of_config(parse_object(text, source or name), stem)
    return _of_description(parse_yaml(text, source or name), stem)


def unread_fields(config: Section) -> tuple[list[str], Mapping[str, Any]]:
    """Unread fields of a config.json, and defaults of its class in transformers for fields that it leaves out."""
    _of_config(config, "")
    return config.unread(_IGNORED | {"quantization_config"}), config.assumed


def _shipped_path(name: str) -> Path:
    return data_dir("models") / f"{name}.yaml"


def _shipped_name(name: str) -> str:
    """The shipped model of a name or alias, with capitals and spaces or not; "": none."""
    for shipped, aliases in _aliases().items():
        if normalized(name) in map(normalized, (shipped, *aliases)):
            return shipped
    return ""


@cache
def _aliases() -> Mapping[str, tuple[str, ...]]:
    """Other names of each shipped model, in small letters."""
    aliases_by_name = {}
    for path in sorted(data_dir("models").glob("*.yaml")):
        facts = index().get(path.stem)
        aliases = facts.aliases if facts else read_yaml(path).texts("aliases")
        aliases_by_name[path.stem] = tuple(map(str.lower, aliases))
    return aliases_by_name


def model_facts(model: Model) -> ModelFacts:
    """Facts of a model that listings show."""
    return ModelFacts(
        name=model.name,
        title=model.title,
        model_type=model.model_type,
        parameters=model.parameters,
        active_parameters=model.active_parameters,
        looked_up_parameters=model.looked_up_parameters,
        layers=model.graph.layers,
        attention=model.attention,
        attention_kinds=model.attention_kinds,
        generates=model.generates,
        dtype=model.format.name,
        precision=(model.quantization.scheme.weight or model.format).name.partition("_")[0],
        quantization=str(model.quantization),
        weight_bytes=_int_if_whole(weight_bytes(model.published)),
        unsupported_quantization=model.unsupported_quantization,
        kv_bytes_per_token=_int_if_whole(model.kv_bytes_per_token),
        kv_bytes_per_token_beyond_windows=_int_if_whole(model.kv_bytes_per_token_beyond_windows),
        image_tokens=model.image_tokens,
        max_context=model.max_context,
        source=model.source,
        aliases=model.aliases,
    )


def _int_if_whole(value: float) -> float | int:
    return int(value) if float(value).is_integer() else value


def _from_path(name: str) -> Model | None:
    """The model of a file or folder; None if `name` is neither."""
    readers: dict[str, Callable[[Path], Model]] = {
        ".yaml": _from_yaml,
        ".yml": _from_yaml,
        ".json": _from_json,
        ".gguf": _from_gguf,
        ".safetensors": _from_safetensors,
    }
    for ending, read in readers.items():
        if name.endswith(ending):
            return read(Path(name))
    if not path_exists(name) or not Path(name).is_dir():
        return None
    _check_adapter(Path(name), name)
    if (Path(name) / "model_index.json").is_file():  # of a pipeline of diffusers
        for part in ("transformer", "unet"):
            if (Path(name) / part / "config.json").is_file():
                return _from_folder(Path(name) / part)
    if not (Path(name) / "config.json").is_file():
        raise InputError(f"{name}: is a folder without a config.json; give a folder with one, or the file")
    return _from_folder(Path(name))


def _from_json(path: Path) -> Model:
    name = path.resolve().parent.name if path.stem == "config" else path.stem
    config, notes = read_json(path), tuple[str, ...]()
    if path.name == "config.json" and (modules := path.parent / _MODULES).is_file():
        config, notes = _as_embedder(config, modules, str(modules))
    model = _of_config(config, name, modelopt=_modelopt_config(path.parent))
    return replace(model, notes=(*model.notes, *notes))


def _as_embedder(config: Section, modules: Path, where: str) -> tuple[Section, tuple[str, ...]]:
    """The config without the head of words, and notes, where sentence-transformers pools what the decoder leaves.

    where  name of the list of modules in errors
    """
    listed = parse_json(read_text(modules), where)
    if not isinstance(listed, list) or not all(isinstance(x, dict) and isinstance(x.get("type"), str) for x in listed):
        raise InputError(f"{where}: must be a list of modules, each with a type, as sentence-transformers writes it")
    kinds = [one["type"].rpartition(".")[2] for one in listed]
    named = config.data.get("architectures")
    name = str(named[0]) if isinstance(named, list) and named else ""
    if "Pooling" not in kinds or not name.endswith(_CAUSAL):
        return config, ()
    notes = [f"{where}: an embedder of sentence-transformers, without the head of {name}"]
    if dense := kinds.count("Dense"):
        notes.append(f"{where}: {counted(dense, 'dense layer')} after the pooling not counted")
    return config.with_data({**config.data, "architectures": [f"{name.removesuffix(_CAUSAL)}Model"]}), tuple(notes)


def _of_config(config: Section, name: str, modelopt: Section | None = None) -> Model:
    """The model of a config.json, which must not be that of an adapter."""
    if "peft_type" in config:
        raise _adapter_error(config, config.file)
    return _from_config(config, name=name, modelopt=modelopt)


def _check_adapter(folder: Path, source: str) -> None:
    """Raises InputError if a folder holds an adapter and no model."""
    if (folder / _ADAPTER).is_file() and not (folder / "config.json").is_file():
        raise _adapter_error(read_json(folder / _ADAPTER), source)


def _adapter_error(config: Section, source: str) -> InputError:
    """The error for an adapter, with the model to give instead."""
    kind, base = config.text("peft_type", "LORA"), config.text("base_model_name_or_path", "")
    instead = f"give its base model{f', {base}' if base and base.isprintable() else ''}"
    if kind != "LORA":
        return InputError(f"{source}: is an adapter, not a model, of a kind that nothing here counts; {instead}")
    modules = config.get("target_modules")
    texts = () if isinstance(modules, str) else config.texts("target_modules")  # a single text is a regular expression
    targets = "+".join(dict.fromkeys(text.rpartition(".")[2] for text in texts))
    ranked = f"rank={config.integer('r')}" if config.get("r") is not None else ""
    lora_options = ",".join(filter(None, (ranked, targets and f"targets={targets}")))
    return InputError(
        f"{source}: is a LoRA adapter, not a model; {instead}, --with lora{lora_options and f':{lora_options}'}"
    )


def _modelopt_config(folder: Path) -> Section | None:
    path = folder / _MODELOPT
    return read_json(path) if path.is_file() else None


def _from_safetensors(path: Path) -> Model:
    from .stored.safetensors_files import folder_of

    if path.is_file():
        _check_adapter(path.parent, str(path))
    return _from_folder(folder_of(path))


def _from_folder(folder: Path) -> Model:
    """The model of a folder with config.json, with stored formats if it has a checkpoint."""
    from .stored.safetensors_files import is_checkpoint

    model = _from_json(folder / "config.json")
    if not is_checkpoint(folder):
        return model
    config = read_json(folder / "config.json")
    from .stored.quantization_config import read_published
    from .stored.safetensors_files import read_folder
    from .stored.safetensors_modules import safetensors_checkpoint

    stored = read_published(config, _modelopt_config(folder))
    checkpoint = safetensors_checkpoint(
        read_folder(folder),
        model.graph,
        model_format=model.format,
        schemes=stored,
        file=str(folder),
        predicting=_text(config).integer(_text(config).first(*_PREDICTING), 0, least=0),
    )
    return _with_checkpoint(model, checkpoint)


def _from_gguf(path: Path) -> Model:
    from .stored.gguf_architectures import gguf_config
    from .stored.gguf_files import read_gguf
    from .stored.gguf_tensors import gguf_checkpoint

    file = read_gguf(path)
    config = gguf_config(file)
    named = file.metadata.get("general.name")
    title = " ".join(named.split()) if isinstance(named, str) and named.isprintable() else ""
    plain = _from_config(config, name=path.stem.lower(), title=title, use_class_defaults=False)
    checkpoint = gguf_checkpoint(file.tensors, plain.graph, model_format=_format(config)[0], file=str(path))
    return _with_checkpoint(plain, checkpoint)


def _with_checkpoint(model: Model, checkpoint: Checkpoint) -> Model:
    from .stored.formats import quantization_of

    graph = checkpoint.applied(model.graph).check()
    quantization = quantization_of(checkpoint, graph, model.format)
    size_note = f"{model.unsupported_quantization}: sizes are those of the file, products are in {model.format}"
    notes = (*model.notes, *([size_note] if model.unsupported_quantization else []), *checkpoint.notes)
    return replace(
        model, graph=graph, quantization=quantization, notes=notes, unsupported_quantization="", with_prediction=None
    )


def _from_hub(name: str, nearest: str) -> Model:
    try:
        path = fetch(name, "config.json")
    except NotOnHubError as error:
        raise InputError(f"{error}, or it is private and HF_TOKEN may not read it; {nearest}") from None
    if path is None:
        try:
            adapter = fetch(name, _ADAPTER)
        except InputError:  # of an optional file
            adapter = None
        if adapter:
            raise _adapter_error(_fetched(adapter, f"{name} {_ADAPTER}"), name)
        raise InputError(f"{name}: has no config.json on the hub, which a model for transformers has; {nearest}")
    config = _fetched(path, f"{name} config.json")
    modelopt: Section | None = None
    notes: tuple[str, ...] = ()
    if not _says_quantization(config) or _by_modelopt(config):
        try:
            path = fetch(name, _MODELOPT)
        except InputError as error:
            path, notes = None, (f"whether it is quantized is not known: {error}",)
        modelopt = _fetched(path, f"{name} {_MODELOPT}") if path else None
    named = config.data.get("architectures")
    if isinstance(named, list) and named and str(named[0]).endswith(_CAUSAL):
        try:
            modules = fetch(name, _MODULES)
        except InputError:  # of an optional file
            modules = None
        if modules:
            config, pooled = _as_embedder(config, modules, f"{name} {_MODULES}")
            notes = (*notes, *pooled)
    model_name = name.partition("@")[0].rpartition("/")[2].lower()
    model = _from_config(config, name=model_name, title=name, modelopt=modelopt)
    return replace(model, notes=(*model.notes, *notes))


def _fetched(path: Path, where: str) -> Section:
    """A downloaded file; errors show its name on the hub, not its cache path."""
    try:
        return Section(read_json(path).data, where)
    except InputError as error:
        raise InputError(str(error).replace(str(path), where)) from None


@cache
def _shipped(path: Path) -> Model:
    return _from_yaml(path)


def _from_yaml(path: Path) -> Model:
    return _of_description(read_yaml(path), path.stem)


def _of_description(file: Section, name: str) -> Model:
    """The model of a YAML file called `name`."""
    file.only(("name", "title", "aliases", "source", "checkpoints", "parameters", "config"))
    if file.text("name") != name:
        raise file.error("name", f"must be the name of the file, {name}; got {file.text('name')!r}")
    source = file.section("source")
    source.only(("repository", "revision", "file", "note"))
    repository = source.text("repository")
    where = source.text("file") if repository == "none" else f"{repository} {source.text('file')}"
    model = _from_config(
        file.section("config"),
        name=name,
        title=file.text("title"),
        aliases=file.texts("aliases"),
        source=where,
    )
    checkpoints = tuple(map(_checkpoint, file.sections("checkpoints"))) if file.has("checkpoints") else ()
    predicting = model.with_prediction and replace(model.with_prediction, checkpoints=checkpoints)
    return replace(model, checkpoints=checkpoints, with_prediction=predicting) if checkpoints else model


def _checkpoint(part: Section) -> Quantization:
    """The formats of a published checkpoint."""
    part.only(("repository", "note", "quant"))
    part.text("repository")
    return parse_quantization(part.text("quant"))


def _from_config(
    config: Section,
    *,
    name: str,
    title: str = "",
    aliases: tuple[str, ...] = (),
    source: str = "",
    modelopt: Section | None = None,
    use_class_defaults: bool = True,
) -> Model:
    """The model of a config; where `classed`, defaults of its class in transformers hold for what it leaves out."""
    config, type_notes = _typed(config)
    towers: Collection[str] = ()
    if use_class_defaults:
        defaults = ClassDefaults(config.text("model_type"))
        towers = defaults.towers(config.data)
        config.set_defaults(defaults)
        if not _of_text(config):
            config, towers = _with_towers(config, towers), ()
    fmt, format_notes = _format(config)
    graph, class_notes = _graph(config, fmt)
    stored = _published(config, modelopt)
    graph = stored.applied(graph) if stored else graph
    quantization = _quantization(stored, graph, fmt)
    unread = config.unread(_IGNORED | {"quantization_config"})  # _published reports what is not supported
    notes = (f"fields of {config.file} that nothing here reads: {', '.join(unread)}",) if unread else ()
    if config.assumed:
        values = ", ".join(f"{key} {value}" for key, value in sorted(config.assumed.items()))
        notes = (*notes, f"left out of {config.file}, so as the class has it in transformers: {values}")
    if towers:
        notes = (*notes, f"without {', '.join(towers)}: counts as the rest of the model alone")
    model = Model(
        name=name,
        title=title or name,
        model_type=config.text("model_type"),
        graph=Graph(graph.blocks),
        format=fmt,
        max_context=_longest(_text(config), *_CONTEXT),
        max_answer=_longest(_text(config), "max_target_positions"),
        aliases=aliases,
        source=source or config.file,
        notes=(
            *type_notes,
            *class_notes,
            *format_notes,
            *notes,
            *(_stored_notes(config, stored, graph) if stored else ()),
        ),
        quantization=quantization,
        unsupported_quantization=stored.unknown if stored else "",
        actions=graph.actions,
    )
    if not graph.prediction:
        return replace(
            model, unknown_prediction_layers=_text(config).integer(_text(config).first(*_PREDICTING), 0, least=0)
        )
    with_prediction = graph.predicting().check()
    quantization = _quantization(stored, with_prediction, fmt)
    return replace(model, with_prediction=replace(model, graph=with_prediction, quantization=quantization))


def _of_text(config: Section) -> bool:
    """Whether the class that a config names is a language model without towers, even if its model_type has some."""
    named = config.data.get("architectures")
    return bool(isinstance(named, list) and named and str(named[0]).endswith(("ForCausalLM", "TextModel")))


def _with_towers(config: Section, towers: Mapping[str, Mapping[str, Any]]) -> Section:
    """The config with sections of `towers`, none of whose fields is reported as unread."""
    config = config.with_data({**config.data, **towers})
    for key, fields in towers.items():
        config.section(key).ignore(*fields)
        config.read_keys.discard(key)
        config.assumed[key] = "as a whole"
    return config


def _longest(config: Section, *keys: str) -> int:
    """The context that a config itself gives, as that of its class limits no model; 0: none."""
    key = config.first(*keys)
    return config.integer(key, 0) if key in config else 0


def _graph(config: Section, fmt: Format) -> tuple[Graph, tuple[str, ...]]:
    """The graph of a config, and notes about the class that it names.

    Raises InputError if its fields contradict each other so that no graph can be built.
    """
    try:
        graph, notes = build(config, fmt)
        return graph.check(), notes
    except InputError as error:
        if error.reason.startswith(config.file):
            raise
        suspects = ", ".join(_not_positive(config.data))
        raise InputError(f"{config.file}: {error}", hint=suspects and f"not positive in it: {suspects}") from None
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, ModuleNotFoundError | NotImplementedError):
            raise
        where, problem = f"{config.file}: model_type {config.text('model_type')}", f"{type(error).__name__}: {error}"
        raise InputError(f"{where}: its fields contradict each other: no graph can be built ({problem})") from error


def _not_positive(data: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    """Names of the numeric fields of a config, and of sections in it, that are 0 or negative."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _not_positive(value, f"{prefix}{key}.")
        elif type(value) is int and value <= 0:
            yield f"{prefix}{key}"


def _typed(config: Section) -> tuple[Section, tuple[str, ...]]:
    """`config`, with the model_type of its class and a note if it has none itself."""
    if config.get("model_type") is not None:
        return config, ()
    policy = config.get("type")
    if isinstance(policy, str) and config.get("input_features") is not None:
        note = f"a LeRobot policy of type {policy}: what its config does not say is as its class has it"
        return Section({**config.data, "model_type": policy}, config.file, config.prefix), (note,)
    if config.get("_class_name") is not None:
        return _of_diffusers(config), ()
    from .architectures import types_of_class

    model_types = types_of_class(config)
    if len(model_types) != 1:
        return config, ()
    note = f"no model_type in its config: counts as {model_types[0]}, as its class is named"
    return Section({**config.data, "model_type": model_types[0]}, config.file, config.prefix), (note,)


def _of_diffusers(config: Section) -> Section:
    """`config` of the diffusers library, with its class as model_type.

    Raises InputError if that is no denoising transformer that is known.
    """
    from .architectures import diffusers

    named = config.text("_class_name")
    if named not in diffusers.CLASSES:
        known_classes = ", ".join(diffusers.CLASSES)
        raise config.error(
            "_class_name", f"is a diffusers config of {named}, which is not analyzed; {known_classes} are"
        )
    return Section({**config.data, "model_type": named}, config.file, config.prefix)


def _says_quantization(config: Section) -> bool:
    keys = ("quantization_config", "quantization")
    return any(section.get(key) is not None for section in (config, _text(config)) for key in keys)


def _by_modelopt(config: Section) -> bool:
    """Whether ModelOpt wrote the quantization; the cache format is then only in hf_quant_config.json."""
    places = [section.get("quantization_config") for section in (config, _text(config))]
    return any(isinstance(place, Mapping) and place.get("quant_method") == "modelopt" for place in places)


def _published(config: Section, modelopt: Section | None) -> Stored | None:
    """The published quantization of a model; None if the config has none."""
    if modelopt is None and not _says_quantization(config):
        return None
    from .stored.quantization_config import read_published

    return read_published(config, modelopt)


def _stored_notes(config: Section, stored: Stored, graph: Graph) -> tuple[str, ...]:
    """The notes of a published quantization, with one on entries of its lists that name no module."""
    unmatched = stored.unmatched(graph.predicting())
    if not unmatched:
        return stored.notes
    rest_note = f" and {len(unmatched) - _MAX_NAMES_IN_NOTE} more" if len(unmatched) > _MAX_NAMES_IN_NOTE else ""
    where = f"{config.file}: quantization_config"
    return (
        *stored.notes,
        f"{where}: names no module of the model: {', '.join(unmatched[:_MAX_NAMES_IN_NOTE])}{rest_note}",
    )


def _quantization(stored: Stored | None, graph: Graph, fmt: Format) -> Quantization:
    if stored is None:
        return UNQUANTIZED
    from .stored.formats import quantization_of

    return quantization_of(stored, graph, fmt)


def _format(config: Section) -> tuple[Format, tuple[str, ...]]:
    """The format of the checkpoint, and a note if the config does not give it."""
    places = [section for section in (config, _text(config)) if section.get(section.first("torch_dtype", "dtype"))]
    if places:
        return _DTYPES[places[0].choice(places[0].first("torch_dtype", "dtype"), _DTYPES)], ()
    kind = config.text("model_type")
    if _mostly_bf16(kind):
        return BF16, (f"no torch_dtype in its config: counts as bf16, as most {kind} models that ship",)
    return FP16, ("no torch_dtype in its config: counts as fp16, in which models are usually served",)


@cache
def _mostly_bf16(model_type: str) -> bool:
    """Whether most shipped models of a model_type are stored in bf16."""
    every = map(read_text, data_dir("models").glob("*.yaml"))
    texts = [text for text in every if f"model_type: {model_type}\n" in text]
    return 2 * sum("torch_dtype: bfloat16" in text for text in texts) > len(texts)


def _text(config: Section) -> Section:
    """The section of a config for the decoder: text_config in multimodal models."""
    key = config.first(*_DECODERS)
    return _text(config.section(key)) if config.get(key) is not None else config
