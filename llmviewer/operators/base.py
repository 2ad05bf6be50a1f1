"""What every operator answers: how many OPs on which unit, and which tensors it moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from math import prod
from operator import is_
from typing import Final, Self

from ..forms import ONE, TOKENS, Form, Stream, total
from ..precision import Format
from ..resource import MEMORY, Resource, Unit, vector


class Role(StrEnum):
    """Why a tensor is in memory: what its bytes are booked under."""

    WEIGHT = "weight"
    ACTIVATION = "activation"
    KV_CACHE = "kv_cache"
    STATE = "state"  # of fixed size for each sequence, booked with the KV cache; precision schemes leave it alone


KEPT: Final = (Role.KV_CACHE, Role.STATE)  # what stays between passes


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """tensor[rows, width]: the rows that one launch reads or writes. Edges of the graph are tensor names.

    held  rows that stay between passes, where they are not those
    away  the part of what is kept that lies outside of device memory
    left_as_published  schemes leave its format alone, but for those that name what reads it
    """

    name: str
    width: int
    format: Format
    rows: Form = TOKENS
    role: Role = Role.ACTIVATION
    held: Form | None = None
    away: float = 0.0
    left_as_published: bool = False

    @property
    def elements(self) -> Form:
        return self.width * self.rows

    @property
    def nbytes(self) -> Form:
        """[B]"""
        return self.elements * (self.format.stored_bits / 8)

    @property
    def kept_bytes(self) -> Form:
        """What stays between passes, wherever it lies. [B]"""
        rows = self.rows if self.held is None else self.held
        return self.width * rows * (self.format.stored_bits / 8)

    @property
    def held_bytes(self) -> Form:
        """What of it takes device memory. [B]"""
        return (1 - self.away) * self.kept_bytes


@dataclass(frozen=True, kw_only=True)
class Weight:
    """A parameter. `rows` says how many rows of it a pass reads; None is all of it, once.

    `tied` marks a second use of a parameter that is stored elsewhere in the model: read, but not held twice.
    """

    name: str
    shape: tuple[int, ...]
    format: Format
    rows: Form | None = None
    tied: bool = False
    active: float = 1.0  # the part of it that one token uses
    away: float = 0.0  # the part of it that lies outside of device memory

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def elements(self) -> Form:
        """What one pass reads."""
        return self.numel * ONE if self.rows is None else prod(self.shape[1:]) * self.rows

    @property
    def nbytes(self) -> Form:
        """What one pass reads. [B]"""
        return self.elements * (self.format.stored_bits / 8)

    @property
    def kept_bytes(self) -> float:
        """What it takes, wherever it lies. [B]"""
        return 0.0 if self.tied else self.numel * self.format.stored_bits / 8

    @property
    def stored_bytes(self) -> float:
        """What of it takes device memory. [B]"""
        return (1 - self.away) * self.kept_bytes


@dataclass(frozen=True, kw_only=True)
class Work:
    """How much of everything one launch takes, as forms over the workload."""

    ops: Form  # the model's arithmetic on all units
    conversion_ops: Form  # quantizing and de-quantizing on the vector units, fused into the launch
    weight_bytes: Form
    activation_bytes: Form
    kv_bytes: Form
    wanted: Resource  # the unit and data type of the arithmetic, of the matrix part where there is one
    amounts: tuple[tuple[Resource, Form], ...]  # OPs per unit and data type wanted, bytes of memory

    @property
    def nbytes(self) -> Form:
        """[B]"""
        return self.weight_bytes + self.activation_bytes + self.kv_bytes

    def on(self, stream: Stream) -> Work:
        """The same of a part of the pass."""
        return replace(
            self,
            ops=self.ops.on(stream),
            conversion_ops=self.conversion_ops.on(stream),
            weight_bytes=self.weight_bytes.on(stream),
            activation_bytes=self.activation_bytes.on(stream),
            kv_bytes=self.kv_bytes.on(stream),
            amounts=tuple((resource, form.on(stream)) for resource, form in self.amounts),
        )

    @property
    def link_bytes(self) -> Form:
        """What goes over links. [B]"""
        return total(form for resource, form in self.amounts if resource.unit is Unit.LINK)

    @property
    def forms(self) -> tuple[Form, ...]:
        return (self.ops, self.conversion_ops, *(form for _, form in self.amounts))


@dataclass(frozen=True, kw_only=True)
class Operator:
    """A kernel launch. It reads `inputs` and `weights` and writes `outputs`; what is inside stays on the chip.

    transfers  bytes, by link, that come from and go to where parts of its tensors are kept, while it runs
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    weights: tuple[Weight, ...] = ()
    transfers: tuple[tuple[Resource, Form], ...] = ()

    kind: str = ""

    @property
    def result(self) -> Tensor:
        """The first of the outputs, which is all that most have."""
        return self.outputs[0]

    @property
    def beside(self) -> bool:
        """Whether it runs while another micro-batch has other launches."""
        return False

    def arithmetic(self) -> dict[Resource, Form]:
        """The model's OPs on each unit in each data type; a multiply-add counts as two."""
        raise NotImplementedError

    def reads(self) -> tuple[Tensor, ...]:
        """What crosses the memory bus inwards, weights apart: `inputs`, but for parts that stay or are read again."""
        return self.inputs

    def writes(self) -> tuple[Tensor, ...]:
        """What crosses the memory bus outwards: `outputs`, but for parts that stay where they are."""
        return self.outputs

    def sent(self) -> dict[Resource, Form]:
        """Bytes that go over links and messages that wait for each other, by link."""
        return dict(self.transfers)

    def state(self) -> tuple[Tensor, ...]:
        """What stays in memory between passes on behalf of this operator: its KV cache or its state."""
        return tuple(t for t in self.inputs if t.role in KEPT)

    def dequantized(self) -> tuple[Form, ...]:
        """Elements that have to be converted before they can be used."""
        return ()

    def conversion(self) -> Form:
        """Vector OPs of fused conversions.

        De-quantizing subtracts a zero point and scales. Quantizing, of what is written in fewer bits than the 16 or 32
        that every operator computes in, finds the largest, scales and rounds.
        """
        quantized = (t.elements for t in self.writes() if t.format.bits < 16)
        return 2 * total(self.dequantized()) + 3 * total(quantized)

    def work(self) -> Work:
        return self._work

    @cached_property
    def _work(self) -> Work:
        """Once, as what transforms leave alone is in many graphs."""
        moved = (*self.reads(), *self.writes())
        arithmetic = self.arithmetic()
        conversion = self.conversion()
        weight_bytes = total(w.nbytes for w in self.weights)
        activation_bytes = total(t.nbytes for t in moved if t.role is Role.ACTIVATION)
        kv_bytes = total(t.nbytes for t in moved if t.role in KEPT)
        amounts = dict(arithmetic)
        if conversion:
            amounts[vector("fp16")] = amounts.get(vector("fp16"), Form()) + conversion
        amounts[MEMORY] = weight_bytes + activation_bytes + kv_bytes
        amounts |= self.sent()
        return Work(
            ops=total(arithmetic.values()),
            conversion_ops=conversion,
            weight_bytes=weight_bytes,
            activation_bytes=activation_bytes,
            kv_bytes=kv_bytes,
            wanted=min(arithmetic),  # "matrix" sorts before "vector"
            amounts=tuple(amounts.items()),
        )

    def with_tensors(self, change: Callable[[Tensor], Tensor]) -> Self:
        inputs, outputs = tuple(map(change, self.inputs)), tuple(map(change, self.outputs))
        same = all(map(is_, (*inputs, *outputs), (*self.inputs, *self.outputs)))
        return self if same else replace(self, inputs=inputs, outputs=outputs)

    def with_weights(self, change: Callable[[Weight], Weight]) -> Self:
        weights = tuple(map(change, self.weights))
        return self if all(map(is_, weights, self.weights)) else replace(self, weights=weights)
