"""ggml types of tensors in GGUF files: blocks of elements with scales.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

from .precision import BF16, FP16, FP32, NAMED, Format
from .records import frozen

_WIDE: Final = {"f32": FP32, "f16": FP16, "bf16": BF16, "f64": NAMED["fp64"]}


@frozen
class Type:
    """A block type: `elements` consecutive elements of a row take `nbytes`."""

    name: str
    elements: int
    nbytes: int

    @cached_property
    def format(self) -> Format:
        """The Format, with scales among the bits per element.

        Codes are integers, or indices into tables of integers: llama.cpp multiplies them in 8 bits if activations are
        quantized too.
        """
        if self.name in _WIDE or self.name in NAMED:
            return _WIDE.get(self.name) or NAMED[self.name]
        return Format(self.name, 8 * self.nbytes / self.elements, "int8")


TYPES: Final = {  # by type number of ggml
    number: Type(*row)
    for number, row in {
        0: ("f32", 1, 4), 1: ("f16", 1, 2), 2: ("q4_0", 32, 18), 3: ("q4_1", 32, 20), 6: ("q5_0", 32, 22),
        7: ("q5_1", 32, 24), 8: ("q8_0", 32, 34), 9: ("q8_1", 32, 36), 10: ("q2_k", 256, 84), 11: ("q3_k", 256, 110),
        12: ("q4_k", 256, 144), 13: ("q5_k", 256, 176), 14: ("q6_k", 256, 210), 15: ("q8_k", 256, 292),
        16: ("iq2_xxs", 256, 66), 17: ("iq2_xs", 256, 74), 18: ("iq3_xxs", 256, 98), 19: ("iq1_s", 256, 50),
        20: ("iq4_nl", 32, 18), 21: ("iq3_s", 256, 110), 22: ("iq2_s", 256, 82), 23: ("iq4_xs", 256, 136),
        24: ("i8", 1, 1), 25: ("i16", 1, 2), 26: ("i32", 1, 4), 27: ("i64", 1, 8), 28: ("f64", 1, 8),
        29: ("iq1_m", 256, 56), 30: ("bf16", 1, 2), 34: ("tq1_0", 256, 54), 35: ("tq2_0", 256, 66),
        39: ("mxfp4", 32, 17), 40: ("nvfp4", 64, 36), 41: ("q1_0", 128, 18),
    }.items()
}  # fmt: skip
BY_NAME: Final = {one.name: one for one in TYPES.values()}
