"""Compare parameters of random configs with those that transformers counts, for every type and class that both know.

For each model_type a legal small config is drawn from the fields of its class in transformers: sizes at random,
booleans either way, some values null, and some fields left out, so that the defaults of the class hold. The class is
built on the meta device (shapes only), and the same fields, as a config.json with that class in `architectures`, are
read here. Parameters must be equal: tied weights count once, buffers not. With --ops, so must the matrix products of
linear layers, experts and attention in one pass, by torch's counter and the conventions of make_flops.py; types whose
attention chooses keys are left out of that. A config that transformers refuses is drawn again.

Peculiar to transformers, and taken off its counts: weights of experts that return their input (LongCat), and the second
bias of untied heads of words (BERT and its kin), which no pass reads. What else is peculiar is not drawn (`FIXED`) or
not run (`NOT_RUN`).

    python tests/oracle/compare_configs.py                        every type, three draws of each class
    ... --only llama,qwen2_moe --classes ForCausalLM --draws 50   of some types and classes
    ... --seed 7                                                  other configs
    ... --saved                                                   as config.json files have it after save_pretrained
    ... --ops                                                     matrix products of decoders too

Exits with 1 if there is a difference; prints the fewest fields that still differ.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import re
import sys
import types
import typing
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from make_flops import PRODUCTS, grouped_mm_flops, own_flops
from make_parameters import idle
from torch.utils.flop_counter import FlopCounterMode
from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig

from llmviewer.architectures import model_types
from llmviewer.errors import InputError
from llmviewer.forms import evaluate
from llmviewer.model_files import load_model
from llmviewer.operators.attention import QK, SV, Attention, Indexer
from llmviewer.operators.linear import ChosenLinear, Linear
from llmviewer.operators.masks import Bidirectional, Causal
from llmviewer.workload import Workload

Fields = dict[str, Any]

AUTO = (
    "AutoModelForCausalLM", "AutoModel", "AutoModelForSequenceClassification", "AutoModelForTokenClassification",
    "AutoModelForQuestionAnswering", "AutoModelForMaskedLM", "AutoModelForPreTraining", "AutoModelForSeq2SeqLM",
    "AutoModelForImageTextToText", "AutoModelForSpeechSeq2Seq", "AutoModelForImageClassification",
    "AutoModelForAudioClassification", "AutoModelForMultipleChoice", "AutoModelForTextEncoding",
)  # fmt: skip
BASE = {field.name for field in dataclasses.fields(PretrainedConfig)} - {"id2label"}
LEFT_OUT, FLIPPED, NULL = 0.3, 0.4, 0.1  # probabilities
REDRAWS = 60
LINEAR = re.compile(f"{PRODUCTS.pattern}|Conv1D")  # that of GPT-2 is a linear layer
TOKENS = 12  # of the pass whose matrix products are counted
SIZES: Mapping[str, tuple[int, ...]] = {  # by the end of a field's name
    "hidden_size": (128, 256, 384), "d_model": (128, 256), "n_embd": (128, 256), "embedding_size": (32, 64, 128),
    "intermediate_size": (96, 160, 224), "ffn_dim": (96, 160), "d_ff": (96, 160), "n_inner": (96, 160),
    "num_hidden_layers": (2, 3, 4, 6), "n_layer": (2, 3), "n_layers": (2, 3), "num_layers": (2, 3), "depth": (1, 2, 3),
    "encoder_layers": (1, 2), "decoder_layers": (1, 2), "num_decoder_layers": (1, 2), "num_heads": (2, 4, 8),
    "num_attention_heads": (2, 4, 8), "n_head": (2, 4, 8), "n_heads": (2, 4, 8), "attention_heads": (2, 4),
    "num_key_value_heads": (1, 2), "num_kv_heads": (1, 2), "head_dim": (16, 32, 64), "d_kv": (16, 32),
    "vocab_size": (200, 331), "num_experts": (4, 6, 8), "num_local_experts": (4, 6, 8), "n_routed_experts": (4, 8),
    "num_experts_per_tok": (1, 2), "num_experts_per_token": (1, 2), "n_shared_experts": (1, 2, 3),
    "num_shared_experts": (1, 2), "first_k_dense_replace": (0, 1, 2), "moe_layer_freq": (1, 2),
    "decoder_sparse_step": (1, 2), "q_lora_rank": (24, 48), "kv_lora_rank": (16, 32), "qk_nope_head_dim": (16, 32),
    "qk_rope_head_dim": (8, 16), "v_head_dim": (16, 24), "sliding_window": (5, 9), "max_position_embeddings": (64, 128),
    "state_size": (8, 16), "d_state": (8, 16), "d_conv": (3, 4), "conv_kernel": (3, 4), "expand": (1, 2),
    "n_groups": (1, 2), "type_vocab_size": (0, 1, 2, 3), "num_labels": (1, 2, 5), "image_size": (56, 112),
    "patch_size": (14, 28), "n_positions": (64, 96), "index_n_heads": (2, 4), "index_head_dim": (16, 32),
    "index_topk": (8, 16), "num_nextn_predict_layers": (0, 1), "num_mel_bins": (16, 80),
}  # fmt: skip
FIXED: Mapping[str, tuple[str, ...]] = {
    "step3p5": ("num_local_experts",),  # another name of n_routed_experts, whose default the class prefers to it
    "mpt": ("no_bias", "attn_config", "expansion_ratio"),  # llm-foundry reads them, the class in transformers does not
    "switch_transformers": ("tie_word_embeddings",),  # untied, it unties the tables of both sides, which files share
    "mt5": ("tie_word_embeddings",),  # as umt5
    "umt5": ("tie_word_embeddings",),  # its class ties a head that the file says is the checkpoint's own
    "zamba": ("attention_hidden_size", "tie_word_embeddings"),  # twice hidden_size; untied, it unties shared blocks too
}
IN_PART = (
    "apertus1p5",
    "dots3_note",
    "gemma3n",
    "gemma4",
    "gemma4_unified",
    "nemotron_h_omni",
)  # text, with a note
NOT_RUN = (  # matrix products that the class makes outside of linear layers, or twice
    "mamba", "falcon_mamba", "zamba",  # dt_proj, and x_proj
    "diffllama",  # scores, for each half of the values
)  # fmt: skip
ALWAYS = ("hidden_layers", "n_layer", "num_layers", "n_layers", "depth", "_layers")  # nearly: sizes of classes are slow


def class_names(model_type: str) -> list[str]:
    """Classes of transformers for a model_type, in the order of AUTO."""
    found: dict[str, None] = {}
    config = CONFIG_MAPPING[model_type]
    for auto in AUTO:
        mapping = getattr(transformers, auto)._model_mapping
        if config in mapping:
            classes = mapping[config]
            found |= {cls.__name__: None for cls in (classes if isinstance(classes, tuple) else (classes,))}
    return list(found)


def draw(cls: type, rng: random.Random, *, nested: bool = False) -> Fields:
    """Fields of a config class, some left out."""
    parts = cls.sub_configs
    fields: Fields = {}
    for field in dataclasses.fields(cls):
        name = field.name
        if (name in BASE and name != "tie_word_embeddings") or name in FIXED.get(cls.model_type, ()):
            continue
        if name in parts:
            sub = parts[name]
            if dataclasses.is_dataclass(sub) and rng.random() > 0.1:
                fields[name] = draw(sub, rng, nested=True)
            continue
        layered = name.endswith(ALWAYS)
        if rng.random() < (0.03 if layered else LEFT_OUT):
            continue
        given = drawn(name, field, rng)
        if given is not dataclasses.MISSING:
            fields[name] = given
    if not nested and rng.random() < LEFT_OUT:
        fields["num_labels"] = rng.choice((1, 2, 5))
    if "text_config" in parts:
        _fit_widths(cls, fields)
    _fit(fields, rng)
    return fields


def drawn(name: str, field: dataclasses.Field[Any], rng: random.Random) -> Any:
    """A value for one field; MISSING if nothing is known of it but its default."""
    hint = field.type
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) or typing.get_origin(hint) else (hint,)
    if type(None) in kinds and rng.random() < NULL:
        return None
    if bool in kinds:
        default = bool(field.default) if field.default is not dataclasses.MISSING else False
        return default != (rng.random() < FLIPPED)
    if int in kinds and not name.endswith(("token_id", "_token", "_index", "seed")):
        ending = max((end for end in SIZES if name.endswith(end)), key=len, default=None)
        if ending:
            return rng.choice(SIZES[ending])
        default = field.default
        if isinstance(default, int) and not isinstance(default, bool) and 1 < default <= 64 and rng.random() < 0.3:
            return rng.choice((1, 2, 4, default))
    return dataclasses.MISSING


def _fit_widths(cls: type, fields: Fields) -> None:
    """Gives parts the width of the language model that they lead to; a class that is not run builds any."""
    text = fields.get("text_config", {})
    text.pop("tie_word_embeddings", None)  # files of version 4 say it there, which version 5 does not always read
    width = text.get("hidden_size")
    if not width:
        return
    if "hidden_size" in cls.__dataclass_fields__:
        fields["hidden_size"] = width
    for name, part in cls.sub_configs.items():
        if "text_hidden_size" in getattr(part, "__dataclass_fields__", ()):
            fields.setdefault(name, {})["text_hidden_size"] = width
    tower = fields.setdefault("vision_config", {}) if "vision_config" in cls.sub_configs else {}
    if cls.model_type == "llama4":
        tower |= {"hidden_size": 128, "intermediate_size": 512, "projector_input_dim": 96}
        tower |= {"projector_output_dim": 96, "vision_output_dim": 96}
    if cls.model_type == "molmo2":
        fields.setdefault("adapter_config", {})["hidden_size"] = tower.setdefault("hidden_size", 128)


def _fit(fields: Fields, rng: random.Random) -> None:
    """Makes lists of kinds as long as there are layers."""
    layers = fields.get("num_hidden_layers")
    if isinstance(layers, int) and "layer_types" not in fields and rng.random() < 0.3:
        windows = "sliding_window" in fields and fields["sliding_window"]
        kinds = ("full_attention", "sliding_attention") if windows else ("full_attention",)
        fields["layer_types"] = [rng.choice(kinds) for _ in range(layers)]
    if isinstance(layers, int) and rng.random() < 0.15:
        fields["mlp_layer_types"] = [rng.choice(("dense", "sparse")) for _ in range(layers)]
    if isinstance(layers, int) and rng.random() < 0.15:
        fields["mlp_only_layers"] = sorted(rng.sample(range(layers), rng.randint(0, layers)))


def theirs(model_type: str, name: str, fields: Fields) -> tuple[Any, Fields]:
    """Module of a class on the meta device, and the fields as they are saved. Raises what transformers raises."""
    config = AutoConfig.for_model(model_type, **copied(fields))
    config._attn_implementation = "eager"
    saved = config.to_dict()
    if model_type == "helium" and config.num_attention_heads * config.head_dim != config.hidden_size:
        raise ValueError("helium: its class does not run unless heads are as wide together as the layer")
    with torch.device("meta"):
        module = getattr(transformers, name)(config)
    return module, saved


def copied(fields: Any) -> Any:
    if isinstance(fields, dict):
        return {key: copied(value) for key, value in fields.items()}
    return list(fields) if isinstance(fields, list) else fields


def ours(model_type: str, name: str, fields: Fields) -> Any:
    """The model that is read from a config.json with the fields."""
    config = {"dtype": "bfloat16", **fields, "model_type": model_type, "architectures": [name]}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config, default=str), encoding="utf-8")
        return load_model(str(path))


def counted(module: Any) -> int:
    """Parameters, without those that no pass reads."""
    return sum(parameter.numel() for parameter in module.parameters()) - idle(module) - second_biases(module)


def second_biases(module: Any) -> int:
    """Biases of words beside the one that an untied head reads."""
    heads = (part for part in module.modules() if hasattr(part, "decoder") and hasattr(part, "bias"))
    pairs = ((part.bias, getattr(part.decoder, "bias", None)) for part in heads)
    return sum(one.numel() for one, other in pairs if one is not None and other is not None and one is not other)


def products(module: Any) -> int:
    """FLOPs of linear layers, experts and attention of one pass."""
    kept = {
        path
        for path, part in module.named_modules()
        if isinstance(part, torch.nn.Linear) or LINEAR.search(type(part).__name__)
    }
    tokens = torch.zeros((1, TOKENS), dtype=torch.long, device="meta")
    experts = {torch.ops.aten._grouped_mm: grouped_mm_flops}
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=experts) as counter:
        module.eval()(input_ids=tokens)
    return sum(own_flops(counter, kept).values())


def our_products(model: Any) -> int | None:
    """The same of our graph, every token with a head and every query with every key; None if that is not known."""
    w = Workload.prefill(batch=1, prompt=TOKENS)
    total = Fraction(0)
    for block, op in model.graph:
        if isinstance(op, Indexer) or (
            isinstance(op, Attention) and not isinstance(op.heads.mask, Causal | Bidirectional)
        ):
            return None
        ops = block.repeat * Fraction(evaluate(op.work().on(block.stream).ops, w))
        if isinstance(op, QK | SV):
            total += ops * TOKENS * TOKENS / Fraction(int(evaluate(op.heads.mask.pairs, w)))
        elif isinstance(op, Linear | ChosenLinear):
            wanted = evaluate(op.inputs[0].rows, w) == 1 and not op.name.startswith(("pooler", "classifier"))
            total += ops * (TOKENS if wanted else 1)
    return int(total)


def legal(model_type: str, name: str, rng: random.Random) -> tuple[Fields, Any, Fields]:
    """Fields that transformers builds, the module and the saved config."""
    last: Exception | None = None
    for _ in range(REDRAWS):
        fields = draw(CONFIG_MAPPING[model_type], rng)
        try:
            return (fields, *theirs(model_type, name, fields))
        except Exception as error:  # noqa: BLE001 what transformers raises for fields that do not fit
            last = error
    raise RuntimeError(f"{model_type} {name}: no legal config in {REDRAWS} draws: {last}")


def difference(model_type: str, name: str, fields: Fields, module: Any, *, ops: bool) -> str:
    """Difference of the two counts; "" if they are equal, or how the config is refused."""
    try:
        model = ours(model_type, name, fields)
        found = model.parameters
    except InputError as error:
        return f"refused: {error}"
    except Exception as error:  # noqa: BLE001 a traceback here is a fault that is reported
        return f"crash: {error!r}"
    expected = counted(module)
    if found != expected:
        return f"ours {found:,}, theirs {expected:,}, {found - expected:+,}"
    made = our_products(model) if ops and model_type not in NOT_RUN else None
    try:
        expected = products(module) if made is not None else 0
    except Exception:  # noqa: BLE001 a class that does not run on the meta device, or not with these fields
        return ""
    return "" if made in (None, expected) else f"OPs {made:,}, theirs {expected:,}, {made - expected:+,}"


def fewest(model_type: str, name: str, fields: Fields, said: str, *, ops: bool) -> Fields:
    """Fields, also of sections, without those that the difference does not need."""
    kind = said.partition(" ")[0]
    for path in list(paths(fields)):
        if path[-1].endswith(ALWAYS):
            continue
        less = without(fields, path)
        try:
            module, _ = theirs(model_type, name, less)
        except Exception:  # noqa: BLE001 as above
            continue
        if difference(model_type, name, less, module, ops=ops).partition(" ")[0] == kind:
            fields = less
    return fields


def paths(fields: Fields, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The keys that lead to every field, those of sections before the section."""
    for key, value in fields.items():
        if isinstance(value, dict):
            yield from paths(value, (*above, key))
        yield (*above, key)


def without(fields: Fields, path: tuple[str, ...]) -> Fields:
    key, *rest = path
    if not rest:
        return {k: v for k, v in fields.items() if k != key}
    return {**fields, key: without(fields[key], tuple(rest))}


def compare(
    model_type: str, name: str, *, seed: int, draws: int, saved: bool = False, ops: bool = False
) -> Iterator[str]:
    """Differences of `draws` random configs; at most two of a kind."""
    rng = random.Random(f"{seed} {model_type} {name}")
    seen: Counter[str] = Counter()
    for _ in range(draws):
        try:
            fields, module, written = legal(model_type, name, rng)
        except RuntimeError as error:
            yield str(error)
            return
        said = difference(model_type, name, written if saved else fields, module, ops=ops)
        kind = re.sub(r"/\S*|\d+", "", said)[:60]
        if not said or seen[kind] >= 2:
            continue
        seen[kind] += 1
        few = {} if saved else fewest(model_type, name, fields, said, ops=ops)
        if few:
            said = difference(model_type, name, few, theirs(model_type, name, few)[0], ops=ops)
        yield f"{model_type} {name}: {said}  {few}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", type=lambda names: names.split(","), default=(), metavar="TYPES")
    parser.add_argument("--classes", type=lambda names: names.split(","), default=(), metavar="ENDINGS")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--saved", action="store_true")
    parser.add_argument("--ops", action="store_true")
    parser.add_argument("--refused", action="store_true", help="also configs that are refused here")
    args = parser.parse_args()
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    warnings.simplefilter("ignore")
    bad = 0
    for model_type in args.only or (kind for kind in model_types() if kind in CONFIG_MAPPING):
        if model_type in IN_PART:
            continue
        names = [n for n in class_names(model_type) if not args.classes or n.endswith(tuple(args.classes))]
        for name in names:
            for line in compare(model_type, name, seed=args.seed, draws=args.draws, saved=args.saved, ops=args.ops):
                refused = ": refused: " in line or ": no legal config" in line
                bad += not refused
                if args.refused or not refused:
                    print(line, flush=True)
    print(f"{bad} differences")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
