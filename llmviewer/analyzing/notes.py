"""Notes under an analysis: format conversions, what-ifs, missing data, and limits of the model that are exceeded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import Final

import numpy as np

from ..devices.keys import ON_CHIP
from ..expectation.formats import TYPES
from ..expectation.kernels import Kernels
from ..expectation.times import KernelBounds
from ..expectation.whole_passes import backends
from ..ggml import BY_NAME
from ..graph import Block, Graph
from ..model import Model
from ..operators.attention import Attention, Indexer
from ..operators.base import Operator
from ..operators.block_sparse import BlockIndexer
from ..operators.collectives import SCALE_OUT, SCALE_UP
from ..operators.fused import parts_of
from ..operators.linear import ExpertsLinear, LatentExpansion, Linear, Router
from ..operators.masks import ShardedSequences
from ..parallel import busiest
from ..parallel.layout import Network
from ..parallel.overlap import Overlapped
from ..parameters import Accounting, Mla
from ..precision import NAMED, Format
from ..resource import Unit, link
from ..setting import Setting
from ..transforms.offload import ON_DEVICE
from ..transforms.skew import has_experts, skew
from ..units import counted, seconds, si
from ..variants.evaluation import Evaluation
from ..workload import Workload
from .generation import GenerationResult
from .phases import engine_kernels

_MAX_NAMES: Final = 4  # operators listed by name
_LITTLE_EFFECT: Final = {  # what-ifs that change few results, by prefix
    "power.": "changes no bound, and expected times only if they are scaled from another device; compare, choose and "
    "plan use it",
    "price.": "changes no time; compare, choose and plan use it",
    "sparse.": "affects only analyses with --with sparsity",
}
_GGUF_ENGINE: Final = "llama.cpp"
_GGUF_TYPES: Final = BY_NAME.keys() - NAMED.keys() - {"f32", "f16", "f64"}  # types that only GGUF files have
_MAX_MERGED: Final = 8  # operators of a launch that a note names; the layers of a whole pass are more
_SLOW_EXPERTS: Final = 1.5  # times as long, from which another kernel of the experts is named
_WIDEST_BITS: Final = 16  # bits; matrix-product kernels treat wider formats as 16-bit ones


def notes(evaluation: Evaluation, *, generated: int) -> tuple[str, ...]:
    """The notes of an analysis, one sentence each; `written` is the largest number of generated tokens."""
    setting, batch, prompt, images = evaluation.setting, int(evaluation.batch), evaluation.prompt, evaluation.images
    model = setting.model
    technique_notes = (note for one in setting.techniques for note in one.notes(setting))
    unknown = (
        [f"{model.unsupported_quantization}: weights are counted in the format of --quant"]
        if model.unsupported_quantization
        else []
    )
    sentences = [*unknown, *model.notes, *technique_notes, *_conversions(setting), *_substitutions(setting)]
    sentences += [*_links(setting), *_fp32_weights(setting), *_engine_library(setting), *_gguf_engine(setting)]
    sentences += [
        *_merged_launches(evaluation),
        *_slow_experts(evaluation),
        *_to_mxfp8(setting),
        *_other_libraries(evaluation),
        *_other_types(evaluation),
    ]
    sentences += [*_replicated(setting), *_cut_scale_blocks(setting), *_indivisible_groups(setting)]
    sentences += _fits_in_cache(setting, batch=batch, prompt=prompt, generated=generated)
    if model.image_input_tokens and prompt != model.image_input_tokens:
        sentences.append(
            f"{model.name} encodes an image as {model.image_input_tokens} tokens: --prompt {model.image_input_tokens} "
            "counts one image"
        )
    if model.has_tower and not images:
        adds = f"; each adds {model.image_tokens} tokens to the prompt" if model.image_tokens else ""
        inputs = "audio clips of 30 s and their encoder" if model.has_audio_tower else "images and their encoder"
        sentences.append(f"text only: to count {inputs}, give --images{adds}")
    if not model.generates and not any(one.one_pass for one in setting.techniques):
        sentences.append(f"one pass over the prompt, no decode: {model.name} does not generate")
    # An encoder and a decoder have positions of their own.
    context = max(prompt, generated) if model.is_encoder_decoder else prompt + generated
    if model.max_context and context > model.max_context:
        sentences.append(f"{context:,} tokens are more than the {model.max_context:,} positions of {model.name}")
    if model.max_answer and generated > model.max_answer:
        sentences.append(
            f"{generated:,} generated tokens are more than the {model.max_answer:,} positions of its decoder"
        )
    sentences.extend(_what_ifs(setting))
    routed = has_experts(model.graph)
    if setting.expert_skew:
        skew_text = f"expert skew {setting.expert_skew:g}"
        popularity = f"{skew_text}: the n-th most popular expert is chosen in proportion to n^-{setting.expert_skew:g}"
        sentences.append(popularity if routed else f"{skew_text} has no effect: {model.name} has no experts")
    sentences.extend(_idle_replicas(setting, batch))
    if setting.layout.two_batch_overlap:
        sentences.extend(_two_batches(setting, batch=batch, prompt=prompt))
    if setting.layout.batch_sharded_attention:
        sentences.extend(_shared_sequences(setting, batch))
    uneven = setting.expert_skew or setting.layout.redundant_experts
    if setting.layout.ep > 1 and routed and uneven:
        load = busiest(model.graph.then(skew(setting.expert_skew)), Network.of(setting.hardware, setting.layout))
        sentences.append(
            f"expert load is uneven: the busiest of {setting.layout.ep} ranks has {load:.2f} times the mean"
        )
    if setting.layout.ep > 1 and not routed:
        sentences.append(f"ep={setting.layout.ep} has no effect: {model.name} has no experts")
    if setting.mla is not Mla.AUTO and not any(isinstance(op, LatentExpansion) for _, op in model.graph):
        sentences.append(f"mla {setting.mla} has no effect: {model.name} has no latent attention")
    if setting.accounting is Accounting.SURVEY:
        sentences.append(
            'survey accounting reproduces the paper "LLM Inference Unveiled" (arXiv:2402.16363): no causal mask, '
            "no embedding, half the OPs of lm_head; for all other purposes use faithful accounting"
        )
    return tuple(sentences)


def server_notes(setting: Setting, batch: int, *, prompt_tokens: int) -> Iterator[str]:
    """Notes on a batch that arrives at once, and on what the server of the engine runs of it.

    prompt_tokens  of all prompts
    """
    engine, layout = setting.engine, setting.layout
    if engine is None:
        return
    if engine.options.experts_kernel and not has_experts(setting.model.graph):
        yield f"experts kernel {engine.options.experts_kernel} has no effect: {setting.model.name} has no experts"
    if setting.host_embeddings:
        yield f"{engine.title} keeps {si(setting.host_embeddings)}B of embeddings in host memory"
    limit, most = engine.default_on(setting.hardware).max_batch, engine.options.max_num_batched_tokens
    if limit and batch > limit * layout.dp:
        each = f" on each of {layout.dp} ranks" if layout.dp > 1 else ""
        yield (
            f"batch {batch:,} is more than {engine.title} runs, max_num_seqs {limit:,}{each}: times are of all at "
            "once; llmviewer simulate has the queue"
        )
    elif batch > 1 and setting.model.generates:
        steady = f"llmviewer simulate --concurrency {batch}"
        yield f"TTFT is that of {batch:,} prompts that arrive at once; {steady} has the steady state"
    if most and prompt_tokens > most * layout.dp:
        yield (
            f"prefill is one pass of {prompt_tokens:,} tokens here; {engine.title} takes at most {most:,} a step "
            "(max_num_batched_tokens), as llmviewer simulate does"
        )


def robot_notes(model: Model, result: GenerationResult, generated: int) -> list[str]:
    """Notes on how often a model for robots can act, if one inference was analyzed."""
    actions = model.actions
    if not actions:
        return []
    inference = f"an inference is {counted(actions.steps, actions.unit)} and makes {counted(actions.count, 'action')}"
    if generated != actions.steps:
        return [f"{inference}: --gen {actions.steps} counts one"]
    each = "; the time per output token is that of one denoising step" if actions.denoising else ""
    text = f"{inference}: at most {_action_rate(result.latency_s, actions.count)}"
    if result.expected_latency_s:
        text += f"; expected {_action_rate(result.expected_latency_s, actions.count)}"
    return [text + each]


def _action_rate(latency: float, actions: int) -> str:
    return f"{1 / latency:,.4g} inferences/s, {actions / latency:,.4g} actions/s"


def _fits_in_cache(setting: Setting, *, batch: int, prompt: int, generated: int) -> list[str]:
    """Note on a model that fits in the last-level cache, which bounds do not assume."""
    name, capacity = setting.hardware.last_cache
    if not capacity or setting.offload != ON_DEVICE:
        return []
    weights, kv_cache, _ = setting.footprint.parts(batch=float(batch), prompt=prompt, gen=generated)
    used_bytes = float(np.max(weights) + np.max(kv_cache))
    if used_bytes > capacity:
        return []
    cache_size = f"{capacity / 2**20:,.0f} MiB {name} of {setting.hardware.name}"
    fit = f"weights and KV cache, {si(used_bytes)}B, fit in the {cache_size}"
    return [f"{fit}: passes that hit this cache can beat the bounds, which read from memory"]


def _fp32_weights(setting: Setting) -> list[str]:
    """Models published in fp32, as they are usually served in 16 bits; nothing if --quant was given."""
    widths = {weight.format.stored_bits for _, op in setting.graph for weight in op.weights}
    if setting.quantization != setting.model.quantization or widths != {32}:
        return []
    return [f"{setting.model.name} is published in fp32; it is usually served in 16 bits (--quant bf16)"]


def _what_ifs(setting: Setting) -> list[str]:
    """Notes on what-ifs: changed numbers, numbers derived from them, and what-ifs that affect little."""
    hardware = setting.hardware
    sentences = [f"what-if: {change} replaces the number of the device's file" for change in hardware.changes]
    if hardware.derived_changes:
        sentences.append(f"derived from these what-ifs: {', '.join(hardware.derived_changes)}")
    capacity_changes = [
        change for change in hardware.changes if change.partition(".")[0] in ON_CHIP and ".capacity" in change
    ]
    if capacity_changes:
        sentences.append(
            f"{', '.join(capacity_changes)}: on-chip capacities affect only the tile sizes of attention and, for the "
            "last-level cache, expected times"
        )
    link_changes = [change for change in hardware.changes if change.startswith(f"{SCALE_UP}.")]
    if link_changes and setting.layout.devices == 1:
        sentences.append(
            f"{', '.join(link_changes)}: has no effect on one device; use it with --tp or another degree of parallelism"
        )
    for key, effect in _LITTLE_EFFECT.items():
        if matching_changes := [change for change in hardware.changes if change.startswith(key)]:
            sentences.append(f"{', '.join(matching_changes)}: {effect}")
    return sentences


def _links(setting: Setting) -> list[str]:
    """Assumptions about links that the layout uses and the device's file does not fully describe."""
    hardware, linked, layout = setting.hardware, setting.linked, setting.layout
    network = Network.of(hardware, layout)
    rows = (*setting.plan.operators, *setting.decode_plan.operators)
    used = {resource.dtype for row in rows for resource in row.busy_s if resource.unit is Unit.LINK}
    sentences = []

    def others(tier_name: str) -> str:
        return f"{tier_name.replace('_', '-')} links ({si(linked.rates[link(tier_name)])}B/s each)"

    if network.inside != SCALE_UP and network.inside in used:
        sentences.append(f"{hardware.name} has no scale-up link: devices communicate over {others(network.inside)}")
    elif layout.devices > network.domain and network.outside != SCALE_OUT and network.outside in used:
        joined = f"scale-up links of {hardware.name} connect at most {network.domain:.0f} devices"
        sentences.append(f"{joined}: traffic between such groups goes over {others(network.outside)}")
    elif SCALE_UP in used and f"{SCALE_UP}.devices" not in hardware.numbers:
        sentences.append(
            f"the file of {hardware.name} does not give {SCALE_UP}.devices: its {SCALE_UP} links are assumed to join "
            "all devices"
        )
    sentences.extend(
        f"{r.dtype}.latency of {hardware.name} is unknown and counts as 0; set it by "
        f"--hardware-set {r.dtype}.latency=VALUE"
        for r, rate in linked.rates.items()
        if r.unit is Unit.HOP and rate == inf and r.dtype in used
    )
    return sentences


def _idle_replicas(setting: Setting, batch: int) -> list[str]:
    """Data-parallel replicas without a sequence."""
    layout = setting.layout
    idle = layout.dp - batch
    if idle <= 0:
        return []
    each = layout.devices // layout.dp
    devices = f"{idle * each} of {layout.devices} devices"
    busy = " but for their experts" if layout.ep > layout.tp and has_experts(setting.model.graph) else ""
    return [f"batch {batch} is less than dp={layout.dp}: {devices} have no sequence and are idle{busy}"]


def _two_batches(setting: Setting, *, batch: int, prompt: int) -> list[str]:
    """Phases in which two-batch overlap is slower: each half-batch reads all weights, and small kernels are slow."""
    layout = setting.layout
    if layout.micro_batch_count(batch) == 1:
        return [f"batch {batch} gives each device of {layout} one sequence, so there is no two-batch overlap"]
    plain = replace(setting, layout=replace(layout, two_batch_overlap=False))
    sentences = []
    for phase, name in (("prefill", "the prefill"), ("decode", "decode steps"))[: 1 + setting.model.generates]:
        overlap_s, plain_s = (_pass_s(one, phase, batch=batch, prompt=prompt) for one in (setting, plain))
        if overlap_s > plain_s:
            times = f"{seconds(overlap_s)} with it, {seconds(plain_s)} without"
            sentences.append(f"two-batch overlap slows down {name}: {times}; each half-batch reads all weights")
    return sentences


def _shared_sequences(setting: Setting, batch: int) -> Iterator[str]:
    """Whether ranks divide sequences for attention, and have at least one each."""
    masks = [op.heads.mask for _, op in setting.graph if isinstance(op, Attention)]
    ranks = max((mask.ranks for mask in masks if isinstance(mask, ShardedSequences)), default=0)
    sequences = setting.layout.micro_batch_size(batch)
    if not ranks:
        yield f"batch-sharded attention has no effect: no ranks of {setting.layout} have the same key head"
    elif sequences < ranks:
        yield f"batch-sharded attention leaves ranks idle: {sequences:g} sequences for {ranks} ranks with one key head"


def _pass_s(setting: Setting, phase: str, *, batch: int, prompt: int) -> float:
    """The expected time of a pass, or its bound if none is known. [s]"""
    share = setting.layout.micro_batch_size(batch)
    if phase == "decode":
        workload = setting.step(Workload.decode(batch=share, kv_len=prompt + 1, prompt=prompt))
    else:
        workload = setting.prefill(Workload.prefill(batch=share, prompt=prompt))
    expected = setting.expected_time(phase, workload, batch)
    return expected.numbers()[0] if expected else float(setting.time_s(phase, workload, batch))


def _engine_library(setting: Setting) -> list[str]:
    """The kernel library of the engine, if it is not the default of the device."""
    engine = setting.engine
    default = Kernels(setting.hardware, profiles=setting.profiles).library if engine else ""
    if not engine or engine.library == default:
        return []
    without = f"{default} kernels" if default else "kernels of several libraries"
    return [f"expected times use {engine.library} kernels; without --engine, {without}"]


def _gguf_engine(setting: Setting) -> list[str]:
    """The engine that runs weights of GGUF types, if kernels of another library are expected."""
    formats = {op.weight.format.name for _, op in setting.graph if isinstance(op, Linear)}
    if setting.engine or setting.library or setting.kernels is None or not formats & _GGUF_TYPES:
        return []
    if not any(one.runs_on(setting.hardware) for one in backends(_GGUF_ENGINE)):
        return []
    return [f"expected times use kernels for similar formats; --engine {_GGUF_ENGINE} uses those of llama.cpp"]


def _to_mxfp8(setting: Setting) -> list[str]:
    """Experts whose activations the expected kernels have in fewer bits than the bound."""
    kernels = setting.kernels
    experts = (op for _, op in setting.graph if isinstance(op, ExpertsLinear) and op.weight.format.name == "mxfp4")
    if kernels is None or not kernels.to_mxfp8(kernels.library) or all(op.inputs[0].format.bits <= 8 for op in experts):
        return []
    does = f"{kernels.library} quantizes the activations of experts with MXFP4 weights to MXFP8 here"
    return [f"{does}: expected times include this; --quant 'published,expert_*=Amxfp8' gives the bound with it"]


def _merged_launches(evaluation: Evaluation) -> list[str]:
    """Operators of a decode step, or of the one pass, that the engine runs in one launch, such as gate and up."""
    engine, kernels = evaluation.setting.engine, engine_kernels(evaluation.setting)
    if engine is None or kernels is None:
        return []
    launched = evaluation.launched(evaluation.phases[-1], kernels)
    names = dict.fromkeys(
        "+".join(dict.fromkeys(launched.operators[member].operator.name for member in launch.members))
        + (" of the next layer" if launch.members[-1] < launch.members[0] else "")
        for launch in launched.launches
        if 1 < len(launch.members) <= _MAX_MERGED
    )
    if not names:
        return []
    launches = f"one launch of {engine.title} each, whose expected time its operators share (+ in the tables)"
    return [f"{launches}: {', '.join(names)}"]


def _slow_experts(evaluation: Evaluation) -> list[str]:
    """Phases in which the experts' newest measured kernel is much slower than one of an earlier version."""
    engine, kernels = evaluation.setting.engine, engine_kernels(evaluation.setting)
    if engine is None or kernels is None:
        return []
    times_by_kernels: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for phase in evaluation.phases:
        launched = evaluation.launched(phase, kernels)
        times_s: dict[str, float] = {}
        releases: dict[str, tuple[int, ...]] = {}
        for launches, _, bound in launched.groups:
            count = sum(launched.operators[launch.members[0]].block.repeat for launch in launches)
            for kernel in (one for one in launches[0].kernels if one.family == "moe"):
                for fit, time_s in kernels.expected_by_kernel(KernelBounds(kernel, bound)):
                    name = f"{fit.version} ({fit.implementation.kernel})"
                    times_s[name] = times_s.get(name, 0.0) + count * float(np.sum(time_s))
                    releases[name] = fit.release
        newest = max(times_s, key=lambda name: (releases[name], -times_s[name]), default="")
        fastest = min(times_s, key=lambda name: times_s[name], default="")
        if newest and releases[fastest] < releases[newest] and times_s[newest] > _SLOW_EXPERTS * times_s[fastest]:
            times = (f"{seconds(times_s[newest])} in {phase}", seconds(times_s[fastest]))
            times_by_kernels.setdefault((newest, fastest), []).append(times)
    choice = f"; {option} chooses another kernel (--experts-kernel here)" if (option := engine.experts_option) else ""
    return [
        f"experts take {', '.join(slow)} in the kernel of {kernels.library} {newest}, as expected here, and "
        f"{', '.join(fast)} in that of {fastest}{choice}"
        for (newest, fastest), times in times_by_kernels.items()
        for slow, fast in [zip(*times, strict=True)]
    ]


def _other_libraries(evaluation: Evaluation) -> list[str]:
    """Operators for which no kernels of the requested library were measured, and the libraries used instead."""
    setting, kernels = evaluation.setting, evaluation.setting.kernels
    if not setting.library or kernels is None or isinstance(kernels.device, str):
        return []
    names_by_libraries: dict[tuple[str, ...], dict[str, None]] = {}
    for phase in evaluation.phases:
        launched = evaluation.launched(phase, kernels)
        for launch in launched.launches:
            others = tuple(
                dict.fromkeys(name for kernel in launch.kernels for name in kernels.stand_in_libraries(kernel))
            )
            names = (launched.operators[member].operator.name for member in launch.members)
            if others:
                names_by_libraries.setdefault(others, {}).update(dict.fromkeys(names))
    return [
        f"no measured {setting.library} kernels for {_first_names(list(names))}: expected times use "
        f"{' and '.join(others)}"
        for others, names in names_by_libraries.items()
    ]


def _replicated(setting: Setting) -> list[str]:
    """Matrix products other than routers, and indexers of sparse attention, that every TP rank runs in full."""
    if setting.layout.tp == 1:
        return []
    full_shapes, heads = _shapes(setting.model.graph), _heads(setting.model.graph)
    replicated = dict.fromkeys(
        op.name
        for block, op in setting.graph.parts()
        if (
            isinstance(op, Linear)
            and not isinstance(op, Router)
            and full_shapes.get(_operator_key(block, op)) == op.weight.shape
        )
        or (isinstance(op, Indexer | BlockIndexer) and heads.get(_operator_key(block, op)) == op.heads.num_heads)
    )
    tp = setting.layout.tp
    return [f"tp={tp}: {', '.join(replicated)} are replicated on every rank"] if replicated else []


def _cut_scale_blocks(setting: Setting) -> list[str]:
    """Matrices that tensor parallelism cuts within blocks of weights with a common scale."""
    if setting.layout.tp == 1:
        return []
    full_shapes = _shapes(setting.model.graph)
    cut_names = dict.fromkeys(
        op.name
        for block, op in setting.graph.parts()
        if isinstance(op, Linear) and (uncut := full_shapes.get(_operator_key(block, op)))
        for size, full_size, edge in zip(op.weight.shape[-2:], uncut[-2:], _scale_block(op), strict=True)
        if size % edge and not full_size % edge
    )
    return (
        [f"tp={setting.layout.tp} cuts quantization blocks of {', '.join(cut_names)}: engines refuse or pad them"]
        if cut_names
        else []
    )


def _shapes(graph: Graph) -> dict[tuple[str, str], tuple[int, ...]]:
    """Shapes of weights of matrix products."""
    return {_operator_key(block, op): op.weight.shape for block, op in graph if isinstance(op, Linear)}


def _heads(graph: Graph) -> dict[tuple[str, str], int]:
    """Heads of indexers, which choose the keys of sparse attention."""
    return {
        _operator_key(block, op): op.heads.num_heads for block, op in graph if isinstance(op, Indexer | BlockIndexer)
    }


def _operator_key(block: Block, op: Operator) -> tuple[str, str]:
    """(kind of layer, operator name); pipeline stages of a kind have a suffix, as in "moe.3-30"."""
    return block.name.partition(".")[0], op.name


def _scale_block(op: Linear) -> tuple[int, int]:
    """(rows, columns) of a matrix with a common scale: part of a row, or a square as wide as groups of activations."""
    weight, operand = op.weight.format.group or 1, op.inputs[0].format.group
    columns = operand if operand and weight % operand == 0 else weight
    return weight // columns, columns


def _conversions(setting: Setting) -> list[str]:
    """Matrix products whose weights are converted to another type before they are multiplied."""
    names_by_formats: dict[tuple[Format, str, Format], dict[str, None]] = {}
    for op in (part for _, launch in setting.graph if not launch.on_host for part in parts_of(launch)):
        if isinstance(op, Linear) and op.weight.format.compute != (dtype := op.work().operand_unit.dtype):
            names_by_formats.setdefault((op.weight.format, dtype, op.inputs[0].format), {})[op.name] = None
    return [
        f"weights of {_first_names(list(names))} in {_format_text(weight)} are converted and multiplied in {dtype}: "
        f"activations are in {activation}, and matrix units need both operands in one type"
        for (weight, dtype, activation), names in names_by_formats.items()
    ]


def _other_types(evaluation: Evaluation) -> list[str]:
    """Formats of matrix products without a measured kernel, and the measured type used instead."""
    kernels, expected = evaluation.setting.kernels, evaluation.operators_expected("prefill")
    if kernels is None or expected is None or isinstance(kernels.device, str):
        return []
    rows, expected_launches = expected.operators, expected.launches
    names_by_formats: dict[tuple[Format, Format, str], dict[str, None]] = {}
    for launch in evaluation.launched("prefill", kernels).launches:
        types = [
            measured_type
            for kernel in launch.kernels
            if kernel.family in ("gemm", "moe")
            for measured_type in kernels.measured_dtypes(kernel)
        ]
        for member in launch.members if types else ():
            for op in _linears(rows[member].operator):
                formats = op.inputs[0].format, op.weight.format
                if expected_launches[member].modelled and not any(_has_formats(dtype, *formats) for dtype in types):
                    names_by_formats.setdefault((*formats, types[0]), {})[op.name] = None
    return [
        f"no measured kernel for {weight.name} weights with {activation.name} activations "
        f"({_first_names(list(names))}): expected at the efficiency of {dtype} kernels, with "
        f"{_bits(TYPES[dtype].weight)}-bit weights and {_bits(TYPES[dtype].activation)}-bit activations"
        for (activation, weight, dtype), names in names_by_formats.items()
    ]


def _linears(op: Operator) -> tuple[Linear, ...]:
    """Matrix products in an operator, which may be fused or overlapped."""
    op = op.first if isinstance(op, Overlapped) else op
    return tuple(part for part in parts_of(op) if isinstance(part, Linear))


def _has_formats(dtype: str, activation: Format, weight: Format) -> bool:
    """Whether a measured type has these formats; none has weights that are looked up in a table."""
    kernel = TYPES[dtype]
    pairs = ((activation, kernel.activation), (weight, kernel.weight))
    return weight.compute != "table" and all(
        min(fmt.bits, _WIDEST_BITS) == min(_bits(size), _WIDEST_BITS) for fmt, size in pairs
    )


def _bits(size: float) -> int:
    """Bits of an element of `size` bytes, without its share of scales."""
    return int(8 * size)


def _format_text(fmt: Format) -> str:
    """Such as "fp8_e4m3 (one scale per 16384)"."""
    return f"{fmt.name} (one scale per {fmt.group})" if fmt.group else fmt.name


def _first_names(names: Sequence[str]) -> str:
    num_omitted = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {num_omitted} more" if num_omitted > 0 else "")


def _indivisible_groups(setting: Setting) -> list[str]:
    """Quantization groups of --quant that do not divide the rows of a matrix."""
    if setting.quantization == setting.model.quantization or setting.layout.tp > 1:
        return []
    names_by_group: dict[tuple[int, int], dict[str, None]] = {}
    for _, op in setting.graph.parts():
        if isinstance(op, Linear) and op.weight.format.group and op.weight.shape[-1] % op.weight.format.group:
            names_by_group.setdefault((op.weight.format.group, op.weight.shape[-1]), {})[op.name] = None
    return [
        f"quantization groups of {group} do not divide rows of {width} ({_first_names(list(names))}): kernels refuse "
        "or pad them"
        for (group, width), names in names_by_group.items()
    ]


def _substitutions(setting: Setting) -> list[str]:
    """Types without matrix units on this device, and the units used instead."""
    sentences: dict[str, None] = {}
    hardware = setting.hardware
    for row in (*setting.plan.operators, *setting.decode_plan.operators):
        operand, compute = row.work.operand_unit, row.compute
        if operand.unit is Unit.MATRIX and operand != compute and not row.operator.on_host:
            sentences[
                f"{hardware.name} has no {operand.dtype} matrix units: {operand.dtype} matrix products are computed in "
                f"{compute.dtype} on {compute.unit} units ({setting.linked.described(compute)})"
            ] = None
    return list(sentences)
