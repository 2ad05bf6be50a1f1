"""Count matrix-product FLOPs and parameters of models with states by an independent counter; write recurrent.json.

As make_flops.py, whose counting of modules it shares. Each entry of `TINY` is a config; each of `SHIPPED` is that of
models/NAME.yaml. transformers builds them on the meta device; a prefill of PROMPT tokens of BATCH sequences and one
decode step after it are run under `torch.utils.flop_counter.FlopCounterMode`. There is one sequence, as a step of the
library's RWKV mixes every sequence with the tokens before of all.

Convolutions are left out of the counts. What is counted of a linear recurrence are the products of the form that
transformers has, over whole chunks.

    python tests/oracle/make_recurrent.py           rewrite recurrent.json
    python tests/oracle/make_recurrent.py --check   exit 1 with one line for each difference from recurrent.json
    ... --check --only rwkv,kimi-linear-48b-a3b      of these models
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml
from make_flops import chosen, grouped_mm_flops, options, own_flops, settle
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

HERE = Path(__file__).resolve().parent
MODEL_FILES = HERE.parent.parent / "models"
ORACLE = HERE / "recurrent.json"
BATCH, PROMPT = 1, 48
SHIPPED = (
    "kimi-linear-48b-a3b", "minimax-text-01", "rwkv-4-169m", "rwkv-4-430m", "rwkv-4-3b", "rwkv-4-7b", "rwkv-4-14b",
    "ling-3.0-flash",
)  # fmt: skip
_EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 2, "torch_dtype": "bfloat16"}
TINY: dict[str, dict[str, Any]] = {
    "kimi_linear": {
        "model_type": "kimi_linear", "vocab_size": 300, "pad_token_id": 0, "hidden_size": 96, "intermediate_size": 160,
        "moe_intermediate_size": 48, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 4,
        "kv_lora_rank": 40, "q_lora_rank": 24, "qk_rope_head_dim": 8, "v_head_dim": 20, "qk_nope_head_dim": 16,
        "n_shared_experts": 2, "linear_head_dim": 12, "linear_num_heads": 3, "linear_conv_kernel_dim": 3, **_EXPERTS,
    },
    "minimax": {
        "model_type": "minimax", "vocab_size": 300, "hidden_size": 96, "intermediate_size": 160, "head_dim": 20,
        "num_hidden_layers": 5, "num_attention_heads": 6, "num_key_value_heads": 2, "block_size": 64, **_EXPERTS,
    },
    "rwkv": {
        "model_type": "rwkv", "vocab_size": 300, "hidden_size": 96, "num_hidden_layers": 3, "intermediate_size": 200,
    },
}  # fmt: skip


def fields(name: str) -> dict[str, Any]:
    """The config of a shipped model as transformers spells it."""
    config = dict(yaml.safe_load((MODEL_FILES / f"{name}.yaml").read_text(encoding="utf-8"))["config"])
    kinds = config.pop("attn_type_list", None)
    if kinds is not None:
        config["model_type"] = "minimax"
        config["layer_types"] = [("linear_attention", "full_attention")[kind] for kind in kinds]
    return config


def build(config: dict[str, Any]) -> PreTrainedModel:
    made = AutoConfig.for_model(**config)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(made, attn_implementation="eager").eval()


def run(model: PreTrainedModel, length: int, **cache: Any) -> tuple[dict[str, int], dict[str, Any]]:
    """FLOPs by module of one pass over `length` new tokens, and the cache that it leaves."""
    tokens = torch.zeros((BATCH, length), dtype=torch.long, device="meta")
    none = {torch.ops.aten.convolution: lambda *_, **__: 0}
    special = {torch.ops.aten._grouped_mm: grouped_mm_flops, **none}
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=special) as counter:
        output = model(input_ids=tokens, use_cache=True, **cache)
    left = {"state": output.state} if "state" in output else {"past_key_values": output.past_key_values}
    return own_flops(counter), left


def count(config: dict[str, Any]) -> dict[str, Any]:
    model = build(config)
    prefill, cache = run(model, PROMPT)
    decode, _ = run(model, 1, **cache)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {"parameters": parameters, "prefill": prefill, "decode": decode}


def make(only: Sequence[str] = ()) -> dict[str, Any]:
    """The whole content of recurrent.json, or that of some models."""
    meta = {"torch": torch.__version__, "transformers": transformers.__version__, "batch": BATCH, "prompt": PROMPT}
    tiny = {name: {"config": TINY[name], **count(TINY[name])} for name in chosen(TINY, only)}
    return {"meta": meta, "tiny": tiny, "shipped": {name: count(fields(name)) for name in chosen(SHIPPED, only)}}


def main() -> int:
    args = options("Make or check tests/oracle/recurrent.json.")
    transformers.logging.set_verbosity_error()
    return settle(ORACLE, make(args.only), ("tiny", "shipped"), args=args)


if __name__ == "__main__":
    sys.exit(main())
