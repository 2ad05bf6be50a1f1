"""Drawing of the operator graph of a phase, with repeated layers folded into one block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import hypot
from typing import Any, Final

from llmviewer.analyzing.phases import OperatorResult
from llmviewer.graph import Block, Graph
from llmviewer.records import frozen
from llmviewer.reports.graph import edges, shape, title
from llmviewer.reports.operator_table import operator_id
from llmviewer.units import seconds

from ..results import DeviceResult

WIDTH, HEIGHT = 128, 40  # of an operator [px]
_COLOURS: Final = {"memory": "#b34700", "compute": "#00785a", "link": "#0b5cad"}  # with enough contrast to white text
_OUTLINES: Final = {"memory": "round-rectangle", "compute": "cut-rectangle", "link": "barrel"}  # in addition to colors
_IDLE: Final = "#66707a"  # operators that do not run in this phase
_ACROSS, _DOWN = 160, 76  # distance between operators, horizontally and vertically [px]
_BLOCK_GAP_PX: Final = 62  # between blocks, in addition
_LETTER_PX: Final = 7  # width in a title [px]
_LABEL_STEP_PX: Final = 42  # between labels of several edges of an operator
_MARGIN_PX: Final = 22  # around operators, without edges [px]

Place = tuple[float, float]


@frozen(kw_only=True)
class Drawing:
    """Nodes and edges for cytoscape, and the size of the drawing. [px]

    idle_blocks  blocks without running operators in this phase, such as a vision tower without images; not drawn
    """

    elements: list[dict[str, Any]]
    width: float
    height: float
    idle_blocks: tuple[str, ...]


def network_drawing(device_result: DeviceResult, phase: str) -> Drawing:
    """Draws blocks below each other, and in a block each operator below those it reads from."""
    name = device_result.phase_name(phase)
    graph_of_phase = device_result.setting.decode_graph if name == "decode" else device_result.setting.graph
    results = {operator_id(op): op for op in device_result.phase(phase).operators}
    running = [any(f"{block.name}.{op.name}" in results for op in block.operators) for block in graph_of_phase.blocks]
    graph = Graph(tuple(block for block, runs in zip(graph_of_phase.blocks, running, strict=True) if runs))
    max_share = max(op.share for op in results.values())
    places = _places(graph)
    elements: list[dict[str, Any]] = []
    for block in graph.blocks:
        centers = [places[f"{block.name}.{op.name}"] for op in block.operators]
        corner = min(x for x, _ in centers) - WIDTH / 2, min(y for _, y in centers) - HEIGHT / 2 - 16
        home = f"block {block.name}"
        elements += [
            {"data": {"id": home}, "classes": "block", "selectable": False, "grabbable": False},
            {"data": {"id": f"title {block.name}", "parent": home, "label": title(block)}, "classes": "title",
             "position": _position(corner), "selectable": False, "grabbable": False},
        ]  # fmt: skip
        for op in block.operators:
            key = f"{block.name}.{op.name}"
            data = {"id": key, "parent": home, **_node_data(op.name, results.get(key), max_share)}
            elements.append({"data": data, "classes": "operator", "position": _position(places[key])})
    elements += _edge_elements(graph, places)
    across = [x for x, _ in places.values()] + [one["data"].get("lane", 0.0) for one in elements]
    names = [
        one["position"]["x"] + _LETTER_PX * len(one["data"]["label"]) for one in elements if one["classes"] == "title"
    ]
    down = [y for _, y in places.values()]
    return Drawing(
        elements=elements,
        width=max(max(across) + WIDTH / 2, *names) - min(across) + WIDTH / 2 + 3 * _MARGIN_PX,
        height=max(down) - min(down) + HEIGHT + 4 * _MARGIN_PX,
        idle_blocks=tuple(block.name for block, runs in zip(graph_of_phase.blocks, running, strict=True) if not runs),
    )


def _node_data(name: str, result: OperatorResult | None, max_share: float) -> dict[str, Any]:
    """Label, color and outline of a node, and its share of time relative to the largest share."""
    if _LETTER_PX * len(name) > WIDTH:
        name = name.replace("_", "_\N{ZERO WIDTH SPACE}")  # allows a line break
    if result is None:
        return {"label": f"{name}\nidle", "colour": _IDLE, "outline": "rectangle", "heat": 0.0}
    return {
        "label": f"{name}\n{result.share:.1%} \N{MIDDLE DOT} {seconds(result.bound_time_s)}",
        "colour": _COLOURS[result.bound],
        "outline": _OUTLINES[result.bound],
        "heat": result.share / max_share,
    }


def _places(graph: Graph) -> dict[str, Place]:
    """Center of each operator, by BLOCK.NAME. [px]"""
    reads: dict[str, dict[str, None]] = {}  # within a block
    for (a, writer), (b, reader), _ in edges(graph):
        if a is b:
            reads.setdefault(f"{b.name}.{reader.name}", {})[f"{a.name}.{writer.name}"] = None
    places: dict[str, Place] = {}
    top = 0.0
    for block in graph.blocks:
        depths = _depths(block, reads)
        for depth in range(max(depths.values()) + 1):
            row = {}
            for key in (key for key, operator_depth in depths.items() if operator_depth == depth):
                above = [places[one][0] for one in reads.get(key, ())]
                row[key] = sum(above) / len(above) if above else 0.0
            places |= {key: (x, top + depth * _DOWN) for key, x in _spaced(row).items()}
        top += (max(depths.values()) + 1) * _DOWN + _BLOCK_GAP_PX
    return places


def _depths(block: Block, reads: dict[str, dict[str, None]]) -> dict[str, int]:
    """Depth of each operator: length of the longest chain of operators before it in its block."""
    depths: dict[str, int] = {}
    for op in block.operators:
        key = f"{block.name}.{op.name}"
        depths[key] = 1 + max((depths[one] for one in reads.get(key, ())), default=-1)
    return depths


def _spaced(target_x: dict[str, float]) -> dict[str, float]:
    """Positions near the targets, with a minimum distance from each other. [px]"""
    placed: dict[str, float] = {}
    last = float("-inf")
    for key, x in sorted(target_x.items(), key=lambda one: one[1]):
        last = placed[key] = max(x, last + _ACROSS)
    shift = sum(target_x[key] - x for key, x in placed.items()) / len(placed)
    return {key: x + shift for key, x in placed.items()}


def _edge_elements(graph: Graph, places: dict[str, Place]) -> list[dict[str, Any]]:
    """Edges from operators to their readers; each tensor is labelled on the shortest of its edges."""
    carried: dict[tuple[str, str], dict[str, str]] = {}
    for (a, writer), (b, reader), tensor in edges(graph):
        ends = f"{a.name}.{writer.name}", f"{b.name}.{reader.name}"
        carried.setdefault(ends, {})[tensor.name] = shape(tensor)
    elements = []
    labelled: set[tuple[str, str]] = set()
    below: Counter[str] = Counter()  # labels beside edges of an operator so far
    for (source, target), tensors in sorted(carried.items(), key=lambda one: _length(places, *one[0])):
        new = [text for name, text in tensors.items() if (source, name) not in labelled]
        labelled |= {(source, name) for name in tensors}
        bends = _detour(places, source, target)
        data: dict[str, Any] = {"source": source, "target": target, "label": "\n".join(dict.fromkeys(new))}
        data |= {"offset": 13 + 9 * data["label"].count("\n") + _LABEL_STEP_PX * below[source]}
        below[source] += len(dict.fromkeys(new))
        if bends:
            data |= {"lane": bends[0][0], **_bend_data(places[source], places[target], bends)}
        elements.append({"data": data, "classes": "tensor around" if bends else "tensor"})
    return elements


def _length(places: dict[str, Place], source: str, target: str) -> float:
    (x0, y0), (x1, y1) = places[source], places[target]
    return hypot(x1 - x0, y1 - y0)


def _detour(places: dict[str, Place], source: str, target: str) -> list[Place]:
    """Bends of an edge around operators; empty if a straight edge crosses none."""
    (x0, y0), (x1, y1) = places[source], places[target]
    between = [place for place in places.values() if y0 < place[1] < y1]
    if not any(abs(x0 + (y - y0) / (y1 - y0) * (x1 - x0) - x) < WIDTH / 2 + _MARGIN_PX / 2 for x, y in between):
        return []
    left = min(x for x, _ in between) - WIDTH / 2 - _MARGIN_PX
    right = max(x for x, _ in between) + WIDTH / 2 + _MARGIN_PX
    lane = min((left, right), key=lambda x: abs(x - x0) + abs(x - x1))
    return [(lane, y0 + _DOWN / 2), (lane, y1 - _DOWN / 2)]


def _bend_data(start: Place, end: Place, bends: Sequence[Place]) -> dict[str, str]:
    """Bends for cytoscape: their positions along the straight edge [1] and distances from it. [px]"""
    (x0, y0), (x1, y1) = start, end
    dx, dy = x1 - x0, y1 - y0
    length = hypot(dx, dy)
    along = [((x - x0) * dx + (y - y0) * dy) / length**2 for x, y in bends]
    distances = [((y - y0) * dx - (x - x0) * dy) / length for x, y in bends]
    return {"along": " ".join(f"{a:.4f}" for a in along), "beside": " ".join(f"{b:.1f}" for b in distances)}


def _position(place: Place) -> dict[str, float]:
    return {"x": place[0], "y": place[1]}
