"""Holds a program to passes that had no part in the fit: prompts, and the longest context."""

from __future__ import annotations

from typing import Final

from ..errors import InputError
from .fitting import CACHED, FIXED, STEPS, UNCACHED, PassShape
from .passes import TracedPasses
from .program import Program
from .recording import Recording
from .scans import compare_prompts

_MAX_STEP_CONTEXTS: Final = (
    64,
    1024,
)  # tokens, if scans of prompts go by token, and by chunk
_MASK_TOKENS: Final = 600  # tokens of the pass whose masks are evaluated
_DEFAULT_CONTEXT: Final = 1 << 15  # tokens of the longest pass, where the module does not say how many it is made for


def longest_context(program: Program, stated_context: int) -> int:
    """Tokens of the longest context: what the module says, and no more than the slots of its cache. 0 is unknown."""
    if program.basis is FIXED:
        return 0
    return min(stated_context or _DEFAULT_CONTEXT, *program.slots.values()) if program.slots else stated_context


def check(program: Program, passes: TracedPasses, context: int) -> tuple[str, ...]:
    """Compares the program with further passes, and adds to it what only these show: windows, masks, chunks of scans.

    context  tokens of the longest context; 0 where it is unknown

    Returns notes on what could not be checked. Raises InputError, naming the call, where a pass differs.
    """
    if passes.basis is FIXED:
        return ()
    if passes.basis is STEPS:
        notes = compare_prompts(program, passes)
        return (*notes, *(_find_windows(program, passes, context) if program.cached else ()))
    if passes.basis is CACHED:
        prompt = PassShape(2, min(6, context or 6))
        _compare(program, passes.record(prompt), prompt)
        return _find_windows(program, passes, context)
    shape = PassShape(2, min(context or _MASK_TOKENS, _MASK_TOKENS))
    try:
        recording = passes.record(shape)
    except InputError:  # the longest pass says so, too
        recording = program.recordings[-1]
    else:
        _compare(program, recording, shape)
    return (*_add_bands(program, recording), *_find_windows(program, passes, context))


def _find_windows(program: Program, passes: TracedPasses, context: int) -> tuple[str, ...]:
    """Looks for windows in a pass at the end of the longest context; a note where that does not run.

    A pass between the longest window and there, of several sequences, has to confirm them. What reads all at once is
    known to have none.
    """
    longest = context or _DEFAULT_CONTEXT
    tested_tokens = min(longest, _MAX_STEP_CONTEXTS[bool(program.chunks)]) if passes.basis is STEPS else longest
    shape = PassShape(2, tested_tokens) if passes.basis is UNCACHED else PassShape(1, 1, tested_tokens - 1)
    try:
        recording = passes.record(shape)
    except InputError as error:
        if context:
            raise
        return (f"not checked for {shape}: {error}",)
    _compare(program, recording, shape, windows=passes.basis is not UNCACHED)
    if program.windows:
        between = PassShape(2, 1, (shape.past + max(program.windows.values())) // 2)
        _compare(program, passes.record(between), between)
    notes = (f"windows of more than {tested_tokens} keys were not looked for",) if tested_tokens < longest else ()
    return (*(() if passes.basis is UNCACHED else _add_bands(program, recording)), *notes)


def _add_bands(program: Program, recording: Recording) -> tuple[str, ...]:
    """Adds what masks leave in a long pass; a note of those that are no such band."""
    paths = program.add_bands(recording)
    return (f"masks that are other bands for other lengths hide nothing of {', '.join(paths)}",) if paths else ()


def _compare(program: Program, recording: Recording, shape: PassShape, *, windows: bool = False) -> None:
    """Compares the OPs of products with what the fit predicts, so that another path for a prompt or a single token is
    found.

    windows  attention with fewer keys than there are has a window
    """
    counted = [(c, i) for i, c in enumerate(program.calls) if c.matmul]
    if [(c.path, c.name) for c, _ in counted] != [product[:2] for product in recording.products]:
        raise InputError(
            f"{program.name}: forward must make the same matrix products for inputs of all sizes; for {shape} it makes "
            f"others than for {program.basis.shapes[0]}"
        )
    for (call, index), (_, _, ops) in zip(counted, recording.products, strict=True):
        fitted = program.ops_for(index, shape)
        slots = program.slot_calls.get(index, 0)
        if slots and ops * slots == fitted * (shape.past + shape.q_len):  # a prompt that leaves out empty slots
            continue
        if fitted != ops and not (windows and program.add_window(index, shape, ops)):
            raise program.error(call, f"has {ops} OPs for {shape} where shorter passes say {fitted}")
