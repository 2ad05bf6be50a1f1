"""Conversion between the page state and the values of its controls. Layout and style are in controls.py.

Most controls show a field of the state as it is. The exceptions are: sliders, which show the base-2 logarithm; lists
written as one text; numbers whose control is empty for 0; and the precision, which also has a list of short names
for weights, activations and KV cache each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import log2
from typing import Any, Final, NamedTuple

from llmviewer.errors import InputError
from llmviewer.precision import Format, Scheme, parse_scheme
from llmviewer.transforms.mixtures import MIXTURES
from llmviewer.transforms.quantize import UNQUANTIZED, Quantization, as_typed, parse_quantization

from .state import FIELD_TYPES, IntegerField, RealField, State
from .words import CONTROLS


class Operand(NamedTuple):
    """A kind of tensor whose format a precision sets: its label and the short names of formats to choose from."""

    label: str
    formats: tuple[str, ...]


CONTROL_FIELDS: Final = (*CONTROLS, "set")  # fields of the state that have a control
SLIDER_MAX_LOG2: Final = {
    "batch": 10,
    "prompt": 17,
    "gen": 14,
    "ttft": 14,
    "tpot": 10,
}  # the largest value of a slider is 2 to this power
FILE_TYPES: Final = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0", "IQ3_M", "Q2_K")  # the most used ones of llama.cpp
OPERANDS: Final = {  # by their letters in the notation of precisions, such as W4A16KV8
    "W": Operand(
        "weights", ("16", "fp8", "8", "4g128", "nf4", "nvfp4", "mxfp4", "3g128", "2g128", "1.58", *FILE_TYPES)
    ),
    "A": Operand("activations", ("16", "fp8", "8", "nvfp4", "4")),
    "KV": Operand("KV cache", ("16", "fp8", "8", "4")),
}
FIRST: Final = "first"  # values of the control of the decode step, beside those of the state
AT_CONTEXT: Final = "context"
AS_PUBLISHED: Final = "usual"  # value of a control that leaves the format of an operand to the model
_SCHEME_FIELDS: Final = {"W": "weight", "A": "activation", "KV": "kv_cache"}  # fields of Scheme by letter
_EMPTY_IF_ZERO: Final = (
    "context",
    "passes",
    "stage",
    "memory_fraction",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "system_prompt",
)  # number controls that are empty for 0
_SEPARATORS: Final = {"techniques": ";", "quants": ";", "pins": "|"}  # between the items of a list in one text
_EXAMPLE_PARAMETERS: Final = {  # of techniques with required parameters
    "speculative": "draft=llama-3.2-1b,gamma=4,alpha=0.7",
    "phrase-copying": "phrases=1000,tau=2",
    "window": "size=4096",
    "quantized": "scheme=awq",
    "structured-pruning": "ffn=0.75",
    "sparse-activation": "share=0.25",
}


def control_values(state: State) -> dict[str, Any]:
    """The value of each control in a state, by its id."""
    fields = {name: getattr(state, name) for name in CONTROLS}
    return {
        **fields,
        "on": list(state.on),
        "set": list(state.set),
        **{name: getattr(state, name) or None for name in _EMPTY_IF_ZERO},
        "op": state.op or None,
        "step": state.step or (AT_CONTEXT if state.context else FIRST),
        "attention": state.attention or _default_attention(state.accounting),
        "mtp": int(state.mtp),
        "techniques": "; ".join(state.techniques),
        "techniques-chosen": technique_names(state.techniques),
        "quants": "; ".join(state.quants),
        "pins": "|".join(state.pins),
        **{f"{name}-slider": min(log2(fields[name]), end) for name, end in SLIDER_MAX_LOG2.items()},
        **{f"quant-{letter}": short for letter, short in operand_formats(state.quant).items()},
        "tab": state.tab,
    }


def field_value(name: str, value: Any, state: State) -> Any:
    """Converts the value of a control to that of its field; the accounting of `state` sets the default attention."""
    if name in _EMPTY_IF_ZERO:
        return value or 0
    if name == "mtp":
        return bool(value)
    if name in ("attention", "step"):
        defaults = {"attention": (_default_attention(state.accounting),), "step": (FIRST, AT_CONTEXT)}
        return "" if value in defaults[name] else value
    if name in _SEPARATORS:
        return [item.strip() for item in (value or "").split(_SEPARATORS[name]) if item.strip()]
    if name in ("on", "set"):
        return value or []
    return "" if value is None and not isinstance(FIELD_TYPES[name], IntegerField | RealField) else value


def _default_attention(accounting: str) -> str:
    """The attention kernels that an accounting has by default."""
    return "eager" if accounting == "survey" else "flash"


def operand_formats(quant: str) -> dict[str, str]:
    """The short name of each operand's format in a precision, by letter; AS_PUBLISHED where it has none."""
    quantization = _quantization(quant)
    formats = {letter: _short_name(letter, quantization.scheme) for letter in OPERANDS}
    mixture = quantization.mixture
    return formats | {"W": mixture.name} if mixture and mixture.name in FILE_TYPES else formats


def _quantization(quant: str) -> Quantization:
    """Parses a precision; the published one if empty, or invalid, which results.problem_of() reports."""
    try:
        return parse_quantization(quant) if quant else UNQUANTIZED
    except InputError:
        return UNQUANTIZED


def _short_name(letter: str, scheme: Scheme) -> str:
    """The short name of an operand's format in a scheme; AS_PUBLISHED where it has none."""
    stored = getattr(scheme, _SCHEME_FIELDS[letter])
    return next((short for short, form in _formats_by_name(letter).items() if form == stored), AS_PUBLISHED)


@cache
def _formats_by_name(letter: str) -> dict[str, Format | None]:
    """The formats of an operand by their short names, without llama.cpp's file types, which mix formats."""
    names = (short for short in OPERANDS[letter].formats if short not in FILE_TYPES)
    schemes = {short: parse_scheme(f"{letter}{short}") for short in names}
    return {short: scheme.weight or scheme.activation or scheme.kv_cache for short, scheme in schemes.items()}


def precision_text(formats: Mapping[str, str], quant: str = "") -> str:
    """The notation of a precision with these short names, by letter, and everything else as in `quant`, if valid."""
    quantization = _quantization(quant)
    changes: dict[str, Any] = {
        _SCHEME_FIELDS[letter]: _formats_by_name(letter).get(short) for letter, short in formats.items()
    }
    mixture = MIXTURES.get(formats["W"]) if "W" in formats else quantization.mixture
    text = as_typed(replace(quantization.scheme, **changes), mixture)
    return ",".join(filter(None, (text, *(override.text for override in quantization.overrides))))


def technique_names(texts: Iterable[str]) -> list[str]:
    """The names of techniques in texts such as "window:size=4096", each once."""
    return list(dict.fromkeys(map(_technique_name, texts)))


def techniques_text(names: Sequence[str], texts: Sequence[str]) -> str:
    """The text of techniques by name: as in `texts` where they are among these, else with example parameters."""
    text_by_name = {_technique_name(text): text for text in texts}
    return "; ".join(text_by_name.get(name, _example(name)) for name in names)


def _technique_name(text: str) -> str:
    return text.partition(":")[0].strip()


def _example(name: str) -> str:
    """The text of a technique, with example parameters if it requires any."""
    return f"{name}:{_EXAMPLE_PARAMETERS[name]}" if name in _EXAMPLE_PARAMETERS else name
