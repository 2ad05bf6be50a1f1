"""Resamplers: learned queries attend to the features of an image, which then has a fixed number of tokens in the prompt
(arXiv:2204.14198, section 2.1; arXiv:2301.12597).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...forms import images
from ...graph import Block
from ...operators.attention import Heads
from ...operators.base import Operator, Tensor
from ...operators.elementwise import Permute
from ...operators.masks import FixedKeys, Mask, Tiled
from ...records import frozen
from .attention import scored
from .decoder import Layer
from .encoder import stack
from .parts import Parts, result, with_rows
from .tower import image_rows

FEATURES = "tower_features"  # what queries attend to


@frozen(kw_only=True)
class Looking:
    """Cross-attention of queries to the FEATURES of their image; the result is "cross_o_proj".

    features   number of features
    width      width of a feature
    queries    queries that each query attends to as well; 0: only features
    attending  queries of a longer sequence that attend to features, as the other tokens do not; 0: all tokens
    tiles      sequences of features per image
    bias       whether projections have a bias
    normed     whether a norm of the features precedes the projections
    """

    heads: Heads
    features: int
    width: int
    queries: int = 0
    attending: int = 0
    tiles: int = 1
    bias: bool = False
    normed: bool = False

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        num_keys = self.features + self.queries
        mask: Mask = Tiled(self.attending * num_keys) if self.attending else FixedKeys(num_keys)
        heads, rows = replace(self.heads, mask=mask), image_rows(num_keys, self.tiles)
        q = parts.project("cross_q_proj", x, heads.q_width, bias=self.bias)
        before: tuple[Operator, ...] = ()
        source = with_rows(parts.tensor(FEATURES, self.width), image_rows(self.features, self.tiles))
        if self.normed:
            before = (parts.norm("context_norm", source),)
            source = result(before)
        if self.queries:
            out = with_rows(parts.tensor("context", self.width), rows)
            before = (*before, Permute(name=out.name, inputs=(source, x), outputs=(out,)))
            source = out
        k, v = (parts.tensor(f"cross_{name}_proj", heads.kv_width) for name in "kv")
        launches = tuple(parts.linear(t.name, source, with_rows(t, rows), bias=self.bias) for t in (k, v))
        k, v = (with_rows(t, rows if self.attending else heads.mask.keys_read) for t in (k, v))
        attended = scored(parts, heads, q.result, (k,), v)
        named = tuple(replace(op, name=f"cross_{op.name}") for op in attended)
        return (q, *before, *launches, *named, parts.project("cross_o_proj", result(named), x.width, bias=self.bias))


def queried(
    parts: Parts, layers: Sequence[Layer], queries: int, width: int, *, norm: bool, tiles: int = 1
) -> tuple[Block, ...]:
    """`queries` learned queries per image, or per each of its `tiles`, with an optional norm, and their layers."""
    embed = parts.embed("queries", {"queries.weight": queries}, width)
    operators = (embed, *((parts.norm("queries_norm", embed.result),) if norm else ()))
    stream = images(queries, tiles)
    first = Block(name="queries", operators=operators, input="", output=result(operators).name, stream=stream)
    after = stack(parts, layers, width, stream=stream)
    return (first, *(replace(block, name=f"resampler_{block.name}", side_inputs=(FEATURES,)) for block in after))
