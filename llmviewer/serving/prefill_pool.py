"""Prefills and decode steps on separate devices, several of each (arXiv:2311.18677, arXiv:2401.09670)."""

from __future__ import annotations

import heapq

import numpy as np

from ..analyzing.disaggregation import transfer_bytes_per_s
from ..errors import InputError
from ..forms import Num
from ..model import kv_cache_bytes
from ..parallel.layout import ALONE
from ..parameters import KvLink
from ..records import frozen
from ..setting import Setting
from ..transforms.offload import ON_DEVICE
from .steps import Steps
from .traffic import Times, Traffic


@frozen(kw_only=True)
class Prefilled:
    """Prefills of all requests. [s]

    start_s      start of each prefill
    ready_s      arrival of its cache at the decode devices
    utilization  fraction of the time, until the last prefill ends, in which a prefill copy works
    """

    start_s: Times
    ready_s: Times
    utilization: float


def prefill(steps: Steps, traffic: Traffic, *, copies: int, transfer_s: Times, overlapped: bool) -> Prefilled:
    """Prefills in the order of arrival, one at a time on each rank, or each pipeline stage, of `copies` of the model.

    transfer_s  time to send the cache of each prompt, after its prefill or, if `overlapped`, during it

    Raises InputError if the longest prompt does not fit, or if ranks wait for each other.
    """
    if steps.ranks > 1:
        layout = steps.setting.layout
        raise InputError(
            f"copies that read prompts alone must not wait for each other, as the {steps.ranks} ranks of {layout} do; "
            "use tp, or leave out readers"
        )
    longest = int(np.max(traffic.prompt))
    steps.check_fits(longest, longest, float(steps.cache_bytes(float(longest))))
    pairs, place = np.unique(np.stack((traffic.prompt, steps.hits(traffic))), axis=1, return_inverse=True)
    own, taken = (
        np.broadcast_to(np.asarray(each, dtype=float), pairs.shape[1:])[place]
        for each in steps.reading_s(*pairs.astype(float))
    )
    readers = copies * steps.apart
    free = [0.0] * readers
    start = np.empty(len(traffic))
    for request, (arrival, time_s) in enumerate(zip(traffic.arrival_s.tolist(), taken.tolist(), strict=True)):
        begin = max(arrival, heapq.heappop(free))
        heapq.heappush(free, begin + time_s)
        start[request] = begin
    ready = start + (np.maximum(own, transfer_s) if overlapped else own + transfer_s)
    span = float(np.max(start + own) - traffic.arrival_s[0])
    return Prefilled(start_s=start, ready_s=ready, utilization=float(np.sum(taken)) / (readers * span))


def transfer_s(reads: Setting, writes: Setting, traffic: Traffic, link: KvLink) -> Times:
    """Time to send the cache of each prompt over the links of all devices of the slower side. [s]"""
    prompts = traffic.prompt.astype(float)
    moved = np.asarray(moved_bytes(writes, prompts), dtype=float)
    return np.broadcast_to(moved, prompts.shape) / transfer_bytes_per_s(reads, writes, link)


def moved_bytes(writes: Setting, prompt: Num) -> Num:
    """Cache of prompts to send to the decode devices, without their shared prefix, which is there. [B]"""
    whole = Setting(
        model=writes.model, hardware=writes.hardware, quantization=writes.quantization, attention=writes.attention,
        accounting=writes.accounting, mla=writes.mla, layout=ALONE, offload=ON_DEVICE,
    )  # fmt: skip
    own = prompt - sum((one.in_common(prompt) for one in writes.techniques), start=0.0)
    graphs = (whole.graph, *(graph for one in writes.techniques for graph in one.beside(whole)))
    return sum((kv_cache_bytes(graph, batch=1, context=own, prompt=own) for graph in graphs), start=0.0)
