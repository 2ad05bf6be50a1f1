"""Kernels of collectives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from ...forms import Num
from ...operators.base import Operator
from ...operators.collectives import AllGather, AllReduce, AllToAll, Collective, ReduceScatter, Send
from ...transforms.offload import HOST
from ..families import Implementation
from ..families.base import Array
from ._kernel import LibraryKernel, Sending
from ._work import LaunchWork

_COLLECTIVES: Final[Mapping[type[Operator], str]] = {
    AllReduce: "all_reduce", AllGather: "all_gather", ReduceScatter: "reduce_scatter", AllToAll: "alltoall",
    Send: "send_recv",
}  # fmt: skip
_POINT_TO_POINT: Final = ("alltoall", "send_recv")  # in which every message has one sender and one receiver
# Kernels by which serving libraries add up short messages, and the longest that they take: max_size of
# vllm/distributed/device_communicators/custom_all_reduce.py, as recalled; the others' are alike. As vLLM and
# SGLang warn, they are "not supported on more than two PCIe-only GPUs", pairs in bridges included.
_SHORT_MESSAGE_KERNELS: Final[Mapping[str, str]] = {
    "vllm": "vLLM_custom_graph", "sglang": "SGLang_CustomAllReduce_graph", "trtllm": "TRTLLM",
}  # fmt: skip
_SHORT_BYTES: Final = 8 * 2**20
_DISPATCH: Final = "dispatch"
_DEEPEP_LIBRARIES: Final = ("vllm", "sglang")  # which call DeepEP to send tokens to their experts
_MOE_LIBRARIES: Final = (*_DEEPEP_LIBRARIES, "trtllm")  # which have kernels for it
# Of DeepEP (docs/legacy.md): its kernels for many tokens reach 43 to 45 of 50 GB/s between 32 and 64 H800, without what
# stays in a domain, and take 20 cores (num_sms of its deep_ep/buffer.py). Least squares over its times for few tokens,
# of 16 to 256 H800, give the start and the part of the links, within 7 % (tests/test_collectives_measured.py). A token
# alone on two, four and eight nodes of 8 H100 (aiconfigurator's times of DeepEP, SGLang 0.5) takes 59, 88 and 123 us to
# its experts and 84, 120 and 137 us back by the kernels for many tokens: a twentieth of 2 ms for 4096 tokens, without
# which they reach 0.91 of the links. Those with low latency, which engines use in decode steps, take 22 to 31 us.
_FORWARDED: Final = Sending(cores=20, reach=0.91)
STRAIGHT: Final = Sending(cores=0, reach=0.87, start_s=27e-6)
_TWO_NODES_S: Final = 72e-6
_NODE_DOUBLING_S: Final = 29e-6
_IN_DOMAIN: Final = Sending(cores=20)  # NCCL takes about as many


def _has_single_tokens(work: LaunchWork) -> Array:
    """Whether each sequence has at most one token, as in decode steps."""
    longest = np.max(np.broadcast_arrays(*(spans.q_len for spans in work.groups)), axis=0)
    return np.asarray(np.less_equal(longest, 1))


def _by_experts(op: AllToAll, work: LaunchWork) -> tuple[LibraryKernel, ...]:
    """DeepEP's kernels for tokens that are sent to their experts within a domain: those with low latency for steps of
    single tokens, as SGLang's --deepep-mode auto chooses, or wherever each copy is sent directly. Another width of an
    element counts as other elements.
    """
    assert op.choice is not None
    sent, bits = op.inputs[0], 8 if op.name == _DISPATCH else 16
    shapes: dict[str, Num] = {
        "num_gpus": op.group.size,
        "tokens": work.of(sent.rows) / op.copies,
        "hidden": sent.width * sent.format.bits / bits,
        "topk": op.choice.top_k,
        "experts": op.choice.experts + op.choice.redundant,
    }
    is_direct = _has_single_tokens(work) | op.direct
    library = "deepep" if work.library in _DEEPEP_LIBRARIES else work.library
    operation = _DISPATCH if op.name == _DISPATCH else "combine"
    return tuple(
        LibraryKernel(
            family="all_to_all",
            implementation=Implementation(
                library=library, dtype="fp8" if bits == 8 else "bf16", kernel=f"{name} {operation}"
            ),
            shapes=shapes,
            where=where,
        )
        for name, where in (("deepep_low_latency", is_direct), ("deepep_normal", ~is_direct))
    )


def collective(op: Collective, work: LaunchWork) -> tuple[tuple[LibraryKernel, ...], str]:
    """The kernels of a collective, or of its part within a domain, and why the rest of it has none."""
    name, group = _COLLECTIVES.get(type(op)), op.group
    if name is None:
        return (), f"no {op.kind} of this kind was measured"
    last = group.tiers[-1][0] if group.tiers else group.inside
    hosted = last == HOST
    is_across_domains = group.outer > 1 and not hosted
    if isinstance(op, AllToAll) and op.choice and not (is_across_domains or hosted) and work.library in _MOE_LIBRARIES:
        return _by_experts(op, work), ""
    remark = "no collective between domains was measured" if is_across_domains else ""
    if is_across_domains and group.inner == 1:
        return (), remark
    sent = np.multiply(work.of(op.payload()), op.load_factor if isinstance(op, AllToAll) else 1.0)
    met = 2 if isinstance(op, Send) else group.size
    shapes: dict[str, Num] = {"num_gpus": met, "bytes": sent * (1.0 if hosted else op.detour())}
    if is_across_domains:
        inside = sent
        if isinstance(op, AllToAll) and not group.hierarchical:  # what stays in the domain, or is passed on there
            share, _ = op.traffic(group.inner, inside=True)
            inside = work.of(op.payload()) * (share * group.inner / (group.inner - 1))
        shapes = {"num_gpus": group.inner, "bytes": inside * op.detour()}
    elif min(group.inner, group.outer) > 1 and name not in _POINT_TO_POINT:  # a ring leaves each bridge once
        shapes = {"num_gpus": group.outer, "bytes": sent * _ringed(group.size) / _ringed(group.outer)}
    nccl = Implementation(library="nccl", dtype="fp16", kernel=f"nccl {name}")
    if name != "all_reduce" or work.library not in _SHORT_MESSAGE_KERNELS or (hosted and group.size > 2):
        return (LibraryKernel(family="collectives", implementation=nccl, shapes=shapes, hosted=hosted),), remark
    custom, is_short = _short_all_reduce(work.library), np.less_equal(sent, _SHORT_BYTES)
    return (
        LibraryKernel(family="collectives", implementation=custom, shapes=shapes, where=is_short, hosted=hosted),
        LibraryKernel(family="collectives", implementation=nccl, shapes=shapes, where=~is_short, hosted=hosted),
    ), remark


def in_one_domain(op: Collective) -> bool:
    """Whether all members have links of their own to each other."""
    group = op.group
    return group.outer == 1 and HOST not in (tier for tier, _ in group.tiers)


def short_all_reduce(op: AllReduce, work: LaunchWork, library: str, where: Num) -> LibraryKernel:
    """A library's kernel for short messages within a domain."""
    shapes: dict[str, Num] = {"num_gpus": op.group.size, "bytes": work.of(op.payload()) * op.detour()}
    return LibraryKernel(family="collectives", implementation=_short_all_reduce(library), shapes=shapes, where=where)


def _short_all_reduce(library: str) -> Implementation:
    return Implementation(library=library, dtype="bf16", kernel=f"{_SHORT_MESSAGE_KERNELS[library]} all_reduce")


def sending(op: Collective, work: LaunchWork) -> Sending:
    """Cores and links that a collective occupies."""
    if not isinstance(op, AllToAll):
        return _IN_DOMAIN
    if op.direct or op.group.outer == 1:
        return STRAIGHT if op.direct else _IN_DOMAIN
    many_s = _TWO_NODES_S + _NODE_DOUBLING_S * np.log2(op.group.outer / 2)
    return _FORWARDED._replace(setup_s=np.where(_has_single_tokens(work), STRAIGHT.start_s, many_s))


def _ringed(devices: int) -> float:
    """The part of a message that each device of a ring passes on."""
    return (devices - 1) / devices
