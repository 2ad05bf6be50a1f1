"""Memory fixes: chunked prefill, more devices, fewer bits or weights in host memory that make a request fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from ..errors import InputError
from ..records import frozen
from ..transforms.offload import HOST
from .changes import chunked_prefill, more_devices, offloading, smaller_weights
from .evaluation import Evaluation, Objective
from .variant import Change, Variant, evaluate

_FACTORS: Final = (2, 4, 8)  # of the number of devices
_LINKS: Final = ("scale_up.bandwidth", "host.bandwidth", "scale_out.bandwidth")  # any of which joins devices
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
    held = base.memory.weight_bytes + base.memory.kv_cache_bytes
    tried: list[_Changes] = [chunked]
    for factor in _FACTORS:
        if held <= factor * base.memory.capacity_bytes:
            wider = _wider(base, factor)
            tried += [wider, (*wider, *chunked)]
    found = _first(tried, base)
    if any(variant.changes == chunked for variant in found):
        return MemoryFixes(found=found)
    found += _first(narrower, base)
    if not found:
        found += _first([(*_wider(base, factor), *one) for factor in _FACTORS for one in narrower], base)
    found += _first([(change,) for change in offloading(base)], base)
    return MemoryFixes(found=found) if found else _nothing(base)


def twice_as_many_devices(base: Evaluation) -> str:
    """The option for twice the degree of tensor parallelism; "" if devices are not linked or it does not divide."""
    for variant in _possible([_wider(base, 2)], base):
        return variant.typed
    return ""


def _wider(base: Evaluation, factor: int) -> _Changes:
    """`factor` times the degree of tensor parallelism."""
    return tuple(more_devices([factor * base.setting.layout.tp]))


def _first(tried: Iterable[Sequence[Change]], base: Evaluation) -> tuple[Variant, ...]:
    """The first changes that are possible and fit."""
    return tuple(islice((variant for variant in _possible(tried, base) if variant.fits), 1))


def _possible(tried: Iterable[Sequence[Change]], base: Evaluation) -> Iterator[Variant]:
    for changes in tried:
        with suppress(InputError):
            yield evaluate(changes, base, Objective.TTFT)


def _nothing(base: Evaluation) -> MemoryFixes:
    """An empty result, with the changes that were tried and do not help."""
    numbers = base.setting.hardware.numbers
    most = max((factor for factor in _FACTORS if any(_possible([_wider(base, factor)], base))), default=0)
    tried = {
        "chunked prefill": any(_possible([(chunked_prefill(),)], base)),
        f"up to {most} times as many devices (--tp)": most > 0,
        **{change.about: True for change in [*smaller_weights(base.setting)][-1:]},
        "weights in host memory": f"{HOST}.bandwidth" in numbers,
    }
    lacks = []
    if not any(link in numbers for link in _LINKS):
        lacks.append(f"no {_LINKS[0]} for more devices")
    if f"{HOST}.bandwidth" not in numbers:
        lacks.append(f"no {HOST}.bandwidth for weights in host memory")
    return MemoryFixes(found=(), tried=tuple(name for name, was in tried.items() if was), lacks=tuple(lacks))
