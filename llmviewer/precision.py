"""Storage formats, the data types they are multiplied in, and the notation for both (W4A16g128)."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache, cached_property
from math import inf
from typing import Final

from .errors import InputError
from .records import frozen


@frozen
class Format:
    """Storage format of the elements of a tensor.

    bits      bits per element; may be fractional (1.58 for ternary weights)
    compute   data type of multiplication on units that support it: a key of WIDER
    group     elements that share a scale (and a zero point); 0: too few scales to count
    scale_bits, zero_bits  bits of a scale and of a zero point
    scale_group  scales under a 32-bit scale: double quantization (arXiv:2305.14314, section 3); 0: none
    """

    name: str
    bits: float
    compute: str
    group: int = 0
    scale_bits: float = 0
    zero_bits: float = 0
    scale_group: int = 0

    @property
    def stored_bits(self) -> float:
        """Bits per element in memory, with its share of scales and zero points (arXiv:2404.14294, eq. 9)."""
        if not self.group:
            return self.bits
        shared = 32 / self.scale_group if self.scale_group else 0
        return self.bits + (self.scale_bits + shared + self.zero_bits) / self.group

    def __str__(self) -> str:
        return f"{self.name} g{self.group}" if self.group != default_group(self) else self.name


# Types that represent all values of the key, narrowest first; fp16 and bf16 count as interchangeable, as is common.
WIDER: Final[dict[str, tuple[str, ...]]] = {
    "int4": ("int8", "fp8", "fp16", "bf16", "tf32", "fp32", "fp64"),
    "int8": ("fp16", "bf16", "tf32", "fp32", "fp64"),
    "fp4": ("fp6", "fp8", "fp16", "bf16", "tf32", "fp32", "fp64"),
    "fp6": ("fp8", "fp16", "bf16", "tf32", "fp32", "fp64"),
    "fp8": ("fp16", "bf16", "tf32", "fp32", "fp64"),
    "table": ("fp16", "bf16", "tf32", "fp32", "fp64"),  # look-up codes: no unit multiplies them directly
    "fp16": ("bf16", "tf32", "fp32", "fp64"),
    "bf16": ("fp16", "tf32", "fp32", "fp64"),
    "tf32": ("fp32", "fp64"),
    "fp32": ("fp64",),
    "fp64": (),
}

FP32 = Format("fp32", 32, "fp32")
FP16 = Format("fp16", 16, "fp16")
BF16 = Format("bf16", 16, "bf16")
HALF = Format("16 bits", 16, "fp16")  # the model's 16-bit format, else fp16

NAMED: Final[dict[str, Format]] = {
    f.name: f
    for f in (
        Format("fp64", 64, "fp64"),
        FP32,
        FP16,
        BF16,
        Format("fp8_e4m3", 8, "fp8"),  # arXiv:2209.05433
        Format("fp8_e5m2", 8, "fp8"),
        Format("int8", 8, "int8"),
        Format("int4", 4, "int4"),
        Format("nf4", 4, "table", group=64, scale_bits=32),  # arXiv:2305.14314, section 3, without double quantization
        Format("nf4dq", 4, "table", group=64, scale_bits=8, scale_group=256),  # ... with it
        Format("mxfp8", 8, "fp8", group=32, scale_bits=8),  # OCP Microscaling Formats v1.0, table 1
        Format("mxfp6", 6, "fp6", group=32, scale_bits=8),
        Format("mxfp4", 4, "fp4", group=32, scale_bits=8),
        Format("nvfp4", 4, "fp4", group=16, scale_bits=8),  # one e4m3 scale per 16; NVIDIA Blackwell, 2024
    )
}
_SYNONYMS: Final = {"fp8": "fp8_e4m3", "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "half": "fp16"}
_OPERANDS_OF_BARE_FORMAT: Final = {  # operands of a format named without W, A or KV, by common usage
    "fp16": "WA", "bf16": "WA", "fp32": "WA", "fp8_e4m3": "WA", "fp8_e5m2": "WA", "int8": "WA", "int4": "W",
    "nf4": "W", "nf4dq": "W", "mxfp8": "WA", "mxfp6": "W", "mxfp4": "W", "nvfp4": "WA",
}  # fmt: skip


def resolved(fmt: Format, model_format: Format) -> Format:
    """`fmt`, or for HALF the 16-bit format of a model whose format is `model_format`."""
    if fmt != HALF:
        return fmt
    return model_format if model_format.bits == HALF.bits else FP16


@cache
def product(a: Format, b: Format) -> str:
    """The data type in which `a` and `b` are multiplied: their common one, else the narrowest that represents both.

    A low-bit unit is used only if all operands have its type (arXiv:2402.16363, section 3.1.1): W8A16 is fp16 work.
    """
    holds = [{f.compute, *WIDER[f.compute]} - {"table"} for f in (a, b)]
    common = holds[0] & holds[1]
    operand_types = common & {a.compute, b.compute}
    return min(operand_types or common, key=tuple(WIDER).index)


@frozen(kw_only=True)
class Scheme:
    """Formats of a quantization; None: that of the model. `text`: as the user wrote it.

    Formats below 16 bits apply to operands of matrix products and the cache, others to everything.
    """

    text: str = "as published"
    weight: Format | None = None
    activation: Format | None = None
    kv_cache: Format | None = None

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Cached hash of the formats, because checkpoints have thousands of schemes."""
        return hash((self.text, self.weight, self.activation, self.kv_cache))

    def __getstate__(self) -> dict[str, object]:
        """The state without the hash, which differs between processes."""
        return {name: value for name, value in vars(self).items() if name != "_hash"}

    def over(self, other: Scheme) -> Scheme:
        """The scheme, with formats of `other` where it has none."""
        return Scheme(
            text=self.text,
            weight=self.weight or other.weight,
            activation=self.activation or other.activation,
            kv_cache=self.kv_cache or other.kv_cache,
        )


AS_PUBLISHED = Scheme()

_SCALE_BITS: Final = 16  # of a scale, by default
_NUMBER = r"\d+(?:\.\d+)?"
_NAME = "|".join(sorted((*NAMED, *_SYNONYMS), key=len, reverse=True))
_BLOCKS: Final = {  # llama.cpp's --cache-type-k: blocks of 32 elements, by their bytes; codes are multiplied in 8 bits
    name: Format(name, 8 * nbytes / 32, "int8")
    for name, nbytes in {"q8_0": 34, "q5_1": 24, "q5_0": 22, "q4_1": 20, "q4_0": 18, "iq4_nl": 18}.items()
}
_PART: Final = re.compile(
    rf"(kv|w|a)({_NUMBER}|{_NAME}|(?<=kv)(?:{'|'.join(_BLOCKS)}))(?:[-_]?g(\d+)(?:s(\d+))?(?:z(\d+))?(?:d(\d+))?)?[-_/,]?",
    re.IGNORECASE,
)
_GROUP_NUMBERS: Final = (  # of _PART, after a format: the letter before each, its limits and what it must be
    ("g", 1, inf, "a group must have at least one value"),
    ("s", 1, 32, "a scale must have 1 to 32 bits"),
    ("z", 0, 32, "a zero point must have 0 to 32 bits"),
    ("d", 1, inf, "a scale of scales must have at least one"),
)
_BARE_FORMAT: Final = re.compile(rf"({_NAME})(?:$|[-_/,]?(?=kv))")  # a format, perhaps with a cache format after it
_NOTATION: Final = (
    "bits or formats of W (weights), A (activations) and KV (cache), each at most once, such as W4A16g128, W8A8, "
    f"W4KV4, KV8, W1.58A8 or Wnf4A16, or one format of {', '.join(sorted((*_OPERANDS_OF_BARE_FORMAT, 'fp8')))} "
    "alone or before that of the cache, as in fp8KV8 and KVq8_0 "
    "(AWQ and GPTQ: W4A16g128; scales of 8 bits, no zero points, double quantization: W4A16g64s8z0d256; fp4: nvfp4 or "
    "mxfp4), or a file type of llama.cpp such as Q4_K_M or Q8_0"
)
_FOREIGN_NAMES: Final = {  # by what others call them
    "awq": "W4A16g128", "gptq": "W4A16g128", "4bit": "W4A16 or W4A16g128", "4-bit": "W4A16 or W4A16g128",
    "8bit": "W8A16 or W8A8", "8-bit": "W8A16 or W8A8", "fp4": "nvfp4 or mxfp4", "bnb": "Wnf4A16",
    "bitsandbytes": "Wnf4A16",
}  # fmt: skip


def parse_scheme(text: str) -> Scheme:
    """The Scheme of a text in common notation, such as "W4A16g128".

    A group size follows the format it belongs to; after activations without one, it belongs to the weights. Bits of
    scales (s; 16 by default), bits of zero points (z; those of an integer format, else 0) and the number of scales that
    share a 32-bit scale (d; none by default) follow the group size.

    Raises InputError, with the notation, if the text does not parse.
    """
    notation = text.strip().lower()
    formats: dict[str, Format] = {}
    position = 0
    if notation in _FOREIGN_NAMES:
        raise InputError(f"quantization must be written as {_FOREIGN_NAMES[notation]}; got {text!r}")
    if (match := _BARE_FORMAT.match(notation)) and (
        name := _SYNONYMS.get(match[1], match[1])
    ) in _OPERANDS_OF_BARE_FORMAT:
        formats = {use.lower(): NAMED[name] for use in _OPERANDS_OF_BARE_FORMAT[name]}
        position = match.end()
    while position < len(notation):
        match = _PART.match(notation, position)
        if not match or match[1] in formats:
            raise InputError(f"quantization must be {_NOTATION}; got {text!r}")
        fmt = _format(match[2], text)
        if not match[3]:
            formats[match[1]] = fmt
        elif match[1] == "a" and "w" in formats and not formats["w"].group:  # W4A16g128: the group is of the weights
            formats |= {"w": _grouped(formats["w"], match, text), "a": fmt}
        else:
            formats[match[1]] = _grouped(fmt, match, text)
        position = match.end()
    if not formats:
        raise InputError(f"quantization must be {_NOTATION}; got {text!r}")
    return Scheme(text=text, weight=formats.get("w"), activation=formats.get("a"), kv_cache=formats.get("kv"))


def notation(scheme: Scheme) -> str:
    """The text that parse_scheme() reads as `scheme`; "" if the scheme sets nothing."""
    weight, activation, cache = scheme.weight, scheme.activation, scheme.kv_cache
    has_bare_name = weight and _OPERANDS_OF_BARE_FORMAT.get(weight.name) == "WA" and not weight.name.startswith("int")
    if weight and has_bare_name and weight == activation == NAMED[weight.name] and not cache:
        return _name(weight)
    uses = [("W", weight), ("A", activation), ("KV", cache)]
    groups = {use: _group(fmt) if fmt and fmt.group != default_group(fmt) else "" for use, fmt in uses}
    if groups["A"]:  # before the weights: a group after both would be theirs
        uses[:2] = reversed(uses[:2])
    elif activation:  # W4A16g128
        groups["W"], groups["A"] = "", groups["W"]
    return "".join(f"{use}{_name(fmt)}{groups[use]}" for use, fmt in uses if fmt)


def _name(fmt: Format) -> str:
    """The name of a format in a scheme: bits for integers and for the model's 16-bit format."""
    if fmt.name.startswith("int") or fmt.name == HALF.name:
        return f"{fmt.bits:g}"
    return "fp8" if fmt.name == _SYNONYMS["fp8"] else fmt.name


def default_group(fmt: Format) -> int:
    """The group size that the name implies."""
    return NAMED[fmt.name].group if fmt.name in NAMED else 0


def _format(text: str, scheme: str) -> Format:
    """The format of a name or of bits: 16 is that of the model, others are integers."""
    if not text[0].isdigit():
        return _BLOCKS.get(text) or NAMED[_SYNONYMS.get(text, text)]
    bits = float(text)
    if bits == HALF.bits:
        return HALF
    if bits == 32:
        return FP32
    if not 1 <= bits <= 8:
        raise InputError(f"quantization {scheme!r}: bits must be 16, 32 or between 1 and 8; got {text}")
    return Format(f"int{text}", bits, "int4" if bits <= 4 else "int8")


def _grouped(fmt: Format, match: re.Match[str], scheme: str) -> Format:
    """`fmt` with the group size of `match`, its bits of scales and zero points or the default ones."""
    numbers = match.group(3, 4, 5, 6)
    for (letter, least, most, must), number in zip(_GROUP_NUMBERS, numbers, strict=True):
        if number and not least <= int(number) <= most:
            raise InputError(f"quantization {scheme!r}: {must}; got {letter}{number}")
    size, scale, zero, shared = numbers
    if fmt.bits >= HALF.bits or fmt.group:
        raise InputError(
            f"quantization {scheme!r}: a group size needs a low-bit format without its own; got {fmt.name}"
        )
    return replace(
        fmt,
        group=int(size),
        scale_bits=int(scale or _SCALE_BITS),
        zero_bits=int(zero) if zero else _zero_bits(fmt),
        scale_group=int(shared or 0),
    )


def _zero_bits(fmt: Format) -> float:
    """Bits of a zero point by default: those of an integer; other formats have none."""
    return fmt.bits if fmt.name.startswith("int") else 0


def _group(fmt: Format) -> str:
    """The group of a format as a scheme writes it."""
    scale = f"s{fmt.scale_bits:g}" if fmt.scale_bits != _SCALE_BITS else ""
    zero = f"z{fmt.zero_bits:g}" if fmt.zero_bits != _zero_bits(fmt) else ""
    return f"g{fmt.group}{scale}{zero}" + (f"d{fmt.scale_group}" if fmt.scale_group else "")
