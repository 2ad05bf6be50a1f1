"""The tabs of the page, in their order."""

from __future__ import annotations

from typing import Final

from . import compare, glossary, memory, network, overview, sweeps, timeline, validation
from ._parts import Tab

TABS: Final[tuple[Tab, ...]] = (
    overview.TAB,
    network.TAB,
    memory.TAB,
    sweeps.TAB,
    compare.TAB,
    timeline.TAB,
    validation.TAB,
    glossary.TAB,
)
