"""Architectures that are described in their file: equal to those in code, and strict."""

import re
from pathlib import Path

import pytest

from llmviewer.architectures.described import _FEED_FORWARD, _MIXERS
from llmviewer.errors import InputError
from llmviewer.model_files import load_model

HEAD = """\
name: mine
title: Mine
source: {repository: none, file: mine.yaml}
parameters: 1
config:
  model_type: described
  torch_dtype: float16
"""
LLAMA = """\
  vocab_size: 32000
  hidden_size: 4096
  layers:
    - repeat: 32
      mixer: {kind: attention, num_heads: 32, head_dim: 128, rotary_dim: 128}
      feed_forward: {kind: mlp, inner: 11008, act: silu, gated: true}
"""
MIXTRAL = """\
  vocab_size: 32000
  hidden_size: 4096
  layers:
    - repeat: 16
      name: local
      mixer: {kind: attention, num_heads: 32, num_kv_heads: 8, head_dim: 128, rotary_dim: 128, window: 4096}
      feed_forward: {kind: experts, experts: 8, chosen: 2, inner: 14336, shared: {inner: 1024, act: silu, gated: true}}
    - repeat: 2
      name: memory
      mixer: {kind: mamba2, inner: 8192, heads: 128, head_dim: 64, state: 128, groups: 1, taps: 4, chunk: 256}
    - name: last
      residual: sandwich
      feed_forward: {kind: mlp, inner: 8192, act: relu2}
"""


@pytest.fixture
def described(tmp_path):
    def write(text):
        path = tmp_path / "mine.yaml"
        path.write_text(HEAD.replace("bfloat16", "float16") + text, encoding="utf-8")
        return str(path)

    return write


def test_a_description_of_llama_is_llama(described):
    assert load_model(described(LLAMA)).graph == load_model("llama-2-7b").graph


def test_layers_of_several_kinds_are_described(described):
    model = load_model(described(MIXTRAL))
    assert [(b.name, b.repeat) for b in model.graph.blocks] == [
        ("embedding", 1), ("local", 16), ("memory", 2), ("last", 1), ("head", 1),
    ]  # fmt: skip
    d, experts = 4096, 8 * 3 * 4096 * 14336 + 8 * 4096 + 3 * 4096 * 1024
    local = experts + 2 * d * d + 2 * d * 1024 + 2 * d
    memory = d * (2 * 8192 + 2 * 128 + 128) + (8192 + 256) * 5 + 3 * 128 + 8192 + 8192 * d + d
    last = 2 * d * 8192 + 2 * d
    assert model.parameters == 16 * local + 2 * memory + last + 2 * 32000 * d + d
    assert model.attention == "GQA 4096, state"


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("kind: mlp", "kind: mpl", "layers[0].feed_forward.kind: must be one of mlp, experts, channel_mix; got 'mpl'"),
        ("rotary_dim", "rotary_dmi", "layers[0].mixer.rotary_dmi: unknown key; did you mean rotary_dim?"),
        (
            "rotary_dim: 128",
            "rotary_dim: 130",
            "layers[0].mixer.rotary_dim: must be at most the 128 of a head; got 130",
        ),
        ("inner: 11008", "inner: -1", "layers[0].feed_forward.inner: must be a whole number of at least 0; got -1"),
        ("inner: 11008, ", "", "layers[0].feed_forward.inner: is missing"),
        ("repeat: 32", "repeet: 32", "layers[0].repeet: unknown key; did you mean repeat?"),
        (
            "act: silu",
            "act: mish",
            "layers[0].feed_forward.act: must be one of relu, relu2, silu, gelu, gelu_tanh, xielu, situ;",
        ),
    ],
)
def test_a_mistake_says_where_it_is(described, old, new, error):
    path = described(LLAMA.replace(old, new))
    with pytest.raises(InputError) as caught:
        load_model(path)
    assert str(caught.value).startswith(f"{path}: config.{error}")


def test_a_layer_needs_something_to_do(described):
    path = described("  vocab_size: 10\n  hidden_size: 8\n  layers: [{repeat: 2}]\n")
    with pytest.raises(InputError, match=r"config\.layers\[0\]\.mixer: a layer needs a mixer or a feed_forward$"):
        load_model(path)
    path = described("  vocab_size: 10\n  hidden_size: 8\n  layers: []\n")
    with pytest.raises(InputError, match=r"config\.layers: must be a list of mappings; got \[\]$"):
        load_model(path)


def test_no_token_takes_more_experts_than_there_are(described):
    network = "{kind: experts, experts: 64, chosen: 400, inner: 16}"
    layer = f"{{mixer: {{kind: attention, num_heads: 2, head_dim: 4}}, feed_forward: {network}}}"
    path = described(f"  vocab_size: 10\n  hidden_size: 8\n  layers: [{layer}]\n")
    with pytest.raises(InputError) as caught:
        load_model(path)
    said = "config.layers[0].feed_forward.chosen: must be at most the 64 experts of experts; got 400"
    assert str(caught.value) == f"{path}: {said}"


def test_groups_of_experts_are_said_as_configs_say_them(described):
    network = "{kind: experts, experts: 64, chosen: 4, inner: 16, n_group: 8, topk_group: 2}"
    layer = f"{{mixer: {{kind: attention, num_heads: 2, head_dim: 4}}, feed_forward: {network}}}"
    graph = load_model(described(f"  vocab_size: 10\n  hidden_size: 8\n  layers: [{layer}]\n")).graph
    assert [op.groups for _, op in graph if op.kind == "route"] == [(8, 2)]


def test_the_documentation_names_every_part():
    text = (Path(__file__).parents[1] / "docs" / "models.md").read_text()
    kinds = text[text.index("Mixers are") : text.index("Their keys are")]
    assert re.findall("`(.*?)`", kinds) == [*_MIXERS, *_FEED_FORWARD]
