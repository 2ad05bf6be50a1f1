"""The operator graph of a model: tensors with their shapes, and the operators that write and read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

from llmviewer.forms import Form
from llmviewer.graph import Block, Graph
from llmviewer.model import Model
from llmviewer.operators.base import Operator, Tensor, Weight

from .columns import WIDTH
from .tables import filled, json_of

_NO_BREAK_SPACE: Final = "\u00a0"
_MAX_LISTED_LAYERS: Final = 4  # layers that are all listed, of those equally far apart
_KV_READS, _KV_CACHED = "kv_streams", "kv_tokens"


def render(model: Model, form: str, width: int = WIDTH) -> str:
    """The graph as "text", `width` columns wide, "json", "dot" (Graphviz) or "mermaid"."""
    return _text(model, width) if form == "text" else {"json": _json, "dot": _dot, "mermaid": _mermaid}[form](model)


def edges(graph: Graph) -> Iterator[tuple[tuple[Block, Operator], tuple[Block, Operator], Tensor]]:
    """(writer, reader, tensor) of every dependency within and between blocks."""
    block_writers: dict[str, tuple[Block, Operator]] = {}  # what wrote the outputs of the blocks before
    before = ""
    for block in graph.blocks:
        given_writers = {
            name: block_writers[name] for name in block.side_inputs if name in block_writers
        }  # its block may be left out of a drawing
        writers = given_writers | ({block.input: block_writers[before]} if before else {})
        for op in block.operators:
            for t in op.inputs:
                writer = writers.get(t.name)
                if writer:
                    yield writer, (block, op), t
            writers.update((t.name, (block, op)) for t in op.outputs)
        if block.output in writers:  # which the last of a layout need not
            block_writers[block.output] = writers[block.output]
        before = block.output


def shape(tensor: Tensor) -> str:
    """Such as "[tokens, 4096] bf16"."""
    return f"[{_rows(tensor.rows)}, {tensor.width}] {tensor.format}"


def _rows(form: Form) -> str:
    """Rows of a tensor in memory; of a cache that is read more than once, the cached ones."""
    named = ((_KV_CACHED if f.name == _KV_READS else str(f), c) for f, c in form.terms)
    return " + ".join(text if c == 1 else f"{c:g} {text}" for text, c in named)


def weight_shape(weight: Weight) -> str:
    """Such as "q_proj.weight [4096, 4096]"."""
    return f"{weight.name} {list(weight.shape)}{' tied' if weight.tied else ''}"


def title(block: Block) -> str:
    """The name of a block, its repetitions and its layers."""
    if not block.layers:
        return block.name
    return f"{block.name} x {block.repeat} ({_layers(block.layers)})"


def _layers(places: Sequence[int]) -> str:
    """Layers in few words: "layers 0 to 4, 6", "layers 1, 5, ... 61", "layers 0 to 60 without 1, 5, ... 57"."""
    if len(places) == 1:
        return f"layer {places[0]}"
    missing = sorted({*range(places[0], places[-1])} - {*places})
    if _stepping(places) and len(places) > _MAX_LISTED_LAYERS:
        return f"layers {_stepped(places)}"
    if _stepping(missing) and len(missing) > _MAX_LISTED_LAYERS:
        return f"layers {places[0]} to {places[-1]} without {_stepped(missing)}"
    starts = [place for place in places if place - 1 not in places]
    ends = [place for place in places if place + 1 not in places]
    runs = [f"{a} to {b}" if b - a > 1 else f"{a}, {b}" if b > a else str(a) for a, b in zip(starts, ends, strict=True)]
    return f"layers {', '.join(runs)}"


def _stepping(places: Sequence[int]) -> bool:
    """Whether layers are equally far apart, but not consecutive."""
    steps = {later - earlier for earlier, later in pairwise(places)}
    return len(steps) == 1 and steps != {1}


def _stepped(places: Sequence[int]) -> str:
    return f"{places[0]}, {places[1]}, ... {places[-1]}"


def _text(model: Model, width: int) -> str:
    """Two lines for an operator, wrapped: its kind with its weights, and its inputs and outputs."""
    lines = [f"{model.title}: {model.parameters:,} parameters in {model.format}"]
    for block in model.graph.blocks:
        lines += ["", filled(title(block), width)]
        for op in block.operators:
            reads, writes = (", ".join(_unbroken(f"{t.name} {shape(t)}") for t in ts) for ts in (op.inputs, op.outputs))
            about = (f"  {op.name} ({op.kind})", *(_unbroken(weight_shape(w)) for w in op.weights))
            lines.append(filled("  ".join(about), width, others=" " * 6))
            lines.append(filled(f"{reads or 'token ids'} -> {writes}", width, first=" " * 4, others=" " * 6))
    return "\n".join(lines).replace(_NO_BREAK_SPACE, " ") + "\n"


def _unbroken(text: str) -> str:
    """`text` with spaces at which no line breaks."""
    return text.replace(" ", _NO_BREAK_SPACE)


def _json(model: Model) -> str:
    document = {
        "name": model.name,
        "parameters": model.parameters,
        "blocks": [_block(block) for block in model.graph.blocks],
        "edges": [
            {"from": f"{a.name}.{writer.name}", "to": f"{b.name}.{reader.name}", "tensor": t.name}
            for (a, writer), (b, reader), t in edges(model.graph)
        ],
    }
    return json_of(document)


def _block(block: Block) -> dict[str, Any]:
    return {
        "name": block.name,
        "repeat": block.repeat,
        "layers": list(block.layers),
        "input": block.input,
        "output": block.output,
        "operators": [_operator(op) for op in block.operators],
    }


def _operator(op: Operator) -> dict[str, Any]:
    work = op.work()
    return {
        "name": op.name,
        "kind": op.kind,
        "inputs": [_tensor(t) for t in op.inputs],
        "outputs": [_tensor(t) for t in op.outputs],
        "weights": [
            {"name": w.name, "shape": list(w.shape), "format": str(w.format), "tied": w.tied} for w in op.weights
        ],
        "ops": str(work.ops),
        "bytes": str(work.nbytes),
    }


def _tensor(t: Tensor) -> dict[str, Any]:
    return {"name": t.name, "shape": [_rows(t.rows), t.width], "format": str(t.format), "role": str(t.role)}


def _identity(block: Block, op: Operator) -> str:
    return "".join(c if c.isalnum() else "_" for c in f"{block.name}_{op.name}")


def _dot(model: Model) -> str:
    lines = [f'digraph "{model.name}" {{', "  node [shape=box, fontname=Helvetica];"]
    for index, block in enumerate(model.graph.blocks):
        lines += [f"  subgraph cluster_{index} {{", f'    label="{title(block)}";']
        lines += [f'    {_identity(block, op)} [label="{op.name}\\n{op.kind}"];' for op in block.operators]
        lines.append("  }")
    for (a, writer), (b, reader), t in edges(model.graph):
        lines.append(f'  {_identity(a, writer)} -> {_identity(b, reader)} [label="{shape(t)}"];')
    return "\n".join([*lines, "}"]) + "\n"


def _mermaid(model: Model) -> str:
    lines = ["flowchart TD"]
    for block in model.graph.blocks:
        lines.append(f'  subgraph {_identity(block, block.operators[0])}_block["{title(block)}"]')
        lines += [f'    {_identity(block, op)}["{op.name}"]' for op in block.operators]
        lines.append("  end")
    for (a, writer), (b, reader), t in edges(model.graph):
        lines.append(f'  {_identity(a, writer)} -->|"{shape(t)}"| {_identity(b, reader)}')
    return "\n".join(lines) + "\n"
