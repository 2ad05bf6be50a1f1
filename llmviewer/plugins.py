"""Plugins: Python modules that register techniques and architectures when imported.

The variable LLMVIEWER_PLUGINS lists .py files or module names, separated as in PATH. Installed packages name such
modules as entry points of the group "llmviewer".
"""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Final

from .errors import InputError

VARIABLE: Final = "LLMVIEWER_PLUGINS"
_GROUP: Final = "llmviewer"


def load_plugins() -> None:
    """Imports each plugin once.

    Raises InputError if one cannot be imported.
    """
    for name in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        _load(name, f"{VARIABLE}: {name}")
    for name, package in _installed():
        _load(name, f"{name} of the installed package {package}")


@cache
def _installed() -> tuple[tuple[str, str], ...]:
    from importlib.metadata import entry_points  # a fifth of the time of numpy, and most commands look for none

    points = entry_points(group=_GROUP)
    return tuple((point.module, point.dist.name if point.dist else point.name) for point in points)


def _load(name: str, source: str) -> None:
    if name.endswith(".py") and not Path(name).is_file():
        raise InputError(f"{source}: must be an existing .py file or an importable module")
    try:
        if name.endswith(".py"):
            _import_file(str(Path(name).resolve()))
        else:
            import_module(name)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # it is the user's code
        raise InputError(f"{source}: cannot be imported ({type(error).__name__}: {error})") from None


def _import_file(path: str) -> None:
    """Imports a file as a module whose name is its path."""
    if path in sys.modules:
        return
    spec = spec_from_file_location(path, path)
    assert spec is not None  # because it ends in .py
    assert spec.loader is not None
    sys.modules[path] = module_from_spec(spec)
    try:
        spec.loader.exec_module(sys.modules[path])
    except BaseException:
        del sys.modules[path]
        raise
