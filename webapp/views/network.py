"""The operator graph of a phase: the whole network, what repeats folded into one block, and where it is drawn."""

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

from ..answers import Answer

WIDTH, HEIGHT = 128, 40  # of an operator [px]
_COLOURS: Final = {"memory": "#b34700", "compute": "#00785a", "link": "#0b5cad"}  # on which white is read
_OUTLINES: Final = {"memory": "round-rectangle", "compute": "cut-rectangle", "link": "barrel"}  # for all eyes
_IDLE: Final = "#66707a"  # what is not run in this phase
_ACROSS, _DOWN = 160, 76  # from one operator to the next beside and below it
_APART: Final = 62  # between blocks, beside that
_LETTER: Final = 7  # of a title
_FURTHER: Final = 42  # along its line, what is told beside another line of the same operator
_MARGIN: Final = 22  # around an operator, that lines keep free of

Place = tuple[float, float]


@frozen(kw_only=True)
class Drawing:
    """Nodes and edges as cytoscape has them, and how much room they take. [px]

    idle  blocks of which nothing runs in this phase, such as a tower without pictures; they are not drawn
    """

    elements: list[dict[str, Any]]
    width: float
    height: float
    idle: tuple[str, ...]


def drawing(answer: Answer, phase: str) -> Drawing:
    """Blocks below each other, and in them each operator below those that it reads from."""
    name = answer.phase_name(phase)
    whole = answer.setting.decode_graph if name == "decode" else answer.setting.graph
    results = {operator_id(op): op for op in answer.phase(phase).operators}
    running = [any(f"{block.name}.{op.name}" in results for op in block.operators) for block in whole.blocks]
    graph = Graph(tuple(block for block, runs in zip(whole.blocks, running, strict=True) if runs))
    most = max(op.share for op in results.values())
    places = _places(graph)
    found: list[dict[str, Any]] = []
    for block in graph.blocks:
        own = [places[f"{block.name}.{op.name}"] for op in block.operators]
        corner = min(x for x, _ in own) - WIDTH / 2, min(y for _, y in own) - HEIGHT / 2 - 16
        home = f"block {block.name}"
        found += [
            {"data": {"id": home}, "classes": "block", "selectable": False, "grabbable": False},
            {"data": {"id": f"title {block.name}", "parent": home, "label": title(block)}, "classes": "title",
             "position": _position(corner), "selectable": False, "grabbable": False},
        ]  # fmt: skip
        for op in block.operators:
            key = f"{block.name}.{op.name}"
            data = {"id": key, "parent": home, **_said(op.name, results.get(key), most)}
            found.append({"data": data, "classes": "operator", "position": _position(places[key])})
    found += _lines(graph, places)
    across = [x for x, _ in places.values()] + [one["data"].get("lane", 0.0) for one in found]
    names = [one["position"]["x"] + _LETTER * len(one["data"]["label"]) for one in found if one["classes"] == "title"]
    down = [y for _, y in places.values()]
    return Drawing(
        elements=found,
        width=max(max(across) + WIDTH / 2, *names) - min(across) + WIDTH / 2 + 3 * _MARGIN,
        height=max(down) - min(down) + HEIGHT + 4 * _MARGIN,
        idle=tuple(block.name for block, runs in zip(whole.blocks, running, strict=True) if not runs),
    )


def _said(name: str, result: OperatorResult | None, most: float) -> dict[str, Any]:
    """Label, color and outline of a node, and its share of time over the largest."""
    if _LETTER * len(name) > WIDTH:
        name = name.replace("_", "_\N{ZERO WIDTH SPACE}")  # where it may be broken
    if result is None:
        return {"label": f"{name}\nnot run", "colour": _IDLE, "outline": "rectangle", "heat": 0.0}
    return {
        "label": f"{name}\n{result.share:.1%} \N{MIDDLE DOT} {seconds(result.bound_time_s)}",
        "colour": _COLOURS[result.bound],
        "outline": _OUTLINES[result.bound],
        "heat": result.share / most,
    }


def _places(graph: Graph) -> dict[str, Place]:
    """The middle of each operator, by BLOCK.NAME. [px]"""
    reads: dict[str, dict[str, None]] = {}  # inside of a block
    for (a, writer), (b, reader), _ in edges(graph):
        if a is b:
            reads.setdefault(f"{b.name}.{reader.name}", {})[f"{a.name}.{writer.name}"] = None
    places: dict[str, Place] = {}
    top = 0.0
    for block in graph.blocks:
        depths = _depths(block, reads)
        for depth in range(max(depths.values()) + 1):
            row = {}
            for key in (key for key, own in depths.items() if own == depth):
                above = [places[one][0] for one in reads.get(key, ())]
                row[key] = sum(above) / len(above) if above else 0.0
            places |= {key: (x, top + depth * _DOWN) for key, x in _spread(row).items()}
        top += (max(depths.values()) + 1) * _DOWN + _APART
    return places


def _depths(block: Block, reads: dict[str, dict[str, None]]) -> dict[str, int]:
    """Depth of each operator: the longest chain of operators of its block before it."""
    depths: dict[str, int] = {}
    for op in block.operators:
        key = f"{block.name}.{op.name}"
        depths[key] = 1 + max((depths[one] for one in reads.get(key, ())), default=-1)
    return depths


def _spread(wanted: dict[str, float]) -> dict[str, float]:
    """Near where each is wanted, and far enough from each other."""
    placed: dict[str, float] = {}
    last = float("-inf")
    for key, x in sorted(wanted.items(), key=lambda one: one[1]):
        last = placed[key] = max(x, last + _ACROSS)
    shift = sum(wanted[key] - x for key, x in placed.items()) / len(placed)
    return {key: x + shift for key, x in placed.items()}


def _lines(graph: Graph, places: dict[str, Place]) -> list[dict[str, Any]]:
    """One from each operator to each that reads of it; each tensor is told on the shortest that carries it."""
    carried: dict[tuple[str, str], dict[str, str]] = {}
    for (a, writer), (b, reader), tensor in edges(graph):
        ends = f"{a.name}.{writer.name}", f"{b.name}.{reader.name}"
        carried.setdefault(ends, {})[tensor.name] = shape(tensor)
    found = []
    told: set[tuple[str, str]] = set()
    below: Counter[str] = Counter()  # tensors told beside lines of an operator so far
    for (source, target), tensors in sorted(carried.items(), key=lambda one: _length(places, *one[0])):
        new = [text for name, text in tensors.items() if (source, name) not in told]
        told |= {(source, name) for name in tensors}
        bends = _around(places, source, target)
        data: dict[str, Any] = {"source": source, "target": target, "label": "\n".join(dict.fromkeys(new))}
        data |= {"offset": 13 + 9 * data["label"].count("\n") + _FURTHER * below[source]}
        below[source] += len(dict.fromkeys(new))
        if bends:
            data |= {"lane": bends[0][0], **_bent(places[source], places[target], bends)}
        found.append({"data": data, "classes": "tensor around" if bends else "tensor"})
    return found


def _length(places: dict[str, Place], source: str, target: str) -> float:
    (x0, y0), (x1, y1) = places[source], places[target]
    return hypot(x1 - x0, y1 - y0)


def _around(places: dict[str, Place], source: str, target: str) -> list[Place]:
    """Bends of a line around operators; none if it crosses none."""
    (x0, y0), (x1, y1) = places[source], places[target]
    between = [place for place in places.values() if y0 < place[1] < y1]
    if not any(abs(x0 + (y - y0) / (y1 - y0) * (x1 - x0) - x) < WIDTH / 2 + _MARGIN / 2 for x, y in between):
        return []
    left = min(x for x, _ in between) - WIDTH / 2 - _MARGIN
    right = max(x for x, _ in between) + WIDTH / 2 + _MARGIN
    lane = min((left, right), key=lambda x: abs(x - x0) + abs(x - x1))
    return [(lane, y0 + _DOWN / 2), (lane, y1 - _DOWN / 2)]


def _bent(start: Place, end: Place, bends: Sequence[Place]) -> dict[str, str]:
    """Bends as cytoscape has them: how far along the straight line, and how far beside it. [1], [px]"""
    (x0, y0), (x1, y1) = start, end
    dx, dy = x1 - x0, y1 - y0
    length = hypot(dx, dy)
    along = [((x - x0) * dx + (y - y0) * dy) / length**2 for x, y in bends]
    beside = [((y - y0) * dx - (x - x0) * dy) / length for x, y in bends]
    return {"along": " ".join(f"{a:.4f}" for a in along), "beside": " ".join(f"{b:.1f}" for b in beside)}


def _position(place: Place) -> dict[str, float]:
    return {"x": place[0], "y": place[1]}
