"""What makes a request fit that does not: the prompt in chunks, more devices, weights in host memory."""

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

TRIED: Final = "the prompt in chunks, up to 8 times as many devices (--tp), weights in host memory"
_CHUNKS: Final = "chunked-prefill"
_DEVICES: Final = (2, 4, 8)  # times as many


@dataclass(frozen=True, kw_only=True)
class Cure:
    """What makes a request fit.

    option   as it is typed
    setting  with it
    prefill  how many times as long the prefill takes then
    """

    option: str
    setting: Setting
    prefill: float


def find_cures(
    setting: Setting, memory: Memory, *, batch: int, prompt: int, gen: int, images: int
) -> tuple[Cure, ...] | None:
    """Those that work, the one that costs least first; None where none is needed.

    Where the prompt in chunks is enough, nothing else is looked for. Else it is as few devices as do, and weights in
    host memory.
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
        return found
    offloaded = fitting(setting, memory, **asked)
    others = [(f"--offload {offloaded.offload}", offloaded)] if offloaded else []
    return (*found, *_cures(others, memory, asked, first_s))


def _chunked(typed: str, setting: Setting) -> Iterator[tuple[str, Setting]]:
    """With the prompt in chunks besides, where that makes sense."""
    with suppress(InputError):
        techniques = parse_techniques((*setting.techniques, _CHUNKS))
        yield f"{typed} --with {_CHUNKS}".lstrip(), replace(setting, techniques=techniques).agreed()


def _wider(setting: Setting, times: int) -> Iterator[tuple[str, Setting]]:
    """Every matrix cut over `times` as many devices, where experts can lie so."""
    with suppress(InputError):
        layout = replace(setting.layout, tp=times * setting.layout.tp)
        yield f"--tp {layout.tp}", replace(setting, layout=layout)


def _cures(
    options: Iterable[tuple[str, Setting]], memory: Memory, asked: Mapping[str, int], first_s: float
) -> Iterator[Cure]:
    """Those that fit, where the model can be cut so and such links are known; the first token takes `first_s` now."""
    for typed, setting in options:
        with suppress(InputError):
            if float(setting.footprint.total_bytes(**asked)) <= memory.capacity_bytes:
                yield Cure(option=typed, setting=setting, prefill=_first_s(setting, asked) / first_s)


def _first_s(setting: Setting, asked: Mapping[str, int]) -> float:
    """Until the first token. [s]"""
    return float(setting.schedule(**{**asked, "gen": 1}).ttft_s)


def fitting(setting: Setting, memory: Memory, *, batch: int, prompt: int, gen: int, images: int) -> Setting | None:
    """The same with as many whole hundredths of the weights in host memory as make it fit; None where it does without,
    where nothing can, and where no host link is known.
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
