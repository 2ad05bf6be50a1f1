"""Module names of checkpoints and configs, and the operators that they stand for.

A config has names such as "model.layers.3.self_attn.q_proj", "re:.*mlp.gate$", "*self_attn*", "gate" or "lm_head"; an
operator is q_proj of layer 3. An operator has all names that any model family uses for it. The first expert stands for
all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property, lru_cache
from typing import Final

_ROOTS: Final = re.compile(
    r"(?:model\.language_model|language_model\.model|language_model|model\.decoder|transformer\.encoder|transformer"
    r"|gpt_neox|backbone|model)\."
)
_LAYER: Final = re.compile(r"(?:layers|h|blocks)\.(\d+|\*)(\*?)(?:\.(.+))?")
_FULL: Final = ("model.layers.{}.{}", "layers.{}.{}", "language_model.model.layers.{}.{}")
_EXPERT: Final = re.compile(r"experts\.\d+\.")
_WILD: Final = re.compile(r"[*?\[]")

_MIXERS: Final = ("self_attn", "attn", "attention", "self_attention", "mixer")
_STATES: Final = ("linear_attn", "mixer", "mamba")
_FEED_FORWARDS: Final = ("mlp", "feed_forward", "ffn", "block_sparse_moe", "mixer", "moe")
_FUSED: Final = ("qkv_proj", "query_key_value", "c_attn", "Wqkv", "W_pack", "qkv")
_Q: Final = ("q_proj", "wq", *_FUSED)
_K: Final = ("k_proj", "wk", *_FUSED)
_V: Final = ("v_proj", "wv", *_FUSED)
_GATE: Final = ("gate_proj", "gate_up_proj", "w1")
_UP: Final = ("up_proj", "gate_up_proj", "w3", "fc1", "c_fc", "fc_in", "dense_h_to_4h")
_DOWN: Final = ("down_proj", "w2", "fc2", "c_proj", "fc_out", "dense_4h_to_h")
_BLOCKS: Final = {  # operators of attention: names after self_attn
    "q_proj": _Q,
    "k_proj": _K,
    "v_proj": _V,
    "qkv_proj": (*_Q, *_K, *_V),
    "o_proj": ("o_proj", "out_proj", "wo", "dense", "c_proj"),
    "q_a_proj": ("q_a_proj", "wq_a", "fused_qkv_a_proj"),
    "q_b_proj": ("q_b_proj", "wq_b"),
    "q_gate_proj": ("q_gate_proj",),
    "kv_a_proj": ("kv_a_proj_with_mqa", "kv_a_proj", "wkv_a", "wkv", "fused_qkv_a_proj"),
    "kv_b_proj": ("kv_b_proj", "wkv_b"),
    "kv_proj": ("kv_proj", "wkv"),
    "o_a_proj": ("o_a_proj",),
    "o_b_proj": ("o_b_proj",),
    "compressed_kv_proj": ("compressor.kv_proj",),
    "compressed_gate_proj": ("compressor.gate_proj",),
    "index_q_proj": ("indexer.wq_b", "compressor.indexer.q_b_proj", "indexer.q_proj"),
    "index_k_proj": ("indexer.wk", "indexer.k_proj"),
    "index_kv_proj": ("compressor.indexer.kv_proj",),
    "index_gate_proj": ("compressor.indexer.gate_proj",),
    "index_weights": ("indexer.weights_proj", "indexers_proj", "compressor.indexer.scorer.weights_proj"),
}
_KDA: Final = ("f_proj", "f_a_proj", "f_b_proj", "g_proj", "g_a_proj", "g_b_proj", "b_proj")  # besides q, k and v
_MLP: Final = {"gate_proj": _GATE, "up_proj": _UP, "gate_up_proj": (*_GATE, *_UP), "down_proj": _DOWN}


def _below(parents: Iterable[str], names: Iterable[str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(names))
    return tuple(f"{parent}.{name}" for parent in parents for name in names)


def _all_tails() -> Iterator[tuple[str, tuple[str, ...]]]:
    """(operator, names of its modules within a layer)."""
    for op, names in _BLOCKS.items():
        yield op, _below(_MIXERS, names)
    for op in _KDA:
        yield op, (*_below((*_MIXERS, *_STATES), (op, f"forget_gate.{op}")), op)
    for op, names in _MLP.items():
        bare = tuple(name for name in names if name.startswith("fc"))
        yield op, (*_below(_FEED_FORWARDS, names), *bare)
        yield f"expert_{op}", _below((f"{p}.experts{one}" for p in _FEED_FORWARDS for one in (".0", "")), names)
        kinds = ("shared_experts", "shared_expert", "shared_mlp")
        yield f"shared_{op}", _below((f"{p}.{kind}" for p in _FEED_FORWARDS for kind in kinds), names)
    yield "router", (*_below(_FEED_FORWARDS, ("gate", "router", "router.layer", "gate.wg")), "router")
    yield "shared_gate", _below(_FEED_FORWARDS, ("shared_expert_gate",))
    yield "qkvz_proj", _below(_STATES, ("in_proj_qkvz", "in_proj_qkv", "in_proj_z"))
    yield "ba_proj", _below(_STATES, ("in_proj_ba", "in_proj_a", "in_proj_b"))
    yield "lm_head", ("lm_head", "head", "output", "embed_out")


_TAILS: Final = dict(_all_tails())


@cache
def tails(op: str) -> tuple[str, ...]:
    """Possible module names of an operator, within its layer if it has one."""
    return _TAILS.get(op) or (*_below(_STATES, (op,)), op)


@dataclass(frozen=True)
class ModuleNames:
    """A list of modules, by name, pattern or regular expression ("re:...").

    anywhere  patterns without a layer number, or with one in another notation
    layers    (layer, pattern of the rest; "": the whole layer)
    starts    the same for layers whose number begins with these digits, as in "model.layers.1*"
    """

    anywhere: tuple[str, ...] = ()
    layers: frozenset[tuple[int, str]] = frozenset()
    starts: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, patterns: Iterable[str]) -> ModuleNames:
        """The list of `patterns`. Raises re.error for an invalid regular expression."""
        anywhere: dict[str, None] = {}
        layers: set[tuple[int, str]] = set()
        starts: dict[tuple[str, str], None] = {}
        for pattern in patterns:
            if pattern.startswith("re:"):
                re.compile(pattern[3:])
                anywhere[pattern] = None
                continue
            name = _rootless(pattern)
            layer = _LAYER.fullmatch(name)
            if layer is None:
                anywhere[name] = None
            elif layer[1] == "*":
                anywhere[layer[3] or "*"] = None
            elif layer[2]:
                starts[layer[1], layer[3] or ""] = None
            else:
                layers.add((int(layer[1]), layer[3] or ""))
        return cls(anywhere=tuple(anywhere), layers=frozenset(layers), starts=tuple(starts))

    @cached_property
    def by_layer(self) -> dict[int, tuple[str, ...]]:
        """Patterns after the layer number, by layer."""
        found: dict[int, tuple[str, ...]] = {}
        for layer, tail in sorted(self.layers):
            found[layer] = (*found.get(layer, ()), tail)
        return found

    def holding(self, op: str, layers: Iterable[int | None]) -> set[int | None]:
        """The `layers` whose operator `op` is in the list; None: outside all layers."""
        layers = tuple(layers)
        if any(_names(p, op, None) for p in self._alike):
            return set(layers)
        return {layer for layer in layers if self._holds(op, layer)}

    def _holds(self, op: str, layer: int | None) -> bool:
        if layer is None:
            return False
        here = (
            *self.by_layer.get(layer, ()),
            *(tail for digits, tail in self.starts if str(layer).startswith(digits)),
        )
        return any(_names(tail, op, None) for tail in here) or any(_names(p, op, layer) for p in self._layered)

    @cached_property
    def _layered(self) -> tuple[str, ...]:
        """Patterns without a layer number that may match only some layers."""
        return tuple(p for p in self.anywhere if _layered(p))

    @cached_property
    def _alike(self) -> tuple[str, ...]:
        """Patterns that match in all layers or in none."""
        return tuple(p for p in self.anywhere if p not in self._layered)


def _rootless(name: str) -> str:
    root = _ROOTS.match(name)
    return name[root.end() :] if root else name


def placed(name: str) -> tuple[int | None, str]:
    """The layer of a tensor, None if it is in none, and its name within it. All experts have the name of the first."""
    layer = _LAYER.fullmatch(_rootless(name))
    where, tail = (int(layer[1]), layer[3] or "") if layer and layer[1] != "*" else (None, _rootless(name))
    return where, _EXPERT.sub("experts.0.", tail)


def _layered(pattern: str) -> bool:
    """Whether the match of a pattern can depend on the layer."""
    return any(c.isdigit() for c in pattern) and (pattern.startswith("re:") or bool(_WILD.search(pattern)))


@lru_cache(maxsize=1 << 16)
def _names(pattern: str, op: str, layer: int | None) -> bool:
    """Whether `pattern` names a module of `op`, in layer `layer` if that matters."""
    return any(_matches(pattern, tail, 0 if layer is None else layer) for tail in tails(op))


def _matches(pattern: str, tail: str, layer: int) -> bool:
    if not pattern:
        return True
    if pattern.startswith("re:"):
        head = tail == tails("lm_head")[0]
        names = (tail,) if head else tuple(full.format(layer, tail) for full in _FULL)
        return any(re.match(pattern[3:], name) for name in names)
    if _WILD.search(pattern):
        names = (tail, f"layers.{layer}.{tail}", f"model.layers.{layer}.{tail}")
        return any(fnmatchcase(name, p) for name in names for p in (pattern, f"{pattern}.*"))
    return f".{pattern}." in f".{tail}."
