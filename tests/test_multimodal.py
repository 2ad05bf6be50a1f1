"""Models whose images or sound come through other encoders than plain vision towers, against transformers.

Parameters and OPs of the encoders are those of tests/oracle/multimodal.json, which make_multimodal.py counts with
torch's flop counter on the meta device.
"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from llmviewer.architectures import builder
from llmviewer.documents import Section
from llmviewer.forms import evaluate, images
from llmviewer.operators.attention import QK, SV
from llmviewer.operators.linear import Linear
from llmviewer.operators.pictures import BatchedProduct, RelativePositions
from llmviewer.precision import BF16
from llmviewer.workload import Workload

MODELS = json.loads((Path(__file__).parent / "oracle" / "multimodal.json").read_text(encoding="utf-8"))["models"]
PRODUCTS = (Linear, QK, SV, BatchedProduct, RelativePositions)


def graph_of(config):
    section = Section(config, "config.json")
    return builder(section)(section, BF16).check()


def products_of(graph, encoder=None):
    """OPs of matrix products of the encoders for one image or piece of sound."""
    w = Workload.prefill(batch=1, prompt=100_000, images=1)
    blocks = [b for b in graph.blocks if b.stream.name == "images" and b.stream != images(0)]
    if encoder:
        blocks = [b for b in blocks if b.name in encoder]
    return sum(
        b.repeat * Fraction(evaluate(op.work().ops.on(b.stream), w))
        for b in blocks
        for op in b.operators
        if isinstance(op, PRODUCTS)
    )


@pytest.mark.parametrize("name", MODELS)
def test_parameters_equal_those_of_transformers(name):
    assert graph_of(MODELS[name]["config"]).parameters == MODELS[name]["parameters"]


@pytest.mark.parametrize("name", MODELS)
def test_ops_of_an_encoder_equal_torchs(name):
    """Of Granite Speech the conformer alone: transformers runs the first attention of queries once for all windows."""
    encoder = {"audio_embedding", "audio_layer", "audio_characters"} if name == "granite_speech" else None
    assert products_of(graph_of(MODELS[name]["config"]), encoder) == MODELS[name]["flops"]
