"""How long single steps of a device take, and what its memory holds: all that a scheduler asks of the engine."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..expectation.network import Kernels
from ..forms import Form, Num, evaluate
from ..generation import decode_s
from ..model import kv_cache
from ..roofline import Plan
from ..setting import Setting
from ..techniques import altered
from ..workload import Spans, Workload
from .engines import Engine

_POINTS: Final = 64  # lengths of a row of decode steps; between them it is a line
_REMEMBERED: Final = 1 << 16  # steps that read prompts
_BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)  # between which the pace of an engine is a line
_TOKENS: Final = (1, 16, 64, 256, 1024, 4096, 16384, 65536)
_PARTS: Final = 16  # of an answer, whose middles stand for it


@dataclass(frozen=True)
class Steps:
    """A setting as steps of any mixture: sequences that decode, parts of prompts, or both.

    engine  whose steps they are; they take as long as their lower bounds where there is none

    Raises InputError for models and layouts whose steps do not follow each other one by one.
    """

    setting: Setting
    engine: Engine | None = None
    _rows: dict[int, tuple[list[float], list[float]]] = field(default_factory=dict, repr=False)
    _read: dict[object, float] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        model, layout = self.setting.model, self.setting.layout
        if not model.generates:
            raise InputError(f"{model.name} does not generate, so there is nothing to serve; use llmviewer analyze")
        if model.encodes:
            raise InputError(f"{model.name} has an encoder, which no batch of mixed steps takes; use llmviewer analyze")
        for one in self.setting.techniques:
            if altered(one, "prefill", "step", "kept", "schedule"):
                raise InputError(f"{one.name} arranges the passes of one answer, which a scheduler of many does not do")
        for name in ("pp", "dp", "cp"):
            if getattr(layout, name) > 1:
                why = "steps of different requests would overlap" if name == "pp" else "requests are on one device only"
                raise InputError(f"{name} must be 1 to simulate, as {why}; got {getattr(layout, name)}")

    def decode_s(self, *, batch: Num, kv_len: Num) -> Num:
        """A step in which `batch` sequences attend to `kv_len` tokens each on average, the new one included. [s]"""
        bound = self.setting.decode_plan.time_s(Workload((Spans(batch=batch, q_len=1.0, kv_len=kv_len),)))
        if not self.engine:
            return bound
        pace = self._decode_pace(np.log(np.maximum(batch, 1)), np.log(np.maximum(kv_len, 1)))
        return self.engine.time_s(bound * pace, self._launches)

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
        if not self.engine:
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
        bound = self.setting.plan.time_s(Workload(groups))
        if not self.engine:
            return bound
        tokens = sum(group.batch * group.q_len for group in groups)
        return self.engine.time_s(bound * self._read_pace(np.log(np.maximum(tokens, 1))), self._launches)

    def prefill_s(self, prompt: Num, batch: Num = 1.0) -> Num:
        """Whole prompts, all alike, in a step of their own. [s]"""
        return self.mixed_s((Spans(batch=batch, q_len=prompt, kv_len=prompt),))

    @cached_property
    def _launches(self) -> int:
        return sum(block.repeat for block, _ in self.setting.decode_graph)

    @cached_property
    def _kernels(self) -> Kernels:
        kernels = self.setting.kernels
        if kernels is None or isinstance(kernels.device, str):
            why = kernels.device if kernels else "survey accounting counts what no kernel does"
            raise InputError(f"engine: nothing is known of kernels on {self.setting.hardware.name}: {why}")
        return kernels

    def _pace(self, plan: Plan, workload: Workload) -> Num:
        """What kernels of the library are expected to take over their bound."""
        found = self._kernels.expect(plan.estimate(workload).operators, workload).total.expected
        return found / plan.time_s(workload)

    @cached_property
    def _decode_pace(self) -> Callable[[Num, Num], Num]:
        """By the logarithms of batch and length, from a grid of them."""
        batch, length = (np.array(axis, dtype=float) for axis in (_BATCHES, [n for n in _TOKENS if n >= 16]))
        grid = (axis.ravel() for axis in np.meshgrid(batch, length, indexing="ij"))
        workload = Workload((Spans(batch=next(grid), q_len=1.0, kv_len=next(grid)),))
        ratio = np.reshape(self._pace(self.setting.decode_plan, workload), (len(batch), len(length)))

        def pace(log_batch: Num, log_length: Num) -> Num:
            row, part = _between(log_batch, np.log(batch))
            column, rest = _between(log_length, np.log(length))
            first, second = (ratio[row + i, column] * (1 - rest) + ratio[row + i, column + 1] * rest for i in (0, 1))
            found: Num = first * (1 - part) + second * part
            return found

        return pace

    @cached_property
    def _read_pace(self) -> Callable[[Num], Num]:
        """By the logarithm of the tokens of a step, as if they were one prompt."""
        tokens = np.array(_TOKENS, dtype=float)
        workload = Workload((Spans(batch=1.0, q_len=tokens, kv_len=tokens),))
        ratio = np.broadcast_to(self._pace(self.setting.plan, workload), tokens.shape)
        return lambda log_tokens: np.interp(log_tokens, np.log(tokens), ratio)

    def cache_bytes(self, tokens: Num) -> Num:
        """What the cache of a sequence of so many tokens takes. [B]"""
        return evaluate(self._cache, Workload((Spans(batch=1.0, q_len=1.0, kv_len=tokens),)))

    @cached_property
    def _cache(self) -> Form:
        return kv_cache(self.setting.graph)

    def check_fits(self, longest: int, room_bytes: float, cache_bytes: float) -> None:
        """Raises InputError where the cache of a request of `longest` tokens has no room. [B]"""
        if cache_bytes > room_bytes:
            device = self.setting.hardware
            what = f"{self.setting.model.name} with a request of {longest} tokens does not fit {device.name}"
            left = f"of {device.capacity / 1e9:.1f} GB {max(room_bytes, 0) / 1e9:.1f} GB are left to its cache"
            raise InputError(f"{what}: {left} of {cache_bytes / 1e9:.1f} GB; use --quant, --tp or another device")

    def fitting(self, most: int, *, prompt: int, gen: int) -> int:
        """Sequences that are read together and have memory to the end, up to `most`."""
        batch = np.arange(1.0, most + 1)
        total = self.setting.footprint.total_bytes(batch=batch, prompt=float(prompt), gen=float(gen))
        return int(np.count_nonzero(np.less_equal(total, self.setting.hardware.capacity)))

    def room_bytes(self, tokens: int) -> float:
        """What weights, and the activations of a step that reads `tokens` of prompts, leave to caches. [B]"""
        weights, _, live = self.setting.footprint.parts(batch=1.0, prompt=float(tokens), gen=0.0)
        return float(self.setting.hardware.capacity - weights - live)


def _between(at: Num, places: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    """The place on the left of each number, and how far it is from there to the next; the ends go no further."""
    column = np.asarray(np.interp(at, places, np.arange(len(places))))
    left = np.minimum(np.floor(column).astype(np.intp), len(places) - 2)
    return left, column - left


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
