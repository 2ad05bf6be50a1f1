"""Hyper-connections: several residual streams in place of one (arXiv:2512.24880)."""

from __future__ import annotations

from dataclasses import replace

from ...operators.base import Operator, Tensor, Weight
from ...operators.elementwise import Add, Elementwise
from ...operators.hyper_connections import StreamsIn
from ...precision import FP32
from ...records import frozen
from .parts import Parts


@frozen(kw_only=True)
class HyperConnections:
    """`streams` residual streams side by side in one tensor, mixed by a matrix from `iterations` of Sinkhorn-Knopp.

    With 0 iterations streams are not mixed with each other, and a result is added to each.
    """

    streams: int
    iterations: int

    def taken(self, parts: Parts, name: str, x: Tensor) -> tuple[tuple[Operator, ...], Tensor]:
        """Operators that mix the streams into the input of a branch, and the weights that return its result."""
        mixes = bool(self.iterations)
        mixture = self.streams * (1 + self.streams) if mixes else self.streams
        back = replace(parts.tensor(f"{name}_hc_mix", mixture), format=FP32)
        operators = self._collapsed(parts, f"{name}_hc", x, self.streams + mixture, scales=2 + mixes, back=(back,))
        return (operators, parts.norm(f"{name}_norm", operators.result)), back

    def merged(self, parts: Parts, name: str, x: Tensor, branch: Tensor, back: Tensor) -> Elementwise:
        """Every stream as a mixture of all of them, or itself, and of `branch`."""
        out = parts.tensor(name, x.width)
        return Elementwise(
            name=name,
            kind="hyper_connection",
            inputs=(x, branch, back),
            outputs=(out,),
            ops_per_element=2 * self.streams + 1 if self.iterations else 2,
        )

    def last(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        """Operators that mix the streams into the input of the last norm."""
        return (self._collapsed(parts, "hc_head", x, self.streams, scales=1),)

    def joined(self, parts: Parts, x: Tensor, embedded: Tensor) -> tuple[Operator, ...]:
        """Every stream with the embedding of the next token, each after a norm and a projection."""
        norms = [parts.norm("enorm", embedded), parts.norm("hnorm", x, shared=self.streams)]
        each = replace(x, name="hnorm", width=embedded.width, rows=self.streams * x.rows)
        norms[1] = replace(norms[1], outputs=(each,))
        e_proj = parts.project("e_proj", norms[0].result, embedded.width)
        h_proj = parts.project("h_proj", each, embedded.width)
        h_proj = replace(h_proj, outputs=(replace(each, name="h_proj"),))
        out = parts.tensor("mtp_add", x.width)
        add = Add(name="mtp_add", inputs=(*h_proj.outputs, *e_proj.outputs), outputs=(out,), ops_per_element=1)
        return (*norms, e_proj, h_proj, add)

    def _collapsed(
        self, parts: Parts, name: str, x: Tensor, weights: int, *, scales: int, back: tuple[Tensor, ...] = ()
    ) -> StreamsIn:
        def learned(part: str, *shape: int) -> Weight:
            return replace(parts.weight(f"{name}.{part}", *shape), format=FP32)

        return StreamsIn(
            name=name,
            inputs=(x,),
            outputs=(parts.tensor(name, x.width // self.streams), *back),
            weights=(learned("fn", weights, x.width), learned("base", weights), learned("scale", scales)),
            streams=self.streams,
            iterations=self.iterations if back else 0,
        )
