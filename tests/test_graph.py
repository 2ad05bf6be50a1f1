"""Graphs: what check() finds, and that all that ships passes it."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache

import pytest

from llmviewer.architectures.blocks.parts import Parts
from llmviewer.graph import Block, Graph
from llmviewer.model_files import load_model, model_names
from llmviewer.operators.attention import QK, SV, FlashAttention, Softmax
from llmviewer.operators.linear import BlockLinear
from llmviewer.precision import FP16, NAMED
from llmviewer.setting import Setting
from llmviewer.transforms.absorb import absorb
from llmviewer.transforms.flash_attention import flash_attention

from .cases import first_fast, for_each, one_per_type

PARTS = Parts(format=FP16)
X = PARTS.tensor("x", 8)
NORM = PARTS.norm("norm", X)
UP = PARTS.linear("up_proj", NORM.outputs[0], PARTS.tensor("up_proj", 12))


def _block(*operators, **kwargs):
    return Graph((Block(name="layer", operators=operators, **{"input": "x", "output": "up_proj", **kwargs}),))


def test_a_graph_that_can_run_is_returned():
    graph = _block(NORM, UP)
    assert graph.check() is graph


@pytest.mark.parametrize(
    ("graph", "error"),
    [
        (_block(UP, NORM), "layer.up_proj reads norm, which nothing before it writes"),
        (_block(UP), "layer.up_proj reads norm, which nothing before it writes"),
        (_block(NORM, UP, input="y"), "layer.norm reads x, which nothing before it writes"),
        (_block(NORM, UP, output="down_proj"), "layer must write its output down_proj; no operator does"),
        (
            _block(NORM, UP.with_tensors(lambda t: replace(t, format=NAMED["int8"]) if t.name == "norm" else t)),
            "layer.up_proj reads norm as int8; it was written as fp16",
        ),
        (
            _block(NORM.with_tensors(lambda t: replace(t, format=NAMED["int8"]) if t.name == "norm" else t), UP),
            "layer.up_proj reads norm as fp16; it was written as int8",
        ),
    ],
)
def test_a_tensor_that_is_not_there_or_not_in_its_format_is_found(graph, error):
    with pytest.raises(RuntimeError) as caught:
        graph.check()
    assert str(caught.value) == error


def test_a_cache_written_in_one_format_and_read_in_another_is_found():
    heads = load_model("llama-2-7b").graph.blocks[1]
    qk = next(op for op in heads.operators if isinstance(op, QK))
    wrong = qk.with_tensors(lambda t: replace(t, format=NAMED["int8"]) if t.name == "k_cache" else t)
    graph = Graph((replace(heads, operators=tuple(wrong if op is qk else op for op in heads.operators)),))
    with pytest.raises(RuntimeError, match=r"^layer\.qk_matmul reads k_cache as int8; it was written as fp16$"):
        graph.check()


QUANTS = (None, "W4A16g128", "W8A8KV8", "fp8,lm_head=fp8", "W4A4,layers.1-3=W8A16,*_proj=W2")


@cache
def built_alike():
    """Names of models, by the operators that they are made of."""
    found = defaultdict(list)
    for name in model_names():
        blocks = load_model(name).graph.blocks
        found[tuple((b.name, tuple((type(op), op.name) for op in b.operators)) for b in blocks)].append(name)
    return list(found.values())


@pytest.mark.parametrize("quant", QUANTS)
@pytest.mark.parametrize("attention", first_fast(["flash", "eager"], "every structure in every precision", 2))
def test_every_structure_can_run_under_every_technique(attention, quant):
    for name, *_ in built_alike():
        check(name, attention, quant)


@for_each("name", model_names, fast=one_per_type)
def test_every_model_can_run_quantized_and_names_are_unique_in_a_block(name):
    check(name, "flash", "W4A16g128")


def check(name, attention, quant):
    model = load_model(name)
    if quant == "fp8,lm_head=fp8" and not any(op.kind == "lm_head" for _, op in model.graph):
        quant = "fp8"
    graph = Setting.of(model, "h100-sxm", quant=quant, attention=attention).graph.check()
    for block in (*graph.blocks, *absorb(model.graph).blocks):
        names = Counter(op.name for op in block.operators)
        assert max(names.values()) == 1, name
    assert len({block.name for block in graph.blocks}) == len(graph.blocks), name
    assert graph.layers == model.graph.layers, name


@for_each("name", model_names)
def test_blocks_hand_on_a_stream_of_one_width(name):
    """The output of a block is as wide as the next one's input, except blocks whose result goes to later ones."""
    blocks = load_model(name).graph.blocks
    given = {name for block in blocks for name in block.side_inputs}
    for before, after in itertools.pairwise(block for block in blocks if block.output not in given):
        if after.input in ("", "pixels") or not before.main:  # an embedding of tokens or images; a tower's result
            continue
        named = [block for block in blocks[: blocks.index(after)] if block.output == after.input]
        before = named[-1] if named else before  # noqa: PLW2901 - paths of U-Nets join
        left = {t.name: t.width for op in before.operators for t in op.outputs}[before.output]
        read = {t.width for op in after.operators for t in op.inputs if t.name == after.input}
        assert left in (max(read), sum(read))  # Gemma 3n's head reads its streams in two parts
    for block in blocks:
        if block.repeat > 1:
            widths = {t.name: t.width for op in block.operators for t in (*op.inputs, *op.outputs)}
            assert widths[block.input] == widths[block.output]


def test_tensors_are_no_wider_where_they_are_read_than_where_they_were_written():
    for name in model_names():
        for block in load_model(name).graph.blocks:
            written = {t.name: t.width for op in block.operators for t in op.outputs}
            merges = block.stream.name == "images"  # some rows of a tower are read as one
            for op in block.operators:
                for t in op.inputs:
                    width = written.get(t.name, t.width)
                    assert width >= t.width or (merges and t.width % width == 0)


def test_inner_widths_of_matrices_fit_their_inputs_and_outputs():
    for name in model_names():
        for _, op in load_model(name).graph:
            if op.kind in ("linear", "lm_head"):
                rows, columns = op.weights[0].shape
                assert (
                    op.inputs[0].width % columns == 0 if isinstance(op, BlockLinear) else op.inputs[0].width == columns
                )
                assert sum(t.width for t in op.outputs) == rows


def test_flash_attention_takes_the_place_of_three_launches():
    graph = load_model("bloom-560m").graph
    fused = graph.then(flash_attention(1e6))
    assert [op.name for op in fused.blocks[1].operators if op.kind == "attention"] == ["attention"]
    (attention,) = (op for _, op in fused if isinstance(op, FlashAttention))
    qk, softmax, sv = (op for _, op in graph if isinstance(op, QK | Softmax | SV))
    assert attention.inputs == (*qk.inputs, sv.inputs[1])
    assert attention.outputs == sv.outputs
    assert attention.bias is softmax.bias is True
    assert fused.then(flash_attention(1e6)) == fused


def test_parameters_and_layers_are_counted_with_repeats():
    graph = load_model("llama-2-7b").graph
    assert graph.layers == 32
    assert graph.parameters == 6738415616
    assert Graph(graph.blocks[:1]).parameters == 32000 * 4096
    assert Graph(graph.blocks[:1]).layers == 0


def test_transforms_are_applied_from_left_to_right():
    def rename(name):
        return lambda graph: graph.map_blocks(lambda block: replace(block, name=block.name + name))

    assert _block(NORM, UP).then(rename("a"), rename("b")).blocks[0].name == "layerab"
