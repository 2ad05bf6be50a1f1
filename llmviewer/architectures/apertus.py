"""Apertus: norms of each query and key head, an MLP without a gate whose activation is learned (arXiv:2509.14233)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..documents import Section
from ..graph import Graph
from ..operators.base import Operator, Tensor
from ..operators.elementwise import Activation
from ..precision import Format
from . import architecture
from ._decoder import Layer
from ._feed_forward import Mlp
from ._fields import attention, decoder
from ._parts import NormKind, Parts, activation

_XIELU = "xielu"


@dataclass(frozen=True, kw_only=True)
class LearnedMlp(Mlp):
    """An MLP whose activation has two numbers that are learned (arXiv:2411.13010)."""

    def operators(self, parts: Parts, x: Tensor, prefix: str = "", act_name: str = "mlp_act") -> tuple[Operator, ...]:
        learned = tuple(parts.weight(f"{act_name}.{name}", 1) for name in ("alpha_p", "alpha_n"))
        made = super().operators(parts, x, prefix, act_name)
        return tuple(replace(op, weights=learned) if isinstance(op, Activation) else op for op in made)


@architecture("apertus")
def build(config: Section, fmt: Format) -> Graph:
    config.costless("post_norm", "qk_norm", "mlp_bias")
    act = activation(config, "hidden_act", _XIELU)
    kind = LearnedMlp if act == _XIELU else Mlp
    network = kind(inner=config.integer("intermediate_size"), act=act)
    layer = Layer(mixer=attention(config, qk_norm=NormKind.RMS), feed_forward=network)
    return decoder(config, layer).graph(fmt)
