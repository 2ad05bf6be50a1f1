"""Transfers of offloaded tensors: launches of their own, and what other launches do not overlap."""

from __future__ import annotations

from ..forms import Form
from ..records import frozen
from ..resource import Resource, vector
from .base import Operator
from .kinds import declare


@frozen(kw_only=True)
class Transfer(Operator):
    """A launch that only does its `transfers`."""

    kind: str = declare("transfer", "Offloaded data copied to or from the device.", measured="add")

    def arithmetic(self) -> dict[Resource, Form]:
        return {vector("fp32"): Form()}

    def link_traffic(self) -> dict[Resource, Form]:
        return dict(self.transfers)

    def offload_traffic(self) -> tuple[tuple[Resource, Form], ...]:
        return ()


@frozen(kw_only=True)
class Exposed(Operator):
    """The wait for transfers that take longer than all launches of a pass together."""

    kind: str = declare("exposed", "Waits for offloaded data that is still on its way after all launches of the pass.")

    def arithmetic(self) -> dict[Resource, Form]:
        return {vector("fp32"): Form()}


EXPOSED = Exposed(name="offload_wait", inputs=(), outputs=())
