"""The operator graph of a phase: the whole network, what repeats folded into one block."""

from __future__ import annotations

from typing import Any, Final

from llmviewer.reports.drawing import BOUND_COLOR
from llmviewer.reports.graph import edges, shape, title
from llmviewer.reports.marks import identity
from llmviewer.units import seconds, si

from ..answers import Answer

COLOURS: Final = ("bound", "share")
_IDLE: Final = "#8a939c"  # what is not run in this phase


def elements(answer: Answer, phase: str) -> list[dict[str, Any]]:
    """Blocks, operators and tensors, as a drawing of nodes and edges wants them."""
    name = answer.phase_name(phase)
    graph = answer.setting.decode_graph if name == "decode" else answer.setting.graph
    results = {identity(op): op for op in answer.phase(phase).operators}
    most = max(op.share for op in results.values())
    found: list[dict[str, Any]] = []
    for block in graph.blocks:
        found.append({"data": {"id": f"block {block.name}", "label": title(block)}, "classes": "block"})
        for op in block.operators:
            key = f"{block.name}.{op.name}"
            result = results.get(key)
            found.append(
                {
                    "data": {
                        "id": key, "parent": f"block {block.name}",
                        "label": f"{op.name}\n{result.share:.1%}" if result else f"{op.name}\nnot run",
                        "about": f"{si(result.ops)}OP, {si(result.bytes)}B, {seconds(result.bound_time_s)}, "
                        f"{result.bound}-bound" if result else "not run in this phase",
                        "colour": BOUND_COLOR[result.bound] if result else _IDLE,
                        "heat": result.share / most if result else 0.0,
                    },
                    "classes": "operator",
                }
            )  # fmt: skip
    for (a, writer), (b, reader), tensor in edges(graph):
        found.append(
            {
                "data": {
                    "source": f"{a.name}.{writer.name}", "target": f"{b.name}.{reader.name}", "label": shape(tensor),
                },
                "classes": "tensor",
            }
        )  # fmt: skip
    return found
