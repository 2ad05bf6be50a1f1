"""Capacity of a server: whether it starts, how many tokens its KV cache holds, and how many requests run at once."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from math import ceil, inf, log2
from typing import Final, NamedTuple

from .devices.hardware import Hardware
from .expectation.engines import CONTEXT, FREE, PAGES, SEQUENCES, SPLIT, TOTAL, MemoryRules, Reserve
from .graph import Graph
from .model import retained_tensors, vocabulary
from .operators.linear import LMHead
from .parameters import MAX_SEQUENCES
from .records import frozen
from .setting import Setting
from .units import counted, si
from .workload import Workload

_GIB: Final = 2**30
_ACTIVATION_BYTES: Final = 2
_EVEN: Final = 1.25  # most over fewest layers of a kind, up to which groups have the most (kv_cache_planning.py)
_UNKNOWN_CONTEXT: Final = 1 << 17  # tokens, of models whose longest context is unknown
# Memory that nvidia-smi counts and programs do not see: 0.43 GiB of 24 (RTX 3090), 0.45 of 80 (H100), 0.60 of 140
# (H200) and 0.71 of 179 (B200), by totals in public logs (tests/server_startups.csv).
_DRIVER_BYTES: Final = 0.41 * _GIB
_DRIVER_SHARE: Final = 0.0016


@frozen(kw_only=True)
class Capacity:
    """Capacity of a server with given options, on each device unless said otherwise.

    starts           whether the server starts
    reason           why it does not start; "" if it does
    kv_capacity_tokens  tokens that the KV cache of a replica holds, on all its ranks of data parallelism, as the engine
                     reports them; None: no layer has a cache
    max_model_len    most tokens of a request that the server accepts
    longest_model_len  largest max_model_len with which it starts; 0: none
    concurrency      requests of `tokens` that a replica runs at once
    tokens           tokens of a request
    limiter          what limits them: "KV cache" or "max_num_seqs"
    total_bytes      memory that programs see [B]
    used_bytes       the engine's share of it, of which the following are parts [B]
    weight_bytes     weights, drafts included [B]
    activation_bytes reserved for the activations of a step and for sampling [B]
    other_bytes      overhead outside of tensors: contexts, communication, CUDA graphs [B]
    pool_bytes       left for KV cache and states; negative if the rest takes more [B]
    kv_cache_bytes   of it, what the server allocates for them: all, or with llama.cpp as much as the context takes [B]
    """

    starts: bool
    reason: str
    kv_capacity_tokens: int | None
    max_model_len: int
    longest_model_len: int
    concurrency: int
    tokens: int
    limiter: str
    total_bytes: float
    used_bytes: float
    weight_bytes: float
    activation_bytes: float
    other_bytes: float
    pool_bytes: float
    kv_cache_bytes: float


_PHYSICAL: Final = MemoryRules(base=TOTAL, fraction=1.0, pool=SEQUENCES)  # no engine: weights and caches alone


@frozen
class Layers:
    """Layers with equal caches. [B]

    count        number of layers
    token_bytes  cache of a token
    window       tokens that are kept; inf: all
    state_bytes  state of a sequence
    """

    count: int
    token_bytes: float
    window: float = inf
    state_bytes: float = 0.0


@frozen(kw_only=True)
class Pool:
    """A pool of cache memory of one device, which a server fills with requests.

    size     [B]
    layers   layers whose caches it holds
    block    tokens of a block
    chunk    most tokens of a step
    longest  most tokens of a request
    """

    size: float
    layers: tuple[Layers, ...]
    block: int
    chunk: int
    longest: int
    rules: MemoryRules

    def requests(self, tokens: int) -> float:
        """Requests of `tokens` that fit."""
        if self.size <= 0:
            return 0.0
        if self._grouped:
            return self._blocks / sum(self._blocks_of(one, tokens) for one in self._groups)
        if self.rules.pool == SPLIT:
            states = self._state_bytes
            slots = self.size * self.rules.states / (1 + self.rules.states) / states if states else inf
            return min(self.tokens / tokens, slots / self.rules.state_slots)
        one = self.request_bytes(tokens)
        return self.size / one if one else inf

    @property
    def tokens(self) -> int:
        """Tokens that it holds, as the engine reports them."""
        if self.size <= 0:
            return 0
        full, windows = (
            sum(one.count * one.token_bytes for one in self.layers if (one.window == inf) == keeps_all)
            for keeps_all in (True, False)
        )
        if self.rules.pool == SPLIT:
            each = full + self.rules.windows * windows if full else windows
            size = self.size / (1 + self.rules.states) if self._state_bytes else self.size
            return int(size / each) // self.block * self.block if each else MAX_SEQUENCES
        if self._grouped and self.rules.by_group:
            return self._blocks // len(self._groups) * self._block_tokens
        if self._grouped or windows or self._state_bytes:
            return min(int(self.requests(self.longest) * self.longest), MAX_SEQUENCES)
        return int(self.size / (self.block * full)) * self.block if full else MAX_SEQUENCES

    @property
    def _state_bytes(self) -> float:
        """States of a sequence, of all layers. [B]"""
        return sum(one.count * one.state_bytes for one in self.layers)

    def request_bytes(self, tokens: int) -> float:
        """Cache of a request. [B]"""
        rounded = ceil(tokens / self.block) * self.block
        return self._state_bytes + sum(
            one.count * one.token_bytes * min(rounded, one.window + self.chunk) for one in self.layers
        )

    @property
    def _grouped(self) -> bool:
        """Whether groups of layers of several kinds share blocks of one size."""
        kinds = {(one.window, one.state_bytes > 0) for one in self.layers}
        return self.rules.pool == PAGES and len(kinds) > 1

    @property
    def _blocks(self) -> int:
        """Blocks of one size that groups of layers share."""
        return int(self.size // (self._group_size * self._page))

    @property
    def _block_tokens(self) -> int:
        """Tokens of a block of attention, whose page is no smaller than a state."""
        state = max(one.state_bytes for one in self.layers)
        token = max(one.token_bytes for one in self.layers)
        return max(self.block, ceil(state / token / self.block) * self.block) if state and token else self.block

    @property
    def _page(self) -> float:
        """A block of one layer, which is of the same size in all. [B]"""
        return max(max(one.token_bytes * self._block_tokens, one.state_bytes) for one in self.layers)

    @property
    def _group_size(self) -> int:
        """Layers of a group: the fewest of a kind, or the most if those are hardly more."""
        counts = [one.count for one in self.layers]
        return max(counts) if max(counts) < _EVEN * min(counts) else min(counts)

    @cached_property
    def _groups(self) -> tuple[Layers, ...]:
        """The kind of each group of layers, which have a table of blocks each."""
        return tuple(one for one in self.layers for _ in range(ceil(one.count / self._group_size)))

    def _blocks_of(self, kind: Layers, tokens: int) -> int:
        """Blocks of a request in a group."""
        if not kind.token_bytes:
            return 1
        block = int(self._page // kind.token_bytes)
        return ceil(min(tokens, kind.window - 1 + self.chunk) / block) + (kind.window < inf)


@frozen(kw_only=True)
class Server:
    """A server and the memory of the device that fills first.

    pool         cache of a rank
    budget       division of the memory
    ranks        ranks of data parallelism, each with such a pool
    limit        most running sequences of a rank
    total_bytes  memory that programs see [B]
    """

    pool: Pool
    budget: _Budget
    ranks: int
    limit: int
    total_bytes: float

    @property
    def fixed_bytes(self) -> float:
        """Memory that the engine uses besides the cache. [B]"""
        return self.budget.used - self.pool.size

    def requests(self, tokens: int) -> float:
        """Requests of `tokens` that the caches of a replica hold, whatever the batch limit."""
        return self.pool.requests(tokens) * self.ranks

    def larger(self, factor: float) -> Server:
        """The server on devices with `factor` times the memory, all more of which is for the cache."""
        return replace(self, pool=replace(self.pool, size=self.pool.size + (factor - 1) * self.budget.used))

    def longest(self, requests: float) -> int | None:
        """The most tokens of as many equal requests that fit; 0 if none fit, None without a limit."""
        most = MAX_SEQUENCES
        if self.requests(most) >= requests:
            return None
        return bisect_left(range(1, most), True, key=lambda tokens: self.requests(tokens) < requests)


def reserves_memory(setting: Setting) -> bool:
    """Whether an engine divides the memory of the device by rules of its own."""
    return bool(setting.engine and setting.engine.memory)


def capacity(setting: Setting, tokens: int | None = None) -> Capacity:
    """Capacity of the server of `setting.engine`, or without an engine what memory allows at most.

    tokens  tokens of a request, prompt and output; None: as many as the server accepts
    """
    is_length_given = tokens or (setting.engine and setting.engine.options.max_model_len)
    server = server_of(setting, has_chosen_length=not is_length_given)
    pool, budget, limit, ranks = server.pool, server.budget, server.limit, server.ranks
    length = tokens or pool.longest
    at_once = min(pool.requests(length), MAX_SEQUENCES)
    reason = _refusal(setting, pool, budget)
    reported = _reported(setting, pool) * ranks if pool.layers else None
    return Capacity(
        starts=not reason, reason=reason, kv_capacity_tokens=reported, max_model_len=pool.longest,
        longest_model_len=_longest(setting, pool), concurrency=int(min(at_once, limit)) * ranks, tokens=length,
        limiter="max_num_seqs" if limit < int(at_once) else "KV cache", total_bytes=server.total_bytes,
        used_bytes=budget.used, weight_bytes=budget.weights, activation_bytes=budget.activations,
        other_bytes=budget.other, pool_bytes=budget.pool, kv_cache_bytes=_allocated_bytes(setting, pool),
    )  # fmt: skip


def server_of(setting: Setting, hardware: Hardware | None = None, *, has_chosen_length: bool = False) -> Server:
    """The server of `setting.engine`; without an engine, all memory of the device besides weights.

    hardware           another device with that server, on which the graphs take as much memory; None: the setting's
    has_chosen_length  whether the engine chooses the greatest length by what fits, rather than that of known requests
    """
    engine, device = setting.engine, hardware or setting.hardware
    rules = engine.memory if engine and engine.memory else _PHYSICAL
    options = engine.options if engine else None
    longest = (options and options.max_model_len) or setting.model.max_context or _UNKNOWN_CONTEXT
    scheduler = engine.default_on(device) if engine else None
    limit = (scheduler and scheduler.max_batch) or MAX_SEQUENCES
    chunk = _chunk(rules, scheduler.tokens if scheduler else 1, longest)
    total = visible_bytes(device) if engine and engine.memory else device.capacity
    layers = [_layers(setting, stage) for stage in range(len(setting.footprint.stages))]
    budgets = [
        _budget(
            setting,
            rules,
            stage,
            layers=sum(one.count for one in each),
            total=total,
            chunk=chunk,
            limit=limit,
            margin=rules.margin if has_chosen_length else 0.0,
        )
        for stage, each in enumerate(layers)
    ]
    pools = [
        Pool(
            size=budget.pool, layers=each, block=engine.block if engine else 1, chunk=chunk, longest=longest,
            rules=rules,
        )
        for budget, each in zip(budgets, layers, strict=True)
    ]  # fmt: skip
    place = min(range(len(pools)), key=lambda n: pools[n].requests(longest))
    return Server(
        pool=pools[place], budget=budgets[place], ranks=setting.layout.dp, limit=limit, total_bytes=total
    )  # fmt: skip


def _width(setting: Setting) -> int:
    """Width of the hidden states; 0 if there is no prediction head."""
    heads = (op for _, op in setting.model.graph if isinstance(op, LMHead))
    return next((op.weight.shape[1] for op in heads), 0)


def visible_bytes(device: Hardware) -> float:
    """Memory of a device that programs see. [B]"""
    source = next((fact.source for fact in device.facts if fact.key == "memory.usable"), "smi")
    is_counted = device.vendor == "nvidia" and device.kind == "gpu" and source == "smi"
    return device.capacity * (1 - _DRIVER_SHARE) - _DRIVER_BYTES if is_counted else device.capacity


class _Budget(NamedTuple):
    """Division of a device's memory. [B]"""

    used: float
    weights: float
    activations: float
    other: float
    pool: float

    @property
    def parts(self) -> str:
        """Memory that the engine uses besides the cache, in words."""
        return f"weights {si(self.weights)}B, activations {si(self.activations)}B, others {si(self.other)}B"


def _budget(
    setting: Setting,
    rules: MemoryRules,
    stage: int,
    *,
    layers: int,
    total: float,
    chunk: int,
    limit: int,
    margin: float,
) -> _Budget:
    """The division of the memory of a device of a pipeline stage with so many layers that have caches.

    margin  memory that is left free beside caches [B]
    """
    footprint, layout = setting.footprint, setting.layout
    weights = footprint.stages[stage].weight_bytes + sum(
        max(other.weight_bytes for other in one.stages) for one in footprint.beside
    )
    sequences = min(limit, chunk)
    steps = [Workload.prefill(batch=float(sequences), prompt=chunk / sequences)]
    if setting.model.has_tower:
        images = max(1, chunk // setting.model.image_tokens) if setting.model.image_tokens else 1
        prompt = float(max(chunk, images * setting.model.image_tokens))
        steps.append(Workload.prefill(batch=1.0, prompt=prompt, images=float(images)))
    rows = chunk if rules.samples_all else sequences
    sampled = vocabulary(setting.model) * rules.sampler * rows if stage == layout.pp - 1 else 0.0
    live = max(footprint.stages[stage].step_bytes(step) for step in steps)
    live += rules.extra_tensors * _ACTIVATION_BYTES * _width(setting) * chunk
    activations = max(live, sampled) if rules.profiles else 0.0
    joined = layout.devices // layout.dp * layout.waiting_ranks
    overhead = rules.overhead if joined == 1 else rules.overhead_several or rules.overhead
    overhead += rules.overhead_doubling * log2(joined)
    graphs = rules.graph_bytes * layers * _captured(rules, limit)
    other = overhead + graphs
    fraction = (setting.engine and setting.engine.options.memory_fraction) or rules.fraction
    if not fraction:
        fraction = _left(setting, rules.reserve, total, chunk, limit) if rules.reserve else 1.0
    if rules.base == TOTAL:
        used = fraction * total
        pool = used - weights - activations - other
    elif rules.base == FREE:
        used = fraction * (total - other) + other
        pool = used - weights - other
    else:
        used = fraction * (total - weights - activations - other) + weights + activations + other - margin
        pool = used - weights - activations - other
    return _Budget(used=used, weights=weights, activations=activations, other=other, pool=pool)


def _chunk(rules: MemoryRules, tokens: int | None, longest: int) -> int:
    """Most tokens of a step."""
    takes_prompts = rules.whole_prompts and longest <= rules.whole_prompts
    return max(tokens or 0, longest) if tokens is None or takes_prompts else tokens


def _captured(rules: MemoryRules, limit: int) -> int:
    """Number of CUDA graphs that are captured, one for each batch of a list (vllm/config/vllm.py)."""
    most = min(2 * limit, rules.graphs_to)
    return len([size for size in (1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16)) if size <= most])


def _left(setting: Setting, reserve: Reserve, total: float, chunk: int, limit: int) -> float:
    """The share of memory that a reserve leaves, as SGLang computes it."""
    layout, ranks = setting.layout, setting.layout.waiting_ranks
    batch = min(reserve.graph_batch(total, layout.tp * ranks), limit)
    size = reserve.fixed + reserve.per_token * max(chunk, reserve.least_tokens) + reserve.per_sequence * batch
    size += reserve.per_device * layout.tp * ranks * layout.pp
    if ranks > 1:
        size += reserve.per_rank_sequence * batch * ranks * (1.5 if batch > reserve.large_batch else 1.0)
    if total > reserve.large_from:
        size = max(size, reserve.large)
    size += reserve.draft if setting.footprint.beside else 0.0
    return round(1 - size / total, 3)


def _layers(setting: Setting, stage: int) -> tuple[Layers, ...]:
    """Layers of a pipeline stage that have caches, with those of drafts, by kind."""
    graph = setting.decode_graph if setting.layout.pp == 1 else setting.decode_graph.of_stage(stage)
    drafts = (one for technique in setting.techniques for one in technique.auxiliary_graphs(setting))
    kinds: Counter[tuple[float, float, float]] = Counter()
    for each in (graph, *drafts):
        for count, kind in _kinds(each):
            kinds[kind] += count
    return tuple(Layers(count, *kind) for kind, count in kinds.items())


def _kinds(graph: Graph) -> Iterator[tuple[int, tuple[float, float, float]]]:
    """(number of layers, (cache of a token, window, state of a sequence)) of each block of a graph."""
    sizes: dict[int, dict[float, float]] = {}
    states: dict[int, float] = {}
    blocks = {}
    for block, tensor in retained_tensors(graph):
        blocks[id(block)] = block
        for feature, each in tensor.device_bytes.terms:
            if feature.name == "sequences":
                states[id(block)] = states.get(id(block), 0.0) + each
            else:
                window = feature.arguments[0] if feature.name == "kv_tokens" and feature.arguments else inf
                by_window = sizes.setdefault(id(block), {})
                by_window[window] = by_window.get(window, 0.0) + each
    for key, block in blocks.items():
        for window, token_bytes in sizes.get(key, {}).items():
            yield block.repeat, (token_bytes, window, 0.0)
        if key in states:
            yield block.repeat, (0.0, inf, states[key])


def _reported(setting: Setting, pool: Pool) -> int:
    """Tokens of the KV cache of a rank as the engine reports them."""
    if pool.rules.pool != CONTEXT:
        return pool.tokens
    return pool.longest * _slots(setting) if _slots(setting) else _longest(setting, pool)


def _allocated_bytes(setting: Setting, pool: Pool) -> float:
    """Memory that the server allocates for the cache of a rank. [B]"""
    if pool.rules.pool != CONTEXT:
        return max(pool.size, 0.0)
    slots = _slots(setting)
    return pool.request_bytes(pool.longest) * slots if slots else pool.request_bytes(_longest(setting, pool))


def _slots(setting: Setting) -> int:
    """Caches of the greatest length that are allocated at start: one that all slots share unless their number is given;
    0 if the length is chosen by what fits.
    """
    options = setting.engine.options if setting.engine else None
    return (options.max_num_seqs or 1) if options and options.max_model_len else 0


def _refusal(setting: Setting, pool: Pool, budget: _Budget) -> str:
    """Why a server does not start; "" if it does."""
    name = setting.engine.title if setting.engine else "the device"
    if budget.pool <= 0:
        return f"{name} uses {si(budget.used)}B, and has no memory left for a KV cache: {budget.parts}"
    least_requests = _slots(setting) if pool.rules.pool == CONTEXT else int(pool.rules.needs_longest)
    if pool.requests(pool.longest) < least_requests:
        longest = _longest(setting, pool)
        hint = f"give --max-model-len {longest} or less" if longest else "none fits"
        return f"no request of max_model_len, {counted(pool.longest, 'token')}, fits the KV cache; {hint}"
    return ""


def _longest(setting: Setting, pool: Pool) -> int:
    """The most tokens of a request, within the context of the model, with which one fits; 0 if none does."""
    low, high = 0, min(pool.longest, setting.model.max_context or pool.longest)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if pool.requests(middle) >= 1 else (low, middle - 1)
    return low
