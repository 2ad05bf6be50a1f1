"""What the controls show of a state, and what they say of one. Nothing here knows how they look."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import log2
from typing import Any, Final

from llmviewer.errors import InputError
from llmviewer.precision import Format, parse_scheme
from llmviewer.transforms.mixtures import MIXTURES
from llmviewer.transforms.quantize import UNQUANTIZED, as_typed, parse_quantization

from .state import KINDS, Fraction, Number, State
from .words import CONTROLS

FIELDS: Final = (*CONTROLS, "set")  # of a state, that controls show
SLIDERS: Final = {"batch": 10, "prompt": 17, "gen": 14}  # log2 of where they end
FILE_TYPES: Final = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0", "IQ3_M", "Q2_K")  # of llama.cpp's, those most used
PARTS: Final = {  # of a precision: the letter of each, and what it can be in short
    "W": ("weights", ("16", "fp8", "8", "4g128", "nf4", "nvfp4", "mxfp4", "3g128", "2g128", "1.58", *FILE_TYPES)),
    "A": ("activations", ("16", "fp8", "8", "nvfp4", "4")),
    "KV": ("KV cache", ("16", "fp8", "8", "4")),
}
_STORED: Final = {"W": "weight", "A": "activation", "KV": "kv_cache"}  # what a scheme calls each part
_IF_GIVEN: Final = ("context", "passes", "stage")  # numbers whose controls are empty otherwise
_BETWEEN: Final = {"techniques": ";", "quants": ";", "pins": "|"}  # what stands between several, in one text
_EXAMPLES: Final = {  # of techniques that need to be told something
    "speculative": "draft=llama-3.2-1b,gamma=4,alpha=0.7", "window": "size=4096", "quantized": "scheme=awq",
    "structured-pruning": "ffn=0.75",
}  # fmt: skip
USUAL: Final = "usual"  # a choice that leaves it to the model


def values(state: State) -> dict[str, Any]:
    """What each control shows in a state, by its id."""
    shown = {name: getattr(state, name) for name in CONTROLS}
    parts = precision_parts(state.quant)
    return {
        **shown,
        "on": list(state.on),
        "set": list(state.set),
        **{name: getattr(state, name) or None for name in _IF_GIVEN},
        "op": state.op or None,
        "attention": state.attention or ("eager" if state.accounting == "survey" else "flash"),
        "mtp": int(state.mtp),
        "techniques": "; ".join(state.techniques),
        "techniques-chosen": named(state.techniques),
        "quants": "; ".join(state.quants),
        "pins": "|".join(state.pins),
        **{f"{name}-slider": min(log2(shown[name]), end) for name, end in SLIDERS.items()},
        **{f"quant-{letter}": part for letter, part in parts.items()},
        "tab": state.tab,
    }


def read(name: str, value: Any, of: State) -> Any:
    """What a control that shows `value` says for the field of that name."""
    if name in _IF_GIVEN:
        return value or 0
    if name == "mtp":
        return bool(value)
    if name == "attention":
        return "" if value == values(State(accounting=of.accounting))["attention"] else value
    if name in _BETWEEN:
        return [part.strip() for part in (value or "").split(_BETWEEN[name]) if part.strip()]
    if name in ("on", "set"):
        return value or []
    return "" if value is None and not isinstance(KINDS[name], Number | Fraction) else value


def precision_parts(quant: str) -> dict[str, str]:
    """What a precision is made of, as far as there are short names for it."""
    if not quant:
        return dict.fromkeys(PARTS, USUAL)
    try:
        asked = parse_quantization(quant)
    except InputError:
        return dict.fromkeys(PARTS, USUAL)
    scheme, mixture = asked.scheme, asked.mixture
    stored = {letter: getattr(scheme, name) for letter, name in _STORED.items()}
    parts = {
        letter: next((short for short, fmt in _formats(letter).items() if fmt == own), USUAL)
        for letter, own in stored.items()
    }
    return parts | {"W": mixture.name} if mixture and mixture.name in FILE_TYPES else parts


@cache
def _formats(letter: str) -> dict[str, Format | None]:
    """What the short names of a part stand for."""
    schemes = {short: parse_scheme(f"{letter}{short}") for short in PARTS[letter][1] if short not in FILE_TYPES}
    return {short: one.weight or one.activation or one.kv_cache for short, one in schemes.items()}


def precision_of(parts: Mapping[str, str], quant: str = "") -> str:
    """The notation for parts by their letters, and for what else `quant` says, as far as that can be read."""
    try:
        stored = parse_quantization(quant) if quant else UNQUANTIZED
    except InputError:
        stored = UNQUANTIZED
    asked: dict[str, Any] = {_STORED[letter]: _formats(letter).get(short) for letter, short in parts.items()}
    mixture = MIXTURES.get(parts["W"]) if "W" in parts else stored.mixture
    whole = as_typed(replace(stored.scheme, **asked), mixture)
    return ",".join(filter(None, (whole, *(one.text for one in stored.overrides))))


def named(texts: Iterable[str]) -> list[str]:
    """The techniques that some texts are of."""
    return list(dict.fromkeys(text.partition(":")[0].strip() for text in texts))


def chosen(names: Sequence[str], texts: Sequence[str]) -> str:
    """The text of techniques by their names, those among `texts` as they are and others with what they need."""
    own = {text.partition(":")[0].strip(): text for text in texts}
    usual = {name: f"{name}:{_EXAMPLES[name]}" if name in _EXAMPLES else name for name in names}
    return "; ".join(own.get(name, usual[name]) for name in names)
