"""Kinds of operators: the purpose, description and measured counterpart of each, declared with its operator."""

from __future__ import annotations

from enum import StrEnum

from ..records import frozen


class OperatorGroup(StrEnum):
    """Purpose of operators in a network, by which the time of a pass is divided."""

    LINEAR = "linear"
    EXPERTS = "experts"
    ATTENTION = "attention"
    STATE = "state"
    HEAD = "head"
    ELEMENTWISE = "elementwise"
    COMMUNICATION = "communication"


@frozen(kw_only=True)
class OperatorKind:
    """Properties shared by all operators of a kind.

    does        one line for a reader who does not know the operator
    product     whether its kernel is a plain matrix product, whatever its group
    measured    operation of elementwise measurements that takes equally long per byte; "": none was measured
    traced      regular expression for names of its elementwise kernels in profiler traces; "": unknown
    symbol      Plotly marker in rooflines
    """

    name: str
    does: str
    group: OperatorGroup = OperatorGroup.ELEMENTWISE
    product: bool = False
    measured: str = ""
    traced: str = ""
    symbol: str = "circle-open"


_KINDS: dict[str, OperatorKind] = {}


def declare(
    name: str,
    does: str,
    *,
    group: OperatorGroup = OperatorGroup.ELEMENTWISE,
    product: bool = False,
    measured: str = "",
    traced: str = "",
    symbol: str = "circle-open",
) -> str:
    """Registers a kind of operators and returns its name; operators of the same kind take it from the first one."""
    if name in _KINDS:
        raise RuntimeError(f"operator kind {name!r} is declared twice")
    _KINDS[name] = OperatorKind(
        name=name, does=does, group=group, product=product, measured=measured, traced=traced, symbol=symbol
    )
    return name


def kind_of(name: str) -> OperatorKind:
    """The kind of that name; of an undeclared one, an elementwise kind that was not measured."""
    return _KINDS.get(name) or OperatorKind(name=name, does=f"An operator of kind {name}.")


def traced_kinds() -> dict[str, str]:
    """Regular expressions for kernel names in profiler traces, by kind."""
    return {kind.name: kind.traced for kind in _KINDS.values() if kind.traced}
