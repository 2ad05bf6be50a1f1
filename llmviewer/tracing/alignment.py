"""Passes of different shapes must make the same calls: what differs then is only counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import InputError
from .fitting import Basis
from .recording import Call, Recording


def problem_at(name: str, call: Call, problem: str) -> InputError:
    """An error at a call, with the place in the source that made it."""
    return InputError(f"{name}: {call.where} {problem}")


def check_aligned(name: str, basis: Basis, recordings: Sequence[Recording]) -> None:
    """Raises InputError, naming the call, where recordings of the shapes of `basis` do not make the same calls."""
    calls = recordings[0].calls
    for recording in recordings[1:]:
        for ours, theirs in zip(calls, recording.calls, strict=False):
            if ours.wiring != theirs.wiring:
                other = problem_at(
                    name,
                    theirs,
                    f"runs for inputs of one size where {ours.where} runs for another; both must run the same",
                )
                raise _mixed_sequences(name, basis, recordings) or other
        if len(calls) != len(recording.calls):
            raise InputError(
                f"{name}: forward must make the same calls for inputs of all sizes; it makes {len(calls)} for one and "
                f"{len(recording.calls)} for another (is there a loop over tokens?)"
            )


def _mixed_sequences(name: str, basis: Basis, recordings: Sequence[Recording]) -> InputError | None:
    """The error where a product with parameters has more OPs per sequence in a larger batch."""
    first, first_shape = recordings[0], basis.shapes[0]
    for shape, recording in zip(basis.shapes, recordings, strict=True):
        if replace(shape, batch=first_shape.batch) != first_shape:
            continue
        for ours, theirs in zip(first.calls, recording.calls, strict=False):
            if ours.wiring != theirs.wiring:
                break
            if first.projects(ours) and theirs.ops * first_shape.batch > ours.ops * shape.batch:
                problem = "must work on each sequence of a batch by itself; it mixes them"
                return problem_at(name, ours, f"{problem}: {ours.ops} OPs for {first_shape}, {theirs.ops} for {shape}")
    return None
