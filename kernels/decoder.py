"""A decoder layer, and a whole decode step of a model, from the kernels of this folder.

A layer is what serving engines launch of it: the residual addition with the norm after it, one product for queries,
keys and values and one for gate and up, norm, rotation and cache together, split attention, and the experts without
copies of tokens. Each launch is told by the operators of the engine's graph that it realises, so OPs are the engine's,
and bytes differ by what fusing keeps on the chip and by the values, which a joint product leaves beside the cache.
The last addition of a layer is done with the first norm of the next.

A step allocates nothing, waits for nothing and reads its lengths from the device, so that a CUDA graph can hold it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from math import inf
from typing import Final

import torch

from llmviewer.records import frozen

from ..architectures.blocks.attention import SelfAttention
from ..architectures.blocks.decoder import Layer
from ..architectures.blocks.feed_forward import Experts, Mlp
from ..architectures.blocks.parts import HIDDEN, NormKind, Parts
from ..errors import InputError
from ..forms import LOGITS, evaluate, total
from ..graph import Block, Graph
from ..model import Model
from ..model_files import load_model
from ..operators.attention import FlashAttention, Heads
from ..operators.base import Operator, Role, Tensor
from ..operators.elementwise import ACTIVATION_OPS, Activation, Norm, Rope, Route
from ..operators.fused import Fused
from ..operators.masks import CAUSAL, Causal
from ..operators.sampling import Sample
from ..precision import Format
from ..transforms.flash_attention import flash_attention
from ..transforms.quantize import UNQUANTIZED
from ..workload import Workload
from . import decode_attention, embedding, fused_moe, gated, gemm, gemv, norms, rope, rope_cache, sampling
from .base import DTYPES, EPSILON, Case, Inputs, Kernel, LaunchPlan, Random, Target, case, cdiv

PAGE = 64  # tokens of a page of the cache
_RMS_OPS: Final = 4  # square, sum, scale, weight
_INT32: Final = Format("int32", 32, "fp32")
_SILU_OPS: Final = ACTIVATION_OPS["silu"] + 1

# What each launch realises of a layer; of experts, one plan has several launches. "v_write" is rope_cache's.
_MIXER: Final = (
    ("mlp_add", "attn_norm"),
    ("q_proj", "k_proj", "v_proj"),
    ("q_norm", "k_norm", "rope", "v_write"),
    ("attention",),
    ("o_proj",),
    ("attn_add", "mlp_norm"),
)
_DENSE: Final = (("gate_proj", "up_proj"), ("mlp_act",), ("down_proj",))
_EXPERTS: Final = (
    ("router",),
    ("route",),
    ("permute", "expert_gate_proj", "expert_up_proj", "expert_act"),
    ("expert_down_proj",),
    ("combine",),
)
_HEAD_NORMS: Final = frozenset(("q_norm", "k_norm"))
_NORM_INPUTS: Final = {"attn_norm": HIDDEN, "q_norm": "q_proj", "k_norm": "k_proj", "mlp_norm": "attn_add"}

Weights = Mapping[str, torch.Tensor]


@frozen(kw_only=True)
class LayerShape:
    """The shape of a layer that its launches implement, read from its operators.

    operators  those of the graph by name, attention in one launch, values beside the cache
    """

    operators: Mapping[str, Operator]

    @classmethod
    def of(cls, block: Block) -> LayerShape:
        """The shape of a graph's block.

        Raises InputError if these kernels do not support it.
        """
        operators = {op.name: op for _, op in flash_attention(inf)(Graph((block,)))}
        groups = _EXPERTS if "router" in operators else _DENSE
        required_names = {*chain(*_MIXER, *groups)} - {"v_write", *_HEAD_NORMS}
        head_dim = next((op.heads.head_dim for op in operators.values() if isinstance(op, FlashAttention)), 0)
        head_norms = operators.keys() & _HEAD_NORMS
        unsupported = required_names.symmetric_difference(operators.keys() - head_norms)
        unsupported |= {w.name for op in operators.values() for w in op.weights if not w.name.endswith("weight")}
        unsupported |= {op.name for op in operators.values() if not _is_supported(op, head_dim)}
        if unsupported or len(head_norms) == 1:
            raise InputError(
                "a decode step of kernels supports layers of grouped-query attention without biases, with rotary "
                "embedding of whole heads, and SwiGLU, dense or in experts, each after an RMSNorm; "
                f"block {block.name} differs in {', '.join(sorted(unsupported or head_norms))}"
            )
        value = operators["v_proj"].outputs[0]
        plain = replace(value, name="v_proj", role=Role.ACTIVATION)
        operators["v_proj"] = replace(operators["v_proj"], outputs=(plain,))
        operators["v_write"] = rope_cache.v_write(plain, value)
        return cls(operators={name: op.with_tensors(_with_block_names) for name, op in operators.items()})

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Names of the operators of each launch."""
        return _MIXER + (_EXPERTS if "router" in self.operators else _DENSE)

    @property
    def heads(self) -> Heads:
        attention = self.operators["attention"]
        return attention.heads  # type: ignore[attr-defined, no-any-return]

    @property
    def chosen(self) -> int:
        """Experts of each token; 0 where there are none."""
        route = self.operators.get("route")
        return route.top_k if isinstance(route, Route) else 0

    @property
    def window(self) -> int:
        """Keys that a query sees at the most; 0 where it sees all."""
        window = self.heads.mask.window  # type: ignore[attr-defined]
        return int(window) if window < inf else 0

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.operators["attn_norm"].outputs[0].format.name]

    @property
    def hidden(self) -> int:
        return self.operators["attn_norm"].outputs[0].width

    def launched(self, *, first: bool) -> tuple[Fused, ...]:
        """The operators that each launch implements, in order. The first layer of a model has no addition before it."""
        parts = [tuple(self.operators[name] for name in group if name in self.operators) for group in self.groups]
        read = [{t.name for op in group for t in op.reads()} for group in parts]
        elsewhere = [set().union(*read[:i], *read[i + 1 :]) for i in range(len(read))]
        if first:
            parts[0] = parts[0][1:]
        return tuple(Fused.of(group, kept_outputs=names) for group, names in zip(parts, elsewhere, strict=True))

    def weights(self, random: Random) -> dict[str, torch.Tensor]:
        """Random ones of the scale that keeps what passes through at that of its input; joint where launches are."""
        tensors: dict[str, torch.Tensor] = {}

        def norm(name: str) -> None:
            (width,) = self.operators[name].weights[0].shape
            tensors[name] = random.uniform(width, low=0.5, high=1.5).to(self.dtype)

        def joint(name: str, *parts: str) -> None:
            *experts, _, k = self.operators[parts[0]].weights[0].shape
            n = sum(self.operators[part].weights[0].shape[-2] for part in parts)
            tensors[name] = random.normal(*experts, n, k, dtype=self.dtype, scale=k**-0.5)

        for name in ("attn_norm", "mlp_norm", *sorted(self.operators.keys() & _HEAD_NORMS)):
            norm(name)
        joint("qkv", "q_proj", "k_proj", "v_proj")
        joint("o", "o_proj")
        if "router" in self.operators:
            joint("router", "router")
            joint("gate_up", "expert_gate_proj", "expert_up_proj")
            joint("down", "expert_down_proj")
        else:
            joint("gate_up", "gate_proj", "up_proj")
            joint("down", "down_proj")
        return tensors


def _with_block_names(tensor: Tensor) -> Tensor:
    """Renames the hidden state that a block reads to the output of the block before it."""
    return replace(tensor, name="mlp_add") if tensor.name == HIDDEN else tensor


def _is_supported(op: Operator, head_dim: int) -> bool:
    """Whether these kernels implement the form of `op` that the graph has."""
    match op:
        case Norm():
            width = head_dim if op.name in _HEAD_NORMS else op.inputs[0].width
            is_plain = op.weights[0].numel == width and op.inputs[0].name == _NORM_INPUTS.get(op.name)
            return is_plain and op.ops_per_element == _RMS_OPS
        case Activation():
            return op.ops_per_element == _SILU_OPS
        case Rope():
            return op.rotary_dim == op.heads.head_dim
        case FlashAttention():
            heads = op.heads
            return type(heads.mask) is Causal and heads.out_dim == heads.head_dim and not (op.weights or op.bias)
    return True


@frozen(kw_only=True)
class Pages:
    """Page table and lengths of the sequences in the caches of all layers; lengths include the new tokens.

    table[sequences, pages], lengths[sequences] up to `longest`, frequencies[dim / 2] of rotations as in `rope`
    """

    table: torch.Tensor
    lengths: torch.Tensor
    frequencies: torch.Tensor
    longest: int

    @classmethod
    def of(cls, random: Random, *, batch: int, kv_len: int, longest: int, dim: int) -> Pages:
        """Sequences of `kv_len` tokens, whose pages lie anywhere."""
        pages = cdiv(longest, PAGE)
        device = random.device
        return cls(
            table=random.uniform(batch * pages, low=0, high=1).argsort().to(torch.int32).view(batch, pages),
            lengths=torch.full((batch,), kv_len, dtype=torch.int32).to(device),
            frequencies=rope.frequencies(dim).to(device),
            longest=longest,
        )

    def caches(self, random: Random, heads: Heads, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer: [pages, page, kv_heads, dim] each."""
        shape = (self.table.numel(), PAGE, heads.num_kv_heads, heads.head_dim)
        return random.normal(*shape, dtype=dtype), random.normal(*shape, dtype=dtype)


def _linear_plan(target: Target, x: torch.Tensor, w: torch.Tensor) -> LaunchPlan:
    return gemv.plan(target, x, w) if x.shape[0] == 1 else gemm.plan(target, x, w)


def layer_plan(
    target: Target,
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weights: Weights,
    k: torch.Tensor,
    v: torch.Tensor,
    pages: Pages,
    chosen: int = 0,
    window: int = 0,
) -> LaunchPlan:
    """Plans a layer: (feed-forward output, sum to add it to, caches) of x and residual[sequences, hidden], whose sum is
    the hidden state. k and v are the caches, updated in place; a token uses `chosen` experts, and a query sees
    `window` keys (0: all).
    """
    plans: list[LaunchPlan] = []

    def run(plan: LaunchPlan) -> torch.Tensor:
        plans.append(plan)
        return plan.outputs[0]

    h = run(norms.plan(target, x, weights["attn_norm"], residual))
    before = x if residual is None else plans[-1].outputs[1]
    qkv = run(_linear_plan(target, h, weights["qkv"]))
    head_norms = (weights.get("q_norm"), weights.get("k_norm"))
    q = run(rope_cache.plan(target, qkv, pages.frequencies, k, v, pages.table, pages.lengths, *head_norms))
    o = run(decode_attention.plan(target, q, k, v, pages.table, pages.lengths, pages.longest, window=window))
    h = run(norms.plan(target, run(_linear_plan(target, o.flatten(1), weights["o"])), weights["mlp_norm"], before))
    between = plans[-1].outputs[1]
    if chosen:
        logits = run(_linear_plan(target, h, weights["router"]))
        y = run(fused_moe.plan(target, h, logits, weights["gate_up"], weights["down"], chosen))
    else:
        act = run(gated.plan(target, run(_linear_plan(target, h, weights["gate_up"])), "silu", gated=True))
        y = run(_linear_plan(target, act, weights["down"]))
    return LaunchPlan(launches=tuple(chain(*(plan.launches for plan in plans))), outputs=(y, between, k, v))


def layer_reference(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weights: Weights,
    k: torch.Tensor,
    v: torch.Tensor,
    pages: Pages,
    chosen: int = 0,
    window: int = 0,
) -> tuple[torch.Tensor, ...]:
    """The references of all kernels one after another, rounded where tensors are in memory."""
    dtype = x.dtype

    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x.float() @ w.float().T).to(dtype)

    h, *sums = (t.to(dtype) for t in norms.reference(x, weights["attn_norm"], residual))
    head_norms = (weights.get("q_norm"), weights.get("k_norm"))
    qkv = product(h, weights["qkv"])
    rotated = rope_cache.reference(qkv, pages.frequencies, k, v, pages.table, pages.lengths, *head_norms)
    q, k, v = (t.to(dtype) for t in rotated)
    (o,) = decode_attention.reference(q, k, v, pages.table, pages.lengths, pages.longest, window=window)
    o = product(o.to(dtype).flatten(1), weights["o"])
    h, between = (t.to(dtype) for t in norms.reference(o, weights["mlp_norm"], sums[0] if sums else x))
    if chosen:
        (y,) = fused_moe.reference(h, product(h, weights["router"]), weights["gate_up"], weights["down"], chosen)
    else:
        (act,) = gated.reference(product(h, weights["gate_up"]), "silu", gated=True)
        y = product(act.to(dtype), weights["down"])
    return (y.float(), between.float(), k.float(), v.float())


@frozen(kw_only=True)
class DecodeStep:
    """A decode step: one new token of each of `batch` sequences, to the next of each, the one of the largest logit.

    ids        of the new tokens [batch]; pages.lengths count them
    weights    by name, those of layers after their number: "0.qkv"
    operators  what each launch or sequence of launches realises
    workload   the pass in which those do so
    """

    ids: torch.Tensor
    pages: Pages
    weights: Weights
    plan: LaunchPlan
    operators: tuple[Operator, ...]
    workload: Workload

    @property
    def ops(self) -> float:
        """OPs of the step, as the engine counts them."""
        return float(evaluate(total(op.work().ops for op in self.operators), self.workload))

    @property
    def nbytes(self) -> float:
        """Bytes to and from memory, as the engine counts them except for the effect of fusion."""
        return float(evaluate(total(op.work().nbytes for op in self.operators), self.workload))

    def __call__(self) -> tuple[torch.Tensor, ...]:
        """Launch it: tokens[batch] and logits[batch, vocab], which are there when the device is done."""
        return self.plan()

    def advance(self) -> None:
        """Make the tokens found the new ones, up to pages.longest tokens of a sequence."""
        self.ids.copy_(self.plan.outputs[0])
        self.pages.lengths.add_(1)

    def capture(self) -> torch.cuda.CUDAGraph:
        """Captures the step as a CUDA graph: replay() launches all of it at once.

        Raises InputError where its tensors are on no GPU.
        """
        if self.ids.device.type != "cuda":
            raise InputError(f"a CUDA graph needs a step on a GPU; this one is on {self.ids.device}")
        self()  # what is captured must be compiled
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self()
        return graph


def decode_step(
    model: str | Model,
    *,
    batch: int,
    kv_len: int,
    device: str = "cuda",
    layers: int | None = None,
    room: int = 0,
    seed: int = 0,
    target: Target | None = None,
) -> DecodeStep:
    """A step of a model, by name or as `load_model` gives it, with random weights and a random cache, in which each
    sequence has `kv_len` tokens, the new one counted, and `room` for more.

    layers  how many of the model's there are, from the first on; all where it is not said
    target  what launches are shaped for, where that is not the device

    Raises InputError where the model has what these kernels have not, or a size is none.
    """
    workload = Workload.decode(batch=batch, kv_len=kv_len)
    if room < 0:
        raise InputError(f"room must be at least 0; got {room}")
    embed, ordered, head = _decoder(load_model(model) if isinstance(model, str) else model, layers)
    random, first = Random(device, seed), ordered[0]
    launch_target = target or Target.of(torch.device(device))
    pages = Pages.of(random, batch=batch, kv_len=kv_len, longest=kv_len + room, dim=first.heads.head_dim)
    norm, lm_head = head.operators
    vocab, width = lm_head.weights[0].shape
    table = random.normal(vocab, width, dtype=first.dtype)
    ids = random.integers(batch, low=0, high=vocab, dtype=torch.int32)
    weights = {"embed_tokens": table}
    plans = [embedding.plan(launch_target, ids, table)]
    operators: list[Operator] = [*embed.operators]
    x, residual = plans[0].outputs[0], None
    for index, shape in enumerate(ordered):
        layer_weights = shape.weights(random)
        weights |= {f"{index}.{name}": weight for name, weight in layer_weights.items()}
        caches = pages.caches(random, shape.heads, shape.dtype)
        plans.append(layer_plan(launch_target, x, residual, layer_weights, *caches, pages, shape.chosen, shape.window))
        x, residual, *_ = plans[-1].outputs
        operators.extend(shape.launched(first=index == 0))
    weights["final_norm"] = random.uniform(width, low=0.5, high=1.5).to(first.dtype)
    plans.append(norms.plan(launch_target, x, weights["final_norm"], residual))
    added = (ordered[-1].operators["mlp_add"], norm.with_tensors(_with_block_names))
    tied = lm_head.weights[0].tied
    scale = width**-0.5
    weights["lm_head"] = table if tied else random.normal(vocab, width, dtype=first.dtype, scale=scale)
    plans.append(_linear_plan(launch_target, plans[-1].outputs[0], weights["lm_head"]))
    logits = plans[-1].outputs[0]
    plans.append(sampling.plan_argmax(launch_target, logits))
    tokens = Tensor(name="tokens", width=1, format=_INT32, rows=LOGITS)
    greedy = Sample(name="argmax", inputs=lm_head.outputs, outputs=(tokens,), greedy=True)
    operators.extend((Fused.of(added, kept_outputs=("mlp_add", "final_norm")), lm_head, greedy))
    return DecodeStep(
        ids=ids,
        pages=pages,
        weights=weights,
        plan=LaunchPlan(
            launches=tuple(chain(*(plan.launches for plan in plans))), outputs=(plans[-1].outputs[0], logits)
        ),
        operators=tuple(operators),
        workload=workload,
    )


def _decoder(model: Model, layers: int | None) -> tuple[Block, list[LayerShape], Block]:
    """The table of tokens, the first `layers` of the model in their order, or all, and its head.

    Raises InputError where there are not so many, or these kernels have not what the model has.
    """
    if layers is not None and not 1 <= layers <= model.graph.layers:
        raise InputError(f"layers must be from 1 to the {model.graph.layers} of {model.name}; got {layers}")
    embed, *blocks, head = model.graph.blocks
    names = [[op.name for op in block.operators] for block in (embed, head)]
    plain = all(len(op.weights) == 1 for block in (embed, head) for op in block.operators)
    if names != [["embed_tokens"], ["final_norm", "lm_head"]] or not plain or model.quantization != UNQUANTIZED:
        raise InputError(
            "a decode step of kernels supports models of a token embedding, layers, a norm and a head without bias, in "
            f"16 bits; {model.name} differs"
        )
    shapes = [(index, LayerShape.of(block)) for block in blocks for index in block.layers]
    return embed, [shape for _, shape in sorted(shapes, key=lambda one: one[0])][:layers], head


def _shape(case: Case) -> LayerShape:
    """The shape of a layer of a case's sizes, built as architectures build it."""
    parts = Parts(format=case.format)
    mask = Causal(case["window"]) if case.get("window") else CAUSAL
    heads = Heads(num_heads=case["heads"], num_kv_heads=case["kv_heads"], head_dim=case["dim"], mask=mask)
    mixer = SelfAttention(heads=heads, rotary_dim=case["dim"], qk_norm=NormKind.RMS if case.get("qk_norm") else None)
    experts = Experts(experts=case.get("experts"), chosen=case.get("chosen"), inner=case["inner"])
    mlp = Mlp(inner=case["inner"], act="silu", gated=True)
    layer = Layer(mixer=mixer, feed_forward=experts if case.get("experts") else mlp)
    operators = layer.operators(parts, parts.tensor(HIDDEN, case["hidden"]))
    output = operators[-1].outputs[0].name
    return LayerShape.of(Block(name="layer", operators=operators, input=HIDDEN, output=output, layers=(0,)))


def _make(case: Case, device: str, seed: int) -> Inputs:
    random, shape, batch = Random(device, seed), _shape(case), case["B"]
    pages = Pages.of(random, batch=batch, kv_len=case["kv"], longest=case["kv"], dim=case["dim"])
    k, v = pages.caches(random, shape.heads, shape.dtype)
    x, residual = (random.normal(batch, case["hidden"], dtype=shape.dtype) for _ in range(2))
    return {
        "x": x, "residual": residual, "weights": shape.weights(random), "k": k, "v": v, "pages": pages,
        "chosen": shape.chosen, "window": shape.window,
    }  # fmt: skip


_QWEN3_30B_A3B = case(
    "bf16", B=16, kv=8192, hidden=2048, heads=32, kv_heads=4, dim=128, inner=768, qk_norm=1, experts=128, chosen=8
)

KERNELS = (
    Kernel(
        name="decoder_layer", family="layer",
        cases=(
            case("fp16", B=3, kv=70, hidden=64, heads=4, kv_heads=2, dim=16, inner=96, window=37),
            case("fp16", B=1, kv=33, hidden=48, heads=3, kv_heads=1, dim=32, inner=40, qk_norm=1),
            case("fp16", B=2, kv=5, hidden=64, heads=2, kv_heads=2, dim=32, inner=32, experts=6, chosen=2),
        ),
        full_size=(
            case("bf16", B=16, kv=8192, hidden=4096, heads=32, kv_heads=8, dim=128, inner=14336),
            case("bf16", B=1, kv=8192, hidden=4096, heads=32, kv_heads=8, dim=128, inner=14336),
            _QWEN3_30B_A3B,
        ),
        make=_make, plan=layer_plan, reference=layer_reference,
        tolerance=lambda case: (4 * EPSILON[case.dtype], 4 * EPSILON[case.dtype]),
        operators=lambda case: _shape(case).launched(first=False),
        workload=lambda case: Workload.decode(batch=case["B"], kv_len=case["kv"]),
    ),
)  # fmt: skip
