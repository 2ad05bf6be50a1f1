"""Times of single steps and memory of a device: the cost model as a scheduler sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, reduce
from math import nan
from typing import Final

import numpy as np

from ..errors import CapacityError, InputError
from ..expectation.engines import DIRECT, Frontend
from ..expectation.kernels import Kernels
from ..expectation.sources import bound_only_reason
from ..forms import Num
from ..generation import decode_s
from ..memory import Footprint, Shapes
from ..records import frozen
from ..server_memory import Server, reserves_memory, server_of
from ..setting import Setting, changes_passes
from ..units import si
from ..variants.evaluation import Evaluation
from ..variants.memory_fixes import what_fits
from ..workload import Spans, Workload
from .lengths import Tokens
from .stages import Stage
from .step_times import Groups, decoding_group
from .traffic import Times, Traffic

OUTPUT_SAMPLES: Final = 16  # contexts, evenly spaced over an output, at which its decode steps are computed


@frozen
class Steps:
    """Step times and memory of a setting, for steps of decoding sequences, chunks of prompts, or both.

    Data-parallel ranks that share experts wait for each other in every step, and the micro-batches of a pipeline for
    the slowest stage. Each has a running batch with its own sequences.

    expected  whether times are those expected of the setting's kernels and engine; else lower bounds

    Raises InputError for models that do not generate token by token.
    """

    setting: Setting
    expected: bool = False

    def __post_init__(self) -> None:
        model = self.setting.model
        if not model.generates:
            raise InputError(f"{model.name} does not generate, so there is nothing to serve; use llmviewer analyze")
        if model.is_encoder_decoder:
            raise InputError(
                f"{model.name} has an encoder, which steps of prefill and decode do not include; use llmviewer analyze"
            )
        for one in self.setting.techniques:
            if changes_passes([one]) and not one.simulatable:
                raise InputError(
                    f"{one.name} changes the passes of a request, which continuous batching does not support; use "
                    "llmviewer analyze"
                )

    @cached_property
    def acceptance_probabilities(self) -> tuple[float, ...]:
        """Probability that a decode step gives at least 1, 2, ... tokens of a sequence."""
        return max((one.acceptance_probabilities for one in self.setting.techniques), key=len, default=(1.0,))

    @cached_property
    def width(self) -> int:
        """Tokens of each decoding sequence in a step: the last output token, and draft tokens to verify."""
        (group,) = self.setting.step(Workload((Spans(batch=1.0, q_len=1.0, kv_len=1.0),))).groups
        return int(group.q_len)

    @property
    def draft_tokens(self) -> int:
        """Draft tokens per step, for which each KV cache also has room."""
        return self.width - 1

    def decoding_group(self, batch: Num, kv_len: Num) -> Spans:
        """Decoding sequences of a step, whose next tokens attend to `kv_len`."""
        return decoding_group(self.width, batch, kv_len)

    def cached_tokens(self, prompt: Num) -> Num:
        """Tokens of a prompt that are in the prefix cache."""
        return sum((one.cached_prefix_tokens(prompt) for one in self.setting.techniques), start=0.0)

    def hit_tokens(self, traffic: Traffic) -> Tokens:
        """Prefix-cache hits of each prompt, from the trace file or else from techniques. [tokens]"""
        if traffic.cached is not None:
            return traffic.cached
        return np.broadcast_to(self.cached_tokens(traffic.prompt), len(traffic)).astype(np.int64)

    def shared_prefix_tokens(self, prompt: Num) -> Num:
        """Prefix-cache tokens that all prompts share."""
        return sum((one.shared_prefix_tokens(prompt) for one in self.setting.techniques), start=0.0)

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a rank that follow each other through the stages of a pipeline."""
        return self.setting.layout.pp

    @cached_property
    def ranks(self) -> int:
        """Data-parallel ranks that wait for each other in every step."""
        return self.setting.layout.waiting_ranks

    @property
    def rank_sets(self) -> int:
        """Sets of ranks that do not wait for each other, each with its own requests."""
        return self.setting.layout.dp // self.ranks

    @property
    def running_batches(self) -> int:
        """Number of batches that take steps together, one per micro-batch of each rank; those of the first rank come
        first.
        """
        return self.ranks * self.micro_batches

    def decode_s(self, *, batch: Num, kv_len: Num, filled: Num = 1.0) -> Num:
        """A decode step with `batch` sequences in every running batch, whose mean context is `kv_len`, the new token
        included. [s]

        filled  fraction of the micro-batches that have any sequence
        """
        groups = (self.decoding_group(batch, kv_len),)
        return self._alike([stage.alike_s(groups, decodes=True) for stage in self._stages], filled)

    def mixed_s(self, groups: Groups) -> Num:
        """A step in which every running batch has these groups to prefill or decode; their fields may be arrays. [s]"""
        return self._alike([stage.alike_s(groups) for stage in self._stages])

    def prefill_s(self, prompt: Num, batch: Num = 1.0) -> Num:
        """A prefill of equal prompts. [s]"""
        return self.mixed_s((Spans(batch=batch, q_len=prompt - self.cached_tokens(prompt), kv_len=prompt),))

    def prefill_and_interval_s(self, prompt: Num, cached_tokens: Num) -> tuple[Num, Num]:
        """Time of a prefill, and time until the next may follow it. [s]"""
        groups = (Spans(batch=1.0, q_len=prompt - cached_tokens, kv_len=prompt),)
        stages = [stage.alike_s(groups) for stage in self._stages]
        return sum(stages[1:], start=stages[0]), reduce(np.maximum, stages)

    def prefills_and_intervals_s(self, traffic: Traffic) -> tuple[Times, Times]:
        """prefill_and_interval_s() of each prompt alone, computed once for equal ones. [s]"""
        shapes, place = np.unique(np.stack((traffic.prompt, self.hit_tokens(traffic))), axis=1, return_inverse=True)
        prefill_s, interval_s = (
            np.broadcast_to(np.asarray(each, dtype=float), shapes.shape[1:])[place]
            for each in self.prefill_and_interval_s(*shapes.astype(float))
        )
        return prefill_s, interval_s

    def decoding_s(self, batches: Sequence[tuple[int, float]]) -> float:
        """A decode step, from the number of sequences of each running batch and their mean context; tabulated. [s]"""
        return self._round([(self.decoding_group(*batch),) if batch[0] else () for batch in batches], decodes=True)

    def step_s(self, batches: Sequence[Groups]) -> float:
        """A step with prefills, from the groups of each running batch. [s]"""
        return self._round(batches, decodes=False)

    def padded_decode_s(self, batch: int, *, first: int, last: int, steps: int) -> float:
        """All `steps` of a static batch, whose contexts grow evenly from `first` to `last`. [s]

        batch  sequences in every running batch
        """
        if last < first:
            return 0.0
        if (
            not self.expected
            and not self.setting.layout.splits_batches
            and self.running_batches == 1
            and self.width == 1
        ):
            return float(decode_s(self.setting.decode_plan, batch=float(batch), first=float(first), last=float(last)))
        kv_len = first - 0.5 + (np.arange(OUTPUT_SAMPLES) + 0.5) * (last - first + 1) / OUTPUT_SAMPLES
        return float(np.mean(self.decode_s(batch=float(batch), kv_len=kv_len))) * steps

    def _alike(self, stages: Sequence[Num], filled: Num = 1.0) -> Num:
        """Time between two steps of equal micro-batches, `filled` of which have sequences. [s]"""
        if self.micro_batches == 1:
            return stages[0]
        return np.maximum(sum(stages), filled * self.micro_batches * reduce(np.maximum, stages))

    def _round(self, batches: Sequence[Groups], *, decodes: bool) -> float:
        """Time between two steps of several micro-batches: all stages of the longest, or the slowest of each. [s]"""
        if len(batches) == len(self._stages) == 1:
            return self._stages[0].time_s(batches, decodes=decodes)
        micro_batches = [
            micro_batch for i in range(self.micro_batches) if any(micro_batch := batches[i :: self.micro_batches])
        ]
        stage_times = [
            [stage.time_s(micro_batch, decodes=decodes) for stage in self._stages] for micro_batch in micro_batches
        ]
        return max(*map(sum, stage_times), sum(map(max, stage_times)))

    @cached_property
    def _stages(self) -> tuple[Stage, ...]:
        return Stage.each(self.setting, self._kernels if self.expected else None, self.ranks, self.width)

    @property
    def frontend(self) -> Frontend:
        """Path between clients and steps; of no time at the bound."""
        engine = self.setting.engine
        return engine.frontend if self.expected and engine else DIRECT

    @property
    def unknown(self) -> str:
        """The reason why there are no expected times; "" if there are."""
        kernels, plan = self._kernels, self.setting.decode_plan
        if isinstance(kernels.device, str):
            return kernels.device
        workload = Workload.decode(batch=1.0, kv_len=1.0)
        expected = kernels.expect_plan(plan, workload)
        return "" if expected.modelled else bound_only_reason(expected.source)

    @cached_property
    def _kernels(self) -> Kernels:
        kernels = self.setting.kernels
        assert kernels is not None  # accounting is faithful
        return kernels

    @property
    def host_bytes_per_s(self) -> float:
        """Bandwidth of a device's link to its host, one way; nan if unknown. [B/s]"""
        return self.setting.hardware.numbers.get("host.bandwidth", nan)

    @property
    def weight_bytes(self) -> float:
        """Weights on a device. [B]"""
        return self._fixed_bytes(1)[0]

    def cache_bytes(self, tokens: Num) -> Num:
        """KV cache of a sequence. [B]"""
        return sum((one.cache_bytes(tokens) for one in (self._narrowest, *self._narrowest.beside)), start=0.0)

    @cached_property
    def _narrowest(self) -> Footprint:
        """Memory of a device by the tokens of a step and of a sequence."""
        longest = float(self.setting.model.max_context or 1 << 17)
        footprint = self.setting.footprint.narrowest(self.setting.hardware.capacity, longest)
        return replace(
            footprint, shapes=Shapes(), beside=tuple(replace(one, shapes=Shapes()) for one in footprint.beside)
        )

    def shared_prefix_bytes(self, prompt: Num) -> float:
        """KV cache of the longest shared prefix. [B]"""
        prefix_tokens = float(np.max(self.shared_prefix_tokens(prompt)))
        return float(self.cache_bytes(prefix_tokens)) if prefix_tokens else 0.0

    def check_fits(self, longest: int, prefill_tokens: int, cache_bytes: float) -> None:
        """Raises InputError if the KV cache of a request of `longest` tokens exceeds the KV budget.

        prefill_tokens  prefilled tokens of a step
        """
        budget_bytes = self.kv_budget_bytes(prefill_tokens)
        if cache_bytes <= budget_bytes:
            return
        device, name, server = self.setting.hardware, self.setting.model.name, self._server
        weights, activations = self._fixed_bytes(prefill_tokens)
        parts = f"weights take {si(weights)}B and activations {si(activations)}B"
        if server and self.setting.engine:
            weights = server.budget.weights
            parts = f"{self.setting.engine.title} uses {si(server.budget.used)}B: {server.budget.parts}"
        where = "each device" if self.setting.layout.devices > 1 else "a device"
        place = f"on {where} of {si(device.capacity)}B"
        request = Evaluation(setting=self.setting, batch=self.setting.layout.dp, prompt=max(longest - 1, 1), gen=1)
        advice = what_fits(request) or "use fewer bits (--quant), more devices (--tp) or larger ones"
        if weights > device.capacity:
            raise CapacityError(f"{name} does not fit {device.name}: {place}, weights take {si(weights)}B; {advice}")
        raise CapacityError(
            f"{name} with a request of {longest} tokens does not fit {device.name}: {place}, {parts}, which "
            f"leaves {si(max(budget_bytes, 0))}B for a KV cache of {si(cache_bytes)}B; {advice}, or shorter requests"
        )

    def max_fitting(self, limit: int, *, prompt: int, gen: int) -> int:
        """Maximum sequences of a replica, up to `limit`, that fit with all of their outputs."""
        batch = np.arange(1.0, limit + 1) * self.rank_sets
        total = self.setting.footprint.total_bytes(batch=batch, prompt=float(prompt), gen=float(gen))
        return int(np.count_nonzero(np.less_equal(total, self.setting.hardware.capacity)))

    def kv_budget_bytes(self, tokens: int) -> float:
        """KV memory of a rank besides weights and the activations of a step that prefills `tokens`. [B]

        With an engine, what its server leaves.
        """
        if self._server:
            return self._server.pool.size
        weights, live = self._fixed_bytes(tokens)
        return self.setting.hardware.capacity - weights - live

    @cached_property
    def _server(self) -> Server | None:
        """The server of an engine that divides memory by its own rules."""
        return server_of(self.setting) if reserves_memory(self.setting) else None

    def _fixed_bytes(self, tokens: int) -> tuple[float, float]:
        """Memory of weights, and of the activations of a step that prefills `tokens`. [B]"""
        weights, _, live = self._narrowest.parts(batch=1.0, prompt=float(tokens), gen=0.0)
        return float(weights), float(live)
