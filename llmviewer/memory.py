"""Peak memory: weights, KV cache, and live activations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce

import numpy as np

from .forms import Form, Num, evaluate, total
from .graph import Block, Graph
from .model import kv_cache, offloaded_kv_cache
from .operators.base import Role
from .parallel.layout import ONE_DEVICE, Layout
from .records import frozen
from .transforms.offload import HOST, ON_DEVICE, STORAGE, Offload
from .workload import Workload

_SEARCH_LIMIT = 1 << 40  # limit of the search for the largest batch or context: unlimited


@frozen(kw_only=True)
class Memory:
    """Bytes at the peak of a request, and the largest batch and context that fit.

    host_bytes, storage_bytes  weights and cache there, offloaded or of launches on the host
    host_capacity_bytes        memory of the host, if one was given
    """

    weight_bytes: float
    kv_cache_bytes: float
    activation_bytes: float
    capacity_bytes: float
    max_batch: int | None  # sequences of this length; 0: none fits, None: unlimited
    max_context: int | None  # prompt and generated tokens at this batch; 0 and None as above
    host_bytes: float = 0.0
    storage_bytes: float = 0.0
    host_capacity_bytes: float | None = None

    @property
    def total_bytes(self) -> float:
        return self.weight_bytes + self.kv_cache_bytes + self.activation_bytes

    @property
    def fits(self) -> bool:
        return self.total_bytes <= self.capacity_bytes and self.fits_host

    @property
    def fits_host(self) -> bool:
        """Whether the host has room for its part; true if no host was given."""
        return self.host_capacity_bytes is None or self.host_bytes <= self.host_capacity_bytes


def weight_bytes(graph: Graph) -> float:
    """Bytes of all weights; shared ones count once. [B]"""
    return sum(block.repeat * sum(w.device_bytes for w in op.weights) for block, op in graph)


def live_bytes(block: Block) -> tuple[Form, ...]:
    """Live activations during each operator of a block. [B]

    Live are its inputs and outputs, tensors that later operators read, and outputs of the block. Tensors do not share
    memory.
    """
    size: dict[str, Form] = {}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for index, op in enumerate(block.operators):
        for t in (*op.inputs, *op.outputs):
            if t.role is Role.ACTIVATION:
                if t in op.outputs or t.name not in size:
                    size[t.name] = t.nbytes
                first.setdefault(t.name, index)
                last[t.name] = index
    end = len(block.operators) - 1
    first.update(dict.fromkeys(first.keys() & {block.input, *block.side_inputs}, 0))
    last.update(dict.fromkeys(last.keys() & {block.output, *block.live_tensors, *block.side_inputs}, end))
    return tuple(
        total(form for name, form in size.items() if first[name] <= index <= last[name]).on(block.stream)
        for index in range(len(block.operators))
    )


def peaks(graph: Graph) -> tuple[Form, ...]:
    """The live sets that can be the largest: those that no other exceeds in all features. [B]"""
    largest: list[Form] = []
    for form in dict.fromkeys(form for block in graph.blocks for form in live_bytes(block)):
        if not any(_within(form, other) for other in largest):
            largest = [*(other for other in largest if not _within(other, form)), form]
    return tuple(largest)


def _within(form: Form, other: Form) -> bool:
    limits = dict(other.terms)
    return all(c <= limits.get(feature, 0) for feature, c in form.terms)


def activation_bytes(graph: Graph, workload: Workload) -> Num:
    """Peak of live activations in one pass of `workload`. [B]"""
    return _largest_of(peaks(graph), workload)


@frozen(kw_only=True)
class StageMemory:
    """Memory of one pipeline stage. [B]"""

    weight_bytes: float
    kv_cache: Form
    live: tuple[Form, ...]  # candidates for the largest live set in a prefill
    decode_live: tuple[Form, ...]  # the same in a decode step
    offloaded_weights: float  # offloaded weights
    offloaded_cache: Form

    @classmethod
    def of(cls, graph: Graph, decode_graph: Graph | None) -> StageMemory:
        live = peaks(graph)
        decode_live = live if decode_graph is None or decode_graph is graph else peaks(decode_graph)
        return cls(
            weight_bytes=weight_bytes(graph),
            kv_cache=kv_cache(graph),
            live=live,
            decode_live=decode_live,
            offloaded_weights=sum(
                block.repeat * sum(w.offloaded * w.stored_bytes for w in op.weights) for block, op in graph
            ),
            offloaded_cache=offloaded_kv_cache(graph),
        )

    def step_bytes(self, step: Workload) -> float:
        """Peak of live activations in a pass that prefills. [B]"""
        return float(_largest_of(self.live, step))


def _unchanged(workload: Workload) -> Workload:
    return workload


@frozen(kw_only=True)
class Shapes:
    """Changes of techniques to passes, and to the sequences whose cache is held at the end."""

    prefill: Callable[[Workload], Workload] = _unchanged
    step: Callable[[Workload], Workload] = _unchanged
    kept: Callable[[Workload], Workload] = _unchanged


@frozen(kw_only=True)
class Footprint:
    """Memory of a graph on a device, for any workload; in a pipeline, on the fullest device. [B]

    beside  memory of other networks, which do not run at the same time
    """

    stages: tuple[StageMemory, ...]
    layout: Layout = ONE_DEVICE
    offload: Offload = ON_DEVICE
    shapes: Shapes = Shapes()
    beside: tuple[Footprint, ...] = ()

    @classmethod
    def of(
        cls,
        graph: Graph,
        decode_graph: Graph | None = None,
        layout: Layout = ONE_DEVICE,
        offload: Offload = ON_DEVICE,
    ) -> Footprint:
        """The footprint of a graph; `decode_graph` is that of decode steps, None: `graph`."""
        if layout.pp == 1:
            return cls(stages=(StageMemory.of(graph, decode_graph),), layout=layout, offload=offload)
        pairs = ((graph.of_stage(n), decode_graph and decode_graph.of_stage(n)) for n in range(layout.pp))
        return cls(stages=tuple(StageMemory.of(one, step) for one, step in pairs), layout=layout, offload=offload)

    def decoding(self) -> Footprint:
        """The footprint of a device that only runs decode steps."""
        return replace(self, stages=tuple(replace(stage, live=(Form(),)) for stage in self.stages))

    def narrowest(self, capacity: float, tokens: float) -> Footprint:
        """The footprint of the pipeline stage that sequences of `tokens` tokens fill first."""
        one_sequence = Workload.decode(batch=1.0, kv_len=tokens)

        def sequences(stage: StageMemory) -> float:
            return (capacity - stage.weight_bytes) / max(float(evaluate(stage.kv_cache, one_sequence)), 1.0)

        return replace(self, stages=(min(self.stages, key=sequences),))

    def cache_bytes(self, tokens: Num) -> Num:
        """Cache of a sequence of `tokens` tokens in the first stage. [B]"""
        return evaluate(self.stages[0].kv_cache, Workload.decode(batch=1.0, kv_len=tokens))

    def parts(self, *, batch: Num, prompt: Num, gen: Num, images: Num = 0) -> tuple[Num, Num, Num]:
        """(weights, cache of prompt and generated tokens, live activations) on the device with the largest sum. [B]

        Activations are the larger of those of the prefill, with `images` per prompt, and of the last decode step.
        """
        local, share = self.layout.rank_batch(batch), self.layout.live_sequences(batch)
        last = {"kv_len": prompt + gen, "prompt": prompt, "images": images}
        full = self.shapes.kept(Workload.decode(batch=local, **last))
        prefill = self.shapes.prefill(Workload.prefill(batch=share, prompt=prompt, images=images))
        step = self.shapes.step(Workload.decode(batch=share, **last))
        fullest: tuple[Num, Num, Num] = (0.0, 0.0, 0.0)
        for stage in self.stages:
            live = np.maximum(_largest_of(stage.live, prefill), _largest_of(stage.decode_live, step))
            needs = (stage.weight_bytes, evaluate(stage.kv_cache, full), live)
            is_fuller = np.greater(sum(needs), sum(fullest))
            fullest = needs if len(self.stages) == 1 else _where(is_fuller, needs, fullest)
        for other in self.beside:
            weights, cache, live = other.parts(batch=batch, prompt=prompt, gen=gen)
            fullest = (fullest[0] + weights, fullest[1] + cache, np.maximum(fullest[2], live))
        return fullest

    def total_bytes(self, *, batch: Num, prompt: Num, gen: Num, images: Num = 0) -> Num:
        """The sum of parts(). [B]"""
        return sum(self.parts(batch=batch, prompt=prompt, gen=gen, images=images), start=0.0)

    def offloaded_bytes(self, place: str, *, batch: Num, prompt: Num, gen: Num, images: Num = 0) -> Num:
        """Weights and cache offloaded to `place`; in a pipeline, of the stage with the most. [B]"""
        last = {"kv_len": prompt + gen, "prompt": prompt, "images": images}
        full = self.shapes.kept(Workload.decode(batch=self.layout.rank_batch(batch), **last))
        each = (
            self.offload.offloaded_bytes(
                place, weights=stage.offloaded_weights, kv=evaluate(stage.offloaded_cache, full)
            )
            for stage in self.stages
        )
        return reduce(np.maximum, each)


def _where(first: Num, ours: tuple[Num, Num, Num], others: tuple[Num, Num, Num]) -> tuple[Num, Num, Num]:
    weights, cache, live = (np.where(first, a, b)[()] for a, b in zip(ours, others, strict=True))
    return weights, cache, live


def memory(
    footprint: Footprint,
    capacity: float,
    *,
    batch: int,
    prompt: int,
    gen: int,
    images: int = 0,
    host_capacity: float | None = None,
) -> Memory:
    """The peak of a request of `batch` sequences, and the largest batch and context within `capacity`. [B]

    images         images per prompt
    host_capacity  memory of the host; None: of any size
    """
    longest = _largest(lambda n: footprint.total_bytes(batch=batch, prompt=n, gen=gen, images=images) <= capacity)
    weights, cache, live = footprint.parts(batch=batch, prompt=prompt, gen=gen, images=images)
    return Memory(
        weight_bytes=float(weights),
        kv_cache_bytes=float(cache),
        activation_bytes=float(live),
        capacity_bytes=capacity,
        max_batch=largest_batch(footprint, capacity, prompt=prompt, gen=gen, images=images),
        max_context=longest + gen if longest else longest,
        host_bytes=float(footprint.offloaded_bytes(HOST, batch=batch, prompt=prompt, gen=gen, images=images)),
        storage_bytes=float(footprint.offloaded_bytes(STORAGE, batch=batch, prompt=prompt, gen=gen, images=images)),
        host_capacity_bytes=host_capacity,
    )


def largest_batch(footprint: Footprint, capacity: float, *, prompt: int, gen: int, images: int = 0) -> int | None:
    """The largest batch that fits `capacity` [B]; 0: none fits, None: unlimited."""
    return _largest(lambda n: footprint.total_bytes(batch=n, prompt=prompt, gen=gen, images=images) <= capacity)


def _largest_of(forms: tuple[Form, ...], workload: Workload) -> Num:
    return reduce(np.maximum, (evaluate(form, workload) for form in forms))


def _largest(fits: Callable[[Num], Num], fan: int = 1024) -> int | None:
    """The largest whole number from 1 that `fits`, a monotonic predicate; 0 if none does, None if all do.

    `fan` numbers are tested at a time.
    """
    low, high = 0, _SEARCH_LIMIT
    while high - low > 1:
        step = max((high - low) // fan, 1)
        tried = np.arange(low + step, high + 1, step, dtype=np.float64)
        good = int(np.count_nonzero(np.broadcast_to(fits(tried), tried.shape)))
        if low + good * step >= high:
            return None
        low, high = low + good * step, min(low + (good + 1) * step, high)
    return low
