"""Tabs of the page, in order: each name in `state.TABS` is a module here that defines `TAB`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final

from .. import state
from .components import Tab

TABS: Final[Mapping[str, Tab]] = {name: import_module(f".{name}", __name__).TAB for name in state.TABS}
