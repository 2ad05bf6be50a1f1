"""From the operators of an estimate to the kernels that a library runs for them.

A serving library runs what reads the same tensor as one matrix multiplication, and the experts of a layer as one fused
kernel. What no measured kernel does is laid out as its nearest relative, and that is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf, prod
from typing import Final

import numpy as np

from ..forms import ONE, TARGET, Form, Num, Stream, evaluate, total
from ..operators.attention import QK, SV, Attention, FlashAttention, Indexer, Softmax
from ..operators.base import Operator, Tensor
from ..operators.block_sparse import BlockIndexer
from ..operators.collectives import AllGather, AllReduce, AllToAll, Collective, ReduceScatter, Send
from ..operators.elementwise import Combine, Permute, Quantize
from ..operators.fused import Fused
from ..operators.linear import ExpertsLinear, Linear
from ..operators.masks import Across, Causal, Everything, Mask, Part, PartOfQueries, Probe, Tiled
from ..parallel.overlap import Overlapped
from ..precision import Format
from ..roofline import OperatorEstimate, Plan, PlannedOperator
from ..transforms.offload import HOST
from ..workload import Spans, Thinned, Workload
from .families import FAMILIES, Stack
from .families._family import Array
from .formats import kernel_type

ALONE: Final = ("cublas", "pytorch", "pytorch-cpu")  # libraries that run every operator by itself
# Kinds of operators that move bytes, as measured tables call them; the others are as an addition, which only does that.
_MOVERS: Final[Mapping[str, str]] = {
    "norm": "post_attention_layernorm",
    "activation": "mlp_act",
    "rope": "attn_rope",
    "embedding": "emb",
}
_INDEXER: Final = "no indexer was measured: as attention with half a key for a value, or of its bytes alone"
_LEAST_CACHED: Final = 8  # bits of the caches that were measured
_WIDER_CACHE: Final = "as with a cache of 8 bits, since none of fewer was measured"
_STREAMS: Final = ("add", "elementwise", "quantize", "permute", "combine", "place", "transfer", *_MOVERS)
_COLLECTIVES: Final[Mapping[type[Operator], str]] = {
    AllReduce: "all_reduce", AllGather: "all_gather", ReduceScatter: "reduce_scatter", AllToAll: "alltoall",
    Send: "send_recv",
}  # fmt: skip
_PAIRED: Final = ("alltoall", "send_recv")  # in which every message has one sender and one receiver
# Kernels by which serving libraries add up short messages, and the longest that they take: max_size of
# vllm/distributed/device_communicators/custom_all_reduce.py, as recalled; the others' are alike. As vLLM and
# SGLang warn, they are "not supported on more than two PCIe-only GPUs", pairs in bridges included.
_SHORT: Final[Mapping[str, str]] = {
    "vllm": "vLLM_custom_graph", "sglang": "SGLang_CustomAllReduce_graph", "trtllm": "TRTLLM",
}  # fmt: skip
_SHORT_BYTES: Final = 8 * 2**20
_ALWAYS: Final[Num] = 1.0
_FEWEST_READ: Final = 128  # queries of a sequence in what was measured of prompts
_GGUF_TYPE: Final = re.compile(r"[it]?q(\d)_\w+")


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One kernel: its family, whose it is and its shapes, as numbers or arrays over the workload.

    where   the workloads in which it is what is run
    instead another kernel that does the same work in some of them, run where it takes less time
    hosted  whether messages go over the links of a host, where devices have others too
    """

    family: str
    stack: Stack
    shapes: Mapping[str, Num]
    where: Num = True
    instead: Kernel | None = None
    hosted: bool = False

    def columns(self, chosen: Array) -> dict[str, Array]:
        """The columns of its family in the workloads `chosen`; what is not said is as it is where nothing repeats."""
        family = FAMILIES[self.family]
        wanted = {**dict.fromkeys(family.columns, 0.0), **family.optional}
        columns = {key: np.asarray(self.shapes.get(key, usual), dtype=float) for key, usual in wanted.items()}
        return {key: np.broadcast_to(column, chosen.shape)[chosen] for key, column in columns.items()}


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Kernels that run one after another for some operators together.

    members  places of the operators in their estimate
    kernels  none where no kernel is known: then `remark` is why
    beside   those that run at the same time as they do
    remark   what the kernels that were measured do not have
    partial  whether they are a part of what is run, of the rest of which no more than its bound is known
    often    the part of passes in which they run at all: where some tokens alone come, there may be none
    """

    members: tuple[int, ...]
    kernels: tuple[Kernel, ...] = ()
    beside: tuple[Kernel, ...] = ()
    remark: str = ""
    partial: bool = False
    often: Num = 1.0


@dataclass(frozen=True, kw_only=True)
class _Work:
    """An operator, as it is beside a collective that travels meanwhile, and what a launch of it does, where there is
    one: an estimate has the mean over all passes, those included in which no token comes.

    stream  the part of a pass that it sees
    often   the part of passes in which it runs
    """

    op: Operator
    row: OperatorEstimate
    workload: Workload
    stream: Stream
    often: Num

    @classmethod
    def of_row(cls, row: OperatorEstimate, workload: Workload) -> _Work:
        op = row.operator.first if isinstance(row.operator, Overlapped) else row.operator
        stream, often = _stream(row), _ALWAYS
        if stream.name:
            once = evaluate(ONE.on(stream), workload)
            often = np.where(np.greater(once, 0), once, 1.0)[()]
        return cls(op=op, row=row, workload=workload, stream=stream, often=often)

    def of(self, form: Form) -> Num:
        return evaluate(form.on(self.row.block.stream), self.workload) / self.often

    @property
    def ops(self) -> Num:
        own = self.op is self.row.operator
        return self.row.ops / self.often if own else self.of(total(self.op.arithmetic().values()))

    @property
    def nbytes(self) -> Num:
        return self.row.bytes / self.often if self.op is self.row.operator else self.of(self.op.work().nbytes)

    def part(self, spans: Spans) -> Workload:
        """Some of the sequences of `groups`, as the part of a pass that it sees has them."""
        alone = Workload((spans,))
        return replace(alone.target(), groups=(spans,)) if self.stream == TARGET else alone

    @property
    def groups(self) -> tuple[Spans, ...]:
        part = self.stream.of(self.workload)
        assert isinstance(part, Workload)
        return part.groups if not self.stream.name else tuple(_there(spans, self.often) for spans in part.groups)


def _stream(row: PlannedOperator | OperatorEstimate) -> Stream:
    """The part of a pass that an operator sees: that of its block, unless its results are said to be of another."""
    op = row.operator.first if isinstance(row.operator, Overlapped) else row.operator
    told = (feature.stream for t in op.outputs for feature, _ in t.rows.terms) if row.block.stream.name else ()
    return next((stream for stream in told if stream.name), row.block.stream)


def _there(spans: Spans, often: Num) -> Spans:
    """The sequences of a part of a pass, of passes in which there are any; of those whose tokens take part by chance,
    such as have at least one.
    """
    if not isinstance(spans, Thinned):
        return spans.times(1 / often)
    some = 1 - (1 - spans.share) ** spans.q_len
    new = spans.share * spans.q_len / some
    return Spans(batch=spans.batch * some / often, q_len=new, kv_len=new + spans.share * spans.past)


def counted(plan: Plan) -> Form:
    """Launches of a pass: of what sees some tokens alone, on average, and none of what sees none."""
    return total(row.block.repeat * ONE.on(_stream(row)) for row in plan.operators)


def launches(rows: Sequence[OperatorEstimate], workload: Workload, *, library: str, half: str) -> tuple[Launch, ...]:
    """What `library` launches for the operators of an estimate; every one of them is a member of one launch.

    half  the 16-bit type that the device computes in
    """
    found: list[Launch] = []
    for _, places in groupby(range(len(rows)), key=lambda place: id(rows[place].block)):
        found.extend(_of_block(rows, tuple(places), workload, library, half))
    return tuple(found)


def _of_block(
    rows: Sequence[OperatorEstimate], places: tuple[int, ...], workload: Workload, library: str, half: str
) -> Iterator[Launch]:
    works = {place: _Work.of_row(rows[place], workload) for place in places}
    experts = () if library in ALONE else _experts(works)
    joined = {place: members for members in (experts, *_products(works, library, half)) for place in members}
    for place, work in works.items():
        members = joined.get(place, (place,))
        if place != members[0]:
            continue
        launch = (
            _moe(members, works, library, half)
            if members is experts
            else _gemm(members, works, library, half)
            if place in joined
            else _launch(place, work, library, half)
        )
        meanwhile = [rows[m].operator for m in members]
        beside = [
            kernel
            for op in meanwhile
            if isinstance(op, Overlapped)
            for kernel in _collective(op.then, work, library)[0]
        ]
        often = works[members[-1]].often  # a conversion's is that of the product which it is part of
        yield replace(launch, members=members, beside=tuple(beside), often=often)


def _launch(place: int, work: _Work, library: str, half: str) -> Launch:
    """Of an operator that has a kernel to itself."""
    op, members = work.op, (place,)
    if isinstance(op, Collective):
        kernels, remark = _collective(op, work, library)
        return Launch(members=members, kernels=kernels, remark=remark, partial=bool(kernels and remark))
    if isinstance(op, FlashAttention):
        kernels = tuple(k for spans in work.groups for k in _attention(op, work.part(spans), library, half))
        known = isinstance(op.heads.mask, Causal | Everything | Across)
        narrow = op.inputs[1].format.bits < _LEAST_CACHED
        remarks = ("" if known else "such masks were not measured", _WIDER_CACHE if narrow else "")
        return Launch(members=members, kernels=kernels, remark="; ".join(filter(None, remarks)))
    if isinstance(op, QK | SV):
        return Launch(
            members=members, kernels=tuple(_scores(op, work.part(spans), library, half) for spans in work.groups)
        )
    if isinstance(op, Indexer | BlockIndexer):
        return Launch(members=members, kernels=tuple(_indexer(op, work, library, half)), remark=_INDEXER)
    alike = isinstance(op, Softmax) or op.kind in _STREAMS
    remark = "" if alike else f"its bytes alone, as no {op.kind} was measured"
    return Launch(members=members, kernels=(_mover(op, work, library),), remark=remark)


def _mover(op: Operator, work: _Work, library: str, *, where: Num = True) -> Kernel:
    """Of what takes as long as its bytes do."""
    name, dtype = ("softmax", "fp32") if isinstance(op, Softmax) else (_MOVERS.get(op.kind, "add"), "fp16")
    moved = work.nbytes
    shapes = {"rows": np.maximum(np.divide(moved, _row_bytes(op)), 1), "bytes": moved}
    stack = Stack(library=library, dtype=dtype, kernel=name)
    return Kernel(family="elementwise", stack=stack, shapes=shapes, where=where)


def _indexer(op: Indexer | BlockIndexer, work: _Work, library: str, half: str) -> Iterator[Kernel]:
    """Of prompts attention, whose scores stay on the chip, too: halves of a key as key and value are as many OPs and
    bytes as the key is. Single tokens wait for the bytes of keys.
    """
    halves = replace(op.heads, head_dim=op.heads.head_dim // 2)
    attention = FlashAttention(name=op.name, inputs=op.inputs, outputs=op.outputs, heads=halves)
    once: Num = True
    for spans in work.groups:
        kernels = _attention(attention, work.part(spans), library, half)
        prompts = next(kernel for kernel in kernels if kernel.family == "attention_prefill")
        once = np.logical_and(once, np.logical_not(prompts.where))
        yield prompts
    yield _mover(op, work, library, where=once)


def _products(works: Mapping[int, _Work], library: str, half: str) -> list[tuple[int, ...]]:
    """Linear layers that are one matrix multiplication each, with the conversion of their input.

    Those on both sides of what mixes tokens are apart, even where attention and MLP read the same.
    """
    found: list[list[int]] = []
    alike: dict[tuple[str, str, type[Operator], Stream], list[int]] = {}  # those that others may join
    waiting: list[int] = []  # a conversion whose reader may come next
    for place, work in works.items():
        op = work.op
        if isinstance(op, Quantize):
            waiting = [place]
        elif linears := _linears(op):
            first = linears[0]
            dtype = _product(first, half)
            before = waiting if waiting and _reads(op, works[waiting[0]].op) and kernel_type(dtype).quantizes else []
            key = (first.inputs[0].name, dtype, type(op), work.stream)
            if key in alike and _plain(op):
                alike[key].append(place)
            else:
                found.append([*before, place])
                alike |= {key: found[-1]} if _plain(op) and library not in ALONE else {}
            waiting = []
        elif isinstance(op, Attention) or op.kind in ("scan", "conv"):
            alike.clear()
    return [tuple(group) for group in found]


def _linears(op: Operator) -> tuple[Linear, ...]:
    """The products with dense weights that a launch of `op` does; none where it does others, or none."""
    parts = op.parts if isinstance(op, Fused) else (op,)
    found = tuple(part for part in parts if isinstance(part, Linear))
    dense = all(_whole(part).dense and not isinstance(_whole(part), ExpertsLinear) for part in found)
    return found if dense else ()


def _plain(op: Operator) -> bool:
    return isinstance(op, Linear) and type(_whole(op)) is Linear and _shape(_whole(op))[0] == 1


def _whole(op: Linear) -> Linear:
    """The product that `op` does a part of, or more than; itself where it stands for none."""
    of = getattr(op, "of", None)
    return _whole(of) if of else op


def _reads(op: Operator, writer: Operator) -> bool:
    return any(t.name == writer.outputs[0].name for t in op.inputs)


def _shape(op: Linear) -> tuple[int, float, float]:
    """(products that are alike, columns of the result, elements of a row): heads and parts go side by side."""
    size, rows, width = op.weight.numel, op.weight.shape[0], op.inputs[0].width
    most = round(width * sum(t.width for t in op.outputs) / size)
    if width == size // rows or most < 2:
        return 1, rows, size / rows
    batch = next(n for n in range(most, 0, -1) if width % n == 0)  # results may be beside what is not multiplied
    return batch, size / width, width / batch


def _gemm(members: tuple[int, ...], works: Mapping[int, _Work], library: str, half: str) -> Launch:
    linears = [(op, works[m]) for m in members for op in _linears(works[m].op)]
    first, work = linears[0]
    whole = _whole(first)
    batch, n, k = _shape(whole)
    depth: Num = k
    if whole is not first:
        read = np.divide(work.of(total(w.nbytes for w in first.weights)), _bytes(whole))
        depth = k * np.where(np.greater(read, 0), read, 1.0)[()]
    ops = work.ops if work.op is first else work.of(total(first.arithmetic().values()))
    rows = np.maximum(np.divide(ops, 2.0 * batch * n * depth), 1)  # none where weights alone are read
    columns: dict[str, float] = {}
    for op, _ in linears:
        dtype = _product(op, half)
        columns[dtype] = columns.get(dtype, 0) + _shape(_whole(op))[1]
    return Launch(
        members=members,
        kernels=tuple(
            Kernel(
                family="gemm",
                stack=Stack(library=library, dtype=dtype),
                shapes={"M": rows, "N": n, "K": depth, "batch": batch},
            )
            for dtype, n in columns.items()
        ),
        remark="" if whole is first else "as a whole product of as many OPs and bytes of weights",
    )


def _bytes(op: Linear) -> float:
    """All of its weights. [B]"""
    return sum(w.numel * w.format.stored_bits for w in op.weights) / 8


def _product(op: Linear, half: str) -> str:
    """The data type of a product with a weight, as measured tables call it."""
    return _type(op.inputs[0].format, _whole(op).weight.format, half)


def _type(x: Format, weight: Format, half: str) -> str:
    floats, bits = weight.compute.startswith("fp"), _code_bits(weight)
    if x.bits > 8:
        wide = "fp32" if bits > 16 else half
        narrow = "w4a16_mxfp4" if floats else "int4_wo"
        return wide if bits > 8 else "int8_wo" if bits > 4 else narrow
    if x.bits > 4 and x.compute == "fp8":
        return "w4afp8" if bits <= 4 else "fp8_block" if weight.group else "fp8"
    if x.bits > 4 or not floats:
        return "sq" if bits > 4 or x.bits <= 4 else "int4_wo"
    return "nvfp4" if weight.name == "nvfp4" else "fp4"


def _code_bits(weight: Format) -> float:
    """Of an element without its part of what a block shares: types of GGUF files count that in, as q4_0 with 4.5 bits,
    and have those of a code in their names.
    """
    named = _GGUF_TYPE.fullmatch(weight.name)
    return float(named[1]) if named else weight.bits


def _experts(works: Mapping[int, _Work]) -> tuple[int, ...]:
    """What one fused kernel does: copies by expert, their products, what is between, and the sum; not what travels."""
    inside: set[str] = set()
    members = []
    for place, work in works.items():
        op = work.op
        reads = any(t.name in inside for t in op.inputs)
        if isinstance(op, Collective):
            inside |= {t.name for t in op.outputs} if reads else set()
        elif isinstance(op, Permute | ExpertsLinear) or reads:
            members.append(place)
            inside |= set() if isinstance(op, Combine) else {t.name for t in op.outputs}
    products = [works[m].op for m in members if isinstance(works[m].op, ExpertsLinear)]
    return tuple(members) if len(products) > 1 else ()


def _moe(members: tuple[int, ...], works: Mapping[int, _Work], library: str, half: str) -> Launch:
    products = [(op, works[m]) for m in members if isinstance(op := works[m].op, ExpertsLinear)]
    chosen = next((op.chosen for m in members if isinstance(op := works[m].op, Combine)), 1)
    down, work = products[-1]
    experts, hidden, inner = down.weight.shape[0], down.weight.shape[1], prod(down.weight.shape[2:])
    up = sum(op.weight.numel for op, _ in products[:-1]) / (experts * hidden)
    copies = np.divide(work.ops, 2.0 * hidden * inner)
    shapes: dict[str, Num] = {
        "tokens": np.maximum(np.rint(np.divide(copies, chosen)), 1),
        "hidden": hidden,
        "inter": inner,
        "topk": np.minimum(chosen, np.maximum(copies, 1)),  # of a token, fewer than it chose may be on this device
        "experts": experts,
        "gated": float(up > inner),
        "reached": work.of(down.weight.rows) if down.weight.rows else experts,
    }
    stack = Stack(library=library, dtype=_product(down, half))
    return Launch(members=members, kernels=(Kernel(family="moe", stack=stack, shapes=shapes),))


def _attention(op: FlashAttention, alike: Workload, library: str, half: str) -> Iterator[Kernel]:
    """A kernel for prompts and one for single tokens, of sequences that are alike: which of them is run is for each
    workload to say. Few tokens, as of a pass that verifies a draft, may be as many heads of single ones, which cuts a
    long cache among cores, as kernels of libraries for decoding do.
    """
    heads, mask, cache = op.heads, op.heads.mask, op.inputs[1].format
    batch, queries, keys, causal = _seen(mask, alike)
    window = getattr(mask, "window", inf)
    shapes: dict[str, Num] = {
        "batch": batch,
        "q_len": queries,
        "kv_len": keys,
        "q_heads": heads.num_heads,
        "kv_heads": heads.num_kv_heads,
        "head_dim": heads.head_dim,
        "v_head_dim": heads.out_dim,
        "window": window if window < inf else 0.0,
        "causal": float(causal),
    }
    latent = heads.out_dim != heads.head_dim
    absorbed = latent and heads.num_kv_heads == 1
    kind = "mla_unabsorbed" if latent and not absorbed else ""
    whole = mask.mask if isinstance(mask, Part) else mask
    kind = kind if isinstance(whole, Causal) else "encoder_noncausal" if not mask.keeps else ""
    bits = op.inputs[0].format.bits
    dtype = "fp32" if bits > 16 else "fp8" if bits <= 8 else half
    once = np.less_equal(queries, 1)
    narrow = "bf16" if dtype == "fp16" else dtype
    stored = "fp8" if cache.bits <= 8 else "bf16"
    single = Stack(
        library=library, dtype="bf16" if narrow == "fp8" else narrow, kv_dtype=stored,
        kernel="mla_absorb" if absorbed else "",
    )  # fmt: skip
    yield Kernel(family="attention_decode", stack=single, shapes=shapes, where=once)
    instead = None
    if causal and kind != "mla_unabsorbed":
        side = {**shapes, "q_heads": heads.num_heads * np.maximum(queries, 1)}
        few = ~once & np.less(queries, _FEWEST_READ)
        instead = Kernel(family="attention_decode", stack=single, shapes=side, where=few)
    prompts = Stack(library=library, dtype=narrow, kv_dtype=stored, kernel=kind)
    yield Kernel(family="attention_prefill", stack=prompts, shapes=shapes, where=~once, instead=instead)


def _seen(mask: Mask, alike: Workload) -> tuple[Num, Num, Num, bool]:
    """(sequences, queries and keys of each, whether queries see but those before them), for kernels that were measured.

    Keys that have left a window count as if there were none. Under other masks, every query sees as many keys as it
    does on average.
    """
    (spans,) = alike.groups
    if isinstance(mask, Causal):
        return spans.batch, spans.q_len, np.minimum(spans.kv_len, mask.window + spans.q_len - 1), True
    if isinstance(mask, Probe):
        return spans.batch, np.minimum(spans.q_len, 1), spans.q_len, False
    few = np.minimum(spans.q_len, 1)
    queries = np.maximum(np.divide(spans.q_len, mask.ranks), few) if isinstance(mask, PartOfQueries) else spans.q_len
    tokens = np.multiply(spans.batch, queries)
    pairs = evaluate(mask.pairs, alike)
    each = np.divide(pairs, np.maximum(tokens, 1))
    if isinstance(mask, Tiled):
        return tokens / np.maximum(each, 1), each, each, False
    return spans.batch, queries, np.maximum(each, few), False


def _scores(op: QK | SV, alike: Workload, library: str, half: str) -> Kernel:
    """A product of every head, of queries with keys or of scores with values."""
    heads, (spans,) = op.heads, alike.groups
    tokens = np.maximum(np.multiply(spans.batch, spans.q_len), 1)
    keys = np.maximum(np.divide(evaluate(heads.mask.cells, alike), tokens), 1)
    n, k = (keys, heads.head_dim) if isinstance(op, QK) else (heads.out_dim, keys)
    shapes = {"M": spans.q_len, "N": n, "K": k, "batch": np.multiply(spans.batch, heads.num_heads)}
    return Kernel(family="gemm", stack=Stack(library=library, dtype=half), shapes=shapes)


def _collective(op: Collective, work: _Work, library: str) -> tuple[tuple[Kernel, ...], str]:
    """Kernels of a collective, or of its part in a domain, and why there are none of all of it."""
    name, group = _COLLECTIVES.get(type(op)), op.group
    if name is None:
        return (), f"no {op.kind} of this kind was measured"
    last = group.tiers[-1][0] if group.tiers else group.inside
    hosted, remark = last == HOST, ""
    sent = np.multiply(work.of(op.payload()), getattr(op, "parts", 1.0))
    met = 2 if isinstance(op, Send) else group.size
    shapes: dict[str, Num] = {"num_gpus": met, "bytes": sent * (1.0 if hosted else op.detour())}
    if group.outer > 1 and not hosted:
        remark = "collectives between domains were not measured"
        if group.inner == 1:
            return (), remark
        direct = isinstance(op, AllToAll) and not group.hierarchical
        inside = sent * (group.inner / group.size if direct else 1.0)
        shapes = {"num_gpus": group.inner, "bytes": inside * op.detour()}
    elif min(group.inner, group.outer) > 1 and name not in _PAIRED:  # a ring leaves each bridge once
        shapes = {"num_gpus": group.outer, "bytes": sent * _ringed(group.size) / _ringed(group.outer)}
    usual = Stack(library="nccl", dtype="fp16", kernel=f"nccl {name}")
    if name != "all_reduce" or library not in _SHORT or (hosted and group.size > 2):
        return (Kernel(family="collectives", stack=usual, shapes=shapes, hosted=hosted),), remark
    own = Stack(library=library, dtype="bf16", kernel=f"{_SHORT[library]} {name}")
    short = np.less_equal(sent, _SHORT_BYTES)
    return (
        Kernel(family="collectives", stack=own, shapes=shapes, where=short, hosted=hosted),
        Kernel(family="collectives", stack=usual, shapes=shapes, where=~short, hosted=hosted),
    ), remark


def _ringed(devices: int) -> float:
    """Of a message, what each of a ring of devices passes on."""
    return (devices - 1) / devices


def _row_bytes(op: Operator) -> float:
    """What one row of it moves. [B]"""

    def width(tensor: Tensor) -> float:
        return tensor.width * tensor.format.stored_bits / 8

    return max(sum(map(width, op.reads())) + sum(map(width, op.writes())), 1.0)
