"""Times of single steps and memory of a device: the cost model as a scheduler sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, reduce
from typing import Final

import numpy as np

from ..errors import InputError
from ..expectation.kernels import Kernels
from ..expectation.sources import bound_only_reason
from ..forms import Num
from ..generation import decode_s
from ..memory import Footprint, Shapes
from ..records import frozen
from ..setting import Setting, changes_passes
from ..units import si
from ..workload import Spans, Workload
from .lengths import Tokens
from .stages import Stage, waiting_ranks
from .step_times import Groups, going_on
from .traffic import Traffic

PARTS: Final = 16  # parts of an output, whose middles stand for it


@frozen
class Steps:
    """A setting as steps of decoding sequences, chunks of prompts, or both.

    Ranks of data parallelism whose tokens go to the experts of each wait for each other in every step, and the
    micro-batches of a pipeline for the slowest stage. Each of them is a lane: a running batch with its own sequences.

    expected  whether times are those expected of the setting's kernels and engine; else lower bounds

    Raises InputError for models that do not generate token by token.
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
            if changes_passes([one]) and not one.scheduled:
                raise InputError(
                    f"{one.name} arranges the passes of one answer, which a scheduler of many does not do; use "
                    "llmviewer analyze"
                )

    @cached_property
    def leaves(self) -> tuple[float, ...]:
        """Probability that a decode step gives at least 1, 2, ... tokens of a sequence."""
        return max((one.leaves for one in self.setting.techniques), key=len, default=(1.0,))

    @cached_property
    def width(self) -> int:
        """Tokens of each decoding sequence in a step: its last one, and the draft tokens to verify."""
        (group,) = self.setting.step(Workload((Spans(batch=1.0, q_len=1.0, kv_len=1.0),))).groups
        return int(group.q_len)

    @property
    def ahead(self) -> int:
        """Draft tokens, for whose keys and values a cache also has room."""
        return self.width - 1

    def going_on(self, batch: Num, kv_len: Num) -> Spans:
        """Decoding sequences of a step, whose next tokens attend to `kv_len`."""
        return going_on(self.width, batch, kv_len)

    def known(self, prompt: Num) -> Num:
        """Cached tokens of a prompt."""
        return sum((one.known(prompt) for one in self.setting.techniques), start=0.0)

    def hits(self, traffic: Traffic) -> Tokens:
        """Cached tokens of each prompt, from the trace file or else from techniques."""
        if traffic.cached is not None:
            return traffic.cached
        return np.broadcast_to(self.known(traffic.prompt), len(traffic)).astype(np.int64)

    def in_common(self, prompt: Num) -> Num:
        """Cached tokens that all prompts share."""
        return sum((one.in_common(prompt) for one in self.setting.techniques), start=0.0)

    @property
    def turns(self) -> int:
        """Micro-batches of a rank that follow each other through the stages of a pipeline."""
        return self.setting.layout.pp

    @cached_property
    def ranks(self) -> int:
        """Ranks of data parallelism that wait for each other in every step."""
        return waiting_ranks(self.setting.layout)

    @property
    def apart(self) -> int:
        """Sets of ranks that do not wait for each other, each with its own requests."""
        return self.setting.layout.dp // self.ranks

    @property
    def lanes(self) -> int:
        """Running batches that take steps together; those of the first rank come first."""
        return self.ranks * self.turns

    def decode_s(self, *, batch: Num, kv_len: Num, filled: Num = 1.0) -> Num:
        """A decode step with `batch` sequences in every lane that attend to `kv_len` tokens each on average, the new
        one included. [s]

        filled  fraction of the micro-batches that have any sequence
        """
        groups = (self.going_on(batch, kv_len),)
        return self._alike([stage.alike_s(groups, decodes=True) for stage in self._stages], filled)

    def mixed_s(self, groups: Groups) -> Num:
        """A step in which every lane has these groups to prefill or decode; their fields may be arrays. [s]"""
        return self._alike([stage.alike_s(groups) for stage in self._stages])

    def prefill_s(self, prompt: Num, batch: Num = 1.0) -> Num:
        """A prefill of equal prompts. [s]"""
        return self.mixed_s((Spans(batch=batch, q_len=prompt - self.known(prompt), kv_len=prompt),))

    def reading_s(self, prompt: Num, known: Num) -> tuple[Num, Num]:
        """Time of a prefill, and time until the next may follow it. [s]"""
        read = (Spans(batch=1.0, q_len=prompt - known, kv_len=prompt),)
        stages = [stage.alike_s(read) for stage in self._stages]
        return sum(stages[1:], start=stages[0]), reduce(np.maximum, stages)

    def decoding_s(self, lanes: Sequence[tuple[int, float]]) -> float:
        """A decode step, from the number of sequences of each lane and their mean context; tabulated. [s]"""
        return self._round([(self.going_on(*lane),) if lane[0] else () for lane in lanes], decodes=True)

    def step_s(self, lanes: Sequence[Groups]) -> float:
        """A step with prefills, from the groups of each lane. [s]"""
        return self._round(lanes, decodes=False)

    def answers_s(self, batch: int, *, first: int, last: int, steps: int) -> float:
        """All `steps` of `batch` sequences in every lane, whose contexts grow evenly from `first` to `last`. [s]"""
        if last < first:
            return 0.0
        if not self.expected and not self.setting.layout.cuts and self.lanes == 1 and self.width == 1:
            return float(decode_s(self.setting.decode_plan, batch=float(batch), first=float(first), last=float(last)))
        middles = first - 0.5 + (np.arange(PARTS) + 0.5) * (last - first + 1) / PARTS
        return float(np.mean(self.decode_s(batch=float(batch), kv_len=middles))) * steps

    def _alike(self, stages: Sequence[Num], filled: Num = 1.0) -> Num:
        """Time between two steps of equal micro-batches, `filled` of which have sequences. [s]"""
        if self.turns == 1:
            return stages[0]
        return np.maximum(sum(stages), filled * self.turns * reduce(np.maximum, stages))

    def _round(self, lanes: Sequence[Groups], *, decodes: bool) -> float:
        """Time between two steps of several micro-batches: all stages of the longest, or the slowest of each. [s]"""
        turns = [turn for at in range(self.turns) if any(turn := lanes[at :: self.turns])]
        each = [[stage.time_s(turn, decodes=decodes) for stage in self._stages] for turn in turns]
        return max(*map(sum, each), sum(map(max, each)))

    @cached_property
    def _stages(self) -> tuple[Stage, ...]:
        return Stage.each(self.setting, self._kernels if self.expected else None, self.ranks, self.width)

    @property
    def unknown(self) -> str:
        """The reason why there are no expected times; "" if there are."""
        kernels, plan = self._kernels, self.setting.decode_plan
        if isinstance(kernels.device, str):
            return kernels.device
        workload = Workload.decode(batch=1.0, kv_len=1.0)
        found = kernels.run(plan, workload)
        return "" if found.modelled else bound_only_reason(found.source)

    @cached_property
    def _kernels(self) -> Kernels:
        kernels = self.setting.kernels
        assert kernels is not None  # accounting is faithful
        return kernels

    def cache_bytes(self, tokens: Num) -> Num:
        """KV cache of a sequence. [B]"""
        return sum((one.cache_bytes(tokens) for one in (self._narrowest, *self._narrowest.beside)), start=0.0)

    @cached_property
    def _narrowest(self) -> Footprint:
        """Memory, by the tokens of a step and of a sequence."""
        longest = float(self.setting.model.max_context or 1 << 17)
        whole = self.setting.footprint.narrowest(self.setting.hardware.capacity, longest)
        return replace(whole, shapes=Shapes(), beside=tuple(replace(one, shapes=Shapes()) for one in whole.beside))

    def common_bytes(self, prompt: Num) -> float:
        """KV cache of the longest shared prefix. [B]"""
        most = float(np.max(self.in_common(prompt)))
        return float(self.cache_bytes(most)) if most else 0.0

    def check_fits(self, longest: int, read: int, cache_bytes: float) -> None:
        """Raises InputError if the cache of a request of `longest` tokens does not fit beside weights and a step that
        prefills `read` tokens. [B]
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
        """Sequences of one copy, up to `most`, that fit with all of their outputs."""
        batch = np.arange(1.0, most + 1) * self.apart
        total = self.setting.footprint.total_bytes(batch=batch, prompt=float(prompt), gen=float(gen))
        return int(np.count_nonzero(np.less_equal(total, self.setting.hardware.capacity)))

    def room_bytes(self, tokens: int) -> float:
        """KV budget of a rank, beside weights and the activations of a step that prefills `tokens`. [B]"""
        weights, live = self._held(tokens)
        return self.setting.hardware.capacity - weights - live

    def _held(self, tokens: int) -> tuple[float, float]:
        """Weights, and the activations of a step that prefills `tokens`. [B]"""
        weights, _, live = self._narrowest.parts(batch=1.0, prompt=float(tokens), gen=0.0)
        return float(weights), float(live)
