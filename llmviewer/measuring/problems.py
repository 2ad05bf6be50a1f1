"""Launches to measure: those of operators of models, at sizes on a logarithmic grid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import inf
from typing import Final

import numpy as np

from ..expectation.device import Device
from ..expectation.families import FAMILIES, Implementation
from ..expectation.formats import cache_bytes, kernel_type
from ..graph import Block
from ..operators.attention import FlashAttention, Heads
from ..operators.base import Operator
from ..operators.elementwise import Activation, Add, Norm, Rope, Route
from ..operators.embedding import Embedding
from ..operators.linear import ExpertsLinear, Linear, LMHead
from ..operators.state_space import Scan
from ..records import frozen
from ..setting import Setting
from ..workload import Workload

_TOKENS: Final = tuple(2**n for n in range(14))  # 1 to 8192
_BATCHES: Final = tuple(2**n for n in range(9))  # 1 to 256
_STEPS: Final = (1, 2, 3, *sorted(m << n for m in range(4, 8) for n in range(7)))  # 1 to 448: their only size
_PROMPTS: Final = tuple(2**n for n in range(7, 14))  # 128 to 8192
_PASTS: Final = tuple(2**n for n in range(7, 16))  # 128 to 32768
_MIN_WIDTH: Final = 8  # of a weight, whose rows are packed in words; gates of one column are no product of a library
_TABLE: Final = 2**14  # rows of an embedding; rows of larger tables come from memory just the same
_MIN_EXPERT_ROWS: Final = 4  # rows of each expert with which 98 % have any if tokens choose at random
_MOST_TOKENS: Final = 16384  # most tokens of a prefill
_MOST_CACHED: Final = 2**20  # most cached tokens of all sequences

_ANY: Final = "h100-sxm"  # sizes of operators do not depend on the device

# Names in tables of operators that move bytes, and reads and writes per element of a row; of operators with `topk`
# copies of a row, without them.
ELEMENTWISE: Final = {
    "norm": ("post_attention_layernorm", 2),
    "add_norm": ("add_norm", 4),  # the sum is written, too
    "add_norm_quantize": ("add_norm_quantize", 3.5),  # a scale a row
    "add_norm_quantize_group": ("add_norm_quantize_group", 3.5),  # a scale for each group of a row
    "add": ("add", 3),
    "activation": ("mlp_act", 3),  # gated: act(gate) * up
    "rope": ("attn_rope", 2),
    "embedding": ("emb", 2),
    "softmax": ("softmax", 2),
    "quantize": ("quantize", 1.5),  # 16 bits to 8
    "permute": ("permute", 1),
    "combine": ("combine", 1),
}
_NORMS: Final = ("norm", "add_norm", "quantize", "add_norm_quantize", "add_norm_quantize_group")  # at widths of norms
_SCANS: Final = {  # operations of rules that have kernels, over prompts and over single tokens
    "mamba2": ("mamba2_scan_prefill", "mamba2_scan_step"),
    "gdn": ("gdn_scan_prefill", "delta_scan_step"),  # steps of all delta rules have one name
    "kda": ("kda_scan_prefill", "delta_scan_step"),
}


@frozen(kw_only=True)
class Problem:
    """A launch to measure: kernel, shape and data types.

    op        elementwise: the function; attention: "gqa" or a kind of latent attention; scan: rule and phase
    kv_dtype  data type of the cache
    sizes     columns of its family, and further ones
    moved     bytes of elementwise work that is no operator of a model
    """

    family: str
    op: str
    dtype: str
    kv_dtype: str = ""
    sizes: tuple[tuple[str, int], ...]
    moved: int = 0

    def __getitem__(self, name: str) -> int:
        return dict(self.sizes)[name]

    @property
    def kind(self) -> tuple[str, ...]:
        """Properties shared with problems that differ only in size."""
        return self.family, self.op, self.dtype, self.kv_dtype

    @property
    def row(self) -> dict[str, object]:
        """Columns of the launch in a table of measurements."""
        columns: dict[str, object] = {"family": self.family, "dtype": self.dtype, **dict(self.sizes)}
        if self.family == "elementwise":
            columns |= {"op": ELEMENTWISE.get(self.op, (self.op, 0))[0], "bytes": self.nbytes}
        if self.family == "scan":
            columns["op"] = self.op
        if self.family.startswith("attention"):
            columns |= {"attn": self.op, "kv_dtype": self.kv_dtype}
        if self.family == "moe":
            columns["reached"] = round(self._reached, 1)
        return columns

    @property
    def _reached(self) -> float:
        """Mean number of experts with any token, where each token chooses at random."""
        tokens = Workload.decode(batch=self["tokens"], kv_len=1)
        return float(tokens.distinct_experts(self["experts"], self["topk"]))

    @property
    def nbytes(self) -> int:
        """Bytes read and written."""
        return self._nbytes(all_experts=False)

    @property
    def kept(self) -> int:
        """Bytes of its tensors, with parts not accessed: keys before a window, experts without tokens."""
        return self._nbytes(all_experts=True)

    def _nbytes(self, *, all_experts: bool) -> int:
        if self.family == "gemm":
            kind = kernel_type(self.dtype)
            m, n, k = self["M"], self["N"], self["K"]
            return int(n * k * kind.weight + m * k * kind.activation + 2 * m * n)
        if self.family == "moe":
            hidden, inter, tokens, experts = self["hidden"], self["inter"], self["tokens"], self["experts"]
            reached = experts if all_experts else self._reached
            return int(3 * reached * hidden * inter * kernel_type(self.dtype).weight + 4 * tokens * hidden)
        if self.moved:
            return self.moved
        if self.family == "elementwise":
            width = 4 if self.dtype == "fp32" else 2
            moves = ELEMENTWISE[self.op][1] + dict(self.sizes).get("topk", 0)
            return int(self["rows"] * self["cols"] * moves * width)
        if self.family == "scan":
            tokens = self["batch"] * self["q_len"]
            values = self["v_heads"] * self["v_dim"]
            streamed = 2 * tokens * (2 * self["k_heads"] * self["k_dim"] + 2 * values)
            return int(streamed + 2 * 4 * self["batch"] * values * self["k_dim"])  # states in fp32, in and out
        heads, dims = self["q_heads"], self["head_dim"] + self["v_head_dim"]
        allocated = self["head_dim"] if self.op == "mla_absorb" else dims
        queries = self["batch"] * dict(self.sizes).get("q_len", 1) * heads * dims * 2
        read_keys = self["kv_len"]
        if self.family == "attention_decode" and not all_experts:
            read_keys = min(read_keys, self["window"] or read_keys)
        return int(queries + self["batch"] * read_keys * self["kv_heads"] * allocated * cache_bytes(self.kv_dtype))

    def bound(self, device: Device) -> float:
        """The lower bound on a device with an empty cache. [s]"""
        family = FAMILIES[self.family]
        columns = {**dict.fromkeys(family.columns, 0.0), **family.optional, **self.row, "bytes": self.nbytes}
        shapes = {name: np.array([float(value)]) for name, value in columns.items() if isinstance(value, int | float)}
        kernel = self.op if family.names_operations else ""
        implementation = Implementation(library="", dtype=self.dtype, kv_dtype=self.kv_dtype, kernel=kernel)
        return float(family.bound(shapes, device, implementation)[0])


def problems(models: Sequence[str], dtypes: Iterable[str]) -> list[Problem]:
    """Distinct problems of the operators of models.

    Raises InputError if a model is unknown.
    """
    blocks = [block.operators for name in models for block in _blocks(name)]
    candidates = (one for dtype in dtypes for operators in blocks for one in _of_block(operators, dtype))
    return list(dict.fromkeys(candidates))


def _blocks(name: str) -> list[Block]:
    setting = Setting.of(name, _ANY)
    return [*setting.graph.blocks, *setting.decode_graph.blocks]


def _of_block(operators: Sequence[Operator], dtype: str) -> Iterator[Problem]:
    routes = [op.top_k for op in operators if isinstance(op, Route)]
    experts = [op.weight.shape for op in operators if isinstance(op, ExpertsLinear)]
    if routes and len(experts) > 1:
        yield from _experts(experts, routes[0], dtype)
    for op in operators:
        if isinstance(op, Linear) and len(op.weight.shape) == 2 and min(op.weight.shape) >= _MIN_WIDTH:
            n, k = op.weight.shape
            yield from _problems_of("gemm", "gemm", dtype, [{"M": m, "N": n, "K": k} for m in _TOKENS])
        if kernel_type(dtype).weight >= 2:
            yield from _without_products(op, dtype)


def _without_products(op: Operator, dtype: str) -> Iterator[Problem]:
    """Problems of an operator that multiplies no weights, in 16- or 32-bit floats."""
    if isinstance(op, LMHead):
        yield from _elementwise("softmax", dtype, cols=op.weight.shape[0])
    elif isinstance(op, FlashAttention):
        yield from _attention(op.heads, dtype)
    elif isinstance(op, Scan) and op.rule in _SCANS:
        yield from _scan(op, dtype)
    elif isinstance(op, Embedding):
        yield from _elementwise("embedding", dtype, cols=op.outputs[0].width, table=min(op.weights[0].shape[0], _TABLE))
    elif isinstance(op, Norm) and op.weights and op.weights[0].shape == (op.outputs[0].width,):
        for name in _NORMS:
            yield from _elementwise(name, dtype, cols=op.outputs[0].width)
    elif isinstance(op, Rope):
        heads = {"heads": op.heads.num_heads, "kv_heads": op.heads.num_kv_heads, "dim": op.heads.head_dim}
        is_full_rotation = op.rotary_dim == op.heads.head_dim
        yield from (
            _elementwise("rope", dtype, cols=sum(t.width for t in op.outputs), **heads) if is_full_rotation else ()
        )
    elif type(op) in (Add, Activation):
        yield from _elementwise(op.kind, dtype, cols=op.outputs[0].width)


def _problems_of(
    family: str, op: str, dtype: str, sizes: Iterable[Mapping[str, int]], kv_dtype: str = ""
) -> Iterator[Problem]:
    for one in sizes:
        yield Problem(family=family, op=op, dtype=dtype, kv_dtype=kv_dtype, sizes=tuple(one.items()))


def _elementwise(op: str, dtype: str, **columns: int) -> Iterator[Problem]:
    yield from _problems_of("elementwise", op, dtype, [{"rows": rows} | columns for rows in _TOKENS])


def _attention(heads: Heads, dtype: str) -> Iterator[Problem]:
    """Prompts, and single tokens after a past; with latent attention expanded in prompts and absorbed in steps."""
    window = getattr(heads.mask, "window", inf)
    columns = {
        "q_heads": heads.num_heads, "kv_heads": heads.num_kv_heads, "head_dim": heads.head_dim,
        "v_head_dim": heads.out_dim, "window": int(window) if window < inf else 0,
    }  # fmt: skip
    latent = heads.head_dim != heads.out_dim
    absorbed = latent and heads.num_kv_heads == 1
    if not absorbed:
        op = "mla_unabsorbed" if latent else "gqa"
        lengths = [(b, length) for b, length in product(_BATCHES, _PROMPTS) if b * length <= _MOST_TOKENS]
        sizes = [{"batch": b, "q_len": length, "kv_len": length} | columns for b, length in lengths]
        yield from _problems_of("attention_prefill", op, dtype, sizes, kv_dtype=dtype)
    if absorbed or not latent:
        op = "mla_absorb" if latent else "gqa"
        lengths = [(b, length) for b, length in product(_BATCHES, _PASTS) if b * length <= _MOST_CACHED]
        sizes = [{"batch": b, "kv_len": length} | columns for b, length in lengths]
        for kv_dtype in (dtype, "fp8"):
            yield from _problems_of("attention_decode", op, dtype, sizes, kv_dtype=kv_dtype)


def _scan(op: Scan, dtype: str) -> Iterator[Problem]:
    """Prompts in chunks, and single tokens."""
    heads = {
        "k_heads": op.groups, "k_dim": op.depth, "v_heads": op.heads, "v_dim": op.outputs[0].width // op.heads,
        **({"channels": 1} if op.rule == "kda" else {}),  # a decay of each channel of a key
    }  # fmt: skip
    prefill, step = _SCANS[op.rule]
    lengths = [(b, length) for b, length in product(_BATCHES, _PROMPTS) if b * length <= _MOST_TOKENS]
    prompts = [{"batch": b, "q_len": length, **heads, "chunk": op.chunk} for b, length in lengths]
    yield from _problems_of("scan", prefill, dtype, prompts)
    yield from _problems_of("scan", step, dtype, [{"batch": b, "q_len": 1, **heads, "chunk": 1} for b in _STEPS])


def _experts(shapes: Sequence[tuple[int, ...]], chosen: int, dtype: str) -> Iterator[Problem]:
    count, inter, hidden = shapes[0]
    columns = {"hidden": hidden, "inter": inter, "topk": chosen, "experts": count, "gated": int(len(shapes) > 2)}
    yield from _problems_of("moe", "moe", dtype, [{"tokens": tokens} | columns for tokens in _TOKENS])
    if kernel_type(dtype).weight >= 2:
        yield from _problems_of("gemm", "dense_experts", dtype, _dense_experts(shapes, chosen))
        for name in ("permute", "combine"):
            yield from _elementwise(name, dtype, cols=hidden, topk=chosen, experts=count)


def _dense_experts(shapes: Sequence[tuple[int, ...]], chosen: int) -> Iterator[dict[str, int]]:
    """Sizes of products with the weights of all experts as one matrix, of as many OPs as those of the experts.

    They have the tokens of one expert, so only numbers of tokens are yielded that experts share evenly.
    """
    count, inter, hidden = shapes[0]
    for tokens in _TOKENS:
        rows, rest = divmod(tokens * chosen, count)
        if rows >= _MIN_EXPERT_ROWS and not rest:
            yield {"M": rows, "N": count * inter * (len(shapes) - 1), "K": hidden}
            yield {"M": rows, "N": count * hidden, "K": inter}
