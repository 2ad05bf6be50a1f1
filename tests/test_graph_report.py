"""`llmviewer models NAME --graph`: shapes, dependencies, and the formats that draw them."""

import json

import pytest

from llmviewer.cli import main
from llmviewer.model_files import load_model
from llmviewer.reports.graph import edges, render


def test_json_has_shapes_formulas_and_dependencies():
    document = json.loads(render(load_model("llama-2-7b"), "json"))
    layer = document["blocks"][1]
    assert (layer["name"], layer["repeat"], layer["layers"][-1]) == ("layer", 32, 31)
    by_name = {op["name"]: op for op in layer["operators"]}
    assert by_name["gate_proj"]["inputs"] == [
        {"name": "mlp_norm", "shape": ["tokens", 4096], "format": "fp16", "role": "activation"}
    ]
    assert by_name["gate_proj"]["weights"][0]["shape"] == [11008, 4096]
    assert by_name["gate_proj"]["ops"] == "90177536 tokens"  # 2 * 4096 * 11008
    assert by_name["qk_matmul"]["ops"] == "8192 pairs"  # 2 * 32 heads * 128
    assert {"from": "layer.qk_matmul", "to": "layer.softmax", "tensor": "scores"} in document["edges"]
    assert {"from": "embedding.embed_tokens", "to": "layer.attn_norm", "tensor": "hidden"} in document["edges"]
    assert {"from": "layer.mlp_add", "to": "head.final_norm", "tensor": "hidden"} in document["edges"]


@pytest.mark.parametrize("name", ["gpt2", "falcon-40b", "opt-350m"])
def test_every_input_has_a_writer_and_nothing_is_left_unread(name):
    graph = load_model(name).graph
    found = list(edges(graph))
    asked = sum(len(op.inputs) for _, op in graph)
    assert len(found) == asked
    writers = {(block.name, op.name) for (block, op), _, _ in found}
    last = graph.blocks[-1]
    assert {(b.name, op.name) for b, op in graph} - writers == {(last.name, last.operators[-1].name)}


@pytest.mark.parametrize(
    ("form", "begin", "edge"),
    [
        ("text", "GPT-2", "scores [cells, 12] fp32"),
        ("dot", 'digraph "gpt2" {', 'layer_softmax -> layer_sv_matmul [label="[cells, 12] fp32"];'),
        ("mermaid", "flowchart TD", 'layer_softmax -->|"[cells, 12] fp32"| layer_sv_matmul'),
    ],
)
def test_the_graph_is_drawn(form, begin, edge):
    text = render(load_model("gpt2"), form)
    assert text.startswith(begin)
    assert edge in text


def test_a_graph_is_that_of_one_model(capsys):
    assert main(["models", "--graph"]) == 2
    assert capsys.readouterr().err == (
        "llmviewer: --graph needs one model: give its name, such as `llmviewer models gpt2 --graph`\n"
    )
