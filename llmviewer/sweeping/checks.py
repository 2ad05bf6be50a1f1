"""Checks of the arguments of a sweep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import InputError
from ..model import Model
from ..setting import changes_passes, check_images, whole_number
from ..techniques import Technique
from .axes import check_axis, with_layouts


def checked_axes(over: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """The axes of a sweep, with degrees of parallelism as one axis of layouts.

    Raises InputError if `over` is no mapping of axes to values.
    """
    if not isinstance(over, Mapping):
        raise InputError(f"over must be a mapping of axes to their values; got {over!r}")
    axes = with_layouts(over)
    for axis, values in axes.items():
        check_axis(axis, values)
    return axes


def check_techniques(techniques: Sequence[Technique], over: Iterable[str], gen: int | None) -> None:
    """Raises InputError if an axis and a technique set the precision, or if a technique needs the output length."""
    for technique in techniques:
        if technique.quant and "quant" in over:
            raise InputError(
                f"{technique.name}: sets precision {technique.quant}, as the axis quant does; give one of the two"
            )
        if changes_passes([technique]) and not technique.one_pass and gen is None and "gen" not in over:
            raise InputError(
                f"{technique.name}: changes the passes of a generation; give the output length gen (--gen)"
            )


def check_changes(hardware_set: Iterable[str], over: Iterable[str]) -> None:
    """Raises InputError if an axis and a what-if set the same number."""
    for change in hardware_set:
        if (key := change.partition("=")[0].strip()) in over:
            raise InputError(f"--hardware-set {change}: the axis {key} also sets {key}; give one of the two")


def check_expected(library: str, profiles: Sequence[object], *, expected: bool) -> None:
    """Raises InputError if a library or profiles are given without `expected`."""
    if (library or profiles) and not expected:
        raise InputError(
            f"{'library' if library else 'profiles'}: applies only to expected times; give expected=True (--expected)"
        )


def check_numbers(model: Model, over: Mapping[str, Sequence[Any]], fixed: Mapping[str, int | None]) -> None:
    """Raises InputError if a number is invalid or impossible for the model."""
    for name, value in fixed.items():
        if value is not None or (name in ("batch", "prompt") and name not in over):
            whole_number(name, value, least=0 if name == "images" else 1)
    prompts, images = (list(map(int, over.get(name, (fixed[name] or 0,)))) for name in ("prompt", "images"))
    check_images(model, prompt=min(prompts), images=max(images))
    _check_steps(model, over, fixed)


def _check_steps(model: Model, over: Mapping[str, Sequence[Any]], fixed: Mapping[str, int | None]) -> None:
    """Raises InputError if decode steps are given that the model does not have."""
    steps = [name for name in ("gen", "kv_len") if name in over or fixed[name] is not None]
    if steps and not model.generates:
        raise InputError(f"{steps[0]}: {model.name} has no decode steps; leave it out")
    if model.is_encoder_decoder and "kv_len" in steps:
        prompts, contexts = (over.get(name, [fixed[name]]) for name in ("prompt", "kv_len"))
        if min(contexts) <= max(prompts):
            must = f"kv_len must exceed the {max(prompts)} prompt tokens, which the encoder processes"
            raise InputError(f"{must}; got {min(contexts)}")
