"""y[token] = table[id[token]], or the sum with a row of a second table, of positions.

A program copies a part of one row. Ids are read by each of them: four bytes, of which one load serves all threads.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..forms import table_rows
from ..operators.base import Operator, Tensor, Weight
from ..operators.embedding import Embedding
from ..workload import Workload
from .base import EPSILON, Case, Inputs, Kernel, Launch, LaunchPlan, Random, Target, case, cdiv, poisoned, pow2

_BLOCK = 1024  # elements of a program: a load of 16 bytes a thread, so that the row of one token has several programs


@triton.jit
def _embedding(id_ptr, table_ptr, position_ptr, places_ptr, y_ptr, width, BLOCK: tl.constexpr):
    token = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    row = tl.load(id_ptr + token).to(tl.int64)
    y = tl.load(table_ptr + row * width + columns, mask, 0.0)
    if position_ptr is not None:
        row = tl.load(position_ptr + token).to(tl.int64)
        y = y.to(tl.float32) + tl.load(places_ptr + row * width + columns, mask, 0.0).to(tl.float32)
    tl.store(y_ptr + token.to(tl.int64) * width + columns, y.to(y_ptr.dtype.element_ty), mask)


def plan(
    target: Target,  # noqa: ARG001
    ids: torch.Tensor,
    table: torch.Tensor,
    positions: torch.Tensor | None = None,
    places: torch.Tensor | None = None,
) -> LaunchPlan:
    """ids[tokens] and table[vocab, width], positions[tokens] and places[length, width] to y[tokens, width]."""
    tokens, width = ids.numel(), table.shape[1]
    y = poisoned(tokens, width, dtype=table.dtype, device=table.device)
    block = min(pow2(width), _BLOCK)
    launch = Launch(
        function=_embedding,
        grid=(tokens, cdiv(width, block)),
        arguments={
            "id_ptr": ids, "table_ptr": table, "position_ptr": positions, "places_ptr": places, "y_ptr": y,
            "width": width, "BLOCK": block,
        },
    )  # fmt: skip
    return LaunchPlan(launches=(launch,), outputs=(y,))


def reference(
    ids: torch.Tensor, table: torch.Tensor, positions: torch.Tensor | None = None, places: torch.Tensor | None = None
) -> tuple[torch.Tensor, ...]:
    """Rows of the table by token, plus those of learned positions where given [tokens, width]; in fp32."""
    y = table[ids.long()].float()
    return (y if positions is None or places is None else y + places[positions.long()].float(),)


def _make(case: Case, device: str, seed: int) -> Inputs:
    random, tokens, dtype = Random(device, seed), case["tokens"], case.torch_dtype
    vocab, width, length = case["vocab"], case["width"], case.get("positions")
    inputs: Inputs = {
        "ids": random.integers(tokens, low=0, high=vocab, dtype=torch.int32),
        "table": random.normal(vocab, width, dtype=dtype),
    }
    if length:
        inputs["positions"] = random.integers(tokens, low=0, high=length, dtype=torch.int32)
        inputs["places"] = random.normal(length, width, dtype=dtype)
    return inputs


def _next_inputs(inputs: Inputs, number: int) -> Inputs:
    """Other rows of the same tables."""
    next_ids = {}
    for ids, table in (("ids", "table"), ("positions", "places")):
        if ids in inputs:
            next_ids[ids] = (inputs[ids] + number) % len(inputs[table])
    return inputs | next_ids


def _operators(case: Case) -> tuple[Operator, ...]:
    width, tables = case["width"], {"tokens": case["vocab"], "positions": case.get("positions")}
    weights = tuple(
        Weight(name=name, shape=(rows, width), format=case.format, rows=table_rows(rows))
        for name, rows in tables.items()
        if rows
    )
    y = Tensor(name="y", width=width, format=case.format)
    return (Embedding(name="embedding", inputs=(), outputs=(y,), weights=weights),)


KERNELS = (
    Kernel(
        name="embedding", family="embedding",
        cases=(
            case("fp16", tokens=5, vocab=11, width=128),
            case("bf16", tokens=3, vocab=7, width=1500),
            case("fp32", tokens=9, vocab=4, width=77, positions=6),
        ),
        full_size=(
            case("bf16", tokens=8192, vocab=128256, width=8192),
            case("bf16", tokens=16, vocab=128256, width=4096),
            case("bf16", tokens=8192, vocab=30522, width=1024, positions=512),
        ),
        make=_make, plan=plan, reference=reference,
        tolerance=lambda case: (EPSILON[case.dtype] / 2, 0.0) if case.get("positions") else (0.0, 0.0),
        operators=_operators,
        workload=lambda case: Workload.prefill(batch=1, prompt=case["tokens"]),
        next_inputs=_next_inputs,
    ),
)  # fmt: skip
