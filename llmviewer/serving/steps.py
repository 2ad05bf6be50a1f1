"""Times of single steps and memory of a device: all that a scheduler needs of the cost model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Final

import numpy as np

from ..errors import InputError
from ..expectation.kernels import Kernels
from ..expectation.sources import why_unknown
from ..forms import Num
from ..generation import decode_s
from ..memory import Footprint, Shapes
from ..setting import Setting, arranges
from ..units import si
from ..workload import Spans, Workload
from .lengths import Tokens
from .stages import Stage, waiting_ranks
from .step_times import Groups, going_on
from .traffic import Traffic

PARTS: Final = 16  # of an answer, whose middles stand for it


@dataclass(frozen=True)
class Steps:
    """A setting as steps of any mixture: sequences that decode, parts of prompts, or both.

    Ranks of data parallelism whose tokens go to the experts of each wait for each other in every step, and the turns of
    a pipeline for the slowest stage; each has a scheduler and sequences of its own, which are called a lane here.

    expected  whether they take as long as is expected of the setting's kernels and engine; else their lower bounds

    Raises InputError for models whose steps do not follow each other one by one.
    """

    setting: Setting
    expected: bool = False

    def __post_init__(self) -> None:
        model = self.setting.model
        if not model.generates:
            raise InputError(f"{model.name} does not generate, so there is nothing to serve; use llmviewer analyze")
        if model.encodes:
            raise InputError(f"{model.name} has an encoder, which no batch of mixed steps takes; use llmviewer analyze")
        for one in self.setting.techniques:
            if arranges([one]) and not one.scheduled:
                raise InputError(
                    f"{one.name} arranges the passes of one answer, which a scheduler of many does not do; use "
                    "llmviewer analyze"
                )

    @cached_property
    def leaves(self) -> tuple[float, ...]:
        """How likely a step leaves at least 1, 2, ... tokens of a sequence that decodes."""
        return max((one.leaves for one in self.setting.techniques), key=len, default=(1.0,))

    @cached_property
    def width(self) -> int:
        """Tokens of each sequence that decodes which a step takes: those that are proposed are verified with it."""
        (group,) = self.setting.step(Workload((Spans(batch=1.0, q_len=1.0, kv_len=1.0),))).groups
        return int(group.q_len)

    @property
    def ahead(self) -> int:
        """Of them, those whose keys and values a cache has room for beyond its own."""
        return self.width - 1

    def going_on(self, batch: Num, kv_len: Num) -> Spans:
        """What a step has of `batch` sequences that decode, whose next tokens attend to `kv_len`."""
        return going_on(self.width, batch, kv_len)

    def known(self, prompt: Num) -> Num:
        """Tokens of a prompt whose keys and values are there before it is read."""
        return sum((one.known(prompt) for one in self.setting.techniques), start=0.0)

    def hits(self, traffic: Traffic) -> Tokens:
        """Those of each prompt of a traffic: as a file says, or else techniques."""
        if traffic.cached is not None:
            return traffic.cached
        return np.broadcast_to(self.known(traffic.prompt), len(traffic)).astype(np.int64)

    def in_common(self, prompt: Num) -> Num:
        """Those of them that all prompts have in common."""
        return sum((one.in_common(prompt) for one in self.setting.techniques), start=0.0)

    @property
    def turns(self) -> int:
        """Lanes of a rank that follow each other through the stages of a pipeline."""
        return self.setting.layout.pp

    @cached_property
    def ranks(self) -> int:
        """Ranks of data parallelism that wait for each other in every step."""
        return waiting_ranks(self.setting.layout)

    @property
    def apart(self) -> int:
        """Sets of ranks that do not wait for each other, each with requests of its own."""
        return self.setting.layout.dp // self.ranks

    @property
    def lanes(self) -> int:
        """Sets of sequences that take steps together, each with a scheduler: those of the first rank first."""
        return self.ranks * self.turns

    def decode_s(self, *, batch: Num, kv_len: Num, filled: Num = 1.0) -> Num:
        """A step in which `batch` sequences of every lane attend to `kv_len` tokens each on average, the new one
        included. [s]

        filled  part of the turns that have any
        """
        groups = (self.going_on(batch, kv_len),)
        return self._alike([stage.alike_s(groups, decodes=True) for stage in self._stages], filled)

    def mixed_s(self, groups: Groups) -> Num:
        """A step in which every lane has these to read, and of going_on() to decode; fields may be arrays. [s]"""
        return self._alike([stage.alike_s(groups) for stage in self._stages])

    def prefill_s(self, prompt: Num, batch: Num = 1.0) -> Num:
        """Whole prompts, all alike, in a step of their own. [s]"""
        return self.mixed_s((Spans(batch=batch, q_len=prompt - self.known(prompt), kv_len=prompt),))

    def reading_s(self, prompt: Num, known: Num) -> tuple[Num, Num]:
        """How long a prompt is read, and how long until the next may follow it. [s]"""
        read = (Spans(batch=1.0, q_len=prompt - known, kv_len=prompt),)
        stages = [stage.alike_s(read) for stage in self._stages]
        return sum(stages[1:], start=stages[0]), reduce(np.maximum, stages)

    def decoding_s(self, lanes: Sequence[tuple[int, float]]) -> float:
        """A step in which all decode: of each lane how many sequences, and the tokens that each attends to on average.
        Sums of lengths that are worked out once for each number. [s]
        """
        return self._round([(self.going_on(*lane),) if lane[0] else () for lane in lanes], decodes=True)

    def step_s(self, lanes: Sequence[Groups]) -> float:
        """A step in which some read parts of prompts, beside whatever decodes: what each lane has. [s]"""
        return self._round(lanes, decodes=False)

    def answers_s(self, batch: int, *, first: int, last: int, steps: int) -> float:
        """All `steps` of `batch` sequences of every lane, from where their next tokens attend to `first` up to `last`,
        evenly. [s]
        """
        if last < first:
            return 0.0
        if not self.expected and not self.setting.layout.cuts and self.lanes == 1 and self.width == 1:
            return float(decode_s(self.setting.decode_plan, batch=float(batch), first=float(first), last=float(last)))
        middles = first - 0.5 + (np.arange(PARTS) + 0.5) * (last - first + 1) / PARTS
        return float(np.mean(self.decode_s(batch=float(batch), kv_len=middles))) * steps

    def _alike(self, stages: Sequence[Num], filled: Num = 1.0) -> Num:
        """The time between two steps, where every turn takes so long in each stage, or that part of them. [s]"""
        if self.turns == 1:
            return stages[0]
        return np.maximum(sum(stages), filled * self.turns * reduce(np.maximum, stages))

    def _round(self, lanes: Sequence[Groups], *, decodes: bool) -> float:
        """The time between two steps of several turns: all stages of the longest, or the slowest stage for each. [s]"""
        turns = [turn for at in range(self.turns) if any(turn := lanes[at :: self.turns])]
        each = [[stage.time_s(turn, decodes=decodes) for stage in self._stages] for turn in turns]
        return max(*map(sum, each), sum(map(max, each)))

    @cached_property
    def _stages(self) -> tuple[Stage, ...]:
        return Stage.each(self.setting, self._kernels if self.expected else None, self.ranks, self.width)

    @property
    def unknown(self) -> str:
        """Why nothing above the bounds is expected; "" where something is."""
        kernels, plan = self._kernels, self.setting.decode_plan
        if isinstance(kernels.device, str):
            return kernels.device
        workload = Workload.decode(batch=1.0, kv_len=1.0)
        found = kernels.run(plan, workload)
        return "" if found.modelled else why_unknown(found.source)

    @cached_property
    def _kernels(self) -> Kernels:
        kernels = self.setting.kernels
        assert kernels is not None  # accounting is faithful
        return kernels

    def cache_bytes(self, tokens: Num) -> Num:
        """What the cache of a sequence of so many tokens takes. [B]"""
        return sum((one.cache_bytes(tokens) for one in (self._narrowest, *self._narrowest.beside)), start=0.0)

    @cached_property
    def _narrowest(self) -> Footprint:
        """What is held, by the tokens of a step and of a sequence themselves."""
        longest = float(self.setting.model.max_context or 1 << 17)
        whole = self.setting.footprint.narrowest(self.setting.hardware.capacity, longest)
        return replace(whole, shapes=Shapes(), beside=tuple(replace(one, shapes=Shapes()) for one in whole.beside))

    def common_bytes(self, prompt: Num) -> float:
        """What the cache of all that prompts have in common takes. [B]"""
        most = float(np.max(self.in_common(prompt)))
        return float(self.cache_bytes(most)) if most else 0.0

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
        """Sequences of one copy that are read together and have memory to the end, up to `most`."""
        batch = np.arange(1.0, most + 1) * self.apart
        total = self.setting.footprint.total_bytes(batch=batch, prompt=float(prompt), gen=float(gen))
        return int(np.count_nonzero(np.less_equal(total, self.setting.hardware.capacity)))

    def room_bytes(self, tokens: int) -> float:
        """What weights, and the activations of a step that reads `tokens`, leave to the caches of a rank. [B]"""
        weights, live = self._held(tokens)
        return self.setting.hardware.capacity - weights - live

    def _held(self, tokens: int) -> tuple[float, float]:
        """Weights, and the activations of a step that reads `tokens` of prompts. [B]"""
        weights, _, live = self._narrowest.parts(batch=1.0, prompt=float(tokens), gen=0.0)
        return float(weights), float(live)
