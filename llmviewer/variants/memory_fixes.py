"""Memory fixes: chunked prefill, more devices, fewer bits or weights in host memory that make a request fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Final

from ..devices.files import load_hardware
from ..devices.index import device_rows
from ..errors import InputError
from ..records import frozen
from ..transforms.offload import HOST
from .changes import chunked_prefill, more_devices, more_layers_on_host, offloading, smaller_weights
from .evaluation import Evaluation, Objective
from .variant import Change, Variant, evaluate

_MAX_DEVICES_TRIED: Final = 24
_DEVICE_FACTORS: Final = (2, 4, 8)  # of the number of devices
_LINK_KEYS: Final = ("scale_up.bandwidth", "host.bandwidth", "scale_out.bandwidth")  # any of which joins devices
_Changes = tuple[Change, ...]


@frozen(kw_only=True)
class MemoryFixes:
    """Variants that fit, in the order of cost, cheapest first; if none does, what was tried.

    tried  kinds of changes that do not suffice
    lacks  what the device's file would need for others
    """

    found: tuple[Variant, ...]
    tried: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()


def memory_fixes(base: Evaluation) -> MemoryFixes | None:
    """None if the request fits.

    If chunked prefill suffices, it is the only one. Else they are the smallest sufficient number of devices, the widest
    sufficient precision, both together where neither suffices, and weights in host memory. Gains are in TTFT.
    """
    if base.fits:
        return None
    chunked, narrower = (chunked_prefill(),), [(change,) for change in smaller_weights(base.setting)]
    held_bytes = base.memory.weight_bytes + base.memory.kv_cache_bytes
    attempts: list[_Changes] = [chunked]
    for factor in _DEVICE_FACTORS:
        if held_bytes <= factor * base.memory.capacity_bytes:
            wider = _more_devices(base, factor)
            attempts += [wider, (*wider, *chunked)]
    variants = _first_fitting(attempts, base)
    if any(variant.changes == chunked for variant in variants):
        return MemoryFixes(found=variants)
    variants += _first_fitting(narrower, base)
    if not variants:
        variants += _first_fitting(
            [(*_more_devices(base, factor), *one) for factor in _DEVICE_FACTORS for one in narrower], base
        )
    more_host = tuple(more_layers_on_host(base.setting))
    elsewhere = _first_fitting([(change,) for change in more_host], base)
    variants += elsewhere or _first_fitting([(change,) for change in offloading(base)], base)
    return MemoryFixes(found=variants) if variants else _no_fix(base)


def what_fits(base: Evaluation) -> str:
    """Changes that make a request fit, and the smallest device on which it does, in words; "" if none is known."""
    fixes = memory_fixes(base)
    options = [f"with {one.typed}" for one in fixes.found] if fixes else []
    device = _smallest_device(base)
    options += [f"on {base.setting.layout.devices} x {device}"] if device else []
    return f"fits {', or '.join(options)}" if options else ""


def _smallest_device(base: Evaluation) -> str:
    """The device of the same maker with the least memory that suffices, among those that ship; "" if none is found."""
    setting = base.setting
    larger_devices = sorted(
        (row.capacity_bytes, row.name)
        for row in device_rows()
        if row.vendor == setting.hardware.vendor
        and row.status == "shipping"
        and row.matrix
        and row.capacity_bytes > setting.hardware.capacity
    )
    for _, name in larger_devices[:_MAX_DEVICES_TRIED]:
        with suppress(InputError):
            if base.changed(replace(setting, hardware=load_hardware(name)).agreed()).fits:
                return name
    return ""


def twice_as_many_devices(base: Evaluation) -> str:
    """The option for twice the degree of tensor parallelism; "" if devices are not linked or it does not divide."""
    for variant in _possible([_more_devices(base, 2)], base):
        return variant.typed
    return ""


def _more_devices(base: Evaluation, factor: int) -> _Changes:
    """`factor` times the degree of tensor parallelism."""
    return tuple(more_devices([factor * base.setting.layout.tp]))


def _first_fitting(attempts: Iterable[Sequence[Change]], base: Evaluation) -> tuple[Variant, ...]:
    """The first changes that are possible and fit."""
    return tuple(islice((variant for variant in _possible(attempts, base) if variant.fits), 1))


def _possible(attempts: Iterable[Sequence[Change]], base: Evaluation) -> Iterator[Variant]:
    for changes in attempts:
        with suppress(InputError):
            yield evaluate(changes, base, Objective.TTFT)


def _no_fix(base: Evaluation) -> MemoryFixes:
    """An empty result, with the changes that were tried and do not help."""
    numbers = base.setting.hardware.numbers
    max_factor = max(
        (factor for factor in _DEVICE_FACTORS if any(_possible([_more_devices(base, factor)], base))), default=0
    )
    attempted = {
        "chunked prefill": any(_possible([(chunked_prefill(),)], base)),
        f"up to {max_factor} times as many devices (--tp)": max_factor > 0,
        **{change.about: True for change in [*smaller_weights(base.setting)][-1:]},
        "weights in host memory": f"{HOST}.bandwidth" in numbers,
    }
    missing_facts = []
    if not any(link in numbers for link in _LINK_KEYS):
        missing_facts.append(f"no {_LINK_KEYS[0]} for more devices")
    if f"{HOST}.bandwidth" not in numbers:
        missing_facts.append(f"no {HOST}.bandwidth for weights in host memory")
    return MemoryFixes(
        found=(),
        tried=tuple(name for name, is_possible in attempted.items() if is_possible),
        lacks=tuple(missing_facts),
    )
