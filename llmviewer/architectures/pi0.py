"""pi0, pi0.5, pi0-FAST and SmolVLA: robot policies of a vision-language model and an action expert (arXiv:2410.24164,
arXiv:2504.16054, arXiv:2501.09747, arXiv:2506.01844).

Configs are those of transformers (vlm_config, dit_config) or of LeRobot policies, which name their variant and say the
rest by their type. Images are those of the cameras (--images 3 for most robots of pi0).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil
from typing import Final

from ..documents import Section
from ..forms import SEQUENCES, SOURCE, denoising
from ..graph import Actions, Block, Graph
from ..operators.base import Operator, Tensor
from ..precision import Format
from ..records import frozen
from . import architecture, builder
from .blocks.actions import (
    CONDITION,
    ActionAttention,
    Modulated,
    acting_blocks,
    modulation,
    per_sequence,
    prefix,
    project,
    side_by_side,
    waves,
)
from .blocks.decoder import Layer
from .blocks.encoder import leaving, stack
from .blocks.feed_forward import Mlp
from .blocks.fields import filled, grouped_heads
from .blocks.parts import HIDDEN, NormKind, Parts, activation, result, with_rows
from .blocks.tower import auxiliary_block, part, unused_weights
from .idefics import behind_squares
from .siglip import plain_tower

_GEMMA: Final = {  # by the variants of openpi's gemma.py
    "gemma_300m": {"hidden_size": 1024, "num_hidden_layers": 18, "intermediate_size": 4096},
    "gemma_2b": {"hidden_size": 2048, "num_hidden_layers": 18, "intermediate_size": 16384},
}
_HEADS: Final = {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256}
_VOCABULARY: Final = 257152
_SIGLIP: Final = {
    "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
    "num_attention_heads": 16, "image_size": 224, "patch_size": 14, "vision_use_head": False,
}  # fmt: skip
_SMOLVLM: Final = "HuggingFaceTB/SmolVLM2-500M-Video-Instruct"  # an image of 512 x 512 pixels is one tile
_SMOLVLM_TOWER: Final = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "image_size": 512, "patch_size": 16,
}  # fmt: skip
_SMOLVLM_TEXT: Final = {
    "model_type": "llama", "hidden_size": 960, "intermediate_size": 2560, "num_attention_heads": 15,
    "num_key_value_heads": 5, "head_dim": 64, "vocab_size": 49280,
}  # fmt: skip
_SMOLVLM_SIDE: Final = 4  # patches to a side of a token
_IGNORED: Final = """
    type n_obs_steps input_features output_features normalization_mapping device use_amp use_peft push_to_hub repo_id
    private tags license pretrained_path dtype compile_model compile_mode gradient_checkpointing train_expert_only
    freeze_vision_encoder train_state_proj optimizer_lr optimizer_betas optimizer_eps optimizer_weight_decay
    optimizer_grad_clip_norm scheduler_warmup_steps scheduler_decay_steps scheduler_decay_lr tokenizer_max_length
    n_action_steps adapt_to_pi_aloha use_delta_joint_actions_aloha proj_width attention_implementation rtc_config
    resize_imgs_with_padding empty_cameras add_image_special_tokens load_vlm_weights prefix_length pad_language_to
    use_cache min_period max_period time_sampling_beta_alpha time_sampling_beta_beta time_sampling_scale
    time_sampling_offset loss_reduction max_state_dim text_tokenizer_name action_tokenizer_name temperature
    max_decoding_steps fast_skip_tokens validate_action_token_prefix use_kv_cache use_relative_actions
    relative_exclude_joints action_feature_names image_keys
"""


@architecture("pi0")
def build(config: Section, fmt: Format) -> Graph:
    """The expert sees the robot's state as a token, which does not see the actions."""
    vlm, expert = _parts_of(config)
    chunk, state_dims = Chunk.of(config), config.integer("max_state_dim", 32)
    count, layers = chunk.count, expert.count("num_hidden_layers")
    parts, hidden, stream = Parts(format=fmt), expert.integer("hidden_size"), denoising(count + 1)
    rows = count * SEQUENCES
    state = project(parts, "state_proj", per_sequence(parts, "state", state_dims), hidden)
    actions = project(parts, "action_in_proj", with_rows(parts.tensor("actions", chunk.dims), rows), hidden)
    time = waves(parts, hidden)
    joined_tensor = side_by_side(parts, "action_time", rows, actions.result, time.result, width=2 * hidden)
    first = project(parts, "action_time_mlp_in", joined_tensor.result, hidden)
    act = parts.activate("action_time_act", "silu", first.result)
    second = project(parts, "action_time_mlp_out", act.result, hidden)
    join = side_by_side(parts, "tokens", (count + 1) * SEQUENCES, state.result, second.result)
    embed = (actions, time, joined_tensor, first, act, second, replace(join, outputs=(parts.tensor("tokens", hidden),)))
    attention = ActionAttention(heads=grouped_heads(expert), own=(count + 1) ** 2 - count)
    layer = Layer(mixer=attention, feed_forward=_mlp(expert))
    norm = (parts.norm("final_norm", parts.tensor(HIDDEN, hidden)),)
    first_block, *blocks = chunk.expert(parts, embed, [layer] * layers, norm)
    read = Block(name="state", operators=(state,), input="state", output=state.result.name)
    every = acting_blocks((read, replace(first_block, side_inputs=(read.output,)), *blocks), stream)
    unused_block = _unused(parts, expert, vocab=expert.integer("vocab_size"))
    steps = config.integer("num_inference_steps", 10)
    return Graph((*prefix(vlm(fmt)), unused_block, *every), actions=Actions(count=count, steps=steps))


@architecture("pi05")
def build_pi05(config: Section, fmt: Format) -> Graph:
    """The state is part of the prompt's words; the time scales, shifts and gates every branch."""
    vlm, expert = _parts_of(config)
    chunk, layers = Chunk.of(config), expert.count("num_hidden_layers")
    parts, hidden, stream = Parts(format=fmt), expert.integer("hidden_size"), denoising(chunk.count)
    x = parts.tensor("actions", chunk.dims)
    actions = parts.linear("action_in_proj", x, parts.tensor("tokens", hidden), bias=True)
    attention = ActionAttention(heads=grouped_heads(expert), own=chunk.count**2)
    layer = Modulated(mixer=attention, feed_forward=_mlp(expert), condition=hidden, given=(CONDITION,))
    norm = parts.norm("final_norm", parts.tensor(HIDDEN, hidden), kind=NormKind.UNIT)
    modulation_ops, numbers = modulation(parts, "final", hidden, 3 * hidden)
    scaled = parts.elementwise("final_modulated", norm.result, replace(numbers, width=2 * hidden), ops=2)
    first, *blocks = chunk.expert(parts, (actions,), [layer] * layers, (*modulation_ops, norm, scaled))
    blocks[-1] = replace(blocks[-1], side_inputs=(CONDITION,))
    unused_block = _unused(parts, expert, vocab=_VOCABULARY)
    steps = config.integer("num_inference_steps", 10)
    every = acting_blocks((first, _condition(parts, hidden), *blocks), stream)
    return Graph((*prefix(vlm(fmt)), unused_block, *every), actions=Actions(count=chunk.count, steps=steps))


@architecture("pi0_fast")
def build_fast(config: Section, fmt: Format) -> Graph:
    """PaliGemma alone, which writes a chunk of actions as compressed tokens; max_action_tokens of them at most."""
    vlm, _ = _parts_of(config)
    tokens = config.integer(config.first("max_action_tokens", "max_decoding_steps"), 256)
    actions = Actions(count=config.integer("chunk_size", 50), steps=tokens, denoising=False)
    config.ignore("max_action_dim", "action_expert_variant", "num_inference_steps")
    return replace(vlm(fmt), actions=actions)


@architecture("smolvla")
def build_smolvla(config: Section, fmt: Format) -> Graph:
    """Half of SmolVLM2's layers; those of the expert attend to the prompt, and every second one also to the actions,
    which see those before them. The state is a token of the prompt.
    """
    config.ignore(*_IGNORED.split())
    named = config.text("vlm_model_name", _SMOLVLM)
    if named != _SMOLVLM:
        raise config.error("vlm_model_name", f"must be {_SMOLVLM}, whose sizes are known here; got {named!r}")
    if (mode := config.text("attention_mode", "cross_attn")) != "cross_attn":
        raise config.error("attention_mode", f"must be cross_attn, as in the published model; got {mode!r}")
    layers = config.count("num_vlm_layers", 16)
    section = Section({**_SMOLVLM_TEXT, "num_hidden_layers": layers}, config.file)
    width, words = section.integer("hidden_size"), section.integer("vocab_size")
    hidden = int(width * config.number("expert_width_multiplier", 0.75))
    every = config.count("self_attn_every_n_layers", 2)
    count = config.count("num_expert_layers", 0, least=-1)
    if count > 0 and count != layers:
        raise config.error("num_expert_layers", f"must be 0 or the {layers} layers of num_vlm_layers; got {count}")
    chunk, state_dims = Chunk.of(config), config.integer("max_state_dim", 32)
    parts, stream, heads = Parts(format=fmt), denoising(chunk.count), grouped_heads(section)
    mlp = Mlp(inner=_smol_inner(hidden), act="silu", gated=True)
    both_sides = ActionAttention(heads=heads, own=chunk.count * (chunk.count + 1) // 2)
    prompt_only = ActionAttention(heads=heads, own=0, projected=heads.kv_width)
    self_layer = Layer(mixer=both_sides, feed_forward=mlp, name="self")
    cross = Layer(mixer=prompt_only, feed_forward=mlp, name="cross")
    actions = project(parts, "action_in_proj", parts.tensor("actions", chunk.dims), hidden)
    time = waves(parts, hidden)
    joined_tensor = parts.tensor("action_time", 2 * hidden)
    join = side_by_side(
        parts, joined_tensor.name, joined_tensor.rows, actions.result, time.result, width=joined_tensor.width
    )
    first = project(parts, "action_time_mlp_in", joined_tensor, hidden)
    act = parts.activate("action_time_act", "silu", first.result)
    embed = (actions, time, join, first, act, project(parts, "action_time_mlp_out", act.result, hidden))
    norm = parts.norm("final_norm", parts.tensor(HIDDEN, hidden))
    each = [self_layer if not n % every else cross for n in range(layers)]
    blocks = chunk.expert(parts, embed, each, (norm,))
    state = _state(parts, state_dims, width)
    tower = plain_tower(Section(_SMOLVLM_TOWER, config.file))
    before = prefix(behind_squares(tower, _SMOLVLM_SIDE, builder(section)(section, fmt), width, fmt))
    head = unused_weights("head", parts, {"lm_head.weight": (words, width)})
    steps = config.integer("num_steps", 10)
    return Graph(
        (*before, state, auxiliary_block(head, name="unused"), *acting_blocks(blocks, stream)),
        actions=Actions(count=chunk.count, steps=steps),
    )


def _smol_inner(hidden: int) -> int:
    """Width of the expert's MLP: 8/3 of its hidden size, rounded up to a multiple of 256."""
    return ceil(4 * int(2 * hidden / 3) / 256) * 256


def _parts_of(config: Section) -> tuple[Callable[[Format], Graph], Section]:
    """Builder of the vision-language model, and config of the action expert."""
    config.ignore(*_IGNORED.split())
    variant = config.choice("action_expert_variant", _GEMMA, "gemma_300m")
    expert = filled(part(config, "dit_config"), {**_GEMMA[variant], **_HEADS, "vocab_size": _VOCABULARY})
    expert.ignore("model_type")
    vlm_variant = config.choice("paligemma_variant", _GEMMA, "gemma_2b")
    text = {"model_type": "gemma", **_GEMMA[vlm_variant], **_HEADS, "vocab_size": _VOCABULARY}
    sides = config.get("image_resolution") or [_SIGLIP["image_size"]] * 2
    image = {**_SIGLIP, "image_size": sides}
    vlm = part(config, "vlm_config")
    sections = {key: vlm.get(key) or {} for key in ("text_config", "vision_config")}
    merged = {
        "text_config": {**text, **sections["text_config"]},
        "vision_config": {**image, **sections["vision_config"]},
    }
    vlm_config = filled(vlm, {"model_type": "paligemma"}, instead=merged)
    return lambda fmt: builder(vlm_config)(vlm_config, fmt), expert


def _mlp(config: Section) -> Mlp:
    act = activation(config, config.first("hidden_activation", "hidden_act"), "gelu_pytorch_tanh")
    return Mlp(inner=config.integer("intermediate_size"), act=act, gated=True)


@frozen(kw_only=True)
class Chunk:
    """The actions that an inference makes: `count` of `dims` numbers each."""

    count: int
    dims: int

    @classmethod
    def of(cls, config: Section) -> Chunk:
        return cls(count=config.integer("chunk_size", 50), dims=config.integer("max_action_dim", 32))

    def expert(
        self, parts: Parts, embed: tuple[Operator, ...], layers: Sequence[Layer], norm: tuple[Operator, ...]
    ) -> list[Block]:
        """Embedding of actions, layers, and a step along the velocities that the last norm's result is projected to."""
        rows = self.count * SEQUENCES
        x = with_rows(result(norm), rows)
        velocity = project(parts, "action_out_proj", x, self.dims)
        step = parts.elementwise("step", velocity.result, ops=2).with_tensors(lambda t: with_rows(t, rows))
        return [
            Block(name="embedding", operators=embed, input="actions", output=result(embed).name),
            *stack(parts, layers, x.width),
            Block(name="head", operators=(*norm, velocity, step), input=HIDDEN, output=step.name),
        ]


def _condition(parts: Parts, hidden: int) -> Block:
    """Two linears of the time's waves, with SiLU after each."""
    time = waves(parts, hidden)
    x: Tensor = time.result
    operators: tuple[Operator, ...] = (time,)
    for name in ("time_mlp_in", "time_mlp_out"):
        linear = project(parts, name, x, hidden)
        operators = (*operators, linear, parts.activate(f"{name}_act", "silu", linear.result))
        x = result(operators)
    return Block(name="condition", operators=leaving(operators, CONDITION), input="", output=CONDITION)


def _unused(parts: Parts, expert: Section, vocab: int) -> Block:
    """A table of words that the expert has and never reads."""
    return auxiliary_block(
        unused_weights("table", parts, {"words.weight": (vocab, expert.integer("hidden_size"))}), name="unused"
    )


def _state(parts: Parts, dims: int, hidden: int) -> Block:
    """The robot's state as a token of the prompt."""
    embed = project(parts, "state_proj", per_sequence(parts, "state", dims), hidden)
    return Block(name="state", operators=(embed,), input="state", output=embed.result.name, stream=SOURCE)
