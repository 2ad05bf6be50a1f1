"""Other precisions of a setting, each as it is typed: fewer bytes to move, a faster type to multiply, less memory."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from ..errors import InputError
from ..operators.linear import Linear
from ..parameters import Accounting, Attention
from ..precision import BF16, FP16, HALF, NAMED, Format, Scheme, notation, parse_scheme
from ..resource import matrix
from ..setting import Setting
from ..transforms.quantize import as_typed


@dataclass(frozen=True, kw_only=True)
class Change:
    """A changed setting, what changes in words, and the option that does it; "" for flash attention, the default."""

    what: str
    option: str = ""
    setting: Setting

    @property
    def name(self) -> str:
        return f"{self.what} ({self.option})" if self.option else self.what


def fewer_bytes(setting: Setting) -> Iterator[Change]:
    """Changes that move fewer bytes: flash attention, fewer bits per weight and per cached number."""
    if setting.attention is Attention.EAGER:
        yield Change(what="flash attention", setting=replace(setting, attention=Attention.FLASH))
    scheme = setting.quantization.scheme
    if _wide(setting):
        yield from _half(setting)
    yield from _four_bits(setting)
    if scheme.kv_cache is None or scheme.kv_cache.bits > 8:
        ours, others = _asked(setting)
        yield from _typed(setting, "an 8-bit KV cache", _kept(setting, replace(ours, kv_cache=NAMED["int8"])), *others)


def smaller(setting: Setting) -> Iterator[Change]:
    """Precisions of smaller weights, the widest first: 8-bit operands that the device multiplies, 4-bit weights."""
    for fmt in (NAMED["fp8_e4m3"], NAMED["int8"]):
        if matrix(fmt.compute) in setting.hardware.rates:
            yield from _operands(setting, fmt)
    yield from _four_bits(setting)


def lower_bits(setting: Setting) -> Iterator[Change]:
    """Weights and activations in each low-bit type that this device has matrix units for."""
    if _wide(setting):
        yield from _half(setting)
    for fmt in (NAMED[name] for name in ("int8", "fp8_e4m3", "nvfp4", "int4")):
        if matrix(fmt.compute) in setting.hardware.rates:
            yield from _operands(setting, fmt)


def _four_bits(setting: Setting) -> Iterator[Change]:
    """4-bit weights, with activations and cache as they are."""
    scheme = setting.quantization.scheme
    own = HALF if _narrow(setting) else None  # W4A16, as usually written, if activations have 16 bits anyway
    activation = NAMED.get(scheme.activation.name, scheme.activation) if scheme.activation else own
    if scheme.weight is None or scheme.weight.bits > 4:
        four = replace(scheme, weight=parse_scheme("W4g128").weight, activation=activation)
        yield from _typed(setting, "4-bit weights", notation(four))


def _half(setting: Setting) -> Iterator[Change]:
    """Weights and activations in a 16-bit type that this device has matrix units for."""
    natively = [fmt for fmt in (BF16, FP16) if matrix(fmt.compute) in setting.hardware.rates]
    yield from _operands(setting, (natively or [BF16])[0])


def _operands(setting: Setting, fmt: Format) -> Iterator[Change]:
    """Weights and activations in `fmt`; activations alone if weights are as narrow already."""
    scheme, (ours, others) = setting.quantization.scheme, _asked(setting)
    survey = setting.accounting is Accounting.SURVEY  # which has the cache in the format of the operands
    cache = fmt if survey else scheme.kv_cache
    if not any(_as_narrow(own, fmt) for own in _weights(setting)):
        both = Scheme(weight=fmt, activation=fmt, kv_cache=cache)
        yield from _typed(setting, f"{fmt} weights and activations", notation(both))
    elif ours.weight and not others:
        kept = Scheme(weight=ours.weight, activation=fmt, kv_cache=cache)
        yield from _typed(setting, f"{fmt} activations", _kept(setting, kept))
    elif not survey:  # which has one precision for all
        yield from _typed(
            setting, f"{fmt} activations", _kept(setting, ours), *others, f"*={notation(Scheme(activation=fmt))}"
        )


def _as_narrow(own: Format, fmt: Format) -> bool:
    """Whether `own` is as narrow as `fmt`, which then brings no gain."""
    return own.bits < fmt.bits or (own.bits == fmt.bits and own.compute == fmt.compute)


def _weights(setting: Setting) -> tuple[Format, ...]:
    """Formats of the weights that --quant applies to."""
    if setting.accounting is Accounting.SURVEY:
        return (setting.quantization.scheme.weight or FP16,)
    return tuple({op.weight.format for op in _linears(setting)})


def _wide(setting: Setting) -> bool:
    """Whether operands of matrix products are in more than 16 bits."""
    return any(max(op.weight.format.bits, op.inputs[0].format.bits) > BF16.bits for op in _linears(setting))


def _narrow(setting: Setting) -> bool:
    """Whether all inputs and outputs of operators have at most 16 bits."""
    return all(t.format.bits <= HALF.bits for _, op in setting.graph for t in (*op.inputs, *op.outputs))


def _linears(setting: Setting) -> Iterator[Linear]:
    return (op for _, op in setting.graph if isinstance(op, Linear) and not op.left_as_published)


def _asked(setting: Setting) -> tuple[Scheme, tuple[str, ...]]:
    """What --quant changes of the published precision: its scheme for the model, and overrides of parts."""
    asked, published = setting.quantization, setting.model.quantization
    if not asked.text:
        return asked.scheme, tuple(one.text for one in asked.overrides)
    cache = asked.scheme.kv_cache if asked.scheme.kv_cache != published.scheme.kv_cache else None
    return Scheme(kv_cache=cache), tuple(one.text for one in asked.overrides[len(published.overrides) :])


def _kept(setting: Setting, scheme: Scheme) -> str:
    """The text of --quant for `scheme`, with the weights of `setting`."""
    return as_typed(scheme, setting.quantization.mixture)


def _typed(setting: Setting, name: str, *parts: str) -> Iterator[Change]:
    """The setting with `parts` as --quant; none if that is invalid."""
    quant = ",".join(part for part in parts if part)
    named = [one for one in setting.techniques if one.quant]  # which --quant excludes
    others = tuple(one for one in setting.techniques if one not in named)
    instead = "".join(f" in place of {one.name}" for one in named)
    with suppress(InputError):
        changed = replace(setting, techniques=others, unnamed=None).having(quant=quant)
        yield Change(what=name, option=f"--quant {shlex.quote(quant)}{instead}", setting=changed)
