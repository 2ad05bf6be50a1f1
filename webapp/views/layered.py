"""Layered drawing of a graph: nodes in rows, edges around nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from llmviewer.records import frozen

_BESIDE_PX, _BELOW_PX = 20, 30  # between items of a row, and between rows
_LINE_PX = 6  # width of an edge that passes a row


class PixelPoint(NamedTuple):
    """A point, `x` to the right and `y` down. [px]"""

    x: float
    y: float


class NodeRow(NamedTuple):
    """Nodes beside each other by name, their height, and the space above in addition to that between rows. [px]"""

    nodes: tuple[str, ...]
    height: float
    above: float = 0.0


@frozen(kw_only=True)
class Layered:
    """Centers of nodes, heights of their rows, and bends of edges from the lower end of a node to the upper of another.

    heights  of all nodes of a row alike, so that edges pass between rows [px]
    """

    places: Mapping[str, PixelPoint]
    heights: Mapping[str, float]
    bends: Mapping[tuple[str, str], tuple[PixelPoint, ...]]


def layered(rows: Sequence[NodeRow], edges: Sequence[tuple[str, str]], *, width: float) -> Layered:
    """Places rows below each other: a node alone on an axis, several below those they read from. Edges lead downwards.

    An edge passes the rows between its ends in a place of its own, so it crosses no node; edges from one node share it.

    width  of a node [px]
    """
    row_of = {node: number for number, row in enumerate(rows) for node in row.nodes}
    sources: dict[str, list[str]] = {node: [] for node in row_of}
    last_row: dict[str, int] = {}  # of the targets of a source
    for source, target in edges:
        sources[target].append(source)
        last_row[source] = max(row_of[target], last_row.get(source, 0))
    xs: list[dict[str, float]] = []  # by row, of its nodes and of the sources of edges that pass it
    for number, row in enumerate(rows):
        passing = [source for source in (xs[-1] if xs else ()) if last_row.get(source, 0) > number]
        targets = {source: xs[-1][source] for source in passing}
        for node in row.nodes:
            near = [source for source in sources[node] if row_of[source] == number - 1] or sources[node]
            is_alone = not near or len(row.nodes) == 1
            targets[node] = 0.0 if is_alone else sum(xs[-1][source] for source in near) / len(near)
        xs.append(_spaced(targets, row.nodes, width))
    tops, top = [], 0.0
    for row in rows:
        tops.append(top + row.above)
        top = tops[-1] + row.height + _BELOW_PX
    places = {
        node: PixelPoint(xs[number][node], tops[number] + rows[number].height / 2) for node, number in row_of.items()
    }
    bends = {
        (source, target): tuple(
            PixelPoint(xs[number][source], y)
            for number in range(row_of[source] + 1, row_of[target])
            for y in (tops[number], tops[number] + rows[number].height)
        )
        for source, target in edges
    }
    heights = {node: rows[number].height for node, number in row_of.items()}
    return Layered(places=places, heights=heights, bends=bends)


def _spaced(targets: Mapping[str, float], nodes: Sequence[str], width: float) -> dict[str, float]:
    """Centers of nodes and passing edges near the targets, without overlap; those of nodes are not moved in the mean.

    [px]
    """
    widths = {item: width if item in nodes else _LINE_PX for item in targets}
    placed: dict[str, float] = {}
    end = float("-inf")
    for item in sorted(targets, key=lambda one: (targets[one], -widths[one])):
        placed[item] = max(targets[item], end + widths[item] / 2)
        end = placed[item] + widths[item] / 2 + _BESIDE_PX
    shift = sum(targets[node] - placed[node] for node in nodes) / len(nodes)
    return {item: x + shift for item, x in placed.items()}
