"""GR00T N1.5: an Eagle vision-language model, of whose language model 12 layers run, and a diffusion transformer that
cross-attends to its features and denoises a chunk of actions (arXiv:2503.14734).

Sizes of the backbone, which its config names by a path alone, are those of SigLIP 2 So400m and Qwen3 1.7B. Keys and
values of the features, which no step changes, are computed once; the reference computes them in every step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..documents import Section
from ..forms import ONE, SEQUENCES, SOURCE, denoising, table_rows
from ..graph import Actions, Block, Graph
from ..operators.attention import Heads
from ..operators.base import Operator, Tensor
from ..operators.masks import UncachedCausal
from ..precision import Format
from . import architecture
from .blocks.actions import (
    CONDITION,
    Modulated,
    acting_blocks,
    modulation,
    per_sequence,
    prefix,
    project,
    side_by_side,
    waves,
)
from .blocks.attention import SelfAttention
from .blocks.decoder import Layer
from .blocks.encoder import ENCODED, CrossAttention, bidirectional, leaving, stack
from .blocks.feed_forward import Mlp
from .blocks.fields import filled
from .blocks.parts import HIDDEN, NormKind, Parts, result, with_rows
from .blocks.tower import UNUSED, auxiliary_block, joined, part, patches_of, projector, unused_weights
from .llama import FAMILIES
from .siglip import plain_tower, pooled_head

_TOWER: Final = {
    "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
    "image_size": 224, "patch_size": 14,
}  # fmt: skip
_TEXT: Final = {
    "model_type": "qwen3", "vocab_size": 151680, "hidden_size": 2048, "intermediate_size": 6144,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": False,
}  # fmt: skip
_DIT: Final = {
    "num_attention_heads": 32, "attention_head_dim": 48, "num_layers": 16, "cross_attention_dim": 2048,
    "output_dim": 1024,
}  # fmt: skip
_SELF: Final = {"num_attention_heads": 32, "attention_head_dim": 64, "num_layers": 4}
_IGNORED: Final = """
    attn_implementation compute_dtype model_dtype hidden_size tune_llm tune_visual reproject_vision use_flash_attention
    eagle_path load_bf16 dropout final_dropout norm_type positional_embeddings noise_beta_alpha noise_beta_beta noise_s
    num_timestep_buckets tune_projector tune_diffusion_model max_action_dim backbone_embedding_dim expand_batch
    load_pretrained_det_decode_layer_path detection_coeff freeze_decode_layer
"""
_WAVES: Final = 256


@architecture("gr00t_n1_5")
def build(config: Section, fmt: Format) -> Graph:
    """GR00T N1.5: an Eagle vision-language backbone and a diffusion transformer that denoises actions."""
    sections = [config, part(config, "backbone_cfg"), part(config, "action_head_cfg")]
    _, backbone, head = sections
    dit, vl_config = part(head, "diffusion_model_cfg"), part(head, "vl_self_attention_cfg")
    for section in (*sections, dit, vl_config):
        section.ignore(*_IGNORED.split())
    dit, vl_config = filled(dit, _DIT), filled(vl_config, _SELF)
    if backbone.get("project_to_dim") is not None:
        raise backbone.error("project_to_dim", "must be null, as in N1.5: other backbones are not known here")
    if not head.flag("use_vlln", default=True) or not dit.flag("interleave_self_attention", default=True):
        raise config.error("action_head_cfg", "must have use_vlln and interleave_self_attention, as in N1.5")
    horizon = head.integer("action_horizon", config.integer("action_horizon", 16))
    config.ignore("action_horizon", "action_dim")
    vlm, width = _backbone(backbone, fmt)
    parts = Parts(format=fmt, norm_kind=NormKind.LAYER)
    features = _features(vl_config, parts, width)
    state, embed = _embedding(head, parts, horizon)
    hidden = head.integer("input_embedding_dim", 1536)
    blocks = (embed, _time(parts, hidden), *_layers(dit, parts, hidden, width), _head(head, dit, parts, hidden))
    stream = denoising(1 + head.integer("num_target_vision_tokens", 32) + horizon)
    steps = head.integer("num_inference_timesteps", 4)
    return Graph((*vlm, *features, state, *acting_blocks(blocks, stream)), actions=Actions(count=horizon, steps=steps))


def _backbone(config: Section, fmt: Format) -> tuple[tuple[Block, ...], int]:
    """Tower, one linear and the first layers of the language model, whose head is held and not run."""
    text = Section({**_TEXT, "num_hidden_layers": config.count("select_layer", 12)}, config.file)
    section = Section(_TOWER, config.file)
    tower, width = plain_tower(section), text.integer("hidden_size")
    parts = tower.parts(fmt)
    unused = (replace(b, name=f"unused_{b.name}", stream=UNUSED) for b in pooled_head(section, tower, fmt))
    blocks = (*tower.blocks(fmt, tower.stream), *unused)
    project = projector(parts, patches_of(tower, parts), (width,), "gelu", bias=True)
    vlm = joined(blocks, project, FAMILIES["qwen3"].graph(text, fmt), tokens=tower.grid.patches)
    head = unused_weights("head", parts, {"lm_head.weight": (text.integer("vocab_size"), width)})
    return (*prefix(vlm, UncachedCausal()), auxiliary_block(head, name="unused")), width


def _heads(config: Section) -> Heads:
    count, each = config.integer("num_attention_heads"), config.integer("attention_head_dim")
    return bidirectional(Heads(num_heads=count, num_kv_heads=count, head_dim=each))


def _features(config: Section, parts: Parts, width: int) -> tuple[Block, ...]:
    """A norm of the language model's features, and layers in which they attend to each other."""
    heads = _heads(config)
    if heads.q_width != width:
        raise config.error("attention_head_dim", f"must give heads as wide as the features, {width} in all")
    layer = Layer(
        mixer=SelfAttention(heads=heads, qkv_bias=True, o_bias=True),
        feed_forward=Mlp(inner=4 * width, act="gelu_tanh", bias=True),
        name="features",
    )
    norm = parts.norm("features_norm", parts.tensor(HIDDEN, width))
    first = Block(name="features_norm", operators=(norm,), input=HIDDEN, output=norm.name, stream=SOURCE)
    layers = stack(parts, [layer] * config.count("num_layers"), width, stream=SOURCE, leaves=ENCODED)
    return (first, *layers)


def _of_robot(parts: Parts, name: str, x: Tensor, width: int, robots: int) -> Operator:
    """A projection with a matrix and a bias for each of `robots` kinds of robot, of which a sequence uses one."""
    linear = project(parts, name, x, width)
    if robots == 1:
        return linear
    others = replace(parts.weight(f"{name}.others", width, (robots - 1) * (x.width + 1)), rows=0 * ONE, active=0)
    return replace(linear, weights=(*linear.weights, others))


def _embedding(config: Section, parts: Parts, horizon: int) -> tuple[Block, Block]:
    """The state, which is read once; and in every step its token, learned tokens and the actions."""
    robots, inner = config.integer("max_num_embodiments", 32), config.integer("hidden_size", 1024)
    hidden, dims = config.integer("input_embedding_dim", 1536), config.integer("action_dim", 32)
    learned, positions = config.integer("num_target_vision_tokens", 32), config.integer("max_seq_len", 1024)
    one = per_sequence(parts, "state", config.integer("max_state_dim", 64))
    first = _of_robot(parts, "state_1", one, inner, robots)
    act = parts.activate("state_act", "relu", first.result)
    second = _of_robot(parts, "state_2", act.result, hidden, robots)
    state = Block(name="state", operators=(first, act, second), input="state", output=second.result.name, stream=SOURCE)
    rows = horizon * SEQUENCES
    encoded = _of_robot(parts, "action_1", with_rows(parts.tensor("actions", dims), rows), hidden, robots)
    time = waves(parts, hidden)
    joined_tensor = side_by_side(parts, "action_time", rows, encoded.result, time.result, width=2 * hidden)
    mixed = _of_robot(parts, "action_2", joined_tensor.result, hidden, robots)
    swish = parts.activate("action_act", "silu", mixed.result)
    operators: tuple[Operator, ...] = (
        encoded,
        time,
        joined_tensor,
        mixed,
        swish,
        _of_robot(parts, "action_3", swish.result, hidden, robots),
    )
    if config.flag("add_pos_embed", default=True):
        table = replace(parts.weight("positions.weight", positions, hidden), rows=table_rows(positions))
        add = replace(parts.elementwise("position_add", result(operators), ops=1), weights=(table,))
        operators = (*operators, add.with_tensors(lambda t: with_rows(t, rows)))
    future = parts.embed("future", {"future.weight": learned}, hidden)
    future = future.with_tensors(lambda t: with_rows(t, learned * SEQUENCES))
    tokens = parts.tensor("tokens", hidden)
    join = side_by_side(parts, tokens.name, tokens.rows, second.result, future.result, result(operators))
    embed = Block(
        name="embedding",
        operators=(*operators, future, join),
        input="actions",
        output=tokens.name,
        side_inputs=(second.result.name,),
    )
    return state, embed


def _time(parts: Parts, hidden: int) -> Block:
    time = waves(parts, _WAVES)
    first = project(parts, "time_1", time.result, hidden)
    act = parts.activate("time_act", "silu", first.result)
    operators = (time, first, act, project(parts, "time_2", act.result, hidden))
    return Block(name="condition", operators=leaving(operators, CONDITION), input="", output=CONDITION)


def _layers(config: Section, parts: Parts, hidden: int, width: int) -> list[Block]:
    """Layers that attend to the features and to the actions in turn."""
    heads = _heads(config)
    if heads.q_width != hidden:
        raise config.error("attention_head_dim", f"must give heads as wide as input_embedding_dim, {hidden} in all")
    if config.integer("cross_attention_dim") != width:
        raise config.error("cross_attention_dim", f"must be the width of the features, {width}")
    cross = CrossAttention(heads=heads, encoded_width=width, q_bias=True, k_bias=True, v_bias=True, o_bias=True)
    self_layer = Modulated(
        mixer=SelfAttention(heads=heads, qkv_bias=True, o_bias=True),
        feed_forward=Mlp(inner=4 * hidden, act="gelu_tanh", bias=True),
        name="self",
        given=(CONDITION,),
        norm=NormKind.PLAIN,
        gates=False,
        condition=hidden,
    )
    seeing = replace(self_layer, mixer=cross, name="cross", given=(CONDITION, ENCODED))
    return stack(parts, [self_layer if n % 2 else seeing for n in range(config.count("num_layers"))], hidden)


def _head(head: Section, config: Section, parts: Parts, hidden: int) -> Block:
    """The last norm, modulated, a projection, and an MLP of the kind of robot; actions take a step along the result."""
    robots, inner = head.integer("max_num_embodiments", 32), head.integer("hidden_size", 1024)
    dims, out = head.integer("action_dim", 32), config.integer("output_dim")
    if out != inner:
        raise config.error("output_dim", f"must be the hidden_size of the action head, {inner}; got {out}")
    modulation_ops, numbers = modulation(parts, "final", hidden, 2 * hidden, act=True)
    norm = parts.norm("final_norm", parts.tensor(HIDDEN, hidden), kind=NormKind.PLAIN)
    scaled = parts.elementwise("final_modulated", norm.result, numbers, ops=2)
    linear = parts.project("proj_out", scaled.result, out, bias=True)
    first = _of_robot(parts, "decode_1", linear.result, inner, robots)
    act = parts.activate("decode_act", "relu", first.result)
    second = _of_robot(parts, "decode_2", act.result, dims, robots)
    step = parts.elementwise("step", second.result, ops=2)
    operators = (*modulation_ops, norm, scaled, linear, first, act, second, step)
    return Block(name="head", operators=operators, input=HIDDEN, output=step.name, side_inputs=(CONDITION,))
