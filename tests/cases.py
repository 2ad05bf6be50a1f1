"""Tests over many cases as one item, and lists of the shipped models and devices for them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps

import pytest

from llmviewer.devices.files import hardware_names, load_hardware
from llmviewer.model_index import index

_REQUEST = inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD)


def for_each(names, cases, *, fast=None):
    """Runs a test for each case within one item, and raises all failures together, each with a note of its case.

    As pytest.mark.parametrize, but lazy and without an item per case, which costs more than most cases take.

    cases  values, or tuples of values if there are several names; or a function that returns them when the test runs
    fast   the cases without --all; None: all of them
    """
    names = names.split(", ") if isinstance(names, str) else names

    def decorate(test: Callable) -> Callable:
        @wraps(test)
        def run(request, **fixtures):
            chosen = cases if fast is None or request.config.getoption("all") else fast
            values = list(chosen() if callable(chosen) else chosen)
            assert values
            failures = []
            for value in values:
                try:
                    test(**dict(zip(names, value if len(names) > 1 else [value], strict=True)), **fixtures)
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 all are raised below
                    error.add_note(f"case {value!r}"[:200])
                    failures.append(error)
            if failures:
                raise BaseExceptionGroup(f"{len(failures)} of {len(values)} cases", failures)

        parameters = [p for name, p in inspect.signature(test).parameters.items() if name not in names]
        run.__signature__ = inspect.Signature([_REQUEST, *parameters])
        return run

    return decorate


def one_per_type():
    """A shipped model of each model_type."""
    return sorted({facts.model_type: name for name, facts in index().items()}.values())


def few_types():
    """Models of a fourth of the model types."""
    return one_per_type()[::4]


def gpus(*vendors):
    """GPUs, of some vendors if any are named."""
    devices = [load_hardware(name) for name in hardware_names()]
    return [d.name for d in devices if d.kind == "gpu" and (d.vendor in vendors or not vendors)]


def first_fast(values, reason, count=1):
    """Values of a parametrization, of which those after the first `count` run only with --all.

    A tuple has the values of several names.
    """
    slow = pytest.mark.slow(reason)
    tuples = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*value, marks=slow if i >= count else ()) for i, value in enumerate(tuples)]
