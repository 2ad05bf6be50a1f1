"""File types of llama.cpp (Q4_K_M, Q8_0, ...): the ggml type in which llama-quantize stores each tensor.

Source: llama_tensor_get_type_impl() in github.com/ggml-org/llama.cpp, src/llama-quant.cpp at 007dbbf; without an
importance matrix unless the file type needs one, and without the rules for Falcon.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeAlias

from ..ggml import BY_NAME
from ..graph import Graph
from ..operators.attention import Attention
from ..operators.base import Operator, Weight
from ..operators.embedding import Embedding
from ..operators.linear import ExpertsLinear, Linear, LMHead, Router
from ..precision import Format
from ..records import frozen

Place: TypeAlias = tuple[str, int | None]  # (name of a weight, layer)


@frozen(kw_only=True)
class _Facts:
    """Facts of a model that the rules depend on.

    grouped  whether at least four query heads share a key head
    tied     whether embedding and head share a table
    """

    layers: int
    experts: int
    grouped: bool
    tied: bool


@frozen
class _Seat:
    """Layer i of the n layers that have such a tensor."""

    i: int
    n: int
    facts: _Facts


_When: TypeAlias = Callable[[_Seat], bool]
_Rules: TypeAlias = tuple[tuple[str, _When], ...]  # the first rule that holds gives the type


def _any_layer(seat: _Seat) -> bool:  # noqa: ARG001
    return True


def _more_bits(seat: _Seat) -> bool:
    """Whether the layer is in the first or last eighth, or each third one between (`use_more_bits` of llama.cpp)."""
    eighth = seat.n // 8
    return seat.i < eighth or seat.i >= 7 * seat.n // 8 or (seat.i - eighth) % 3 == 2


def _eighth(seat: _Seat) -> bool:
    return seat.i < seat.n // 8


def _sixteenth(seat: _Seat) -> bool:
    return seat.i < seat.n // 16


def _middle(seat: _Seat) -> bool:
    return seat.n // 8 <= seat.i < 7 * seat.n // 8


def _grouped(seat: _Seat) -> bool:
    return seat.facts.grouped


def _shared(seat: _Seat) -> bool:
    """Whether values are a small part of the weights: query heads share them, or there are four or more experts."""
    return seat.facts.grouped or seat.facts.experts >= 4


def _first(count: int) -> _When:
    return lambda seat: seat.i < count


@frozen(kw_only=True)
class Mixture:
    """A file type: ggml types by matrix and layer, and `base` for all others.

    values to gate  rules by layer; `values` also for fused q, k and v projections, `gate` also for up projections
    table, head     embedding and prediction head; a tied table is stored as the head
    eight           output projection in models of eight experts; "": `base`
    low             at most two bits: keys and values of models with eight experts or 80 layers are not raised
    experts         experts; "": `base`
    """

    name: str
    base: str
    values: _Rules = ()
    keys: _Rules = ()
    queries: _Rules = ()
    output: _Rules = ()
    down: _Rules = ()
    gate: _Rules = ()
    table: str = ""
    head: str = "q6_k"
    eight: str = ""
    low: bool = False
    experts: str = ""

    @property
    def format(self) -> Format:
        return BY_NAME[self.base].format

    def formats(self, graph: Graph) -> dict[Place, Format]:
        """The formats of all weights of the decoder."""
        facts = _facts(graph)
        seats = _seats(graph, facts)
        return {
            (weight.name, layer): _stored(self._type(op, weight, seats.get((op.name, layer)), facts), weight)
            for block, op in graph
            if block.main
            for weight in op.weights
            for layer in block.layers or (None,)
        }

    def _type(self, op: Operator, weight: Weight, seat: _Seat | None, facts: _Facts) -> str:
        """The ggml type of `weight`; vectors, convolutions and routers are not quantized."""
        if weight != op.weights[0] or not isinstance(op, Linear | Embedding) or isinstance(op, Router):
            return "f32"
        if isinstance(op, LMHead) or (facts.tied and isinstance(op, Embedding)):
            whole_blocks = weight.shape[-1] % BY_NAME[self.base].elements == 0
            return self.head if whole_blocks and self.base != "q8_0" else "q8_0"
        if isinstance(op, Embedding):
            return self.table or self.base
        if isinstance(op, ExpertsLinear) and self.experts:
            return self.experts
        return self._of(_ROLES[op.name], seat) if seat else self.base

    def _of(self, role: str, seat: _Seat) -> str:
        ruled_type = next((name for name, holds in getattr(self, role) if holds(seat)), self.base)
        eight = seat.facts.experts == 8
        if role == "output" and eight:
            return self.eight or self.base
        if self.low:
            return "q4_k" if role == "keys" and eight else ruled_type
        if role in ("values", "keys") and eight:
            return "q8_0"
        if role == "values" and seat.facts.layers == _LAYERS_OF_70B and ruled_type in ("q3_k", "q4_k"):
            return "q5_k"
        return ruled_type


_LAYERS_OF_70B: Final = 80
_ROLES: Final = {
    "v_proj": "values", "qkv_proj": "values", "k_proj": "keys", "q_proj": "queries", "o_proj": "output",
    "down_proj": "down", "expert_down_proj": "down", "shared_down_proj": "down",
    "gate_proj": "gate", "up_proj": "gate", "gate_up_proj": "gate",
    "expert_gate_proj": "gate", "expert_up_proj": "gate", "shared_gate_proj": "gate", "shared_up_proj": "gate",
}  # fmt: skip
_WIDER: Final = {  # types for rows that are no multiple of 256 elements
    "q2_k": "q4_0", "q3_k": "q4_0", "tq1_0": "q4_0", "tq2_0": "q4_0", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0",
}  # fmt: skip
_LOW: Final = Mixture(
    name="", base="q2_k", values=(("q4_k", _shared), ("q2_k", _any_layer)), down=(("q2_k", _eighth),), table="q2_k",
    head="q5_k", eight="q5_k", low=True,
)  # fmt: skip
_LOW_IQ2: Final = replace(
    _LOW, values=(("q4_k", _shared), ("iq3_s", _any_layer)), down=(("iq3_s", _eighth),),
    output=(("iq3_s", _any_layer),), table="iq3_s",
)  # fmt: skip
_FILE_TYPES: Final = (
    Mixture(name="Q4_0", base="q4_0"),
    Mixture(name="Q4_1", base="q4_1"),
    Mixture(name="Q5_0", base="q5_0"),
    Mixture(name="Q5_1", base="q5_1"),
    Mixture(name="Q8_0", base="q8_0"),
    Mixture(name="Q6_K", base="q6_k"),
    Mixture(
        name="Q2_K", base="q2_k", values=(("q4_k", _grouped), ("q3_k", _any_layer)), down=(("q3_k", _any_layer),),
        output=(("q3_k", _any_layer),), eight="q5_k",
    ),
    Mixture(name="Q2_K_S", base="q2_k", values=(("q4_k", _grouped),), down=(("q4_k", _eighth),)),
    Mixture(name="Q3_K_S", base="q3_k", eight="q5_k"),
    Mixture(
        name="Q3_K_M", base="q3_k", values=(("q5_k", _first(2)), ("q4_k", _any_layer)),
        down=(("q5_k", _sixteenth), ("q4_k", _any_layer)), output=(("q4_k", _any_layer),), eight="q5_k",
    ),
    Mixture(
        name="Q3_K_L", base="q3_k", values=(("q5_k", _any_layer),), down=(("q5_k", _any_layer),),
        output=(("q5_k", _any_layer),),
    ),
    Mixture(name="Q4_K_S", base="q4_k", values=(("q5_k", _first(4)),), down=(("q5_k", _eighth),), eight="q5_k"),
    Mixture(name="Q4_K_M", base="q4_k", values=(("q6_k", _more_bits),), down=(("q6_k", _more_bits),), eight="q5_k"),
    Mixture(name="Q5_K_S", base="q5_k"),
    Mixture(name="Q5_K_M", base="q5_k", values=(("q6_k", _more_bits),), down=(("q6_k", _more_bits),)),
    Mixture(name="IQ4_NL", base="iq4_nl", values=(("q5_k", _grouped),), down=(("q5_k", _eighth),), eight="q5_k"),
    Mixture(name="IQ4_XS", base="iq4_xs", values=(("q5_k", _grouped),), down=(("q5_k", _eighth),), eight="q5_k"),
    Mixture(
        name="IQ3_M", base="iq3_s", values=(("q4_k", _any_layer),), down=(("q4_k", _eighth),),
        output=(("q4_k", _any_layer),), eight="q5_k",
    ),
    Mixture(name="IQ3_S", base="iq3_s", values=(("q4_k", _grouped),), eight="q5_k"),
    Mixture(
        name="IQ3_XS", base="iq3_s", values=(("q4_k", _grouped),), keys=(("iq3_xxs", _any_layer),),
        queries=(("iq3_xxs", _any_layer),), gate=(("iq3_xxs", _middle),), eight="q5_k",
    ),
    Mixture(
        name="IQ3_XXS", base="iq3_xxs", values=(("q4_k", _grouped),), keys=(("iq2_s", _any_layer),),
        queries=(("iq2_s", _any_layer),), output=(("iq3_s", _any_layer),), table="iq3_s", head="q5_k", eight="q5_k",
    ),
    replace(_LOW_IQ2, name="IQ2_M", base="iq2_s"),
    replace(_LOW_IQ2, name="IQ2_S", base="iq2_xs"),
    replace(_LOW, name="IQ2_XS", base="iq2_xs"),
    replace(_LOW, name="IQ2_XXS", base="iq2_xxs"),
    replace(_LOW, name="IQ1_M", base="iq1_m", output=(("iq2_xxs", _any_layer),)),
    replace(_LOW, name="IQ1_S", base="iq1_s", output=(("iq2_xxs", _any_layer),)),
    Mixture(name="TQ1_0", base="tq1_0", table="q4_k"),
    Mixture(name="TQ2_0", base="tq2_0", table="q4_k"),
    Mixture(name="MXFP4_MOE", base="q8_0", experts="mxfp4"),
)  # fmt: skip
_ALIASES: Final = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
_BY_NAME: Final = {one.name: one for one in _FILE_TYPES}
MIXTURES: Final = _BY_NAME | {alias: _BY_NAME[name] for alias, name in _ALIASES.items()}


def _facts(graph: Graph) -> _Facts:
    heads = next((op.heads for _, op in graph if isinstance(op, Attention)), None)
    return _Facts(
        layers=graph.layers,
        experts=next((op.weight.shape[0] for _, op in graph if isinstance(op, ExpertsLinear)), 1),
        grouped=heads is not None and heads.num_heads >= 4 * heads.num_kv_heads,
        tied=any(weight.tied for _, op in graph if isinstance(op, LMHead) for weight in op.weights),
    )


def _seats(graph: Graph, facts: _Facts) -> dict[Place, _Seat]:
    """Seats by operator and layer: of values among the layers that have values, of others among all layers."""
    having = sorted({i for block, op in graph if _ROLES.get(op.name) == "values" for i in block.layers if block.main})
    place = {layer: i for i, layer in enumerate(having)}
    return {
        (op.name, layer): _Seat(place[layer], len(having), facts)
        if _ROLES[op.name] == "values"
        else _Seat(layer, facts.layers, facts)
        for block, op in graph
        if block.main and op.name in _ROLES
        for layer in block.layers
    }


def _stored(name: str, weight: Weight) -> Format:
    """The format of type `name`, or of one whose blocks divide the rows of the weight."""
    types = (BY_NAME[one] for one in (name, _WIDER.get(name, "iq4_nl"), "f16"))
    return next(one.format for one in types if weight.shape[-1] % one.elements == 0)
