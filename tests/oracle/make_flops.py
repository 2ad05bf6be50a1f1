"""Count the matrix-product FLOPs and parameters of shipped models with an independent counter; write flops.json.

For each model of `MODELS` the `config` of `models/NAME.yaml` is built by transformers on the meta device (shapes only,
no weights) and run twice per workload under `torch.utils.flop_counter.FlopCounterMode`: a prefill that fills a cache,
then one decode step that reads it. The numbers come from the executed aten operators, so they share no formula with
the package; tests compare its operator graph with the committed JSON and need neither torch nor transformers.

Counted, a multiply-accumulate being 2 FLOPs: mm, addmm, bmm and baddbmm, that is the linear layers and the two
attention products, and _grouped_mm, the experts, over the rows routed to them. The head runs at every position of a
prefill, and causal attention is the full product of all queries with all keys (no halving). Not counted: softmax,
norms, activations, rotary and ALiBi positions, biases, residuals, masks, embedding look-ups, and all memory traffic.
Of all windows only those of 128 keys (gpt-oss-20b, mimo-v2-flash, k-exaone) are reached here: a decode step takes no
more keys, a prefill is the full product all the same.

Of hybrids, whose scans and convolutions the library computes in ways of its own, only linear layers, experts and the
attention products are taken, under "hybrids": the operators of all other modules are left out.

Cached elements are those of the library's cache object. For falcon-40b they are 16 times the model's: transformers
repeats the 8 key-value heads to all 128 query heads before it caches them.

    python tests/oracle/make_flops.py           rewrite flops.json
    python tests/oracle/make_flops.py --check   exit 1 with one line for each difference from flops.json
    ... --check --only gpt2,bloom-560m          of these models, as the suite does with a small one of each kind
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM, Cache, DynamicCache, PreTrainedModel

HERE = Path(__file__).resolve().parent
MODEL_FILES = HERE.parent.parent / "models"
ORACLE = HERE / "flops.json"

MODELS = (
    "llama-2-7b",
    "llama-2-13b",
    "llama-2-70b",
    "llama-3-8b",
    "llama-3.2-1b",
    "llama-3.1-405b",
    "mistral-7b-v0.1",
    "qwen2-7b",
    "qwen2.5-0.5b",
    "opt-125m",
    "opt-350m",
    "opt-6.7b",
    "gpt-j-6b",
    "gpt2",
    "gpt2-xl",
    "bloom-560m",
    "bloom-7b1",
    "falcon-rw-1b",
    "falcon-7b",
    "falcon-40b",
    "qwen3-0.6b",
    "gemma-2b",
    "gemma-2-2b",
    "gemma-3-4b",
    "phi-2",
    "phi-3-mini-4k",
    "pythia-160m",
    "mpt-7b",
    "santacoder",
    "starcoder2-3b",
    "stablelm-2-1.6b",
    "stablelm-2-12b",
    "command-r-plus",
    "command-r7b",
    "olmo-1b",
    "olmo-2-7b",
    "olmo-3-7b",
    "granite-3.1-2b",
    "glm-4-9b",
    "glm-4-9b-0414",
    "smollm3-3b",
    "minitron-4b",
    "codegen-350m",
    "exaone-4.0-32b",
    "seed-oss-36b",
    "ernie-4.5-0.3b",
    "mixtral-8x7b",
    "qwen1.5-moe-a2.7b",
    "qwen3-30b-a3b",
    "phi-3.5-moe",
    "olmoe-1b-7b",
    "minimax-m2.5",
    "granite-3.1-1b-a400m",
    "deepseek-v2-lite",
    "deepseek-v3",
    "glm-4.7-flash",
    "glm-4.5-air",
    "dots.llm1",
    "gpt-oss-20b",
    "ernie-4.5-21b-a3b",
    "hunyuan-a13b",
    "solar-open-100b",
    "hy3-preview",
    "mimo-v2-flash",
    "k-exaone-236b-a23b",
    "north-mini-code",
    "minicpm3-4b",
    "moonlight-16b-a3b",
)
HYBRIDS = (
    "nemotron-3-nano-30b-a3b",
    "nemotron-3-super-120b-a12b",
    "falcon-h1-0.5b",
    "falcon-h1-34b",
    "zamba2-1.2b",
    "zamba2-2.7b",
    "bamba-9b",
    "granite-4.0-h-small",
    "granite-4.0-h-micro",
    "granite-4.0-micro",
    "lfm2-1.2b",
    "lfm2-8b-a1b",
    "recurrentgemma-2b",
    "gemma-4-31b",
    "gemma-4-26b-a4b",
    "gemma-4-e2b",
    "gemma-3n-e2b",
    "gemma-4-12b",
)
WORKLOADS = ((2, 64), (1, 512))  # batch, prompt length
ATTENTION = "eager"
PRODUCTS = re.compile(r"Attention|Experts|Router|Rglru")  # classes that multiply matrices beside linear layers
CONVENTIONS = {
    "flops": "2 per multiply-accumulate of mm, addmm, bmm, baddbmm, _grouped_mm; nothing else is counted",
    "prefill": "head at every position; attention over all query-key pairs, no causal halving",
    "kv_len": "keys that one query attends to, the new ones included",
    "by_module": "FLOPs of a module's own operators, children excluded; layers folded to *; zeros left out",
    "parameters": "unique parameters, tied weights once; buffers excluded",
    "cache_elements": "key and value elements the library caches for one token of one sequence, all layers; "
    "falcon-40b repeats its 8 key-value heads to all 128 query heads first",
}


def build(name: str) -> PreTrainedModel:
    """The model of models/NAME.yaml on the meta device, before it is quantized."""
    spec = yaml.safe_load((MODEL_FILES / f"{name}.yaml").read_text(encoding="utf-8"))
    fields = {key: value for key, value in spec["config"].items() if key != "quantization_config"}
    config = AutoConfig.for_model(**fields)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION).eval()


def grouped_mm_flops(rows: list[int], weights: list[int], *_: Any, **__: Any) -> int:
    """OPs of rows[n, k] @ weights[experts, k, m], where every row goes to one expert."""
    return 2 * rows[0] * rows[1] * weights[2]


def own_flops(counter: FlopCounterMode, kept: Container[str] | None = None) -> dict[str, int]:
    """FLOPs by module path without those of child modules, layer indices folded to `*`; of `kept` modules where given.

    The counter reports every module with all that ran inside it; a module's own share is what its direct children
    leave over.
    """
    inclusive = {path: sum(ops.values()) for path, ops in counter.get_flop_counts().items() if path != "Global"}
    own = Counter(inclusive)
    for path, flops in inclusive.items():
        parent, dot, _ = path.rpartition(".")
        while dot and parent not in inclusive:  # containers such as a ModuleList are never called
            parent, dot, _ = parent.rpartition(".")
        if dot:
            own[parent] -= flops
    folded: Counter[str] = Counter()
    for path, flops in own.items():
        _, _, below_root = path.partition(".")
        if kept is not None and below_root not in kept:
            continue
        folded[re.sub(r"(?<=\.)\d+(?=\.|$)", "*", below_root) or "."] += flops
    return {path: flops for path, flops in sorted(folded.items()) if flops}


def run(
    model: PreTrainedModel,
    batch: int,
    length: int,
    cache: Cache | None,
    kv_len: int,
    kept: Container[str] | None = None,
) -> tuple[dict[str, Any], Cache]:
    """One forward pass over `length` new tokens: its case, of `kept` modules where given, and the cache it leaves."""
    tokens = torch.zeros((batch, length), dtype=torch.long, device="meta")
    experts = {torch.ops.aten._grouped_mm: grouped_mm_flops}
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=experts) as counter:
        output = model(input_ids=tokens, past_key_values=cache, use_cache=True)
    by_module = own_flops(counter, kept)
    total = counter.get_total_flops() if kept is None else sum(by_module.values())
    if sum(by_module.values()) != total:
        raise AssertionError(f"modules sum to {sum(by_module.values())}, the counter says {total}")
    case = {
        "phase": "prefill" if length == kv_len else "decode",
        "batch": batch,
        "q_len": length,
        "kv_len": kv_len,
        "flops": total,
        "by_module": by_module,
    }
    return case, getattr(output, "past_key_values", cache)


def count(name: str) -> dict[str, Any]:
    """Parameters, cache elements per token and the cases of one model."""
    model = build(name)
    cases = []
    per_token = set()
    for batch, length in WORKLOADS:
        case, cache = run(model, batch, length, None, length)
        cases.append(case)
        cached = sum(t.numel() / t.shape[-2] for layer in cache.layers for t in (layer.keys, layer.values))
        per_token.add(cached / batch)  # layers with a window keep fewer tokens than the prompt has
        case, _ = run(model, batch, 1, cache, length + 1)
        cases.append(case)
    if len(per_token) != 1:
        raise AssertionError(f"{name}: the cache does not grow with the tokens: {sorted(per_token)} elements each")
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "cache_elements": int(per_token.pop()),
        "cases": cases,
    }


def count_hybrid(name: str) -> dict[str, Any]:
    """Parameters and the cases of one hybrid, with its linear layers, experts and attention products alone."""
    model = build(name)
    products = {
        path
        for path, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) or PRODUCTS.search(type(module).__name__)
    }
    cases = []
    for batch, length in WORKLOADS:
        case, cache = run(model, batch, length, DynamicCache(config=model.config), length, products)
        step, _ = run(model, batch, 1, cache, length + 1, products)
        cases.extend((case, step))
    return {"parameters": sum(parameter.numel() for parameter in model.parameters()), "cases": cases}


def make(only: Sequence[str] = ()) -> dict[str, Any]:
    """The whole content of flops.json, or that of some models."""
    meta = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "attn": ATTENTION,
        "conventions": CONVENTIONS,
    }
    return {
        "meta": meta,
        "models": {name: count(name) for name in chosen(MODELS, only)},
        "hybrids": {name: count_hybrid(name) for name in chosen(HYBRIDS, only)},
    }


def differences(stored: Any, found: Any, path: str = "") -> Iterator[str]:
    """One line for each leaf that is not the same on both sides."""
    if isinstance(stored, dict) and isinstance(found, dict):
        for key in sorted(stored.keys() | found.keys()):
            yield from differences(stored.get(key), found.get(key), f"{path}/{key}")
    elif isinstance(stored, list) and isinstance(found, list) and len(stored) == len(found):
        for index, (left, right) in enumerate(zip(stored, found, strict=True)):
            yield from differences(left, right, f"{path}/{index}")
    elif stored != found:
        yield f"{path.lstrip('/')}: stored {stored}, found {found}"


def chosen(names: Iterable[str], only: Sequence[str]) -> list[str]:
    """The requested ones of `names`; all if none is."""
    return [name for name in names if not only or name in only]


def options(description: str) -> argparse.Namespace:
    """Options of a script that makes a file of counts: `check`, and `only`, the models to check."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="compare with the stored file instead of writing it")
    parser.add_argument("--only", type=lambda names: names.split(","), default=(), metavar="NAMES", help="check these")
    found = parser.parse_args()
    if found.only and not found.check:
        parser.error("--only goes with --check: a file holds all models")
    return found


def settle(oracle: Path, found: dict[str, Any], parts: Sequence[str], *, args: argparse.Namespace) -> int:
    """Writes what was found or, with --check, compares its `parts` with what is stored; the exit code of a script."""
    models = sum(len(found[part]) for part in parts)
    if not args.check:
        oracle.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(f"{oracle.name}: {models} models written")
        return 0
    stored = json.loads(oracle.read_text(encoding="utf-8"))  # whose versions may differ, numbers may not
    kept = {part: {name: stored[part][name] for name in chosen(stored[part], args.only)} for part in parts}
    lines = [line for part in parts for line in differences(kept[part], found[part])]
    print("\n".join(lines) or f"{oracle.name}: {models} models, no difference")
    return 1 if lines else 0


def main() -> int:
    args = options("Make or check tests/oracle/flops.json.")
    transformers.logging.set_verbosity_error()
    return settle(ORACLE, make(args.only), ("models", "hybrids"), args=args)


if __name__ == "__main__":
    sys.exit(main())
