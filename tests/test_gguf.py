"""GGUF files of every supported architecture: parameters and bytes equal those of their tensors.

The names and shapes of tensors are those that llama.cpp's converters write (conversion/*.py). A tensor is said as
name=columns,rows,experts; + behind it adds a bias of as many elements as its last dimension.
"""

from __future__ import annotations

import re
from math import prod

import pytest

from llmviewer.errors import InputError
from llmviewer.forms import evaluate
from llmviewer.memory import weight_bytes
from llmviewer.model_files import load_model
from llmviewer.operators.attention import QK
from llmviewer.operators.linear import ExpertsLinear, Linear
from llmviewer.operators.state_space import Scan
from llmviewer.setting import Setting
from llmviewer.stored.gguf_architectures import ARCHITECTURES
from llmviewer.workload import Workload

from .gguf_bytes import F16, F32, Q8_0, header

LAYERS, VOCAB, EXPERTS, CHOSEN = 4, 320, 8, 2
H, Q, K, D = 256, 256, 128, 64  # hidden, queries, keys, head
F, M, S = 512, 128, 192  # widths of an MLP, an expert, a shared expert
SIZES = {
    "H": H, "Q": Q, "K": K, "D": D, "F": F, "M": M, "S": S, "E": EXPERTS, "V": VOCAB, "QKV": Q + 2 * K, "3H": 3 * H,
    "4H": 4 * H, "2F": 2 * F, "2Q": 2 * Q, "H+2D": H + 2 * D,
}  # fmt: skip
BITS = {F32: 32, F16: 16, Q8_0: 8.5}
HEADS, KV_HEADS = 4, 2
METADATA = {
    "block_count": LAYERS,
    "context_length": 2048,
    "embedding_length": H,
    "feed_forward_length": F,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
NORMS, LAYER_NORMS = "attn_norm=H ffn_norm=H", "attn_norm=H+ ffn_norm=H+"
INNER = "post_attention_norm=H post_ffw_norm=H"
SANDWICH = f"{NORMS} {INNER}"
GROUPED = "attn_q=H,Q attn_k=H,K attn_v=H,K attn_output=Q,H"
QKV_BIAS = "attn_q=H,Q+ attn_k=H,K+ attn_v=H,K+ attn_output=Q,H"
ALL_BIAS = "attn_q=H,Q+ attn_k=H,K+ attn_v=H,K+ attn_output=Q,H+"
MULTI = "attn_q=H,Q attn_k=H,Q attn_v=H,Q attn_output=Q,H"
FUSED = "attn_qkv=H,QKV attn_output=Q,H"
HEAD_NORMS, WHOLE_NORMS = "attn_q_norm=D attn_k_norm=D", "attn_q_norm=Q attn_k_norm=K"
GATED, PLAIN, PLAIN_BIAS = (
    "ffn_gate=H,F ffn_up=H,F ffn_down=F,H",
    "ffn_up=H,F ffn_down=F,H",
    "ffn_up=H,F+ ffn_down=F,H+",
)
GATE_UP = "ffn_up=H,2F ffn_down=F,H"
ROUTER = "ffn_gate_inp=H,E"
MIXTRAL = f"{ROUTER} ffn_gate_exps=H,F,E ffn_up_exps=H,F,E ffn_down_exps=F,H,E"
MOE = f"{ROUTER} ffn_gate_exps=H,M,E ffn_up_exps=H,M,E ffn_down_exps=M,H,E"
SHARED = "ffn_gate_shexp=H,M ffn_up_shexp=H,M ffn_down_shexp=M,H"
SHARED_WIDE = "ffn_gate_shexp=H,S ffn_up_shexp=H,S ffn_down_shexp=S,H"
QWEN_SHARED = f"ffn_gate_inp_shexp=H {SHARED_WIDE}"
TOP, BARE = "token_embd=H,V output_norm=H output=H,V", "token_embd=H,V output_norm=H"
LAYER_TOP = "token_embd=H,V output_norm=H+ output=H,V"
DELTA = "ssm_a=4 ssm_dt.bias=4 ssm_conv1d=4,768 ssm_norm=64 ssm_out=256,H"
MIX_NORMS = "attn_norm=H post_attention_norm=H"
QKVZ = f"{MIX_NORMS} attn_qkv=H,768 attn_gate=H,256 {DELTA}"
GATED_ATTENTION = f"{MIX_NORMS} attn_q=H,2Q attn_k=H,K attn_v=H,K attn_output=Q,H attn_q_norm=D attn_k_norm=D"
SINKS = "attn_sinks=4 ffn_gate_inp=H,E+ ffn_gate_exps=H,M,E ffn_up_exps=H,M,E ffn_down_exps=M,H,E"
EXPERT_BIASES = "ffn_gate_exps.bias=M,E ffn_up_exps.bias=M,E ffn_down_exps.bias=H,E"
SELECTIVE = "attn_norm=H ssm_in=H,2F ssm_conv1d=4,F+ ssm_x=F,64 ssm_dt=32,F+ ssm_a=16,F ssm_d=F ssm_out=F,H"
LATENT = "attn_q_a=H,96 attn_q_a_norm=96 attn_q_b=96,384 attn_kv_a_mqa=H,96 attn_kv_a_norm=64 attn_output=256,H"

CHOOSES = {"expert_count": EXPERTS, "expert_used_count": CHOSEN}
CHOOSES_NARROW = {**CHOOSES, "expert_feed_forward_length": M}
DENSE_FIRST = {**CHOOSES_NARROW, "expert_shared_count": 1, "leading_dense_block_count": 1}
HALF = {"rope.dimension_count": D // 2}
WINDOW = {"attention.sliding_window": 100}
EQUAL = {"attention.head_count_kv": HEADS}
DELTA_KEYS = {
    "ssm.conv_kernel": 4, "ssm.state_size": 64, "ssm.group_count": 4, "ssm.time_step_rank": 4, "ssm.inner_size": 256,
    "full_attention_interval": 4, "attention.key_length": D, "rope.dimension_count": 16,
}  # fmt: skip
MLA = {
    "attention.q_lora_rank": 96, "attention.kv_lora_rank": 64, "attention.key_length": 96, "attention.value_length": 64,
    "attention.key_length_mla": 96, "attention.value_length_mla": 64, "rope.dimension_count": 32,
    "attention.head_count_kv": 1,
}  # fmt: skip
NO_HEADS = {"attention.head_count": 0, "attention.head_count_kv": None, "feed_forward_length": 0}


# name: (architecture, model_type, metadata besides, tensors of no layer, of each layer, of the layers that differ)
CASES = {
    "arcee": ("arcee", "arcee", {}, TOP, f"{NORMS} {GROUPED} {PLAIN}", {}),
    "baichuan": ("baichuan", "baichuan", EQUAL, TOP, f"{NORMS} {MULTI} {GATED}", {}),
    "bloom": ("bloom", "bloom", {"feed_forward_length": 4 * H, **EQUAL},
              "token_embd=H,V token_embd_norm=H+ output_norm=H+ output=H,V",
              f"{LAYER_NORMS} attn_qkv=H,3H+ attn_output=H,H+ ffn_up=H,4H+ ffn_down=4H,H+", {}),
    "chatglm": ("chatglm", "glm", HALF, TOP, f"{NORMS} attn_qkv=H,QKV+ attn_output=Q,H {GATE_UP}", {}),
    "command-r": ("command-r", "cohere", {}, BARE, f"attn_norm=H {GROUPED} {GATED}", {}),
    "command-r-plus": ("command-r", "cohere", {}, BARE,
                       f"attn_norm=H {GROUPED} {GATED} attn_q_norm=D,4 attn_k_norm=D,2", {}),
    "cohere2": ("cohere2", "cohere2", WINDOW, BARE, f"attn_norm=H {GROUPED} {GATED}", {}),
    "deepseek2": ("deepseek2", "deepseek_v3", {**MLA, **DENSE_FIRST}, TOP,
                  f"{NORMS} {LATENT} attn_k_b=64,64,4 attn_v_b=64,64,4 {MOE} {SHARED} exp_probs_b.bias=E",
                  {0: f"{NORMS} {LATENT} attn_k_b=64,64,4 attn_v_b=64,64,4 {GATED}"}),
    "deepseek2 before its cut": (
        "deepseek2", "deepseek_v3",
        {**MLA, **DENSE_FIRST, "attention.key_length_mla": None, "attention.value_length_mla": None,
         "attention.head_count_kv": 4, "attention.q_lora_rank": None}, TOP,
        f"{NORMS} attn_q=H,384 attn_kv_a_mqa=H,96 attn_kv_a_norm=64 attn_kv_b=64,512 attn_output=256,H {MOE} {SHARED}",
        {0: f"{NORMS} attn_q=H,384 attn_kv_a_mqa=H,96 attn_kv_a_norm=64 attn_kv_b=64,512 attn_output=256,H {GATED}"}),
    "dots1": ("dots1", "dots1", DENSE_FIRST, TOP, f"{NORMS} {GROUPED} {HEAD_NORMS} {MOE} {SHARED} exp_probs_b.bias=E",
              {0: f"{NORMS} {GROUPED} {HEAD_NORMS} {GATED}"}),
    "ernie4_5": ("ernie4_5", "ernie4_5", {}, BARE, f"{NORMS} {GROUPED} {GATED}", {}),
    "ernie4_5-moe": ("ernie4_5-moe", "ernie4_5_moe", {**DENSE_FIRST, "interleave_moe_layer_step": 1}, BARE,
                     f"{NORMS} {GROUPED} {MOE} {SHARED} exp_probs_b.bias=E", {0: f"{NORMS} {GROUPED} {GATED}"}),
    "exaone": ("exaone", "exaone", {"rope.dimension_count": D}, TOP, f"{NORMS} {GROUPED} {GATED}", {}),
    "exaone4": ("exaone4", "exaone4", {}, BARE, f"{INNER} {GROUPED} {HEAD_NORMS} {GATED}", {}),
    "exaone4-32b": ("exaone4", "exaone4", {**WINDOW, "attention.sliding_window_pattern": [True, True, True, False]},
                    TOP, f"{INNER} {GROUPED} {HEAD_NORMS} {GATED}", {}),
    "falcon-7b": ("falcon", "falcon", {"feed_forward_length": 4 * H, "attention.head_count_kv": 1}, LAYER_TOP,
                  "attn_norm=H+ attn_qkv=H,H+2D attn_output=H,H ffn_up=H,4H ffn_down=4H,H", {}),
    "falcon-40b": ("falcon", "falcon", {"feed_forward_length": 4 * H}, LAYER_TOP,
                   f"attn_norm=H+ attn_norm_2=H+ {FUSED} ffn_up=H,4H ffn_down=4H,H", {}),
    "falcon2-11b": ("falcon", "falcon", {"feed_forward_length": 4 * H}, LAYER_TOP,
                    f"attn_norm=H+ {FUSED} ffn_up=H,4H ffn_down=4H,H", {}),
    "gemma": ("gemma", "gemma", {"attention.key_length": D}, BARE, f"{NORMS} {GROUPED} {GATED}", {}),
    "gemma2": ("gemma2", "gemma2", {"attention.key_length": D, **WINDOW}, BARE, f"{SANDWICH} {GROUPED} {GATED}", {}),
    "gemma3": ("gemma3", "gemma3_text", {"attention.key_length": D, **WINDOW, "block_count": 7}, BARE,
               f"{SANDWICH} {GROUPED} {HEAD_NORMS} {GATED}", {}),
    "glm4": ("glm4", "glm4", HALF, TOP, f"{SANDWICH} {QKV_BIAS} {GATE_UP}", {}),
    "glm4moe": ("glm4moe", "glm4_moe", {**DENSE_FIRST, **HALF, "nextn_predict_layers": 1, "block_count": LAYERS + 1},
                TOP, f"{MIX_NORMS} {QKV_BIAS} {HEAD_NORMS} {MOE} {SHARED} exp_probs_b.bias=E",
                {0: f"{MIX_NORMS} {QKV_BIAS} {HEAD_NORMS} {GATED}"}),
    "gpt-oss": ("gpt-oss", "gpt_oss",
                {**CHOOSES_NARROW, "attention.key_length": D, "attention.sliding_window": 128}, TOP,
                f"{MIX_NORMS} {ALL_BIAS} {SINKS} {EXPERT_BIASES}", {}),
    "gpt2": ("gpt2", "gpt2", {"attention.head_count_kv": None, "feed_forward_length": 4 * H},
             "token_embd=H,V position_embd=H,2048 output_norm=H+ output=H,V",
             f"{LAYER_NORMS} attn_qkv=H,3H+ attn_output=H,H+ ffn_up=H,4H+ ffn_down=4H,H+", {}),
    "gptneox": ("gptneox", "gpt_neox",
                {"attention.head_count_kv": None, "rope.dimension_count": 16, "use_parallel_residual": True}, LAYER_TOP,
                f"{LAYER_NORMS} attn_qkv=H,3H+ attn_output=H,H+ {PLAIN_BIAS}", {}),
    "granite": ("granite", "granite", {"rope.dimension_count": D}, BARE, f"{NORMS} {GROUPED} {GATED}", {}),
    "granitemoe": ("granitemoe", "granitemoe", {**CHOOSES, "expert_shared_feed_forward_length": S}, BARE,
                   f"{NORMS} {GROUPED} {MIXTRAL} {SHARED_WIDE}", {}),
    "hunyuan-dense": ("hunyuan-dense", "hunyuan_v1_dense", {"attention.key_length": D}, BARE,
                      f"{NORMS} {GROUPED} {HEAD_NORMS} {GATED}", {}),
    "hunyuan-moe": ("hunyuan-moe", "hunyuan_v1_moe",
                    {**CHOOSES_NARROW, "expert_shared_count": 1, "expert_shared_feed_forward_length": F}, TOP,
                    f"{NORMS} {GROUPED} {HEAD_NORMS} {MOE} ffn_gate_shexp=H,F ffn_up_shexp=H,F ffn_down_shexp=F,H", {}),
    "internlm2": ("internlm2", "internlm2", {}, TOP, f"{NORMS} {GROUPED} {GATED}", {}),
    "llama": ("llama", "llama", {"rope.dimension_count": D}, f"{TOP} rope_freqs=32", f"{NORMS} {GROUPED} {GATED}", {}),
    "llama with biases": ("llama", "llama", {}, TOP, f"{NORMS} {ALL_BIAS} {GATED}", {}),
    "mixtral": ("llama", "mixtral", {**CHOOSES, "attention.head_count_kv": [KV_HEADS] * LAYERS}, TOP,
                f"{NORMS} {GROUPED} {MIXTRAL}", {}),
    "mamba": ("mamba", "mamba",
              {**NO_HEADS, "ssm.conv_kernel": 4, "ssm.inner_size": F, "ssm.state_size": 16, "ssm.time_step_rank": 32},
              BARE, SELECTIVE, {}),
    "mamba2": ("mamba2", "mamba2",
               {**NO_HEADS, "ssm.conv_kernel": 4, "ssm.inner_size": F, "ssm.state_size": 32, "ssm.time_step_rank": 8,
                "ssm.group_count": 1}, TOP,
               "attn_norm=H ssm_in=H,1096 ssm_conv1d=4,576+ ssm_dt.bias=8 ssm_a=1,8 ssm_d=1,8 ssm_norm=F,1 ssm_out=F,H",
               {}),
    "minicpm": ("minicpm", "minicpm", {"embedding_scale": 12.0}, f"{BARE} rope_factors_long=32 rope_factors_short=32",
                f"{NORMS} {GROUPED} {GATED}", {}),
    "minimax-m2": ("minimax-m2", "minimax_m2", {**CHOOSES_NARROW, "attention.key_length": D, **HALF}, TOP,
                   f"{NORMS} {GROUPED} {WHOLE_NORMS} {MOE} exp_probs_b.bias=E", {}),
    "mistral3": ("mistral3", "ministral3", {"attention.key_length": D}, TOP, f"{NORMS} {GROUPED} {GATED}", {}),
    "nemotron": ("nemotron", "nemotron", HALF, LAYER_TOP, f"{LAYER_NORMS} {GROUPED} {PLAIN}", {}),
    "olmo": ("olmo", "olmo", {}, "token_embd=H,V output=H,V", f"{GROUPED} {GATED}", {}),
    "olmo2": ("olmo2", "olmo2", {}, TOP, f"{INNER} {GROUPED} {WHOLE_NORMS} {GATED}", {}),
    "olmo3": ("olmo2", "olmo3", {**WINDOW, "attention.sliding_window_pattern": [True, True, True, False]}, TOP,
              f"{INNER} {GROUPED} {WHOLE_NORMS} {GATED}", {}),
    "olmoe": ("olmoe", "olmoe", CHOOSES, TOP, f"{NORMS} {GROUPED} {WHOLE_NORMS} {MIXTRAL}", {}),
    "phi2": ("phi2", "phi", {**HALF, **EQUAL}, f"{LAYER_TOP} output.bias=V",
             "attn_norm=H+ attn_qkv=H,3H+ attn_output=H,H+ ffn_up=H,F+ ffn_down=F,H+", {}),
    "phi2 cut": ("phi2", "phi", {**HALF, **EQUAL}, f"{LAYER_TOP} output.bias=V",
                 "attn_norm=H+ attn_q=H,Q+ attn_k=H,Q+ attn_v=H,Q+ attn_output=H,H+ ffn_up=H,F+ ffn_down=F,H+", {}),
    "phi3": ("phi3", "phi3", {"rope.dimension_count": D, "attention.sliding_window": 0},
             f"{TOP} rope_factors_long=32 rope_factors_short=32", f"{NORMS} {FUSED} {GATE_UP}", {}),
    "phimoe": ("phimoe", "phimoe", {**CHOOSES, "rope.dimension_count": D}, f"{LAYER_TOP} output.bias=V",
               f"{LAYER_NORMS} {ALL_BIAS} {MIXTRAL}", {}),
    "qwen2": ("qwen2", "qwen2", {}, BARE, f"{NORMS} {QKV_BIAS} {GATED}", {}),
    "qwen2moe": ("qwen2moe", "qwen2_moe", {**CHOOSES_NARROW, "expert_shared_feed_forward_length": S}, TOP,
                 f"{NORMS} {QKV_BIAS} {MOE} {QWEN_SHARED}", {}),
    "qwen3": ("qwen3", "qwen3", {"attention.key_length": D}, BARE, f"{NORMS} {GROUPED} {HEAD_NORMS} {GATED}", {}),
    "qwen35": ("qwen35", "qwen3_5_text", DELTA_KEYS, TOP, f"{QKVZ} ssm_beta=H,4 ssm_alpha=H,4 {GATED}",
               {3: f"{GATED_ATTENTION} {GATED}"}),
    "qwen35moe": ("qwen35moe", "qwen3_5_moe_text",
                  {**DELTA_KEYS, **CHOOSES_NARROW, "expert_shared_feed_forward_length": S}, TOP,
                  f"{QKVZ} ssm_beta=H,4 ssm_alpha=H,4 {MOE} {QWEN_SHARED}",
                  {3: f"{GATED_ATTENTION} {MOE} {QWEN_SHARED}"}),
    "qwen3moe": ("qwen3moe", "qwen3_moe", {**CHOOSES_NARROW, "attention.key_length": D}, TOP,
                 f"{NORMS} {GROUPED} {HEAD_NORMS} {MOE}", {}),
    "qwen3next": ("qwen3next", "qwen3_next",
                  {**DELTA_KEYS, **CHOOSES_NARROW, "expert_shared_feed_forward_length": S}, TOP,
                  f"{QKVZ} ssm_ba=H,8 {MOE} {QWEN_SHARED}", {3: f"{GATED_ATTENTION} {MOE} {QWEN_SHARED}"}),
    "seed_oss": ("seed_oss", "seed_oss", {"attention.key_length": D}, TOP,
                 f"{MIX_NORMS} {QKV_BIAS} {GATED}", {}),
    "smollm3": ("smollm3", "smollm3", {}, BARE, f"{NORMS} {GROUPED} {GATED}", {}),
    "stablelm-2": ("stablelm", "stablelm", {"rope.dimension_count": 16, "use_parallel_residual": True}, LAYER_TOP,
                   f"{LAYER_NORMS} {QKV_BIAS} {GATED}", {}),
    "stablelm-2-12b": ("stablelm", "stablelm", {"rope.dimension_count": 16, "use_parallel_residual": True}, LAYER_TOP,
                       f"attn_norm=H+ {GROUPED} attn_q_norm=D,4 attn_k_norm=D,2 {GATED}", {}),
    "starcoder": ("starcoder", "gpt_bigcode", {"attention.head_count_kv": 1},
                  "token_embd=H,V position_embd=H,2048 output_norm=H+ output=H,V",
                  f"{LAYER_NORMS} attn_qkv=H,H+2D+ attn_output=H,H+ {PLAIN_BIAS}", {}),
    "starcoder2": ("starcoder2", "starcoder2", {}, "token_embd=H,V output_norm=H+",
                   f"{LAYER_NORMS} {ALL_BIAS} {PLAIN_BIAS}", {}),
}  # fmt: skip
NOT_COUNTED = re.compile(r"rope_f|blk\.\d+\.exp_probs_b")  # but for ERNIE, where the correction is a parameter
LAST = re.compile(r"blk\.1\.(attn_output|ssm_out)\.weight")  # what one layer holds in eight bits


def _said(text, prefix=""):
    """{name: (shape, type)} of a line of tensors."""
    found = {}
    for name, shape, bias in re.findall(r"(\S+?)=([\w,+]*?\w)(\+?)(?:\s|$)", text):
        sizes = tuple(SIZES.get(size) or int(size) for size in shape.split(","))
        bare = name in ("ssm_a", "ssm_d") or name.endswith(".bias")
        full = f"{prefix}{name}" if bare else f"{prefix}{name}.weight"
        kind = F32 if len(sizes) == 1 or bare or "norm" in name or "conv" in name else F16
        found[full] = (sizes, Q8_0 if LAST.fullmatch(full) else kind)
        if bias:
            found[f"{prefix}{name}.bias"] = (sizes[-1:], F32)
    return found


def _file(case, tmp_path, *, changed=None, tensors=None):
    """A file of a case, and its tensors."""
    name, _, besides, top, each, other = CASES[case]
    keys = {**METADATA, **besides, **(changed or {})}
    layers = keys["block_count"] or LAYERS
    held = _said(top)
    for i in range(layers):
        held |= _said(other.get(i, each), f"blk.{i}.")
    if keys.get("nextn_predict_layers"):
        held |= _said("nextn.eh_proj=512,H nextn.enorm=H nextn.hnorm=H", f"blk.{layers - 1}.")
    held |= tensors or {}
    held = {key: part for key, part in held.items() if part}
    metadata = {f"{name}.{key}": value for key, value in keys.items() if value is not None}
    path = tmp_path / "made.gguf"
    path.write_bytes(header({"general.architecture": name, **metadata}, held))
    return str(path), held


def _graph(model):
    return Setting.of(model, "h100-sxm").graph


def _formats(model, *names):
    """{format of the matrices of these names: layers}"""
    found = {}
    for block, op in _graph(model):
        if op.name in names:
            found.setdefault(str(op.weights[0].format), []).extend(block.layers)
    return {fmt: sorted(layers) for fmt, layers in found.items()}


def _error(case, tmp_path, **changes):
    path, _ = _file(case, tmp_path, **changes)
    with pytest.raises(InputError) as caught:
        load_model(path)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{path}: ")


def test_there_is_a_file_of_every_architecture():
    assert {case[0] for case in CASES.values()} == set(ARCHITECTURES)


@pytest.mark.parametrize("case", CASES)
def test_a_file_has_the_parameters_and_the_bytes_of_its_tensors(case, tmp_path):
    path, held = _file(case, tmp_path)
    model = load_model(path)
    assert (model.model_type, model.notes) == (CASES[case][1], ())
    kept = {
        name: part
        for name, part in held.items()
        if (model.model_type == "ernie4_5_moe" or not NOT_COUNTED.match(name))
        and not (case == "glm4moe" and name.startswith(f"blk.{LAYERS}."))
    }
    assert model.parameters == sum(prod(shape) for shape, _ in kept.values())
    assert weight_bytes(_graph(model)) == sum(prod(shape) * BITS[kind] / 8 for shape, kind in kept.values())


@pytest.mark.parametrize("case", CASES)
def test_types_are_per_layer(case, tmp_path):
    model = load_model(_file(case, tmp_path)[0])
    formats = _formats(model, "o_proj", "out_proj")
    assert formats == {"q8_0": [1], "fp16": [i for i in range(model.graph.layers) if i != 1]}


@pytest.mark.parametrize("case", [case for case, said in CASES.items() if "expert_count" in said[2]])
def test_experts_are_the_files(case, tmp_path):
    model = load_model(_file(case, tmp_path)[0])
    experts = {op.weights[0] for _, op in model.graph if isinstance(op, ExpertsLinear)}
    assert {w.shape[0] for w in experts} == {EXPERTS}
    assert {w.active for w in experts} == {CHOSEN / EXPERTS}


WINDOWS = {  # which layers see 100 tokens
    "cohere2": [0, 1, 2],
    "exaone4": [],
    "exaone4-32b": [0, 1, 2],
    "gemma2": [0, 2],
    "gemma3": [0, 1, 2, 3, 4, 6],
    "olmo2": [],
    "olmo3": [0, 1, 2],
    "phi3": [],
}


def _windowed(model):
    """Layers in which the last of 1000 tokens sees 100 keys."""
    w = Workload.decode(batch=1, kv_len=1000)
    seen = {i: evaluate(op.outputs[0].rows, w) for block, op in model.graph if isinstance(op, QK) for i in block.layers}
    assert set(seen.values()) <= {100, 1000}
    return sorted(i for i, keys in seen.items() if keys == 100)


@pytest.mark.parametrize("case", WINDOWS)
def test_windows_are_in_the_layers_that_have_them(case, tmp_path):
    model = load_model(_file(case, tmp_path)[0])
    assert _windowed(model) == WINDOWS[case]


def test_a_pattern_may_be_a_number(tmp_path):
    model = load_model(_file("gemma3", tmp_path, changed={"attention.sliding_window_pattern": 3})[0])
    assert _windowed(model) == [0, 1, 3, 4, 6]


def test_linear_attention_is_in_three_layers_of_four(tmp_path):
    for case in ("qwen3next", "qwen35", "qwen35moe"):
        model = load_model(_file(case, tmp_path)[0])
        assert [i for block, op in model.graph if isinstance(op, Scan) for i in block.layers] == [0, 1, 2]
        assert [i for block, op in model.graph if isinstance(op, QK) for i in block.layers] == [3]


def test_latent_attention_caches_its_latent(tmp_path):
    for case in ("deepseek2", "deepseek2 before its cut"):
        model = load_model(_file(case, tmp_path)[0])
        assert model.kv_bytes_per_token == LAYERS * (64 + 32) * 2


def test_tensors_that_hold_one_matrix_in_several_types_are_their_mean(tmp_path):
    cut = {"blk.2.attn_v.weight": ((H, K), Q8_0)}
    path, _ = _file("internlm2", tmp_path, tensors=cut)
    model = load_model(path)
    assert model.notes == ()
    assert _formats(model, "qkv_proj") == {"fp16": [0, 1, 3], "fp16+q8_0": [2]}
    (mixed,) = {
        op.weight.format
        for b, op in _graph(model)
        if isinstance(op, Linear) and op.name == "qkv_proj" and b.layers == (2,)
    }
    assert mixed.stored_bits == (16 * (Q + K) + 8.5 * K) / (Q + 2 * K)


def test_a_fused_tensor_gives_its_type_to_all_that_are_in_it(tmp_path):
    fused = {"blk.2.attn_qkv.weight": ((H, 3 * H), Q8_0)}
    model = load_model(_file("phi2", tmp_path, tensors=fused)[0])
    assert model.notes == ()
    for name in ("q_proj", "k_proj", "v_proj"):
        assert _formats(model, name) == {"fp16": [0, 1, 3], "q8_0": [2]}


def test_tensors_that_contradict_the_metadata_are_noted(tmp_path):
    path, _ = _file("gemma2", tmp_path, changed={"feed_forward_length": 2 * F})
    model = load_model(path)
    (note,) = model.notes
    assert note == (
        f"{path} holds {model.parameters - LAYERS * 3 * H * F} parameters, {-LAYERS * 3 * H * F} to the "
        f"{model.parameters} counted; of another size: blk.0.ffn_gate.weight, blk.2.ffn_gate.weight, "
        "blk.0.ffn_up.weight and 9 more"
    )


@pytest.mark.parametrize(
    ("case", "changed", "error"),
    [
        ("llama", {"embedding_length": None}, "llama.embedding_length: is missing"),
        ("llama", {"attention.head_count": 3},
         "num_attention_heads: must be a multiple of the 2 key-value heads; got 3"),
        ("deepseek2", {"attention.kv_lora_rank": None}, "kv_lora_rank: is missing"),
        ("gpt-oss", {"expert_used_count": 9},
         "num_experts_per_tok: must be at most the 8 experts of num_local_experts; got 9"),
        ("gemma3", {"attention.sliding_window_pattern": [True, False]},
         "layer_types: must be 7 of sliding_attention and full_attention; got 2 of them"),
        ("glm4moe", {"attention.head_count_kv": [2, 4, 2, 2, 2]},
         "glm4moe.attention.head_count_kv: must be one number for all layers; got [2, 4, 2, 2, 2]"),
        ("minicpm", {"expert_count": 8},
         "minicpm.expert_count: must be 0 or absent: not supported for minicpm; got 8"),
        ("qwen2", {"attention.sliding_window": 4096},
         "qwen2.attention.sliding_window: must be 0 or absent: not supported for qwen2; got 4096"),
        ("olmo2", {"attention.key_length": "wide"},
         "olmo2.attention.key_length: must be a whole number of at least 0; got 'wide'"),
    ],
)  # fmt: skip
def test_invalid_gguf_metadata_is_refused(case, changed, error, tmp_path):
    assert _error(case, tmp_path, changed=changed) == error


def test_an_architecture_that_is_not_known_names_the_nearest_and_other_routes(tmp_path):
    path = tmp_path / "made.gguf"
    path.write_bytes(header({"general.architecture": "gemma4"}, {}))
    with pytest.raises(InputError) as caught:
        load_model(str(path))
    assert str(caught.value) == (
        f"{path}: general.architecture: 'gemma4' is not supported; did you mean gemma or gemma3 or gemma2? "
        "(a config.json or a YAML file of the model works too)"
    )
