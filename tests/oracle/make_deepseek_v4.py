"""Count the matrix-product FLOPs and parameters of a small DeepSeek-V4 with torch's counter; write deepseek_v4.json.

transformers builds `CONFIG` on the CPU with random weights and runs a prefill of all but one token and a decode step
under `torch.utils.flop_counter.FlopCounterMode`, and a prefill of all. FLOPs are those that no module inside counts,
by name, those of all layers together. A multiply-accumulate is
2 FLOPs. Each of the two lengths ends a group of every ratio, so that no entry is in the making.

    python tests/oracle/make_deepseek_v4.py           rewrite deepseek_v4.json
    python tests/oracle/make_deepseek_v4.py --check   exit 1 where it differs
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedModel

ORACLE = Path(__file__).resolve().parent / "deepseek_v4.json"
BATCH, LENGTH = 2, 40
CONFIG: dict[str, Any] = {
    "model_type": "deepseek_v4",
    "vocab_size": 96,
    "hidden_size": 64,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "head_dim": 16,
    "partial_rotary_factor": 0.5,
    "q_lora_rank": 24,
    "o_groups": 2,
    "o_lora_rank": 12,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "index_n_heads": 3,
    "index_head_dim": 8,
    "index_topk": 16,
    "sliding_window": 8,
    "hc_mult": 3,
    "hc_sinkhorn_iters": 4,
    "layer_types": [
        "sliding_attention",
        "compressed_sparse_attention",
        "heavily_compressed_attention",
        "compressed_sparse_attention",
        "compressed_sparse_attention",
    ],
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
    "mlp_layer_types": ["hash_moe", "hash_moe", "moe", "moe", "moe"],
}


def main() -> int:
    text = json.dumps(_counted(), indent=2) + "\n"
    if "--check" in sys.argv:
        return int(text != ORACLE.read_text(encoding="utf-8"))
    ORACLE.write_text(text, encoding="utf-8")
    return 0


def _counted() -> dict[str, Any]:
    torch.manual_seed(0)
    fields = {key: value for key, value in CONFIG.items() if key != "model_type"}
    config = AutoConfig.for_model(CONFIG["model_type"], **fields)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", experts_implementation="eager")
    model.eval()
    tokens = torch.randint(0, CONFIG["vocab_size"], (BATCH, LENGTH))
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(tokens[:, :-1], past_key_values=cache, use_cache=True)
    return {
        "config": CONFIG,
        "batch": BATCH,
        "length": LENGTH,
        "parameters": sum(p.numel() for p in model.parameters()),
        "prefill": _flops(model, tokens, None),
        "decode": _flops(model, tokens[:, -1:], cache),
    }


def _flops(model: PreTrainedModel, tokens: torch.Tensor, cache: DynamicCache | None) -> dict[str, int]:
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        model(tokens, past_key_values=cache, use_cache=cache is not None)
    totals = {path: sum(found.values()) for path, found in counter.get_flop_counts().items()}
    own: Counter[str] = Counter()
    for path, module in model.named_modules(prefix=type(model).__name__):
        inside = sum(totals.get(child, 0) for child in _nearest(path, totals))
        if path in totals and (flops := totals[path] - inside):
            own[_name(path, module)] += flops
    return dict(sorted(own.items()))


def _nearest(path: str, paths: Iterable[str]) -> list[str]:
    """Members of `paths` directly below `path`."""
    below = [other for other in paths if other.startswith(f"{path}.")]
    return [other for other in below if not any(other.startswith(f"{between}.") for between in below)]


def _name(path: str, module: torch.nn.Module) -> str:
    """A Linear by its place, such as "indexer.kv_proj"; what is no Linear by its class."""
    parts = path.split(".")
    if not isinstance(module, torch.nn.Linear):
        return type(module).__name__
    place = next((part for part in ("indexer", "compressor", "shared_experts") if part in parts), "")
    return ".".join(filter(None, (place, parts[-1])))


if __name__ == "__main__":
    raise SystemExit(main())
