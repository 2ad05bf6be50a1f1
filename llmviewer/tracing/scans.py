"""Prompts of models with a state, compared with single-token steps.

Products with parameters must be the same. A scan runs either token by token like steps, or in chunks of tokens, and is
then fitted by the number of chunks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from ..errors import InputError
from .fitting import PassShape
from .passes import TracedPasses
from .program import Program
from .recording import Call, Recording

_PROMPT: Final = PassShape(2, 6)
_MAX_CHUNK_SIZES: Final = 8  # candidate chunk sizes, smallest first
_CHUNK_COUNTS: Final = (1, 2, 3, 4)  # chunks of fitted prompts: three for the terms of a parabola, one as a check


def compare_prompts(program: Program, passes: TracedPasses) -> tuple[str, ...]:
    """Compares prompts with steps and sets the chunks of scans in `program`; returns notes on different counts.

    Raises InputError if products with parameters differ from those of as many steps.
    """
    step, prompt = program.recordings[0], passes.record(_PROMPT)
    paths = {program.calls[index].path for index in program.state_calls}
    _check_same_products(program, prompt, paths)
    tokens = _PROMPT.batch * _PROMPT.q_len
    prompt_ops = _scan_ops(prompt, paths)
    steps = Counter({path: n // program.basis.shapes[0].batch for path, n in _scan_ops(step, paths).items()})
    if prompt_ops == Counter({path: tokens * n for path, n in steps.items()}):
        return ()
    where = ", ".join(sorted(path for path in paths if prompt_ops[path] != tokens * steps[path])[:1])
    size = _chunk_size(passes, prompt, paths)
    if not size:
        counts_text = (
            f"{sum(prompt_ops.values())} OPs for {tokens} tokens where steps have {tokens * sum(steps.values())}"
        )
        return (f"scans of prompts ({where}, ...) have {counts_text}; they are counted as steps",)
    return _fit(program, passes, size, [path for path in paths if prompt_ops[path]])


def _check_same_products(program: Program, prompt: Recording, paths: set[str]) -> None:
    step_products = [
        (c.path, program.ops_for(i, _PROMPT)) for i, c in enumerate(program.calls) if program.is_product(i)
    ]
    prompt_products = [c for c in prompt.calls if prompt.projects(c) or (c.matmul and c.path not in paths)]
    if step_products != [(c.path, c.ops) for c in prompt_products]:
        other = next(
            (
                c
                for c, (path, ops) in zip(prompt_products, step_products, strict=False)
                if (c.path, c.ops) != (path, ops)
            ),
            None,
        )
        where = (
            other.where
            if other
            else f"a prompt, {len(prompt_products)} products where a step has {len(step_products)},"
        )
        raise InputError(
            f"{program.name}: {where} must do for a prompt what it does in as many steps of one token; it does not"
        )


def _scan_ops(recording: Recording, paths: set[str]) -> Counter[str]:
    """OPs of products in scans, which have no parameters, by module."""
    ops_by_path: Counter[str] = Counter()
    for call in recording.calls:
        if call.path in paths and _is_scan_product(recording, call):
            ops_by_path[call.path] += call.ops
    return ops_by_path


def _is_scan_product(recording: Recording, call: Call) -> bool:
    return call.matmul and call.name != "convolution" and not recording.projects(call)


def _chunk_size(passes: TracedPasses, prompt: Recording, paths: set[str]) -> int:
    """Tokens per chunk, to whose multiples prompts are padded: shorter prompts have the same products. 0: none."""
    uses = (use for c in prompt.calls if c.path in paths and _is_scan_product(prompt, c) for use in c.uses)
    sizes = sorted({n for use in uses for n in prompt.values[use.value].shape if n > _PROMPT.q_len})

    def ops(length: int) -> int:
        return sum(_scan_ops(passes.record(PassShape(1, length)), paths).values())

    one = sum(_scan_ops(prompt, paths).values()) // _PROMPT.batch
    longer = next((size for size in sizes[:_MAX_CHUNK_SIZES] if ops(size + 1) != one), 0)
    return longer if longer and ops(longer) == one else 0


def _fit(program: Program, passes: TracedPasses, size: int, paths: Sequence[str]) -> tuple[str, ...]:
    """Sets the work of chunks of `size` tokens in the modules at `paths`."""
    prompts = [passes.record(PassShape(1, size * n)) for n in _CHUNK_COUNTS]
    squares, steps = 0.0, []
    for path in paths:
        products = _parabola([_scan_ops(r, {path})[path] for r in prompts])
        others = _parabola([sum(c.ops for c in r.calls if c.path == path and not c.matmul) for r in prompts])
        if products and others and program.add_chunks(path, products[1] / size, others[1] / size):
            squares += products[2]
        else:
            steps.append(path)
    if steps:
        return (f"scans of prompts ({steps[0]}, ...) do not go by chunks of {size}; they are counted as steps",)
    note = f"scans of prompts go by chunks of {size} tokens, and count whole ones, as their modules multiply them"
    return (note + "; products that grow with the square of the number of chunks are left out" * bool(squares),)


def _parabola(counts: Sequence[int]) -> tuple[float, float, float] | None:
    """Coefficients of 1, n and n squared that give `counts` for n chunks; None if there are none."""
    rows = np.array([[1, n, n * n] for n in _CHUNK_COUNTS], dtype=np.float64)
    coefficients = np.linalg.solve(rows[:3], np.array(counts[:3], np.float64))
    return tuple(coefficients.tolist()) if np.allclose(rows @ coefficients, counts, rtol=1e-9) else None
