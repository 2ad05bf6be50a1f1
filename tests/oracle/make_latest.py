"""Count the matrix-product FLOPs and parameters of recent small models with torch's counter; write latest.json.

transformers builds each of `CONFIGS` on the CPU with random weights and runs a prefill of LENGTH tokens and a decode
step after it under `torch.utils.flop_counter.FlopCounterMode`. FLOPs are those that no module inside counts, layers
folded, and without short convolutions. A multiply-accumulate is 2 FLOPs. Experts of LongCat-Flash are left out, as how
many of a token's have matrices is up to chance; of parameters those are left out that its class keeps for experts that
have none.

    python tests/oracle/make_latest.py           rewrite latest.json
    ... --check                                  exit 1 where it differs
    ... --check --only dory,zaya                 of these models
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from make_flops import chosen, options, own_flops, settle
from make_parameters import idle
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Cache,
    DynamicCache,
    Glm5NextTextModel,
    MistralLarge4TextModel,
    MuseGlimmerTextModel,
    MuseSparkTextModel,
    PreTrainedModel,
    Step3p7TextModel,
)

ORACLE = Path(__file__).resolve().parent / "latest.json"
BATCH, LENGTH = 2, 24
_LATENT = {
    "vocab_size": 96, "hidden_size": 64, "num_attention_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 20,
    "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10,
}  # fmt: skip
_GROUPED = {
    "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2}
_GLM5 = {
    **_LATENT, "qk_rope_head_dim": 0, "intermediate_size": 80, "moe_intermediate_size": 32, "num_hidden_layers": 5,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "num_key_value_heads": 4, "index_n_heads": 3,
    "index_head_dim": 16, "index_topk": 40, "index_kpool": 4, "linear_num_heads": 2, "linear_head_dim": 16,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {  # by model_type, and what is said of it besides

    "apertus1p5_text": {**_GROUPED, "intermediate_size": 80, "output_vocab_size": 70},
    "dory": {
        **_GROUPED, "num_hidden_layers": 6, "intermediate_size": 80, "sliding_window": 30, "n_input_layers": 1,
        "n_output_layers": 2, "n_recurrent_loops": 3,
    },
    "hy_v4": {
        **_LATENT, "intermediate_size": 80, "moe_intermediate_size": 32, "num_hidden_layers": 6, "n_routed_experts": 8,
        "num_experts_per_tok": 2, "index_n_heads": 3, "index_head_dim": 16, "index_topk": 40, "hc_mult": 3,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    },
    "longcat_flash": {
        **_LATENT, "ffn_hidden_size": 80, "expert_ffn_hidden_size": 32, "num_layers": 3, "n_routed_experts": 8,
        "zero_expert_num": 4, "moe_topk": 3, "head_dim": 8,
    },
    "axk1": {
        **_LATENT, "intermediate_size": 80, "moe_intermediate_size": 32, "num_hidden_layers": 3, "n_routed_experts": 8,
        "num_experts_per_tok": 2, "n_shared_experts": 1, "num_key_value_heads": 4, "head_dim": 8, "n_group": 2,
        "topk_group": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    },
    "axk2": {
        **_LATENT, "intermediate_size": 80, "moe_intermediate_size": 32, "num_hidden_layers": 3, "n_routed_experts": 8,
        "num_experts_per_tok": 2, "num_key_value_heads": 4, "index_n_heads": 3, "index_head_dim": 16, "index_topk": 40,
        "gated_norm_rank": 6, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    },
    "cohere_compass_text": {
        **_GROUPED, "intermediate_size": 80, "sliding_window": 30,
        "layer_types": [*["sliding_attention"] * 3, "full_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]},
            "full_attention": None,
        },
    },
    "diffllama": {**_GROUPED, "intermediate_size": 80},
    "dots3_note_text": {
        **_LATENT, "intermediate_size": 80, "moe_intermediate_size": 32, "num_hidden_layers": 5, "n_routed_experts": 8,
        "num_experts_per_tok": 2, "num_key_value_heads": 4, "shared_experts_intermediate_size": 24, "head_dim": 20,
        "index_n_heads": 3, "index_head_dim": 16, "index_topk": 40, "sliding_window": 30, "swa_num_attention_heads": 2,
        "swa_num_key_value_heads": 2, "swa_q_lora_rank": 18, "swa_kv_lora_rank": 14, "swa_head_dim": 22,
        "swa_qk_nope_head_dim": 16, "swa_v_head_dim": 6, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    },
    "flex_olmo": {**_GROUPED, "intermediate_size": 32, **_EXPERTS},
    "flint": {
        **_GROUPED, **_EXPERTS, "num_hidden_layers": 6, "intermediate_size": 80, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 24, "sliding_window": 30,
    },
    "glm5_next_text": _GLM5,
    "glm5_next_text without delta attention": {**_GLM5, "layer_types": ["indexed_attention"] * 5},
    "granitemoe_swa": {
        **_GROUPED, "intermediate_size": 32, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 30,
        "shared_intermediate_size": 24, "layer_rope_theta": [0, 1e4, 1e4, 1e4],
    },
    "hrm_text": {
        "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 16,
        "intermediate_size": 80, "prefix_lm": False,
    },
    "hyperclovax": {**_GROUPED, "intermediate_size": 80},
    "inkling_text": {
        **_GROUPED, "intermediate_size": 80, "moe_intermediate_size": 32, "n_routed_experts": 8,
        "num_experts_per_tok": 2, "swa_num_attention_heads": 6, "swa_num_key_value_heads": 3, "swa_head_dim": 12,
        "sliding_window_size": 30, "d_rel": 5, "rel_extent": 40, "mlp_layer_types": ["dense", *["sparse"] * 3],
        "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding", "hybrid"],
    },
    "inkling2_text": {
        **_GROUPED, "num_hidden_layers": 6, "moe_intermediate_size": 32, "n_routed_experts": 8,
        "num_experts_per_tok": 2, "unpadded_vocab_size": 90, "swa_num_attention_heads": 6,
        "swa_num_key_value_heads": 3, "swa_head_dim": 12,
        "sliding_window_size": 30, "d_rel": 5, "rel_extent": 40, "n_layers_per_attn_res_block": 2,
        "layer_types": ["hybrid_sliding", "hybrid", *["hybrid_sliding"] * 3, "hybrid"],
    },
    "inkling2_loop_text": {
        **_GROUPED, "num_hidden_layers": 8, "moe_intermediate_size": 32, "n_routed_experts": 8,
        "num_experts_per_tok": 2, "unpadded_vocab_size": 90, "swa_num_attention_heads": 6,
        "swa_num_key_value_heads": 3, "swa_head_dim": 12, "sliding_window_size": 30, "d_rel": 5, "rel_extent": 40,
        "n_layers_per_attn_res_block": 2, "loop_layer_index_start": 2, "loop_layer_index_end": 6,
        "loop_num_passes": 3, "loop_gate_rank": 7,
        "layer_types": ["hybrid_sliding", "hybrid", *["hybrid_sliding"] * 3, "hybrid", *["hybrid_sliding"] * 2],
    },
    "iquestcoder": {**_GROUPED, "intermediate_size": 80},
    "jetmoe": {
        "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 3, "num_key_value_heads": 2, "kv_channels": 12,
        "intermediate_size": 32, "num_local_experts": 8, "num_experts_per_tok": 3,
    },
    "kolibri1": {
        **_GROUPED, **_EXPERTS, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 24,
        "sliding_window": 30,
    },
    "lara_mini": {
        **_GROUPED, **_EXPERTS, "num_hidden_layers": 6, "moe_intermediate_size": 32, "sliding_window": 30,
        "shared_expert_intermediate_size": 24, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 8, "linear_value_head_dim": 12,
    },
    "laguna": {
        **_GROUPED, **_EXPERTS, "intermediate_size": 80, "moe_intermediate_size": 32, "sliding_window": 30,
        "shared_expert_intermediate_size": 24, "num_attention_heads_per_layer": [4, 6, 6, 4],
        "layer_types": ["full_attention", *["sliding_attention"] * 2, "full_attention"],
    },
    "lfm3": {**_GROUPED, "intermediate_size": 80, "sliding_window": 30, "conv_L_cache": 5},
    "mellum": {
        **_GROUPED, **_EXPERTS, "intermediate_size": 80, "moe_intermediate_size": 32, "sliding_window": 30,
        "layer_types": ["full_attention", *["sliding_attention"] * 2, "full_attention"],
        "mlp_layer_types": ["dense", *["sparse"] * 3],
    },
    "mistral_large4_text": {
        **{key: value for key, value in _LATENT.items() if key != "q_lora_rank"}, "intermediate_size": 80,
        "moe_intermediate_size": 32, "num_hidden_layers": 8, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "num_key_value_heads": 4, "index_n_heads": 3, "index_head_dim": 16, "index_topk": 40, "pad_token_id": 0,
        "indexer_types": ["full", "full", "shared", "full", *["shared"] * 4],
        "kv_source_layers": [0, 1, 1, 3, 4, 4, 4, 3],
    },
    "modernbert-decoder": {
        "vocab_size": 96, "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 4, "num_attention_heads": 4,
        "local_attention": 60, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1,
        "sep_token_id": 2,
    },
    "muse_glimmer_text": {**_GROUPED, "num_hidden_layers": 5, "intermediate_size": 80, "sliding_window": 30},
    "muse_spark_text": {
        **_GROUPED, "num_hidden_layers": 5, "intermediate_size": 80, "sliding_window": 30, "moe_intermediate_size": 32,
        "num_local_experts": 8, "num_experts_per_tok": 2, "moe_hidden_size": 24,
        "mlp_layer_types": ["dense", *["sparse"] * 4],
    },
    "nanochat": {**_GROUPED, "intermediate_size": 80},
    "persimmon": {**_GROUPED, "intermediate_size": 80},
    "sarvam_mla": {
        **_LATENT, "q_lora_rank": None, "intermediate_size": 80, "moe_intermediate_size": 32, "num_hidden_layers": 3,
        "n_routed_experts": 8, "num_experts_per_tok": 2, "num_key_value_heads": 4, "head_dim": 8,
    },
    "sarvam_moe": {
        **_GROUPED, "intermediate_size": 80, "moe_intermediate_size": 32, "n_routed_experts": 8,
        "num_experts_per_tok": 2, "attention_bias": True,
    },
    "qwen4_exp_text": {
        **_GROUPED, **_EXPERTS, "num_hidden_layers": 5, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 24, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 8, "linear_value_head_dim": 12, "hc_lowrank": 6, "indexer_n_heads": 3,
        "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 40, "indexer_compress_ratio": 4,
        "ple_layer_ids": [2], "ple_embed_dim": 32, "heads_per_ngram": 4, "ngram_vocab_size_base": 50,
    },
    "youtu": {**_LATENT, "intermediate_size": 80, "num_hidden_layers": 3, "head_dim": 8, "num_key_value_heads": 4},
    "zamba": {
        "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 9, "num_attention_heads": 4, "n_mamba_heads": 2,
        "num_key_value_heads": 4, "intermediate_size": 80, "mamba_d_state": 6, "mamba_dt_rank": 5,
    },
    "zaya": {
        **_GROUPED, "num_hidden_layers": 3, "moe_intermediate_size": 32, "num_experts": 8, "router_hidden_size": 24,
        "cca_time0": 3, "sliding_window": 30, "layer_types": ["hybrid", "hybrid_sliding", "hybrid"],
    },
    "step3p5": {
        "vocab_size": 96, "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 5, "num_attention_heads": 4,
        "num_attention_groups": 2, "head_dim": 12, "attention_other_setting": {"num_attention_heads": 6},
        "layer_types": ["full_attention", *["sliding_attention"] * 3, "full_attention"], "sliding_window": 30,
        "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0, 0.5], "moe_intermediate_size": 32, "share_expert_dim": 24,
        "moe_layers_enum": "2,3,4", "moe_num_experts": 8, "moe_top_k": 2,
    },
}  # fmt: skip
HEADLESS = {  # language models of those that see, which have no head by themselves
    "step3p5": Step3p7TextModel,
    "mistral_large4_text": MistralLarge4TextModel,
    "glm5_next_text": Glm5NextTextModel,
    "muse_glimmer_text": MuseGlimmerTextModel,
    "muse_spark_text": MuseSparkTextModel,
}


def main() -> int:
    args = options("Make or check tests/oracle/latest.json.")
    models = {name: _counted(name) for name in chosen(CONFIGS, args.only)}
    return settle(ORACLE, {"batch": BATCH, "length": LENGTH, "models": models}, ("models",), args=args)


def _counted(name: str) -> dict[str, Any]:
    torch.manual_seed(0)
    model_type = name.split(maxsplit=1)[0]
    config = AutoConfig.for_model(model_type, **CONFIGS[name])
    config._attn_implementation = config._experts_implementation = "eager"
    headless = HEADLESS.get(model_type)
    model = (headless(config) if headless else AutoModelForCausalLM.from_config(config)).eval()
    tokens = torch.randint(3, config.vocab_size, (BATCH, LENGTH + 1))
    cache = DynamicCache(config=model.config)
    return {
        "config": {"model_type": model_type, **CONFIGS[name]},
        "parameters": sum(p.numel() for p in model.parameters()) - idle(model),
        "prefill": _flops(model, tokens[:, :-1], cache),
        "decode": _flops(model, tokens[:, -1:], cache),
    }


def _flops(model: PreTrainedModel, tokens: torch.Tensor, cache: Cache) -> dict[str, int]:
    none = {torch.ops.aten.convolution: lambda *_, **__: 0}
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=none) as counter:
        model(tokens, cache=cache, use_cache=True)
    return {path: n for path, n in own_flops(counter).items() if not (idle(model) and path.endswith("experts"))}


if __name__ == "__main__":
    raise SystemExit(main())
