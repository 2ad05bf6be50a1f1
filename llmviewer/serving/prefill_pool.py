"""Prefill replicas, separate from those that decode (arXiv:2311.18677, arXiv:2401.09670)."""

from __future__ import annotations

import heapq

import numpy as np

from ..analyzing.disaggregation import transfer_bytes_per_s
from ..errors import InputError
from ..forms import Num
from ..model import kv_cache_bytes
from ..parallel.layout import ONE_DEVICE
from ..parameters import KvLink
from ..records import frozen
from ..setting import Setting
from ..transforms.offload import ON_DEVICE
from .steps import Steps
from .traffic import Times, Traffic


@frozen(kw_only=True)
class Prefilled:
    """Prefills of all requests.

    start_s      start of each prefill [s]
    ready_s      arrival of its KV cache at the decode replica [s]
    utilization  fraction of the time until the last prefill ends in which a prefill replica is busy
    """

    start_s: Times
    ready_s: Times
    utilization: float


def prefill(steps: Steps, traffic: Traffic, *, replicas: int, transfer_s: Times, overlapped: bool) -> Prefilled:
    """Simulates prefills in the order of arrival, one at a time on each rank or pipeline stage of `replicas`.

    transfer_s  time to send the KV cache of each prompt, after its prefill or, if `overlapped`, during it [s]

    Raises InputError if the longest prompt does not fit, or if ranks of a replica wait for each other.
    """
    if steps.ranks > 1:
        layout = steps.setting.layout
        raise InputError(
            f"prefill replicas must not have ranks that wait for each other, as the {steps.ranks} of {layout} do; use "
            "tp, or leave out prefill_replicas"
        )
    longest = int(np.max(traffic.prompt))
    steps.check_fits(longest, longest, float(steps.cache_bytes(float(longest))))
    prefill_s, interval_s = steps.prefills_and_intervals_s(traffic)
    workers = replicas * steps.rank_sets
    free = [0.0] * workers
    start = np.empty(len(traffic))
    for request, (arrival, time_s) in enumerate(zip(traffic.arrival_s.tolist(), interval_s.tolist(), strict=True)):
        begin = max(arrival, heapq.heappop(free))
        heapq.heappush(free, begin + time_s)
        start[request] = begin
    ready = start + (np.maximum(prefill_s, transfer_s) if overlapped else prefill_s + transfer_s)
    span = float(np.max(start + prefill_s) - traffic.arrival_s[0])
    return Prefilled(start_s=start, ready_s=ready, utilization=float(np.sum(interval_s)) / (workers * span))


def transfer_s(reads: Setting, writes: Setting, traffic: Traffic, link: KvLink) -> Times:
    """Time to send the KV cache of each prompt over the links of all devices of the slower side. [s]"""
    prompts = traffic.prompt.astype(float)
    moved = np.asarray(moved_bytes(writes, prompts), dtype=float)
    return np.broadcast_to(moved, prompts.shape) / transfer_bytes_per_s(reads, writes, link)


def moved_bytes(writes: Setting, prompt: Num) -> Num:
    """KV cache of prompts to send to the decode devices, which hold the shared prefix already. [B]"""
    unsharded = Setting(
        model=writes.model, hardware=writes.hardware, quantization=writes.quantization, attention=writes.attention,
        accounting=writes.accounting, mla=writes.mla, layout=ONE_DEVICE, offload=ON_DEVICE,
    )  # fmt: skip
    prompt_tokens = prompt - sum((one.shared_prefix_tokens(prompt) for one in writes.techniques), start=0.0)
    graphs = (unsharded.graph, *(graph for one in writes.techniques for graph in one.auxiliary_graphs(unsharded)))
    return sum(
        (kv_cache_bytes(graph, batch=1, context=prompt_tokens, prompt=prompt_tokens) for graph in graphs), start=0.0
    )
