"""How long single steps of a device take, and what its memory holds: all that a scheduler asks of the engine."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..expectation.engines import IDLE
from ..expectation.launches import counted
from ..expectation.network import BOUND_ONLY, Kernels
from ..forms import Form, Num, evaluate
from ..generation import decode_s
from ..layout import Layout
from ..model import kv_cache
from ..setting import Setting
from ..techniques import altered
from ..units import si
from ..workload import Spans, Workload
from .paces import Paces

_POINTS: Final = 64  # lengths of a row of decode steps; between them it is a line
_REMEMBERED: Final = 1 << 16  # steps that read prompts
_PARTS: Final = 16  # of an answer, whose middles stand for it


def unsimulated(layout: Layout) -> str:
    """Why steps do not follow each other one by one in a layout; "" where they do."""
    for name in ("pp", "dp", "cp"):
        if getattr(layout, name) > 1:
            why = "steps of different requests would overlap" if name == "pp" else "requests are on one device only"
            return f"{name} must be 1 to simulate, as {why}; got {getattr(layout, name)}"
    return ""


@dataclass(frozen=True)
class Steps:
    """A setting as steps of any mixture: sequences that decode, parts of prompts, or both.

    expected  whether they take as long as is expected of the setting's kernels and engine; else their lower bounds

    Raises InputError for models and layouts whose steps do not follow each other one by one.
    """

    setting: Setting
    expected: bool = False
    _rows: dict[int, tuple[list[float], list[float]]] = field(default_factory=dict, repr=False)
    _read: dict[object, float] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        model = self.setting.model
        if not model.generates:
            raise InputError(f"{model.name} does not generate, so there is nothing to serve; use llmviewer analyze")
        if model.encodes:
            raise InputError(f"{model.name} has an encoder, which no batch of mixed steps takes; use llmviewer analyze")
        for one in self.setting.techniques:
            if altered(one, "prefill", "step", "kept", "schedule"):
                raise InputError(f"{one.name} arranges the passes of one answer, which a scheduler of many does not do")
        if why := unsimulated(self.setting.layout):
            raise InputError(why)

    def decode_s(self, *, batch: Num, kv_len: Num) -> Num:
        """A step in which `batch` sequences attend to `kv_len` tokens each on average, the new one included. [s]"""
        groups = (Spans(batch=batch, q_len=1.0, kv_len=kv_len),)
        if self.expected:
            return self._hosted(self._paces.decode_s(batch=batch, kv_len=kv_len), self._launches[1], groups)
        return self.setting.decode_plan.time_s(Workload(groups))

    def decoding_s(self, batch: int, kv_len: float) -> float:
        """The same for one number, from a row of lengths that is worked out once for each batch. [s]"""
        if batch not in self._rows:
            points = np.geomspace(1, max(self._longest, 2), _POINTS)
            each = np.broadcast_to(self.decode_s(batch=float(batch), kv_len=points), points.shape)
            self._rows[batch] = points.tolist(), each.tolist()
        lengths, times = self._rows[batch]
        right = min(max(bisect_left(lengths, kv_len), 1), len(lengths) - 1)
        left = right - 1
        slope = (times[right] - times[left]) / (lengths[right] - lengths[left])
        return float(times[left] + slope * (kv_len - lengths[left]))

    def answers_s(self, batch: int, *, first: int, last: int) -> float:
        """All steps of `batch` sequences that attend to `first` tokens, then one more each time, up to `last`. [s]"""
        if last < first:
            return 0.0
        if not self.expected:
            return float(decode_s(self.setting.decode_plan, batch=float(batch), first=float(first), last=float(last)))
        middles = first - 0.5 + (np.arange(_PARTS) + 0.5) * (last - first + 1) / _PARTS
        return float(np.mean(self.decode_s(batch=float(batch), kv_len=middles))) * (last - first + 1)

    @property
    def _longest(self) -> int:
        return self.setting.model.max_context or 1 << 17

    def step_s(self, groups: tuple[Spans, ...]) -> float:
        """A step that reads parts of prompts, beside whatever decodes. [s]"""
        if groups not in self._read:
            if len(self._read) > _REMEMBERED:
                self._read.clear()
            self._read[groups] = float(self.mixed_s(groups))
        return self._read[groups]

    def mixed_s(self, groups: tuple[Spans, ...]) -> Num:
        """The same for fields that are arrays. [s]"""
        if self.expected:
            return self._hosted(self._paces.mixed_s(groups), self._launches[0], groups)
        return self.setting.plan.time_s(Workload(groups))

    def prefill_s(self, prompt: Num, batch: Num = 1.0) -> Num:
        """Whole prompts, all alike, in a step of their own. [s]"""
        return self.mixed_s((Spans(batch=batch, q_len=prompt, kv_len=prompt),))

    @cached_property
    def _launches(self) -> tuple[Form, Form]:
        """Of a step that reads, and of one that decodes alone."""
        return counted(self.setting.plan), counted(self.setting.decode_plan)

    @property
    def unknown(self) -> str:
        """Why nothing above the bounds is expected; "" where something is."""
        kernels, plan = self._kernels, self.setting.decode_plan
        if isinstance(kernels.device, str):
            return kernels.device
        workload = Workload.decode(batch=1.0, kv_len=1.0)
        found = kernels.run(plan, workload)
        return "" if found.modelled else found.source.removeprefix(f"{BOUND_ONLY}: ")

    @cached_property
    def _kernels(self) -> Kernels:
        kernels = self.setting.kernels
        assert kernels is not None  # accounting is faithful
        return kernels

    @cached_property
    def _paces(self) -> Paces:
        return Paces(self._kernels, self.setting.plan, self.setting.decode_plan)

    def _hosted(self, kernels_s: Num, launches: Form, groups: tuple[Spans, ...]) -> Num:
        host = self._kernels.host
        return kernels_s if host == IDLE else host.time_s(kernels_s, evaluate(launches, Workload(groups)))

    def cache_bytes(self, tokens: Num) -> Num:
        """What the cache of a sequence of so many tokens takes. [B]"""
        return evaluate(self._cache, Workload((Spans(batch=1.0, q_len=1.0, kv_len=tokens),)))

    @cached_property
    def _cache(self) -> Form:
        return kv_cache(self.setting.graph)

    def check_fits(self, longest: int, read: int, cache_bytes: float) -> None:
        """Raises InputError where the cache of a request of `longest` tokens has no room beside weights and a step that
        reads `read` of prompts. [B]
        """
        room = self.room_bytes(read)
        if cache_bytes <= room:
            return
        device, name = self.setting.hardware, self.setting.model.name
        weights = self._held(read)[0]
        where = "each device" if self.setting.layout.devices > 1 else "a device"
        held = f"on {where} of {si(device.capacity)}B its weights take {si(weights)}B"
        advice = "use fewer bits (--quant), more devices (--tp) or larger ones"
        if weights > device.capacity:
            raise InputError(f"{name} does not fit {device.name}: {held}; {advice}")
        raise InputError(
            f"{name} with a request of {longest} tokens does not fit {device.name}: {held} and a step "
            f"{si(device.capacity - weights - room)}B, which leaves {si(max(room, 0))}B to a cache of "
            f"{si(cache_bytes)}B; {advice}, or shorter requests"
        )

    def fitting(self, most: int, *, prompt: int, gen: int) -> int:
        """Sequences that are read together and have memory to the end, up to `most`."""
        batch = np.arange(1.0, most + 1)
        total = self.setting.footprint.total_bytes(batch=batch, prompt=float(prompt), gen=float(gen))
        return int(np.count_nonzero(np.less_equal(total, self.setting.hardware.capacity)))

    def room_bytes(self, tokens: int) -> float:
        """What weights, and the activations of a step that reads `tokens` of prompts, leave to caches. [B]"""
        weights, live = self._held(tokens)
        return self.setting.hardware.capacity - weights - live

    def _held(self, tokens: int) -> tuple[float, float]:
        """Weights, and the activations of a step that reads `tokens` of prompts. [B]"""
        weights, _, live = self.setting.footprint.parts(batch=1.0, prompt=float(tokens), gen=0.0)
        return float(weights), float(live)


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """The memory for caches, handed out in blocks of tokens (arXiv:2309.06180).

    room_bytes  of all of them together
    size        tokens of a block
    taken       bytes of a sequence that has 0, 1, ... blocks
    """

    room_bytes: float
    size: int
    taken: npt.NDArray[np.float64]

    @classmethod
    def of(cls, steps: Steps, *, room_bytes: float, size: int, longest: int) -> Blocks:
        """For sequences of up to `longest` tokens."""
        tokens = size * np.arange(1.0, -(-longest // size) + 1)
        bytes_each = np.broadcast_to(steps.cache_bytes(tokens), tokens.shape)
        return cls(room_bytes=room_bytes, size=size, taken=np.concatenate(([0.0], bytes_each)))

    def bytes_of(self, tokens: npt.NDArray[np.int64]) -> float:
        """What sequences of so many tokens each take together. [B]"""
        return float(self.taken[-(-tokens // self.size)].sum())

    def bytes_of_one(self, tokens: int) -> float:
        return float(self.taken[-(-tokens // self.size)])
