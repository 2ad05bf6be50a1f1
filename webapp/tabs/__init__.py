"""The tabs of the page: each name in `state.TABS` is a module here with a `TAB`, in the order of the page."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final

from .. import state
from ._parts import Tab

TABS: Final[Mapping[str, Tab]] = {name: import_module(f".{name}", __name__).TAB for name in state.TABS}
