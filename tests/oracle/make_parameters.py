"""Count the parameters of every shipped model with transformers; write parameters.json and docs/parameters.md.

Each `config` of `models/NAME.yaml` is built by transformers on the meta device (shapes only, no weights), without its
quantization. Tied weights count once, buffers not. Models whose code is not in transformers are built as a class with
the same matrices (`TWINS`), and where there is none the count is that of the model's file: made by hand from the
shapes, or of another source. Of a model that speaks it is that of its thinker.

    python tests/oracle/make_parameters.py           rewrite parameters.json and docs/parameters.md
    python tests/oracle/make_parameters.py --check   exit 1 with one line for each difference from parameters.json
    ... --check --only gpt2                          of this model
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from llmviewer.model_files import load_model

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ORACLE = HERE / "parameters.json"
PAGE = ROOT / "docs" / "parameters.md"

# model_type: (that of transformers with the same matrices, its fields by the names they have here, fields besides)
TWINS: Mapping[str, tuple[str, Mapping[str, str], Mapping[str, Any]]] = {
    "Dream": ("qwen2", {}, {}),
    "baichuan": ("llama", {}, {}),
    "bailing_moe": (
        "glm4_moe",
        {"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"},
        {"head_dim": 128},
    ),
    "chatglm": (
        "glm",
        {
            "num_layers": "num_hidden_layers",
            "ffn_hidden_size": "intermediate_size",
            "padded_vocab_size": "vocab_size",
            "multi_query_group_num": "num_key_value_heads",
            "kv_channels": "head_dim",
        },
        {"attention_bias": True, "pad_token_id": 0},
    ),
    "exaone": ("llama", {"num_layers": "num_hidden_layers"}, {}),
    "internlm": ("llama", {}, {"attention_bias": True}),
    "internlm2": ("llama", {}, {}),
    "internvl_chat": (
        "internvl",
        {"llm_config": "text_config", "qkv_bias": "attention_bias", "qk_normalization": "use_qk_norm"},
        {},
    ),
    "kimi_k2": ("deepseek_v3", {}, {}),
    "llada": (
        "llama",
        {
            "d_model": "hidden_size",
            "mlp_hidden_size": "intermediate_size",
            "n_heads": "num_attention_heads",
            "n_kv_heads": "num_key_value_heads",
            "n_layers": "num_hidden_layers",
        },
        {"tie_word_embeddings": False},
    ),
    "mimo": ("qwen2", {}, {}),
    "minicpm": ("llama", {}, {}),
    "minimax_m1": ("minimax", {}, {}),
    "minimax_text_01": ("minimax", {}, {}),
    "qwen3_vl_moe_text": ("qwen3_moe", {}, {}),
}
# model_type: a field that its class in transformers does not know, so that models with it are counted otherwise
BEYOND: Mapping[str, str] = {
    "kimi_linear": "attn_res_block_size",
    "bailing_hybrid": "q_lora_rank",
    "llada": "num_experts",
    "nomic_bert": "num_experts",
    "chatglm": "position_encoding_2d",
}
# model_type: its class in transformers, which has no head, as it stands for a part of a model that sees
HEADLESS: Mapping[str, str] = {"step3p5": "Step3p7TextModel"}
# model_type: fields that its class looks up as it is built, and that no count depends on
LOOKED_UP: Mapping[str, Mapping[str, Any]] = {
    kind: {"vocabulary_map": {"<image>": 0}} for kind in ("chameleon", "emu3")
}
# How transformers is asked for a class: for more than a decoder first, as some of those have one that is half of them.
AUTO = (
    "AutoModelForImageTextToText", "AutoModelForSpeechSeq2Seq", "AutoModelForSeq2SeqLM", "AutoModelForCausalLM",
    "AutoModelForMaskedLM", "AutoModel",
)  # fmt: skip
_KINDS = ("linear_attention", "full_attention")  # what attn_type_list of MiniMax says with 0 and 1
_UNKNOWN = "Unrecognized"  # begins the message of transformers where it has no class
HEAD = """\
# Parameters of every model that ships

Ours is the sum over the weights of the graph that a model's config becomes. Theirs is what transformers {transformers}
counts in the class named, built on the meta device from the same config. Where transformers does not have the model, it
is a class with the same matrices (*as*), a count by hand from the shapes in the model's code (*by hand*), or the count
of the model's file (*file*). `models/NAME.yaml` says what was read where.

Made by `python tests/oracle/make_parameters.py`; `tests/test_parameters.py` compares it with the graphs.

| model | ours | theirs | difference | theirs counted |
|---|---:|---:|---:|---|
"""


def specs() -> dict[str, dict[str, Any]]:
    """The content of models/*.yaml by name."""
    files = sorted((ROOT / "models").glob("*.yaml"))
    return {file.stem: yaml.safe_load(file.read_text(encoding="utf-8")) for file in files}


def twin(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `config` for the class of transformers that has its matrices."""
    model_type, names, besides = TWINS[config["model_type"]]
    fields = _renamed(config, names)
    fields.get("vision_config", {}).pop("model_type", None)  # a name that transformers does not know
    if "attn_type_list" in fields:
        fields["layer_types"] = [_KINDS[n] for n in fields.pop("attn_type_list")]
    return {**fields, **besides, "model_type": model_type}


def _renamed(config: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The fields of `config`, and of the sections in it, by the names that a class has."""
    return {
        names.get(key, key): _renamed(value, names) if isinstance(value, dict) else value
        for key, value in config.items()
    }


def counted(fields: Mapping[str, Any]) -> tuple[int, str] | None:
    """Parameters of the model that transformers builds, and its class; None where it has none.

    Some classes tie a head that the file says is the checkpoint's own (T5, Kimi K2.5): it counts besides.
    """
    import torch

    with torch.device("meta"):
        model = built(fields)
    if model is None:
        return None
    parameters, name = sum(parameter.numel() for parameter in model.parameters()), type(model).__name__
    if fields["model_type"] in HEADLESS:
        return parameters + fields["vocab_size"] * fields["hidden_size"], f"{name}, with a head"
    if left := idle(model):
        return parameters - left, f"{name}, less what it keeps for experts without matrices"
    tied = fields.get("tie_word_embeddings", fields.get("text_config", {}).get("tie_word_embeddings"))
    head = model.get_output_embeddings() if tied is False else None
    if head is not None and head.weight is model.get_input_embeddings().weight:
        return parameters + head.weight.numel(), f"{name}, with a head of its own as the file says"
    return parameters, name


def idle(model: Any) -> int:
    """Parameters that LongCat's class keeps for experts that leave a token as it is; checkpoints have none."""
    kept = [m for m in model.modules() if getattr(m, "zero_expert_num", 0) and hasattr(m, "gate_up_proj")]
    return sum(m.gate_up_proj.numel() // m.total_experts * m.zero_expert_num for m in kept)


def built(fields: Mapping[str, Any]) -> Any:
    """The model as the class that the file names, or else as whatever transformers has for its type."""
    import transformers

    try:
        config = transformers.AutoConfig.for_model(**fields, **LOOKED_UP.get(fields["model_type"], {}))
    except ValueError as error:
        if str(error).startswith(_UNKNOWN):
            return None
        raise
    own = HEADLESS.get(fields["model_type"])
    names = (own,) if own else fields.get("architectures", ())
    named = [getattr(transformers, name) for name in names if hasattr(transformers, name)]
    if named:
        return named[0](config)
    autos = (getattr(transformers, name) for name in AUTO)
    auto = next((auto for auto in autos if type(config) in auto._model_mapping), None)
    return auto.from_config(config) if auto else None


def count(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of one model, and what counted them."""
    fields = {key: value for key, value in spec["config"].items() if key != "quantization_config"}
    fields = fields.get("thinker_config", fields)
    own = fields["model_type"]
    beyond = fields.get(BEYOND.get(own, "")) is not None
    found = None if beyond else counted(twin(fields) if own in TWINS else fields)
    if found:
        return {"parameters": found[0], "counted": f"as {found[1]}" if own in TWINS else found[1]}
    by_hand = "by hand" in " ".join(str(spec["source"].get("note", "")).split())
    return {"parameters": spec["parameters"], "counted": "by hand" if by_hand else "file"}


def make(only: Sequence[str] = ()) -> dict[str, Any]:
    """The whole content of parameters.json, or that of some models."""
    import torch
    import transformers
    from make_flops import chosen  # loads torch, which what imports this module does not need

    transformers.logging.set_verbosity_error()
    meta = {"torch": torch.__version__, "transformers": transformers.__version__}
    known = specs()
    return {"meta": meta, "models": {name: _named(name, known[name]) for name in chosen(known, only)}}


def _named(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return count(spec)
    except Exception as error:
        raise RuntimeError(f"{name}: transformers does not build it") from error


def page(oracle: Mapping[str, Any]) -> str:
    """docs/parameters.md, from parameters.json and our own counts."""
    rows = []
    for name, theirs in oracle["models"].items():
        ours = load_model(name).parameters
        numbers = f"{ours:,} | {theirs['parameters']:,} | {ours - theirs['parameters']:+,}".replace("+0", "0")
        rows.append(f"| {name} | {numbers} | {theirs['counted']} |\n")
    return HEAD.format(**oracle["meta"]) + "".join(rows)


def main() -> int:
    from make_flops import options, settle

    args = options("Make or check tests/oracle/parameters.json and docs/parameters.md.")
    found = make(args.only)
    if not args.check:
        PAGE.write_text(page(found), encoding="utf-8")
    return settle(ORACLE, found, ("models",), args=args)


if __name__ == "__main__":
    sys.exit(main())
