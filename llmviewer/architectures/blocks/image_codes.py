"""VQ encoders: convolutions that reduce an image to rows of a code book, which are tokens of the prompt
(arXiv:2012.09841).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ...operators.attention import Heads
from ...operators.base import Operator, Tensor
from ...operators.convolution import Conv2d
from ...operators.masks import Tiled
from .attention import scored
from .parts import NormKind, Parts, with_rows
from .tower import image_rows

_DISTANCE_OPS: Final = 4  # per code: add two sums of squares, subtract the product, compare


@dataclass(kw_only=True)
class ImageEncoder:
    """Collects the operators of a VQ encoder, from first to last, with the resolution after each.

    height, width  positions of the present resolution
    frames         copies of the image that are encoded, as frames of a video
    """

    parts: Parts
    height: int
    width: int
    frames: int = 1
    operators: list[Operator] = field(default_factory=list)

    def tensor(self, name: str, width: int) -> Tensor:
        return with_rows(self.parts.tensor(name, width), image_rows(self.height * self.width, self.frames))

    def add(self, operator: Operator) -> Tensor:
        self.operators.append(operator)
        return operator.result

    def convolution(self, name: str, x: Tensor, width: int, *, taps: int = 9) -> Tensor:
        """A convolution with bias over `taps` positions, to the present resolution."""
        weights = (self.parts.weight(f"{name}.weight", width, x.width, taps), self.parts.weight(f"{name}.bias", width))
        return self.add(Conv2d(name=name, inputs=(x,), outputs=(self.tensor(name, width),), weights=weights))

    def halved(self, name: str, x: Tensor) -> Tensor:
        """A convolution with stride 2."""
        self.height, self.width = self.height // 2, self.width // 2
        return self.convolution(name, x, x.width)

    def norm(self, name: str, x: Tensor) -> Tensor:
        return self.add(self.parts.norm(name, x, kind=NormKind.LAYER))

    def activated(self, name: str, x: Tensor) -> Tensor:
        return self.add(self.parts.activate(name, "silu", x))

    def plus(self, name: str, x: Tensor, y: Tensor) -> Tensor:
        add = self.parts.add(name, x, y)
        return self.add(add.with_tensors(lambda t: with_rows(t, x.rows)))

    def residual(self, name: str, x: Tensor, width: int) -> Tensor:
        """The sum of x, projected if its width differs, and two convolutions behind a norm and SiLU each."""
        hidden = x
        for place in (1, 2):
            hidden = self.activated(f"{name}_act_{place}", self.norm(f"{name}_norm_{place}", hidden))
            hidden = self.convolution(f"{name}_conv_{place}", hidden, width)
        shortcut = x if x.width == width else self.convolution(f"{name}_shortcut", x, width, taps=1)
        return self.plus(f"{name}_add", shortcut, hidden)

    def attention(self, name: str, x: Tensor) -> Tensor:
        """The sum of x and attention with one head over all positions of a frame, behind a norm."""
        normed = self.norm(f"{name}_norm", x)
        q, k, v = (self.convolution(f"{name}_{part}", normed, x.width, taps=1) for part in "qkv")
        mask = Tiled(self.frames * (self.height * self.width) ** 2)
        heads = Heads(num_heads=1, num_kv_heads=1, head_dim=x.width, mask=mask)
        for op in scored(self.parts, heads, q, (k,), v):
            plain = op.with_tensors(lambda t: with_rows(t, x.rows) if t.name == "attention" else t)
            self.add(_named(plain, name))
        attended = self.operators[-1].result
        return self.plus(f"{name}_add", x, self.convolution(f"{name}_proj", attended, x.width, taps=1))

    def levels(self, x: Tensor, widths: Sequence[int], blocks: int, attends: Sequence[bool]) -> Tensor:
        """`blocks` residual blocks per resolution, each with attention where `attends` is true."""
        for level, (width, attended) in enumerate(zip(widths, attends, strict=True)):
            for place in range(blocks):
                x = self.residual(f"level_{level}_{place}", x, width)
                x = self.attention(f"level_{level}_{place}_attn", x) if attended else x
            x = self.halved(f"level_{level}_down", x) if level + 1 < len(widths) else x
        return x

    def middle(self, x: Tensor, *, attends: bool = True) -> Tensor:
        """Two residual blocks with attention between them."""
        x = self.residual("middle_0", x, x.width)
        x = self.attention("middle_attn", x) if attends else x
        return self.residual("middle_1", x, x.width)

    def codes(self, x: Tensor, words: int) -> Tensor:
        """The index of the nearest row of a code book of `words` rows."""
        distances = with_rows(self.parts.tensor("code_book", words), x.rows)
        self.add(self.parts.linear("code_book", x, distances))
        nearest = self.parts.elementwise("codes", distances, width=1, ops=_DISTANCE_OPS * words)
        return self.add(nearest.with_tensors(lambda t: with_rows(t, x.rows)))


def _named(op: Operator, prefix: str) -> Operator:
    """`op` with its name and those of its scores after `prefix`."""

    def tensor(t: Tensor) -> Tensor:
        return replace(t, name=f"{prefix}_{t.name}") if t.name in ("scores", "probs", "attention") else t

    return replace(op, name=f"{prefix}_{op.name}").with_tensors(tensor)
