"""Drawing of the operator graph of a phase: a block per kind of layer, which may be folded into one node."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from math import hypot, log10
from typing import Any, Final

from llmviewer.analyzing.phases import OperatorResult
from llmviewer.graph import Block, Graph
from llmviewer.operators.base import Operator
from llmviewer.records import frozen
from llmviewer.reports.graph import edges, shape, title
from llmviewer.reports.operator_table import number, operator_id
from llmviewer.units import counted, fold, seconds

from ..results import DeviceResult
from .layered import Layered, NodeRow, PixelPoint, layered

WIDTH: Final = 158  # of a node [px]
_LETTER_PX, _LINE_PX = 7, 14  # width of a letter and height of a line in a node
_MARGIN_PX: Final = 24  # around text in a node, and around the graph
_BLOCK_GAP_PX: Final = 46  # above a block, in addition, with its title
_COLOURS: Final = {"memory": "#b34700", "compute": "#00785a", "link": "#0b5cad"}  # with enough contrast to white text
_OUTLINES: Final = {"memory": "round-rectangle", "compute": "cut-rectangle", "link": "barrel"}  # in addition to colors
_IDLE: Final = "#66707a"  # operators that do not run in this phase
_MAX_UNFOLDED: Final = 120  # operators in blocks that are not folded at first
_INTENSITIES: Final = (0.1, 1000.0)  # ends of the scale of colors [OP/B]
_GAPS: Final = (1.0, 4.0)  # of expected time over bound
_FOLDED, _UNFOLDED = "\N{BLACK RIGHT-POINTING SMALL TRIANGLE}", "\N{BLACK DOWN-POINTING SMALL TRIANGLE}"


@frozen(kw_only=True)
class Drawing:
    """Nodes and edges for cytoscape, and the size of the drawing. [px]

    blocks       names of the blocks drawn
    folded       those that are one node
    idle_blocks  blocks without running operators in this phase, such as a vision tower without images; not drawn
    """

    elements: list[dict[str, Any]]
    width: float
    height: float
    blocks: tuple[str, ...]
    folded: tuple[str, ...]
    idle_blocks: tuple[str, ...]


@frozen(kw_only=True)
class _Node:
    """An operator of a block, or a folded block, with the results of what runs."""

    key: str
    block: Block
    operators: tuple[Operator, ...]
    results: tuple[OperatorResult, ...]
    is_folded: bool

    @property
    def heading(self) -> str:
        """Name with the shapes of the outputs, wrapped; title of a folded block with its number of operators."""
        if self.is_folded:
            return "\n".join((_wrapped(f"{_FOLDED} {title(self.block)}"), counted(len(self.operators), "operator")))
        return _wrapped(self.operators[0].name)

    @property
    def shapes(self) -> str:
        """Shapes of the outputs of an operator, wrapped."""
        if self.is_folded:
            return ""
        return "\n".join(_wrapped(text) for text in dict.fromkeys(map(shape, self.operators[0].outputs)))

    @property
    def height(self) -> float:
        """Height of its lines. [px]"""
        return _LINE_PX * (1 + len(f"{self.heading}\n{self.shapes}".strip().splitlines())) + _MARGIN_PX / 2


def network_drawing(device_result: DeviceResult, phase: str, folded: Collection[str] | None = None) -> Drawing:
    """Draws blocks below each other, and in a block each operator below those it reads from.

    folded  blocks that are one node; if None, of a large graph all but those with most of the time
    """
    name = device_result.phase_name(phase)
    graph_of_phase = device_result.setting.decode_graph if name == "decode" else device_result.setting.graph
    results: dict[str, list[OperatorResult]] = {}
    for op in device_result.phase(phase).operators:
        results.setdefault(operator_id(op), []).append(op)
    running = [any(f"{block.name}.{op.name}" in results for op in block.operators) for block in graph_of_phase.blocks]
    graph = Graph(tuple(block for block, runs in zip(graph_of_phase.blocks, running, strict=True) if runs))
    folded_blocks = _folded_at_first(graph, results) if folded is None else set(folded)
    nodes = {block.name: _nodes(block, results, is_folded=block.name in folded_blocks) for block in graph.blocks}
    drawn = _placed(graph, nodes)
    max_share = max(
        sum(op.share for op in node.results) for block_nodes in nodes.values() for node in block_nodes.values()
    )
    elements: list[dict[str, Any]] = []
    for block in graph.blocks:
        elements += _block_elements(block, nodes[block.name], drawn, max_share)
    elements += _edge_elements(drawn)
    across = [
        *(place.x + side * WIDTH / 2 for place in drawn.places.values() for side in (-1, 1)),
        *(bend.x for bends in drawn.bends.values() for bend in bends),
        *(one["position"]["x"] - one["data"]["wide"] / 2 for one in elements if one["classes"] == "title"),
    ]
    down = [place.y for place in drawn.places.values()]
    return Drawing(
        elements=elements,
        width=max(across) - min(across) + 2 * _MARGIN_PX,
        height=max(down) - min(down) + max(drawn.heights.values()) + 4 * _MARGIN_PX,
        blocks=tuple(nodes),
        folded=tuple(block for block in nodes if block in folded_blocks),
        idle_blocks=tuple(block.name for block, runs in zip(graph_of_phase.blocks, running, strict=True) if not runs),
    )


def _folded_at_first(graph: Graph, results: dict[str, list[OperatorResult]]) -> set[str]:
    """Blocks of a large graph that are one node at first: all but those with most of the time."""
    shares = {
        block.name: sum(op.share for one in block.operators for op in results.get(f"{block.name}.{one.name}", ()))
        for block in graph.blocks
    }
    folded: set[str] = set()
    unfolded = 0
    for block in sorted(graph.blocks, key=lambda block: -shares[block.name]):
        unfolded += len(block.operators)
        if unfolded > _MAX_UNFOLDED:
            folded.add(block.name)
    return folded


def _nodes(block: Block, results: dict[str, list[OperatorResult]], *, is_folded: bool) -> dict[int, _Node]:
    """The node of each operator of a block, by its place in the block; a name that comes again gets a number."""
    if is_folded:
        in_block = [op for name in dict.fromkeys(one.name for one in block.operators)
                    for op in results.get(f"{block.name}.{name}", ())]  # fmt: skip
        node = _Node(key=f"folded {block.name}", block=block, operators=block.operators, results=tuple(in_block),
                     is_folded=True)  # fmt: skip
        return dict.fromkeys(range(len(block.operators)), node)
    nodes: dict[int, _Node] = {}
    name_counts: Counter[str] = Counter()
    for place, op in enumerate(block.operators):
        key = f"{block.name}.{op.name}"
        op_results, earlier_count = results.get(key, []), name_counts[key]
        name_counts[key] += 1
        nodes[place] = _Node(
            key=f"{key} {earlier_count + 1}" if earlier_count else key, block=block, operators=(op,), is_folded=False,
            results=tuple(op_results[earlier_count : earlier_count + 1]),
        )  # fmt: skip
    return nodes


def _placed(graph: Graph, nodes: dict[str, dict[int, _Node]]) -> Layered:
    """Places of nodes, and bends of edges between them."""
    key_of = {
        (block.name, id(op)): nodes[block.name][place].key
        for block in graph.blocks
        for place, op in enumerate(block.operators)
    }
    pairs = dict.fromkeys(
        (key_of[a.name, id(writer)], key_of[b.name, id(reader)]) for (a, writer), (b, reader), _ in edges(graph)
    )
    edge_list = [(source, target) for source, target in pairs if source != target]
    rows: list[NodeRow] = []
    for block in graph.blocks:
        by_key = {node.key: node for node in nodes[block.name].values()}
        depths = _depths(by_key, edge_list)
        for depth in range(max(depths.values()) + 1):
            row = tuple(key for key, at in depths.items() if at == depth)
            height = max(by_key[key].height for key in row)
            rows.append(NodeRow(row, height, above=0.0 if depth else _BLOCK_GAP_PX))
    return layered(rows, edge_list, width=WIDTH)


def _depths(keys: Collection[str], edge_list: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Depth of each node of a block: length of the longest chain of nodes before it in its block."""
    sources: dict[str, list[str]] = {}
    for source, target in edge_list:
        if source in keys and target in keys:
            sources.setdefault(target, []).append(source)
    depths: dict[str, int] = {}
    for key in keys:
        depths[key] = 1 + max((depths[one] for one in sources.get(key, ())), default=-1)
    return depths


def _block_elements(
    block: Block, nodes: dict[int, _Node], drawn: Layered, max_share: float
) -> Iterator[dict[str, Any]]:
    """A block with its title and its operators, or its only node if it is folded."""
    by_key = {node.key: node for node in nodes.values()}
    first = next(iter(by_key.values()))
    if first.is_folded:
        data = {"id": first.key, "fold": block.name, **_node_data(first, drawn, max_share)}
        yield {"data": data, "classes": "operator folded", "position": _position(drawn.places[first.key])}
        return
    home = f"block {block.name}"
    centers = [drawn.places[key] for key in by_key]
    top = min(center.y - drawn.heights[key] / 2 for key, center in zip(by_key, centers, strict=True))
    yield {"data": {"id": home}, "classes": "block", "selectable": False, "grabbable": False}
    label = f"{_UNFOLDED} {title(block)}"
    wide = _LETTER_PX * len(label)
    left = min(min(center.x for center in centers) - WIDTH / 2, -wide - _MARGIN_PX / 2)  # of edges along the axis
    yield {
        "data": {"id": f"title {block.name}", "parent": home, "label": label, "fold": block.name,
                 "wide": wide},
        "classes": "title", "position": _position(PixelPoint(left + wide / 2, top - 16)),
        "selectable": False, "grabbable": False,
    }  # fmt: skip
    for node in by_key.values():
        name = f"{block.name}.{node.operators[0].name}"
        data = {"id": node.key, "parent": home, "op": name, **_node_data(node, drawn, max_share)}
        yield {"data": data, "classes": "operator", "position": _position(drawn.places[node.key])}


def _node_data(node: _Node, drawn: Layered, max_share: float) -> dict[str, Any]:
    """Labels, colors and outline of a node, its height, and its places on the scales of colors."""
    results = node.results
    names = " ".join(op.name for op in node.operators)
    data: dict[str, Any] = {"names": names, "tall": drawn.heights[node.key]}
    if not results:
        label = _lines(node.heading, "idle", node.shapes)
        return data | {
            "label": label, "label_intensity": label, "label_gap": label, "colour": _IDLE, "outline": "rectangle",
            "share": 0.0, "intensity": 0.0, "gap": 0.0,
        }  # fmt: skip
    time_s, share = sum(op.bound_time_s for op in results), sum(op.share for op in results)
    intensity = sum(op.ops for op in results) / (sum(op.bytes for op in results) or 1.0)
    times = [op.expected_time_s for op in results]
    expected_s = None if None in times else sum(filter(None, times))
    gap = expected_s / time_s if expected_s and time_s else None
    gap_line = f"{fold(gap, 3)} \N{MIDDLE DOT} {seconds(expected_s)}" if gap and expected_s else "not measured"
    bounds: dict[str, float] = {}
    for op in results:
        bounds[op.bound] = bounds.get(op.bound, 0.0) + op.bound_time_s
    bound = max(bounds, key=lambda name: bounds[name])
    return data | {
        "label": _lines(node.heading, f"{share:.1%} \N{MIDDLE DOT} {seconds(time_s)}", node.shapes),
        "label_intensity": _lines(node.heading, f"{number(intensity)} OP/B", node.shapes),
        "label_gap": _lines(node.heading, gap_line, node.shapes),
        "colour": _COLOURS[bound],
        "outline": _OUTLINES[bound],
        "share": share / max_share,
        "intensity": _on_scale(intensity, *_INTENSITIES),
        "gap": _on_scale(gap or 1.0, *_GAPS),
    }


def _on_scale(value: float, low: float, high: float) -> float:
    """Place of a value on a logarithmic scale from 0 to 1, at its ends beyond them."""
    return min(max(log10(max(value, low) / low) / log10(high / low), 0.0), 1.0)


def _lines(*parts: str) -> str:
    return "\n".join(filter(None, parts))


def _wrapped(text: str) -> str:
    """A text in lines that fit a node, broken at spaces and underscores."""
    lines = textwrap.wrap(text.replace("_", "_ "), (WIDTH - 8) // _LETTER_PX, break_long_words=False)
    return "\n".join(line.replace("_ ", "_") for line in lines)


def _edge_elements(drawn: Layered) -> Iterator[dict[str, Any]]:
    """Edges from operators to their readers."""
    for (source, target), bends in drawn.bends.items():
        data = {"source": source, "target": target}
        if bends:
            data |= _bend_data(drawn.places[source], drawn.places[target], bends)
        yield {"data": data, "classes": "tensor around" if bends else "tensor"}


def _bend_data(start: PixelPoint, end: PixelPoint, bends: Sequence[PixelPoint]) -> dict[str, str]:
    """Bends for cytoscape: their positions along the straight edge [1] and distances from it. [px]"""
    (x0, y0), (x1, y1) = start, end
    dx, dy = x1 - x0, y1 - y0
    length = hypot(dx, dy)
    along = [((x - x0) * dx + (y - y0) * dy) / length**2 for x, y in bends]
    distances = [((y - y0) * dx - (x - x0) * dy) / length for x, y in bends]
    return {"along": " ".join(f"{a:.7f}" for a in along), "beside": " ".join(f"{b:.1f}" for b in distances)}


def _position(place: PixelPoint) -> dict[str, float]:
    return {"x": place.x, "y": place.y}
