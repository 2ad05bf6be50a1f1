"""Prefills and decode steps on separate devices, several of each (arXiv:2311.18677, arXiv:2401.09670)."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from ..analyzing.disaggregation import transfer_bytes_per_s
from ..errors import InputError
from ..forms import Num
from ..model import kv_cache_bytes
from ..parallel.layout import ALONE
from ..parameters import KvLink
from ..setting import Setting
from ..transforms.offload import ON_DEVICE
from .steps import Steps
from .traffic import Times, Traffic


@dataclass(frozen=True, kw_only=True)
class Prefilled:
    """What the devices that read prompts make of all requests. [s]

    start_s      when its prompt is taken up
    ready_s      when its cache is where its answer is written
    utilization  the part of the time, until the last prompt is read, in which one that reads works
    """

    start_s: Times
    ready_s: Times
    utilization: float


def prefill(steps: Steps, traffic: Traffic, *, copies: int, transfer_s: Times, overlapped: bool) -> Prefilled:
    """Prompts in the order of their arrival, one at a time on each of `copies` of the model and of its ranks, or of its
    stages.

    transfer_s  how long the cache of each prompt travels, after the prefill, or while it runs where `overlapped`

    Raises InputError where the longest prompt does not fit, or where ranks wait for each other.
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
    """How long the cache of each prompt travels, over such links of the slower side, all of its devices at once. [s]"""
    prompts = traffic.prompt.astype(float)
    moved = np.asarray(moved_bytes(writes, prompts), dtype=float)
    return np.broadcast_to(moved, prompts.shape) / transfer_bytes_per_s(reads, writes, link)


def moved_bytes(writes: Setting, prompt: Num) -> Num:
    """The cache of prompts that travels to where their answers are written; what they have in common is there. [B]"""
    whole = Setting(
        model=writes.model, hardware=writes.hardware, quantization=writes.quantization, attention=writes.attention,
        accounting=writes.accounting, mla=writes.mla, layout=ALONE, offload=ON_DEVICE,
    )  # fmt: skip
    own = prompt - sum((one.in_common(prompt) for one in writes.techniques), start=0.0)
    graphs = (whole.graph, *(graph for one in writes.techniques for graph in one.beside(whole)))
    return sum((kv_cache_bytes(graph, batch=1, context=own, prompt=own) for graph in graphs), start=0.0)
