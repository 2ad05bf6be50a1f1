"""Changes that make a request fit the memory: chunked prefill, more devices, fewer bits, weights in host memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil
from typing import Final

from ..errors import InputError
from ..memory import Memory
from ..setting import Setting
from ..techniques import parse_techniques
from ..transforms.offload import HOST
from .precisions import smaller

_CHUNKS: Final = "chunked-prefill"
_DEVICES: Final = (2, 4, 8)  # times as many
_LINKS: Final = ("scale_up.bandwidth", "host.bandwidth", "scale_out.bandwidth")  # any of which joins devices


@dataclass(frozen=True, kw_only=True)
class Cure:
    """A change that makes a request fit the memory.

    option   CLI option of the change
    setting  the changed setting
    prefill  TTFT with the change over that without
    """

    option: str
    setting: Setting
    prefill: float


@dataclass(frozen=True, kw_only=True)
class Cures:
    """What makes a request fit, in the order of cost, cheapest first; if nothing does, what was tried.

    tried  kinds of changes that do not suffice
    lacks  what the device's file would need for others
    """

    found: tuple[Cure, ...]
    tried: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()


def find_cures(setting: Setting, memory: Memory, *, batch: int, prompt: int, gen: int, images: int) -> Cures | None:
    """None if the request fits.

    If chunked prefill suffices, it is the only one. Else they are the smallest sufficient number of devices, the widest
    sufficient precision, both together where neither suffices, and weights in host memory.
    """
    if memory.fits:
        return None
    asked = {"batch": batch, "prompt": prompt, "gen": gen, "images": images}
    held = memory.weight_bytes + memory.kv_cache_bytes
    options = [*_chunked("", setting)]
    for times in _DEVICES:
        if held <= times * memory.capacity_bytes:
            options += (each for one in _wider(setting, times) for each in (one, *_chunked(*one)))
    first_s = _first_s(setting, asked)
    found = tuple(islice(_cures(options, memory, asked, first_s), 1))
    if any(cure.setting.layout == setting.layout for cure in found):
        return Cures(found=found)
    found += tuple(islice(_cures(_narrower("", setting), memory, asked, first_s), 1))
    if not found:
        both = (each for times in _DEVICES for one in _wider(setting, times) for each in _narrower(*one))
        found += tuple(islice(_cures(both, memory, asked, first_s), 1))
    offloaded = fitting(setting, memory, **asked)
    others = [(f"--offload {offloaded.offload}", offloaded)] if offloaded else []
    found += tuple(_cures(others, memory, asked, first_s))
    return Cures(found=found) if found else _nothing(setting)


def _nothing(setting: Setting) -> Cures:
    """What was tried in vain."""
    numbers = setting.hardware.numbers
    most = max((times for times in _DEVICES if any(map(_joined, _wider(setting, times)))), default=0)
    tried = {
        "chunked prefill": any(_chunked("", setting)),
        f"up to {most} times as many devices (--tp)": most > 0,
        **{change.what: True for change in [*smaller(setting)][-1:]},
        "weights in host memory": f"{HOST}.bandwidth" in numbers,
    }
    lacks = []
    if not any(link in numbers for link in _LINKS):
        lacks.append(f"no {_LINKS[0]} for more devices")
    if f"{HOST}.bandwidth" not in numbers:
        lacks.append(f"no {HOST}.bandwidth for weights in host memory")
    return Cures(found=(), tried=tuple(name for name, was in tried.items() if was), lacks=tuple(lacks))


def _joined(option: tuple[str, Setting]) -> bool:
    """Whether links are known between that many devices, and the model can be cut for them."""
    with suppress(InputError):
        return bool(option[1].footprint)
    return False


def twice_as_many(setting: Setting) -> str:
    """The option for tensor parallelism of twice the degree; "" where devices are not linked or it does not divide."""
    for option, wider in _wider(setting, 2):
        with suppress(InputError):
            return option if wider.plan else ""
    return ""


def _chunked(typed: str, setting: Setting) -> Iterator[tuple[str, Setting]]:
    """The setting with chunked prefill, and its options; none if that is invalid."""
    with suppress(InputError):
        techniques = parse_techniques((*setting.techniques, _CHUNKS))
        yield f"{typed} --with {_CHUNKS}".lstrip(), replace(setting, techniques=techniques).agreed()


def _wider(setting: Setting, times: int) -> Iterator[tuple[str, Setting]]:
    """The setting with `times` the degree of tensor parallelism, and its option; none if that is invalid."""
    with suppress(InputError):
        layout = replace(setting.layout, tp=times * setting.layout.tp)
        yield f"--tp {layout.tp}", replace(setting, layout=layout)


def _narrower(typed: str, setting: Setting) -> Iterator[tuple[str, Setting]]:
    """The setting with smaller weights, widest first, and its options."""
    with suppress(InputError):
        for change in smaller(setting):
            yield f"{typed} {change.option}".lstrip(), change.setting


def _cures(
    options: Iterable[tuple[str, Setting]], memory: Memory, asked: Mapping[str, int], first_s: float
) -> Iterator[Cure]:
    """Options that are valid and fit; `first_s` is the TTFT of the unchanged setting. [s]"""
    for typed, setting in options:
        with suppress(InputError):
            if float(setting.footprint.total_bytes(**asked)) <= memory.capacity_bytes:
                yield Cure(option=typed, setting=setting, prefill=_first_s(setting, asked) / first_s)


def _first_s(setting: Setting, asked: Mapping[str, int]) -> float:
    """TTFT. [s]"""
    return float(setting.schedule(**{**asked, "gen": 1}).ttft_s)


def fitting(setting: Setting, memory: Memory, *, batch: int, prompt: int, gen: int, images: int) -> Setting | None:
    """`setting` with the smallest share of weights, in whole percents, in host memory that makes the request fit.

    None if it fits without, if no share suffices, or if the device's file has no host link.
    """
    asked, share = setting, setting.offload.weights
    needed, capacity = memory.total_bytes, memory.capacity_bytes
    while needed > capacity:  # once; of a pipeline, until no stage is too full
        weights = asked.footprint.parts(batch=batch, prompt=prompt, gen=gen, images=images)[0]
        whole = float(weights) / (1 - share) if share < 1 else 0.0
        share = ceil(100 * (share + (needed - capacity) / whole) - 1e-9) / 100 if whole else 2.0
        if share > 1 or f"{HOST}.bandwidth" not in setting.hardware.numbers:
            return None
        asked = replace(setting, offload=replace(setting.offload, weights=share))
        needed = float(asked.footprint.total_bytes(batch=batch, prompt=prompt, gen=gen, images=images))
    return asked if asked is not setting else None
