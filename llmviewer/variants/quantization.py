"""Precisions merged with that of a setting, as users write them."""

from __future__ import annotations

from dataclasses import replace

from ..precision import HALF, NAMED, Format, Scheme, notation, parse_scheme
from ..setting import Setting
from ..transforms.mixtures import MIXTURES
from ..transforms.quantize import as_typed


def given_scheme(setting: Setting) -> tuple[Scheme, tuple[str, ...]]:
    """Changes to the published precision: the scheme of the whole model, and overrides of parts."""
    quantization, published = setting.quantization, setting.model.quantization
    if not quantization.text:
        return quantization.scheme, tuple(one.text for one in quantization.overrides)
    cache = quantization.scheme.kv_cache if quantization.scheme.kv_cache != published.scheme.kv_cache else None
    return Scheme(kv_cache=cache), tuple(one.text for one in quantization.overrides[len(published.overrides) :])


def merged_precision(setting: Setting, text: str) -> str:
    """The precision of `setting` with the formats that `text` names, such as "W4A16g128", "W4g128", "Afp8" or "KV8".

    What `text` does not name is kept: the cache, overrides of parts, and activations beside new weights, which get 16
    bits if they have at most that anyway. A file type of llama.cpp, such as "Q4_K_M", keeps the cache and overrides.
    """
    if text in MIXTURES:
        cache_alone = Scheme(kv_cache=setting.quantization.scheme.kv_cache)
        return ",".join((as_typed(cache_alone, MIXTURES[text]), *given_scheme(setting)[1]))
    new_scheme, effective = parse_scheme(text), setting.quantization.scheme
    (scheme, parts), mixture = given_scheme(setting), setting.quantization.mixture
    cache = new_scheme.kv_cache or effective.kv_cache
    if new_scheme.weight:
        of_model = notation(
            replace(new_scheme, activation=new_scheme.activation or _kept_activation(setting), kv_cache=cache)
        )
    elif not new_scheme.activation:
        of_model = as_typed(replace(scheme, kv_cache=cache), mixture)
    elif scheme.weight and not parts:
        of_model = as_typed(replace(scheme, activation=new_scheme.activation, kv_cache=cache), mixture)
    else:
        of_model, parts = as_typed(scheme, mixture), (*parts, f"*={notation(Scheme(activation=new_scheme.activation))}")
    return ",".join(filter(None, (of_model, *parts)))


def _kept_activation(setting: Setting) -> Format | None:
    """The format of activations, under its common name."""
    activation = setting.quantization.scheme.activation
    if activation:
        return NAMED.get(activation.name, activation)
    return HALF if _at_most_half(setting) else None


def _at_most_half(setting: Setting) -> bool:
    """Whether all inputs and outputs of operators have at most 16 bits."""
    return all(t.format.bits <= HALF.bits for _, op in setting.graph for t in (*op.inputs, *op.outputs))
