"""Architectures that are described in their file: equal to those in code, counted by hand, strict, and documented.

`python -m tests.test_described` remakes the tables of docs/descriptions.md.
"""

import random
import re
from dataclasses import fields
from inspect import cleandoc
from pathlib import Path

import pytest
import yaml

from llmviewer.architectures.described import _READERS, FEED_FORWARD, MIXERS, NESTED, _type_of, keys_of
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

D = 64  # hidden size of PARTS
ATTENTION = D * 64 + D * 32 + D * 48 + 96 * D  # q, k, v, o of 4 and 2 heads, with keys of 16 and values of 24
LATENT = D * 24 + 24 + 24 * 4 * 24 + D * (32 + 8) + 32 + 32 * 4 * 32 + 4 * 16 * D  # q_a, norm, q_b, kv_a, norm, kv_b, o
DIRECT = "{kind: latent_attention, num_heads: 4, kv_rank: 32, nope_dim: 16, value_dim: 16"
PARTS = [  # where it stands, part, its parameters, bytes of cache per token
    (
        "mixer",
        "{kind: attention, num_heads: 4, num_kv_heads: 2, head_dim: 16, value_dim: 24, rotary_dim: 8}",
        ATTENTION,
        (32 + 48) * 2,
    ),
    (
        "mixer",
        """{kind: attention, num_heads: 4, num_kv_heads: 2, head_dim: 16, value_dim: 24, qkv_bias: true, o_bias: true,
            qk_norm: rms, sinks: true, gates: 4, gated: true, chunk: 32}""",
        ATTENTION + 64 + 32 + 48 + 96 + D + 2 * 16 + 4 + D * 4 + D * 96,  # biases, norms, sinks, gates
        (32 + 48) * 2,
    ),
    (
        "mixer",
        "{kind: latent_attention, num_heads: 4, q_rank: 24, kv_rank: 32, nope_dim: 16, rope_dim: 8, value_dim: 16}",
        LATENT,
        (32 + 8) * 2,
    ),
    (
        "mixer",
        """{kind: latent_attention, num_heads: 4, q_rank: 24, kv_rank: 32, nope_dim: 16, rope_dim: 8, value_dim: 16,
            k_rope_norm: true, sinks: true, gates: 64,
            index: {num_heads: 2, head_dim: 16, chosen: 8, format: fp8_e4m3}}""",
        LATENT + 8 + 4 + D * 64 + 24 * 32 + D * 16 + D * 2 + 2 * 16,  # then the indexer's queries, keys, weights, norm
        (32 + 8) * 2 + 16,
    ),
    (
        "mixer",
        f"{DIRECT}, window: 8}}",
        D * 4 * 16 + D * 32 + 32 + 32 * 4 * 32 + 4 * 16 * D,
        32 * 2,
    ),
    (
        "mixer",
        "{kind: mamba, inner: 128, state: 16, taps: 4, step_rank: 4}",
        D * 256 + 128 * 5 + 128 * (4 + 32) + 5 * 128 + 128 * 16 + 128 + 128 * D,
        0,
    ),
    (
        "mixer",
        "{kind: mamba2, inner: 128, heads: 8, head_dim: 16, state: 16, groups: 2, taps: 4, chunk: 32}",
        D * (128 + 128 + 64 + 8) + (128 + 64) * 5 + 3 * 8 + 128 + 128 * D,
        0,
    ),
    (
        "mixer",
        "{kind: gated_delta_net, key_heads: 2, value_heads: 4, key_dim: 16, value_dim: 8, taps: 4}",
        D * (96 + 32 + 8) + 96 * 4 + 2 * 4 + 8 + 32 * D,
        0,
    ),
    (
        "mixer",
        "{kind: gated_linear_recurrence, inner: 96, blocks: 4, taps: 4, act: gelu}",
        2 * (D * 96 + 96) + 96 * 5 + 2 * (96 * 24 + 96) + 96 + 96 * D + D,
        0,
    ),
    (
        "mixer",
        "{kind: kda, heads: 4, head_dim: 16, taps: 4}",
        3 * D * 64 + 192 * 4 + 2 * (D * 16 + 16 * 64) + D * 4 + 4 + 64 + 16 + 64 * D,
        0,
    ),
    ("mixer", "{kind: lightning_attention, heads: 4, head_dim: 16}", D * 192 + D * 64 + 64 + 64 * D, 0),
    (
        "mixer",
        "{kind: retention, heads: 2, key_dim: 16, value_dim: 32, chunk: 32, norm_weight: true}",
        2 * D * 32 + 2 * D * 64 + 32 + 64 * D,
        0,
    ),
    ("mixer", "{kind: rwkv4, width: 64}", 3 * D + 3 * D * 64 + 2 * 64 + 64 * D, 0),
    (
        "mixer",
        "{kind: rwkv6, heads: 4, head_dim: 16, mix_rank: 8, decay_rank: 8}",
        D + 2 * 5 * D * 8 + 5 * D + 4 * D * 64 + 2 * D * 8 + 2 * 64 + 2 * 64 + 64 * D,
        0,
    ),
    (
        "mixer",
        "{kind: rwkv7, heads: 4, head_dim: 16, decay_rank: 8, rate_rank: 4, gate_rank: 16, value_rank: 4}",
        6 * D + 3 * D * 64 + 2 * D * (8 + 4 + 16 + 4) + 3 * 64 + 2 * 64 + 3 * 64 + 64 * D,
        0,
    ),
    (
        "mixer",
        "{kind: hyena, taps: 3, states: 4, groups: 16}",
        D * 192 + 192 + 192 * 4 + D + 2 * (4 * 4 * 2) + D * D + D,  # 4 filters of 4 complex modes
        0,
    ),
    ("mixer", "{kind: s4, states: 4}", D + 2 * (D * 4 * 2) + D * 128 + 128, 0),
    ("mixer", "{kind: s4, states: 4, glu: false}", D + 2 * (D * 4 * 2) + D * D + D, 0),
    ("mixer", "{kind: s5, states: 4}", 2 * 8 * D + 8 + D + D * D + D, 0),
    ("mixer", "{kind: s5, states: 4, glu: false}", 2 * 8 * D + 8 + D, 0),
    (
        "mixer",
        "{kind: gss, width: 16, states: 8, inner: 256}",
        D * 16 + D * 256 + 2 * 16 + 16 + 8 * 2 + 16 * 8 * 2 + 16 * 256 + 256 * D + D,
        0,
    ),
    ("mixer", "{kind: ckconv, inner: 16}", D + 16 + 16 * 16 + D * D * 16 + 2 * 16 + D * D, D * 2),  # what is convolved
    ("mixer", "{kind: h3, taps: 3, states: 4}", 4 * (D * D + D) + D * 3 + D + D + 2 * (D * 4 * 2), 0),
    (
        "mixer",
        "{kind: implicit_hyena, taps: 3, features: 5, inner: 16, depth: 1}",
        D * 192 + 192 + 192 * 3 + 192 + D + 16 * 5 + 16 * 16 + D * 16 + 2 * 16 + D * D + D,
        D * 2,  # what is convolved
    ),
    ("mixer", "{kind: short_conv, taps: 3, bias: true}", D * 192 + 192 + D * 4 + D * D + D, 0),
    ("feed_forward", "{kind: mlp, inner: 96}", 2 * D * 96, 0),
    ("feed_forward", "{kind: mlp, inner: 96, act: gelu, gated: true, bias: true}", 3 * D * 96 + 2 * 96 + D, 0),
    ("feed_forward", "{kind: experts, experts: 8, chosen: 2, inner: 32}", 8 * 3 * D * 32 + 8 * D, 0),
    (
        "feed_forward",
        """{kind: experts, experts: 8, chosen: 2, inner: 32, gated: false, router_bias: true, latent: 16,
            latent_norm: true, n_group: 4, topk_group: 2, shared: {inner: 48, gated: true}, shared_gate: true}""",
        8 * 2 * 16 * 32 + 8 * D + 8 + 2 * D * 16 + 16 + 3 * D * 48 + D,
        0,
    ),
    ("feed_forward", "{kind: channel_mix, inner: 96}", 2 * D + 2 * D * 96 + D * D, 0),
]
ENDS = 2 * 100 * D + D  # embedding, head and last norm
DOCUMENT = Path(__file__).parents[1] / "docs" / "descriptions.md"
MARK = "<!-- tables of all parts: python -m tests.test_described -->\n"


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
    assert model.attention == "GQA window 4096, state"


def test_repeated_groups_are_their_layers_in_turn(described):
    pair = [
        f"{{name: {name}, mixer: {{kind: attention, num_heads: 4, head_dim: 16}}, "
        f"feed_forward: {{kind: mlp, inner: {inner}}}}}"
        for name, inner in (("narrow", 32), ("wide", 128))
    ]
    config = "  vocab_size: 10\n  hidden_size: 64\n  layers: [{}]\n"
    group, single = f"{{repeat: 3, layers: [{', '.join(pair)}]}}", ", ".join(pair * 3)
    assert load_model(described(config.format(group))).graph == load_model(described(config.format(single))).graph
    for text, error in (
        (group.replace("repeat", "name: x, repeat"), r"layers\[0\]\.name: unknown key"),
        (group.replace("{name", "{repeat: 2, name"), r"layers\[0\]\.layers\[0\]\.repeat: unknown key"),
        ("{repeat: 5001, layers: [" + ", ".join(pair) + "]}", r"must make at most 10000 layers of all; got 10002$"),
    ):
        with pytest.raises(InputError, match=error):
            load_model(described(config.format(text)))


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
        ("inner: 11008", "inner: -1", "layers[0].feed_forward.inner: must be a whole number of at least 1; got -1"),
        ("inner: 11008, ", "", "layers[0].feed_forward.inner: is missing"),
        ("repeat: 32", "repeet: 32", "layers[0].repeet: unknown key; did you mean repeat?"),
        (
            "act: silu",
            "act: mish",
            "layers[0].feed_forward.act: must be one of relu, relu2, silu, gelu, gelu_tanh, xielu, situ;",
        ),
    ],
)
def test_error_in_a_description_names_its_key(described, old, new, error):
    path = described(LLAMA.replace(old, new))
    with pytest.raises(InputError) as caught:
        load_model(path)
    assert str(caught.value).startswith(f"{path}: config.{error}")


def test_layer_without_mixer_and_feed_forward_is_refused(described):
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
    message = "config.layers[0].feed_forward.chosen: must be at most the 64 experts of experts; got 400"
    assert str(caught.value) == f"{path}: {message}"


def test_expert_groups_use_the_keys_of_configs(described):
    network = "{kind: experts, experts: 64, chosen: 4, inner: 16, n_group: 8, topk_group: 2}"
    layer = f"{{mixer: {{kind: attention, num_heads: 2, head_dim: 4}}, feed_forward: {network}}}"
    graph = load_model(described(f"  vocab_size: 10\n  hidden_size: 8\n  layers: [{layer}]\n")).graph
    assert [op.groups for _, op in graph if op.kind == "route"] == [(8, 2)]


@pytest.mark.parametrize(("place", "part", "parameters", "cached"), PARTS)
def test_every_part_is_counted(described, place, part, parameters, cached):
    model = load_model(described(f"  vocab_size: 100\n  hidden_size: {D}\n  layers: [{{{place}: {part}}}]\n"))
    assert model.parameters == ENDS + D + parameters  # one norm before the part
    assert model.kv_bytes_per_token == cached


def test_every_kind_is_among_the_counted():
    assert {re.findall(r"kind: (\w+)", part)[0] for _, part, *_ in PARTS} == {*MIXERS, *FEED_FORWARD}


@pytest.mark.parametrize("kind", [*MIXERS.values(), *FEED_FORWARD.values(), *NESTED.values()])
def test_every_field_of_a_part_is_read_and_explained(kind):
    assert {_type_of(field) for field in fields(kind)} <= _READERS.keys()
    combined_keys = {name for reader in _READERS.values() for name in (key.name for key in reader.many)}
    assert {key.name for key in keys_of(kind)} - combined_keys <= meanings(kind).keys()


def test_layers_of_multi_token_prediction_are_described(described):
    text = f"  vocab_size: 100\n  hidden_size: {D}\n  layers: [{{mixer: {PARTS[0][1]}}}]\n"
    joined = 2 * D * D + 3 * D  # projection of hidden state and embedding, their norms, and one before the head
    own = load_model(described(f"{text}  mtp: {{repeat: 2, mixer: {{kind: attention, num_heads: 4, head_dim: 16}}}}\n"))
    assert own.with_prediction.parameters - own.parameters == 2 * (4 * D * D + D + joined)
    like_the_last = load_model(described(f"{text}  mtp: {{}}\n"))
    assert like_the_last.with_prediction.parameters - like_the_last.parameters == ATTENTION + D + joined


def test_a_layer_of_one_branch_has_its_norm_wherever_norms_are(described):
    def count(residual):
        layer = f"{{residual: {residual}, feed_forward: {{kind: mlp, inner: 96}}}}"
        text = f"  vocab_size: 100\n  hidden_size: {D}\n  layers: [{layer}]\n"
        return load_model(described(text)).parameters - ENDS - 2 * D * 96

    norms = {"pre": D, "post": D, "inner": D, "sandwich": 2 * D, "parallel": D, "parallel_two": D}
    assert {residual: count(residual) for residual in norms} == norms


@pytest.mark.parametrize(
    ("layer", "error"),
    [
        (f"{DIRECT}, index: {{num_heads: 2, head_dim: 16, chosen: 8}}}}",
         "q_rank: must be above 0, because the indexer takes its queries from their latent; got 0"),
        (f"{DIRECT}, index: {{num_heads: 2}}}}", "index.head_dim: is missing"),
        (f"{DIRECT}, gates: 5}}", "gates: must be 0, one per head (4) or one per element (64); got 5"),
        ("{kind: mamba2, inner: 100, heads: 8, head_dim: 16, state: 16, groups: 2, taps: 4, chunk: 32}",
         "inner: must be heads x head_dim, 128; got 100"),
        ("{kind: mamba, inner: 128, state: 16, taps: 0, step_rank: 4}",
         "taps: must be a whole number of at least 1; got 0"),
        ("{kind: gated_delta_net, key_heads: 3, value_heads: 4, key_dim: 16, value_dim: 8, taps: 4}",
         "key_heads: must divide value_heads, 4; got 3"),
        ("{kind: hyena, taps: 3, states: 4, groups: 7}", "groups: must divide hidden_size, 64; got 7"),
    ],
)  # fmt: skip
def test_fields_that_contradict_each_other_are_refused(described, layer, error):
    path = described(f"  vocab_size: 100\n  hidden_size: {D}\n  layers: [{{mixer: {layer}}}]\n")
    with pytest.raises(InputError) as caught:
        load_model(path)
    assert str(caught.value) == f"{path}: config.layers[0].mixer.{error}"


def test_layers_are_limited_together(described):
    layer = "{repeat: 9000, feed_forward: {kind: mlp, inner: 8}}"
    path = described(f"  vocab_size: 100\n  hidden_size: {D}\n  layers: [{layer}, {layer}]\n")
    with pytest.raises(InputError, match=r"layers\[1\].repeat: must make at most 10000 layers of all; got 18000$"):
        load_model(path)


WRONG = (0, -1, 7, 2**53, 2**60, 1.5, float("inf"), float("nan"), "x", "", None, True, [], [1], {}, {"a": 1}, 10**40)


def test_mutated_descriptions_load_or_end_in_one_line(tmp_path):
    """Wrong types, missing and further keys, extreme counts, and anchors that contain themselves."""
    rng, path = random.Random(33), tmp_path / "mine.yaml"
    errors = []
    for place, part, *_ in PARTS * 8:
        layer = {"repeat": 2, place: yaml.safe_load(part)}
        config = {"model_type": "described", "vocab_size": 100, "hidden_size": D, "layers": [layer], "mtp": {}}
        target = rng.choice([config, layer, layer[place], layer[place]])
        key = rng.choice([*target, "further"])
        target[key] = rng.choice([*WRONG, target])
        if rng.random() < 0.1:
            del target[key]
        file = {"name": "mine", "title": "Mine", "source": {"repository": "none", "file": "mine"}, "config": config}
        path.write_text(yaml.dump(file, sort_keys=False), encoding="utf-8")
        try:
            assert load_model(str(path)).parameters > 0
        except InputError as error:
            errors.append(str(error))
    assert len(errors) > 80
    assert not [error for error in errors if "\n" in error or len(error) > 500]


def meanings(kind):
    """The explanation of each field in the docstring of a class."""
    descriptions, name = {}, ""
    for line in cleandoc(kind.__doc__).splitlines():
        if match := re.match(r"(\w+) {2,}(.*)$", line):
            name, descriptions[match[1]] = match[1], match[2]
        elif name and line.startswith(" " * 4):
            descriptions[name] += " " + line.strip()
        else:
            name = ""
    return descriptions


def tables():
    """The tables of docs/descriptions.md."""
    named = [("Mixer", MIXERS), ("Feed-forward network", FEED_FORWARD)]
    every = [(f"{role} `{name}`", kind) for role, kinds in named for name, kind in kinds.items()]
    every.append(("Mapping `index` of `latent_attention`", NESTED["Index | None"]))
    return "\n".join(f"### {title}\n\n{summary(kind)}\n\n{table(kind)}" for title, kind in every)


def summary(kind):
    return " ".join(cleandoc(kind.__doc__).partition("\n\n")[0].split())


def table(kind):
    descriptions = HEADS | meanings(kind)
    rows = [
        (f"`{key.name}`", key.values, key.default or "must be given", descriptions[key.name]) for key in keys_of(kind)
    ]
    lines = [("key", "value", "default", "meaning"), ("---",) * 4, *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


HEADS = {  # keys of several fields at once
    "num_heads": "heads of queries",
    "num_kv_heads": "heads of keys and values",
    "head_dim": "elements of a head of queries and keys",
    "value_dim": "elements of a head of values; 0: head_dim",
    "window": "keys that a query sees, its own included",
    "chunk": "a query sees the keys of its own chunk of so many tokens",
    "n_group": "groups of experts that the router chooses first",
    "topk_group": "groups that a token's experts are in",
}


def test_the_documentation_lists_every_part_with_its_keys():
    assert DOCUMENT.read_text(encoding="utf-8").partition(MARK)[2] == tables()


if __name__ == "__main__":
    intro = DOCUMENT.read_text(encoding="utf-8").partition(MARK)[0]
    DOCUMENT.write_text(f"{intro}{MARK}{tables()}", encoding="utf-8")
