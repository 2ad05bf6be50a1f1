"""Formats of a graph's weights from the tensors of a GGUF file.

A weight is one tensor, is split over several, or shares one with other weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from ..graph import Block, Graph
from ..operators.base import Weight
from ..precision import Format
from .checkpoints import Checkpoint, Spot, disagreement
from .gguf_files import StoredTensor

Group: TypeAlias = tuple[str, ...]  # tensors that together hold a weight

# Operator: possible names of its tensors, of which the first in the file applies. Norms have several names.
_STEMS: Final[Mapping[str, tuple[Group, ...]]] = {
    "embed_tokens": (("token_embd",),),
    "embed_positions": (("position_embd",),),
    "embed_norm": (("token_embd_norm",),),
    "final_norm": (("output_norm",), ("token_embd_norm",)),
    "lm_head": (("output",),),
    "attn_norm": (("attn_norm_2",), ("attn_norm",), ("post_attention_norm",)),
    "attn_post_norm": (("post_attention_norm",),),
    "mlp_norm": (("ffn_norm",), ("post_ffw_norm",), ("post_attention_norm",), ("attn_norm",)),
    "mlp_post_norm": (("post_ffw_norm",),),
    "q_proj": (("attn_q",), ("attn_qkv",)),
    "k_proj": (("attn_k",), ("attn_qkv",)),
    "v_proj": (("attn_v",), ("attn_qkv",)),
    "qkv_proj": (("attn_qkv",), ("attn_q", "attn_k", "attn_v")),
    "o_proj": (("attn_output",),),
    "q_norm": (("attn_q_norm",),),
    "k_norm": (("attn_k_norm",),),
    "sinks": (("attn_sinks",),),
    "q_a_proj": (("attn_q_a",),),
    "q_a_norm": (("attn_q_a_norm",),),
    "q_b_proj": (("attn_q_b",),),
    "kv_a_proj": (("attn_kv_a_mqa",),),
    "kv_a_norm": (("attn_kv_a_norm",),),
    "kv_b_proj": (("attn_kv_b",), ("attn_k_b", "attn_v_b")),
    "gate_proj": (("ffn_gate",),),
    "up_proj": (("ffn_up",),),
    "gate_up_proj": (("ffn_gate", "ffn_up"), ("ffn_up",)),
    "down_proj": (("ffn_down",),),
    "router": (("ffn_gate_inp",), ("exp_probs_b",)),
    "expert_gate_proj": (("ffn_gate_exps",), ("ffn_gate_up_exps",)),
    "expert_up_proj": (("ffn_up_exps",), ("ffn_gate_up_exps",)),
    "expert_down_proj": (("ffn_down_exps",),),
    "shared_gate": (("ffn_gate_inp_shexp",),),
    "shared_gate_proj": (("ffn_gate_shexp",),),
    "shared_up_proj": (("ffn_up_shexp",),),
    "shared_down_proj": (("ffn_down_shexp",),),
    "in_proj": (("ssm_in",),),
    "qkvz_proj": (("attn_qkv", "attn_gate"), ("ssm_in",)),
    "z_proj": (("attn_gate",),),
    "ba_proj": (("ssm_ba",),),
    "b_proj": (("ssm_beta",),),
    "a_proj": (("ssm_alpha",),),
    "conv": (("ssm_conv1d",),),
    "x_proj": (("ssm_x",),),
    "dt_proj": (("ssm_dt",),),
    "gated_norm": (("ssm_norm",),),
    "out_proj": (("ssm_out",),),
}
_FULL_NAMES: Final = {"sinks": "attn_sinks.weight", "A_log": "ssm_a", "D": "ssm_d", "dt_bias": "ssm_dt.bias"}
# Buffers, not parameters: rotary frequencies, and router corrections used in training.
_NOT_LEARNED: Final = re.compile(r"rope_f.*|blk\.\d+\.(attn_rot_embd|exp_probs_b)\..*")
_LAYER: Final = re.compile(r"(blk\.\d+\.).*")
_PREDICTS: Final = ".nextn."


def gguf_checkpoint(
    tensors: Mapping[str, StoredTensor], graph: Graph, *, model_format: Format, file: str
) -> Checkpoint:
    """The formats of the tensors of a GGUF file; with a note if its parameters differ from the graph's."""
    tensors = _of_the_decoder(tensors)
    formats: dict[Spot, Format] = {}
    claims: dict[Group, int] = {}
    missing = []
    for block, w, layer in _places(graph):
        group = _group(w, layer, tensors)
        if group is None:
            missing.append(_names(w, layer)[0][0])
            continue
        formats[block.name, w.name, layer] = _format([tensors[name] for name in group])
        claims[group] = claims.get(group, 0) + (0 if w.tied else w.numel)
    counted = {name for group in claims for name in group}
    differing = [
        group[0] for group, numel in claims.items() if numel and numel != sum(tensors[name].numel for name in group)
    ]
    learned = {name: t for name, t in tensors.items() if name in counted or not _NOT_LEARNED.fullmatch(name)}
    extra = [name for name in learned if name not in counted]
    stored = sum(t.numel for t in learned.values())
    return Checkpoint(
        model_format=model_format,
        formats=formats,
        notes=disagreement(file, stored, graph, missing=missing, extra=extra, differing=differing),
    )


def _of_the_decoder(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The tensors without multi-token prediction layers, which plain decoding does not run."""
    beyond = {match[1] for name in tensors if _PREDICTS in name and (match := _LAYER.fullmatch(name))}
    return {name: t for name, t in tensors.items() if not (match := _LAYER.fullmatch(name)) or match[1] not in beyond}


def _places(graph: Graph) -> Iterator[tuple[Block, Weight, int | None]]:
    """(block, weight, layer) of every weight of a graph."""
    for block, op in graph:
        for w in op.weights:
            for layer in block.layers or (None,):
                yield block, w, layer


def _group(w: Weight, layer: int | None, tensors: Mapping[str, StoredTensor]) -> Group | None:
    names = _names(w, layer)
    if w.tied:
        names = (*names, ("token_embd.weight",))
    return next((group for group in names if all(name in tensors for name in group)), None)


def _names(w: Weight, layer: int | None) -> tuple[Group, ...]:
    """Possible names of a weight's tensors."""
    place = "" if layer is None else f"blk.{layer}."
    if w.name in _FULL_NAMES:
        return ((f"{place}{_FULL_NAMES[w.name]}",),)
    op, _, leaf = w.name.rpartition(".")
    return tuple(tuple(f"{place}{stem}.{leaf}" for stem in group) for group in _STEMS.get(op, ((op,),)))


def _format(tensors: Sequence[StoredTensor]) -> Format:
    """The format of a weight held by `tensors`, with their mean bits if they differ."""
    formats = tuple(dict.fromkeys(t.format for t in tensors))
    if len(formats) == 1:
        return formats[0]
    bits = sum(t.numel * t.format.stored_bits for t in tensors) / sum(t.numel for t in tensors)
    return Format("+".join(str(fmt) for fmt in formats), bits, "table")
