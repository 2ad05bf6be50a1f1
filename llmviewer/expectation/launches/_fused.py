"""Launches that an engine fuses: small operators that follow each other, such as a residual addition and a norm, and
the all-reduce that they follow.

One of them is a kernel as it was measured alone. The others are joined to it: they have no start of their own, and what
one hands to another stays on the chip.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np

from ...forms import Num
from ...operators.base import RETAINED_ROLES
from ...operators.collectives import AllReduce
from ...operators.elementwise import Norm
from ...parallel.overlap import Overlapped
from ..engines import ALL_REDUCE, LaunchFusion
from ._collectives import collective, in_one_domain, short_all_reduce
from ._kernel import KernelSequence, LibraryKernel
from ._movers import mover
from ._work import LaunchWork

_FUSED: Final = "kernels as measured alone, with one start"


def fused_launches(works: Mapping[int, LaunchWork], fusions: Sequence[LaunchFusion]) -> list[tuple[int, ...]]:
    """The operators of each fused launch of a block. Where several fusions begin with an operator, it is the longest.

    The last operators of a layer may be fused with the first ones of the next, if the block repeats.
    """
    groups: list[tuple[int, ...]] = []
    grouped: set[int] = set()
    longest_first = sorted(fusions, key=lambda fusion: -len(fusion.operators))
    for place in works:
        chains = (_chain(works, place, fusion.operators) for fusion in longest_first)
        members = next((chain for chain in chains if chain and grouped.isdisjoint(chain)), ())
        if members:
            groups.append(members)
            grouped.update(members)
    return groups


def _chain(works: Mapping[int, LaunchWork], first: int, kinds: Sequence[str]) -> tuple[int, ...]:
    """The operators of these kinds from the first one on, each with the one before it; none if they are others."""
    order = list(works)
    begin = order.index(first)
    end = begin + len(kinds)
    if end > len(order) and (works[first].row.block.repeat == 1 or len(kinds) > len(order)):
        return ()
    places = (*order[begin:end], *order[: max(end - len(order), 0)])
    if any(_kind(works[place]) != kind for place, kind in zip(places, kinds, strict=True)):
        return ()
    return places if all(_are_joined(works, one, other) for one, other in pairwise(places)) else ()


def _kind(work: LaunchWork) -> str:
    """The kind of an operator, as fusions name it; "" of one that overlaps with others or leaves its domain."""
    op = work.op
    if op.on_host or op.overlapped or isinstance(work.row.operator, Overlapped):
        return ""
    if isinstance(op, AllReduce):
        return ALL_REDUCE if in_one_domain(op) else ""
    return op.kind


def _are_joined(works: Mapping[int, LaunchWork], one: int, other: int) -> bool:
    """Whether the second operator reads a result of the first."""
    read_names = {t.name for t in works[other].op.inputs}
    return works[one].stream == works[other].stream and not read_names.isdisjoint(_results(works, one, other))


def _results(works: Mapping[int, LaunchWork], one: int, other: int) -> set[str]:
    """Names under which a later operator, which may be one of the next layer, reads the results of an earlier one."""
    block, names = works[one].row.block, {t.name for t in works[one].op.outputs}
    return names if one < other else {block.input} if block.output in names else set()


def fused_launch(
    members: tuple[int, ...], works: Mapping[int, LaunchWork], fusions: Sequence[LaunchFusion]
) -> KernelSequence:
    """The kernels of a launch of fused_launches(). Where a message is too long to be fused, its all-reduce is a launch
    of its own, and the rest is fused as far as the engine does without.
    """
    first = works[members[0]]
    if not isinstance(first.op, AllReduce):
        return KernelSequence(members=members, kernels=tuple(_kernels(members, works)), remark=_FUSED)
    kinds, rest = tuple(_kind(works[m]) for m in members), members[1:]
    fusion = next(fusion for fusion in fusions if fusion.operators == kinds)
    sent, tokens = first.of(first.op.payload()), first.of(first.op.inputs[0].rows)
    fits = np.less_equal(sent, fusion.max_bytes_of(first.op.group.size)) & np.less_equal(tokens, fusion.max_tokens)
    is_rest_fused = any(one.operators == kinds[1:] for one in fusions)
    rest_groups = (rest,) if is_rest_fused else tuple((m,) for m in rest)
    separate_kernels, _ = collective(first.op, first)
    return KernelSequence(
        members=members,
        kernels=(
            short_all_reduce(first.op, first, fusion.library or first.library, where=fits),
            *(_joined(m, members, works, where=fits) for m in rest),
            *(replace(kernel, where=np.logical_and(kernel.where, ~fits)) for kernel in separate_kernels),
            *(kernel for group in rest_groups for kernel in _kernels(group, works, where=~fits)),
        ),
        remark=_FUSED,
    )


def _kernels(
    members: tuple[int, ...], works: Mapping[int, LaunchWork], *, where: Num = True
) -> Iterator[LibraryKernel]:
    """Yields the kernels of a fused launch without communication, one of which starts it: a norm, if there is any."""
    starting = next((m for m in members if isinstance(works[m].op, Norm)), members[0])
    for m in members:
        kernel = _joined(m, members, works, where=where)
        yield replace(kernel, shapes={**kernel.shapes, "joined": 0.0}) if m == starting else kernel


def _joined(member: int, members: tuple[int, ...], works: Mapping[int, LaunchWork], where: Num) -> LibraryKernel:
    """The kernel of an operator within a fused launch: without a start, and without the bytes that stay on the chip."""
    work = works[member]
    kernel = mover(work.op, work, where=where)
    moved = np.maximum(kernel.shapes["bytes"] - _on_chip_bytes(member, members, works), 1)
    return replace(kernel, shapes={**kernel.shapes, "bytes": moved, "joined": 1.0})


def _on_chip_bytes(member: int, members: tuple[int, ...], works: Mapping[int, LaunchWork]) -> Num:
    """Bytes that an operator takes from others of its launch, or hands to them alone. [B]"""
    work, position = works[member], members.index(member)
    block = work.row.block
    earlier_names = {name for m in members[:position] for name in _results(works, m, member)}
    tensors = [t for t in work.op.reads() if t.name in earlier_names]
    if position < len(members) - 1:
        others = (one for place, one in works.items() if place not in members)
        lasting_names = {block.output, *block.live_tensors, *(t.name for one in others for t in one.op.inputs)}
        tensors += [t for t in work.op.writes() if t.name not in lasting_names and t.role not in RETAINED_ROLES]
    return sum((work.of(t.nbytes) for t in tensors), start=np.zeros(1))
