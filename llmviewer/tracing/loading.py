"""Models named as package.module:callable."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .._layout import ROOT
from ..errors import InputError
from ..model import Model
from .numbers import ShapeValues
from .tracer import import_torch, trace_module


def load_traced(name: str) -> Model:
    """The model that "package.module:callable" names: a callable without arguments that returns a module, or a tuple of
    it and what trace() takes as `inputs` and `dims`.

    It is called under torch.device("meta"), so it takes no memory. Modules in the working folder are found, too.
    Raises InputError where it cannot be imported, called or traced.
    """
    path, _, attribute = name.partition(":")
    torch = import_torch(name)
    try:
        with _working_folder():
            module_result: Any = import_module(path)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # it is the user's code
        raise InputError(f"{name}: module {path} cannot be imported ({_error_text(error)})") from None
    for part in attribute.split("."):
        if not hasattr(module_result, part):
            raise InputError(f"{name}: module {path} has no {attribute!r}; give package.module:callable")
        module_result = getattr(module_result, part)
    numbers = ShapeValues()
    try:
        with torch.device("meta"):
            returned = numbers.run(module_result)
            module, *inputs = returned if isinstance(returned, tuple) and 1 < len(returned) < 4 else (returned,)
            module = module.to("meta") if isinstance(module, torch.nn.Module) else module  # numbers drawn by hand
    except (Exception, SystemExit) as error:  # noqa: BLE001  # it is the user's code
        raise InputError(f"{name}: calling {attribute}() without arguments raised {_error_text(error)}") from None
    if not isinstance(module, torch.nn.Module):
        module_type = type(module).__name__
        result_type = module_type if returned is module else f"a tuple that begins with {module_type}"
        raise InputError(f"{attribute}: must return a torch.nn.Module, or (module, inputs); got {result_type}")
    return trace_module(module, attribute, numbers=numbers, **dict(zip(("inputs", "dims"), inputs, strict=False)))


@contextmanager
def _working_folder() -> Iterator[None]:
    """Lets modules of the working folder be imported."""
    previous_folder = str(Path.cwd())
    sys.path.insert(0, previous_folder)
    _hide_our_kernels()
    try:
        yield
    finally:
        sys.path.remove(previous_folder)


def _hide_our_kernels() -> None:
    """Keeps transformers, where the working folder is a checkout of this program, from taking its kernels/ for a
    package of that name which it knows.
    """
    hidden = find_spec("kernels") if "kernels" not in sys.modules else None
    if hidden and hidden.origin and Path(hidden.origin).parent == ROOT / "kernels":
        sys.modules["kernels"] = None  # type: ignore[assignment]  # documented: it is then not found


def _error_text(error: Exception | SystemExit) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}".rstrip(": ")
