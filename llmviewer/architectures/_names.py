"""Alternative names of config.json fields: a field asked for by one name is found under any of them.

Names are those of checkpoints and of the attribute_map of transformers, which writes others than it reads.
"""

from __future__ import annotations

from typing import Final

from ..documents import Section

_SYNONYMS: Final = (
    ("num_experts", "num_local_experts", "n_routed_experts"),
    ("num_experts_per_tok", "num_experts_per_token"),
    ("n_shared_experts", "num_shared_experts"),
    ("num_nextn_predict_layers", "num_mtp_layers", "num_mtp_modules", "mtp_num_hidden_layers"),
    ("n_group", "num_expert_group"),
    ("norm_topk_prob", "moe_renormalize"),
)
OTHER_NAMES: Final = {name: tuple(n for n in names if n != name) for names in _SYNONYMS for name in names}
_DRAFT_TYPES: Final = {"Eagle3": "eagle3", "EAGLE3": "eagle3", "Eagle": "eagle", "EAGLE": "eagle"}


def draft_type(config: Section) -> str:
    """The architecture of a draft model, by the name of its class; "": it is none. Its model_type is its layers'."""
    named = str(config.data.get("architectures"))
    return next((kind for part, kind in _DRAFT_TYPES.items() if part in named and "MTP" not in named), "")
