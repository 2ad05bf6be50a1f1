"""`Operator`, its tensors and weights, and `Work`: OPs per unit and bytes moved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from functools import cached_property
from math import prod
from operator import is_
from typing import ClassVar, Final, Self

from ..documents import MAX_EXACT_INTEGER
from ..errors import InputError
from ..forms import ONE, TOKENS, Form, Stream, total
from ..precision import Format
from ..records import frozen
from ..resource import MEMORY, Resource, Unit, vector


class Role(StrEnum):
    """The purpose of a tensor, by which its bytes are counted."""

    WEIGHT = "weight"
    ACTIVATION = "activation"
    KV_CACHE = "kv_cache"
    STATE = "state"  # fixed size per sequence, counted with the KV cache; quantization schemes leave it unchanged


RETAINED_ROLES: Final = (Role.KV_CACHE, Role.STATE)  # roles that stay in memory between passes


@frozen(kw_only=True)
class Tensor:
    """tensor[rows, width], as one launch reads or writes it. Tensor names are the edges of the graph.

    retained_rows  rows that stay in memory between passes; None: `rows`
    offloaded  fraction of the retained bytes outside device memory
    left_as_published  quantization schemes change its format only if they name its reader
    """

    name: str
    width: int
    format: Format
    rows: Form = TOKENS
    role: Role = Role.ACTIVATION
    retained_rows: Form | None = None
    offloaded: float = 0.0
    left_as_published: bool = False

    @property
    def elements(self) -> Form:
        return self.width * self.rows

    @property
    def nbytes(self) -> Form:
        """Bytes of one read or write. [B]"""
        return self.elements * (self.format.stored_bits / 8)

    @property
    def retained_bytes(self) -> Form:
        """Bytes that stay between passes, in any memory. [B]"""
        rows = self.rows if self.retained_rows is None else self.retained_rows
        return self.width * rows * (self.format.stored_bits / 8)

    @property
    def device_bytes(self) -> Form:
        """Bytes that stay in device memory between passes. [B]"""
        return (1 - self.offloaded) * self.retained_bytes


@frozen(kw_only=True)
class Weight:
    """A parameter tensor.

    rows    rows that a pass reads; None: all, once
    tied    whether another operator stores it, so that this one only reads it
    active  fraction that one token uses
    offloaded  fraction outside device memory
    """

    name: str
    shape: tuple[int, ...]
    format: Format
    rows: Form | None = None
    tied: bool = False
    active: float = 1.0
    offloaded: float = 0.0

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def elements(self) -> Form:
        """Elements that one pass reads."""
        return self.numel * ONE if self.rows is None else prod(self.shape[1:]) * self.rows

    @property
    def nbytes(self) -> Form:
        """Bytes that one pass reads. [B]"""
        return self.elements * (self.format.stored_bits / 8)

    @property
    def stored_bytes(self) -> float:
        """Stored bytes, in any memory. [B]"""
        return 0.0 if self.tied else self.numel * self.format.stored_bits / 8

    @property
    def device_bytes(self) -> float:
        """Bytes in device memory. [B]"""
        return (1 - self.offloaded) * self.stored_bytes


@frozen(kw_only=True)
class Work:
    """The amounts of one launch, as forms over the workload."""

    ops: Form  # the model's arithmetic on all units
    conversion_ops: Form  # quantization and dequantization on the vector units, fused into the launch
    weight_bytes: Form
    activation_bytes: Form
    kv_bytes: Form
    operand_unit: Resource  # unit and data type of the operands; of the matrix product if there is one
    amounts: tuple[tuple[Resource, Form], ...]  # OPs per unit and data type, bytes per memory and link
    fetch_bytes: tuple[tuple[Resource, Form], ...] = ()  # bytes per link of offloaded data; other launches overlap them

    @property
    def nbytes(self) -> Form:
        """Bytes of memory traffic. [B]"""
        return self.weight_bytes + self.activation_bytes + self.kv_bytes

    def on(self, stream: Stream) -> Work:
        """The same amounts over `stream`, a part of the pass."""
        return replace(
            self,
            ops=self.ops.on(stream),
            conversion_ops=self.conversion_ops.on(stream),
            weight_bytes=self.weight_bytes.on(stream),
            activation_bytes=self.activation_bytes.on(stream),
            kv_bytes=self.kv_bytes.on(stream),
            amounts=tuple((resource, form.on(stream)) for resource, form in self.amounts),
            fetch_bytes=tuple((resource, form.on(stream)) for resource, form in self.fetch_bytes),
        )

    @property
    def link_bytes(self) -> Form:
        """Bytes sent over links. [B]"""
        return total(form for resource, form in (*self.amounts, *self.fetch_bytes) if resource.unit is Unit.LINK)

    @property
    def forms(self) -> tuple[Form, ...]:
        return (self.ops, self.conversion_ops, *(form for _, form in (*self.amounts, *self.fetch_bytes)))


class Sharding(StrEnum):
    """Rule by which tensor parallelism divides an operator among ranks."""

    REPLICATED = "replicated"  # every rank does all the work
    ELEMENTS = "elements"  # a rank has its part of the width of each tensor; see `units` and `cut`
    SUM = "sum"  # by elements, or a sum of summands of several ranks
    HEADS = "heads"  # a rank has some of `heads` with their queries, keys and values
    PRODUCT = "product"  # rows of the weight, whose results are added up if its columns are divided instead
    COLUMNS = "columns"  # rows of the weight, with the whole input
    TABLE = "table"  # rows of a table
    LOGITS = "logits"  # a part of the vocabulary
    SCAN = "scan"  # heads of a state-space scan
    EXPERTS = "experts"
    DISPATCH = "dispatch"  # before the experts
    COMBINE = "combine"  # after the experts


@frozen(kw_only=True)
class Operator:
    """A kernel launch that reads `inputs` and `weights` and writes `outputs`; intermediate results stay on the chip.

    transfers  bytes per link to and from offloaded parts of its tensors
    on_host    whether the host runs it, beside its own memory
    kind       name of its OperatorKind (kinds.py), the key of reports and fitted models
    """

    sharding: ClassVar[Sharding] = Sharding.REPLICATED

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    weights: tuple[Weight, ...] = ()
    transfers: tuple[tuple[Resource, Form], ...] = ()
    on_host: bool = False

    kind: str = ""

    @property
    def result(self) -> Tensor:
        """The first output; most operators have one."""
        return self.outputs[0]

    @property
    def overlapped(self) -> bool:
        """Whether the operator overlaps with launches of another micro-batch."""
        return False

    def check_sizes(self) -> None:
        """Raises InputError if a weight or tensor has a size that is not positive, or too many elements."""
        for weight in self.weights:
            if min(weight.shape, default=1) < 1 or weight.numel > MAX_EXACT_INTEGER:
                raise InputError(f"{weight.name} must have positive sizes, and {MAX_EXACT_INTEGER} elements at most; "
                                 f"got {list(weight.shape)}")  # fmt: skip
        for tensor in (*self.inputs, *self.outputs):
            if not 0 <= tensor.width <= MAX_EXACT_INTEGER:  # a convolution of one tap keeps no state
                must = f"must have a width from 0 to {MAX_EXACT_INTEGER}"
                raise InputError(f"{self.name}: {tensor.name} {must}; got {tensor.width}")

    def arithmetic(self) -> dict[Resource, Form]:
        """OPs of the model per unit and data type; a multiply-add is two OPs."""
        raise NotImplementedError

    def reads(self) -> tuple[Tensor, ...]:
        """Tensors read from memory, without weights: `inputs`, unless parts are not read or are read repeatedly."""
        return self.inputs

    def writes(self) -> tuple[Tensor, ...]:
        """Tensors written to memory: `outputs`, without parts that stay in place."""
        return self.outputs

    def link_traffic(self) -> dict[Resource, Form]:
        """Bytes and consecutive messages per link during the launch."""
        return {}

    def offload_traffic(self) -> tuple[tuple[Resource, Form], ...]:
        """Bytes per link of offloaded tensors, fetched before the launch or stored after it."""
        return self.transfers

    def state(self) -> tuple[Tensor, ...]:
        """The KV cache or state of the operator, which stays in memory between passes."""
        return tuple(t for t in self.inputs if t.role in RETAINED_ROLES)

    def units(self, t: Tensor) -> int:
        """Maximum number of equal parts of the input `t`, for an operator sharded by elements."""
        return t.width

    def cut(self, part: int, width: int) -> Self:  # noqa: ARG002
        """The operator with its own sizes, besides tensors and weights, of a rank with `part` of `width` elements."""
        return self

    def dequantized(self) -> tuple[Form, ...]:
        """Elements that are converted to another data type before the arithmetic."""
        return ()

    def conversion(self) -> Form:
        """Vector OPs of fused conversions.

        Dequantization takes 2 OPs per element: subtract a zero point, scale. Quantization of outputs below 16 bits
        takes 3: maximum, scale, round.
        """
        quantized = (t.elements for t in self.writes() if t.format.bits < 16)
        return 2 * total(self.dequantized()) + 3 * total(quantized)

    def work(self) -> Work:
        return self._work

    @cached_property
    def _work(self) -> Work:
        """Cached: an operator that transforms leave unchanged is part of many graphs."""
        moved = (*self.reads(), *self.writes())
        arithmetic = self.arithmetic()
        conversion = self.conversion()
        weight_bytes = total(w.nbytes for w in self.weights)
        activation_bytes = total(t.nbytes for t in moved if t.role is Role.ACTIVATION)
        kv_bytes = total(t.nbytes for t in moved if t.role in RETAINED_ROLES)
        amounts = dict(arithmetic)
        if conversion:
            amounts[vector("fp16")] = amounts.get(vector("fp16"), Form()) + conversion
        amounts[MEMORY] = weight_bytes + activation_bytes + kv_bytes
        amounts |= self.link_traffic()
        return Work(
            ops=total(arithmetic.values()),
            conversion_ops=conversion,
            weight_bytes=weight_bytes,
            activation_bytes=activation_bytes,
            kv_bytes=kv_bytes,
            operand_unit=min(arithmetic),  # "matrix" sorts before "vector"
            amounts=tuple(amounts.items()),
            fetch_bytes=self.offload_traffic(),
        )

    def with_tensors(self, change: Callable[[Tensor], Tensor]) -> Self:
        inputs, outputs = tuple(map(change, self.inputs)), tuple(map(change, self.outputs))
        same = all(map(is_, (*inputs, *outputs), (*self.inputs, *self.outputs)))
        return self if same else replace(self, inputs=inputs, outputs=outputs)

    def with_weights(self, change: Callable[[Weight], Weight]) -> Self:
        weights = tuple(map(change, self.weights))
        return self if all(map(is_, weights, self.weights)) else replace(self, weights=weights)
