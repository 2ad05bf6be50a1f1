"""Notes under an analysis: format conversions, what-ifs, missing data, and limits of the model that are exceeded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Final

import numpy as np

from ..devices.keys import ON_CHIP
from ..expectation.formats import TYPES
from ..expectation.kernels import Kernels
from ..expectation.whole_passes import backends
from ..ggml import BY_NAME
from ..graph import Block, Graph
from ..model import Model
from ..operators.attention import Indexer
from ..operators.base import Operator
from ..operators.block_sparse import BlockIndexer
from ..operators.collectives import OUT, UP
from ..operators.fused import Fused
from ..operators.linear import ExpertsLinear, LatentExpansion, Linear, Router
from ..parallel import busiest
from ..parallel.layout import Network
from ..parallel.overlap import Overlapped
from ..parameters import Accounting, Mla
from ..precision import NAMED, Format
from ..resource import Unit, link
from ..setting import Setting
from ..transforms.offload import ON_DEVICE
from ..transforms.skew import chooses, skew
from ..units import counted, seconds, si
from ..variants.evaluation import Evaluation
from ..workload import Workload
from .generation import GenerationResult

_NAMED: Final = 4  # operators listed by name
_LITTLE_EFFECT: Final = {  # what-ifs that change few results, by prefix
    "power.": "changes no bound, and expected times only if they are scaled from another device; compare, choose and "
    "plan use it",
    "price.": "changes no time; compare, choose and plan use it",
    "sparse.": "affects only analyses with --with sparsity",
}
_GGUF_ENGINE: Final = "llama.cpp"
_GGUF_TYPES: Final = BY_NAME.keys() - NAMED.keys() - {"f32", "f16", "f64"}  # types that only GGUF files have
_WIDE: Final = 16  # bits; matrix-product kernels treat wider formats as 16-bit ones


def notes(evaluation: Evaluation, *, written: int) -> tuple[str, ...]:
    """The notes of an analysis, one sentence each; `written` is the largest number of generated tokens."""
    setting, batch, prompt, images = evaluation.setting, int(evaluation.batch), evaluation.prompt, evaluation.images
    model = setting.model
    of_techniques = (note for one in setting.techniques for note in one.notes(setting))
    unknown = [f"{model.unknown}: weights are counted in the format of --quant"] if model.unknown else []
    found = [*unknown, *model.notes, *of_techniques, *_conversions(setting), *_substitutions(setting)]
    found += [*_links(setting), *_fp32_weights(setting), *_engine_library(setting), *_gguf_engine(setting)]
    found += [*_to_mxfp8(setting), *_other_libraries(evaluation), *_other_types(evaluation)]
    found += [*_replicated(setting), *_cut_scale_blocks(setting), *_indivisible_groups(setting)]
    found += _cached(setting, batch=batch, prompt=prompt, written=written)
    if model.picture and prompt != model.picture:
        found.append(
            f"{model.name} reads an image as {model.picture} tokens: --prompt {model.picture} counts one image"
        )
    if model.sees and not images:
        adds = f"; each adds {model.image_tokens} tokens to the prompt" if model.image_tokens else ""
        inputs = "audio clips of 30 s and their encoder" if model.hears else "images and their encoder"
        found.append(f"text only: to count {inputs}, give --images{adds}")
    if not model.generates and not any(one.one_pass for one in setting.techniques):
        found.append(f"{model.name} does not generate: it runs one pass over the prompt and no decode steps")
    context = max(prompt, written) if model.encodes else prompt + written  # encoder and decoder each count their own
    if model.max_context and context > model.max_context:
        found.append(f"{context:,} tokens are more than the {model.max_context:,} positions of {model.name}")
    if model.max_answer and written > model.max_answer:
        found.append(f"{written:,} tokens written are more than the {model.max_answer:,} positions of its decoder")
    found.extend(_altered(setting))
    routed = chooses(model.graph)
    if setting.expert_skew:
        asked = f"expert skew {setting.expert_skew:g}"
        chosen = f"{asked}: the n-th most popular expert is chosen in proportion to n^-{setting.expert_skew:g}"
        found.append(chosen if routed else f"{asked} has no effect: {model.name} has no experts")
    found.extend(_idle(setting, batch))
    if setting.layout.two_batch_overlap:
        found.extend(_two_batches(setting, batch=batch, prompt=prompt))
    uneven = setting.expert_skew or setting.layout.redundant_experts
    if setting.layout.ep > 1 and routed and uneven:
        load = busiest(model.graph.then(skew(setting.expert_skew)), Network.of(setting.hardware, setting.layout))
        found.append(f"expert load is uneven: the busiest of {setting.layout.ep} ranks has {load:.2f} times the mean")
    if setting.layout.ep > 1 and not routed:
        found.append(f"ep={setting.layout.ep} has no effect: {model.name} has no experts")
    if setting.mla is not Mla.AUTO and not any(isinstance(op, LatentExpansion) for _, op in model.graph):
        found.append(f"mla {setting.mla} has no effect: {model.name} has no latent attention")
    if setting.accounting is Accounting.SURVEY:
        found.append(
            'survey accounting reproduces the paper "LLM Inference Unveiled" (arXiv:2402.16363): no causal mask, '
            "no embedding, half the OPs of lm_head; for all other purposes use faithful accounting"
        )
    return tuple(found)


def acted(model: Model, answer: GenerationResult, written: int) -> list[str]:
    """Notes on how often a model for robots can act, if one inference was analyzed."""
    actions = model.actions
    if not actions:
        return []
    inference = f"an inference is {counted(actions.steps, actions.unit)} and makes {counted(actions.count, 'action')}"
    if written != actions.steps:
        return [f"{inference}: --gen {actions.steps} counts one"]
    each = "; the time per output token is that of one denoising step" if actions.denoising else ""
    found = f"{inference}: at most {_acting(answer.latency_s, actions.count)}"
    if answer.expected_latency_s:
        found += f"; expect {_acting(answer.expected_latency_s, actions.count)}"
    return [found + each]


def _acting(latency: float, actions: int) -> str:
    return f"{1 / latency:,.4g} inferences/s, {actions / latency:,.4g} actions/s"


def _cached(setting: Setting, *, batch: int, prompt: int, written: int) -> list[str]:
    """Models so small that the last cache keeps them from one pass to the next, which bounds do not assume."""
    name, capacity = setting.hardware.last_cache
    if not capacity or setting.offload != ON_DEVICE:
        return []
    weights, cache, _ = setting.footprint.parts(batch=float(batch), prompt=prompt, gen=written)
    held = float(np.max(weights) + np.max(cache))
    if held > capacity:
        return []
    fit = f"weights and cache, {si(held)}B, fit in the {capacity / 2**20:,.0f} MiB {name} of {setting.hardware.name}"
    return [f"{fit}: passes that find them there can beat the bounds, which read them from memory"]


def _fp32_weights(setting: Setting) -> list[str]:
    """Models published in fp32, as they are usually served in 16 bits; nothing if --quant was given."""
    widths = {weight.format.stored_bits for _, op in setting.graph for weight in op.weights}
    if setting.quantization != setting.model.quantization or widths != {32}:
        return []
    return [f"{setting.model.name} is published in fp32; it is usually served in 16 bits (--quant bf16)"]


def _altered(setting: Setting) -> list[str]:
    """What-ifs, the numbers that follow from them, and which what-ifs affect little."""
    hardware = setting.hardware
    found = [f"what-if: {change} replaces the number of the device's file" for change in hardware.changes]
    if hardware.follows:
        found.append(f"derived from these what-ifs: {', '.join(hardware.follows)}")
    small = [change for change in hardware.changes if change.partition(".")[0] in ON_CHIP and ".capacity" in change]
    if small:
        found.append(
            f"{', '.join(small)}: on-chip capacities affect only the tile sizes of attention and, for the last-level "
            "cache, expected times"
        )
    up = [change for change in hardware.changes if change.startswith(f"{UP}.")]
    if up and setting.layout.devices == 1:
        found.append(f"{', '.join(up)}: has no effect on one device; use it with --tp or another degree of parallelism")
    for key, effect in _LITTLE_EFFECT.items():
        if own := [change for change in hardware.changes if change.startswith(key)]:
            found.append(f"{', '.join(own)}: {effect}")
    return found


def _links(setting: Setting) -> list[str]:
    """Assumptions about links that the layout uses and the device's file does not fully describe."""
    hardware, linked, layout = setting.hardware, setting.linked, setting.layout
    network = Network.of(hardware, layout)
    rows = (*setting.plan.operators, *setting.decode_plan.operators)
    used = {resource.dtype for row in rows for resource in row.busy_s if resource.unit is Unit.LINK}
    found = []

    def others(tier: str) -> str:
        return f"{tier.replace('_', '-')} links ({si(linked.rates[link(tier)])}B/s each)"

    if network.inside != UP and network.inside in used:
        found.append(f"{hardware.name} has no scale-up link: devices communicate over {others(network.inside)}")
    elif layout.devices > network.domain and network.outside != OUT and network.outside in used:
        joined = f"scale-up links of {hardware.name} connect at most {network.domain:.0f} devices"
        found.append(f"{joined}: traffic between such groups goes over {others(network.outside)}")
    elif UP in used and f"{UP}.devices" not in hardware.numbers:
        found.append(
            f"the file of {hardware.name} does not say how many devices its {UP} links connect: assumed to connect all"
        )
    found.extend(
        f"{r.dtype}.latency of {hardware.name} is unknown and counts as 0; set it by "
        f"--hardware-set {r.dtype}.latency=VALUE"
        for r, rate in linked.rates.items()
        if r.unit is Unit.HOP and rate == inf and r.dtype in used
    )
    return found


def _idle(setting: Setting, batch: int) -> list[str]:
    """Data-parallel replicas without a sequence."""
    layout = setting.layout
    idle = layout.dp - batch
    if idle <= 0:
        return []
    each = layout.devices // layout.dp
    devices = f"{idle * each} of {layout.devices} devices"
    busy = " but for their experts" if layout.ep > layout.tp and chooses(setting.model.graph) else ""
    return [f"batch {batch} is less than dp={layout.dp}: {devices} have no sequence and are idle{busy}"]


def _two_batches(setting: Setting, *, batch: int, prompt: int) -> list[str]:
    """Phases in which two-batch overlap is slower: each half-batch reads all weights, and small kernels are slow."""
    layout = setting.layout
    if layout.parts(batch) == 1:
        return [f"batch {batch} gives each device of {layout} one sequence, so there is no two-batch overlap"]
    plain = replace(setting, layout=replace(layout, two_batch_overlap=False))
    found = []
    for phase, name in (("prefill", "the prefill"), ("decode", "decode steps"))[: 1 + setting.model.generates]:
        own, other = (_pass_s(one, phase, batch=batch, prompt=prompt) for one in (setting, plain))
        if own > other:
            times = f"{seconds(own)} with it, {seconds(other)} without"
            found.append(f"two-batch overlap does not pay in {name}: {times}; each half-batch reads all weights")
    return found


def _pass_s(setting: Setting, phase: str, *, batch: int, prompt: int) -> float:
    """The expected time of a pass, or its bound if none is known. [s]"""
    share = setting.layout.share(batch)
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
    without = f"kernels of {default}" if default else "kernels of several libraries"
    return [f"engine {engine.name} uses kernels of {engine.library}; expected times without an engine are of {without}"]


def _gguf_engine(setting: Setting) -> list[str]:
    """The engine that runs weights of GGUF types, if kernels of another library are expected."""
    formats = {op.weight.format.name for _, op in setting.graph if isinstance(op, Linear)}
    if setting.engine or setting.library or setting.kernels is None or not formats & _GGUF_TYPES:
        return []
    if not any(one.runs_on(setting.hardware) for one in backends(_GGUF_ENGINE)):
        return []
    return [f"expected times are of kernels for similar formats; --engine {_GGUF_ENGINE} gives those of llama.cpp"]


def _to_mxfp8(setting: Setting) -> list[str]:
    """Experts whose activations the expected kernels have in fewer bits than the bound."""
    kernels = setting.kernels
    experts = (op for _, op in setting.graph if isinstance(op, ExpertsLinear) and op.weight.format.name == "mxfp4")
    if kernels is None or not kernels.to_mxfp8(kernels.library) or all(op.inputs[0].format.bits <= 8 for op in experts):
        return []
    does = f"{kernels.library} quantizes the activations of experts with MXFP4 weights to MXFP8 here"
    return [f"{does}: expected times are those of such kernels; --quant 'published,expert_*=Amxfp8' gives their bound"]


def _other_libraries(evaluation: Evaluation) -> list[str]:
    """Operators for which no kernels of the requested library were measured, and the libraries used instead."""
    setting, kernels = evaluation.setting, evaluation.setting.kernels
    if not setting.library or kernels is None or isinstance(kernels.device, str):
        return []
    found: dict[tuple[str, ...], dict[str, None]] = {}
    for phase in evaluation.phases:
        launched = evaluation.launched(phase, kernels)
        for launch in launched.launches:
            others = tuple(
                dict.fromkeys(name for kernel in launch.kernels for name in kernels.stand_in_libraries(kernel))
            )
            names = (launched.operators[member].operator.name for member in launch.members)
            if others:
                found.setdefault(others, {}).update(dict.fromkeys(names))
    return [
        f"no kernels of {setting.library} were measured for {_few(list(names))}: expected times are those of "
        f"{' and '.join(others)}"
        for others, names in found.items()
    ]


def _replicated(setting: Setting) -> list[str]:
    """Matrix products other than routers, and indexers of sparse attention, that every TP rank runs in full."""
    if setting.layout.tp == 1:
        return []
    whole, heads = _shapes(setting.model.graph), _heads(setting.model.graph)
    replicated = dict.fromkeys(
        op.name
        for block, op in setting.graph
        if (isinstance(op, Linear) and not isinstance(op, Router) and whole.get(_place(block, op)) == op.weight.shape)
        or (isinstance(op, Indexer | BlockIndexer) and heads.get(_place(block, op)) == op.heads.num_heads)
    )
    tp = setting.layout.tp
    return [f"tp={tp}: {', '.join(replicated)} are not divided, and run in full on every rank"] if replicated else []


def _cut_scale_blocks(setting: Setting) -> list[str]:
    """Matrices that tensor parallelism cuts within blocks of weights with a common scale."""
    if setting.layout.tp == 1:
        return []
    whole = _shapes(setting.model.graph)
    cut = dict.fromkeys(
        op.name
        for block, op in setting.graph
        if isinstance(op, Linear) and (uncut := whole.get(_place(block, op)))
        for part, before, edge in zip(op.weight.shape[-2:], uncut[-2:], _block(op), strict=True)
        if part % edge and not before % edge
    )
    return (
        [f"tp={setting.layout.tp} cuts quantization blocks of {', '.join(cut)}: engines refuse or pad them"]
        if cut
        else []
    )


def _shapes(graph: Graph) -> dict[tuple[str, str], tuple[int, ...]]:
    """Shapes of weights of matrix products."""
    return {_place(block, op): op.weight.shape for block, op in graph if isinstance(op, Linear)}


def _heads(graph: Graph) -> dict[tuple[str, str], int]:
    """Heads of indexers, which choose the keys of sparse attention."""
    return {_place(block, op): op.heads.num_heads for block, op in graph if isinstance(op, Indexer | BlockIndexer)}


def _place(block: Block, op: Operator) -> tuple[str, str]:
    """(kind of layer, operator name); pipeline stages of a kind have a suffix, as in "moe.3-30"."""
    return block.name.partition(".")[0], op.name


def _block(op: Linear) -> tuple[int, int]:
    """(rows, columns) of a matrix with a common scale: part of a row, or a square as wide as groups of activations."""
    weight, operand = op.weight.format.group or 1, op.inputs[0].format.group
    columns = operand if operand and weight % operand == 0 else weight
    return weight // columns, columns


def _conversions(setting: Setting) -> list[str]:
    """Matrix products whose weights are converted to another type before they are multiplied."""
    found: dict[tuple[Format, str, Format], dict[str, None]] = {}
    for _, op in setting.graph:
        if isinstance(op, Linear) and op.weight.format.compute != (dtype := op.work().wanted.dtype):
            found.setdefault((op.weight.format, dtype, op.inputs[0].format), {})[op.name] = None
    return [
        f"weights of {_few(list(names))} in {_named(weight)} are converted and multiplied in {dtype}: activations are "
        f"in {activation}, and matrix units need both operands in one type"
        for (weight, dtype, activation), names in found.items()
    ]


def _other_types(evaluation: Evaluation) -> list[str]:
    """Formats of matrix products without a measured kernel, and the measured type used instead."""
    kernels, expected = evaluation.setting.kernels, evaluation.operators_expected("prefill")
    if kernels is None or expected is None or isinstance(kernels.device, str):
        return []
    rows, known = expected.operators, expected.launches
    found: dict[tuple[Format, Format, str], dict[str, None]] = {}
    for launch in evaluation.launched("prefill", kernels).launches:
        types = [
            of
            for kernel in launch.kernels
            if kernel.family in ("gemm", "moe")
            for of in kernels.measured_dtypes(kernel)
        ]
        for member in launch.members if types else ():
            for op in _linears(rows[member].operator):
                formats = op.inputs[0].format, op.weight.format
                if known[member].modelled and not any(_has(dtype, *formats) for dtype in types):
                    found.setdefault((*formats, types[0]), {})[op.name] = None
    return [
        f"no kernel of {weight.name} weights and {activation.name} activations was measured "
        f"({_few(list(names))}): they are expected to be as efficient as {dtype} kernels, with "
        f"{_bits(TYPES[dtype].weight)}-bit weights and {_bits(TYPES[dtype].activation)}-bit activations"
        for (activation, weight, dtype), names in found.items()
    ]


def _linears(op: Operator) -> tuple[Linear, ...]:
    """Matrix products in an operator, which may be fused or overlapped."""
    op = op.first if isinstance(op, Overlapped) else op
    return tuple(part for part in (op.parts if isinstance(op, Fused) else (op,)) if isinstance(part, Linear))


def _has(dtype: str, activation: Format, weight: Format) -> bool:
    """Whether a measured type has these formats. No measured kernel looks weights up in a table."""
    kernel = TYPES[dtype]
    pairs = ((activation, kernel.activation), (weight, kernel.weight))
    return weight.compute != "table" and all(min(fmt.bits, _WIDE) == min(_bits(size), _WIDE) for fmt, size in pairs)


def _bits(size: float) -> int:
    """Bits of an element of `size` bytes, without its share of scales."""
    return int(8 * size)


def _named(fmt: Format) -> str:
    """Such as "fp8_e4m3 (one scale per 16384)"."""
    return f"{fmt.name} (one scale per {fmt.group})" if fmt.group else fmt.name


def _few(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _indivisible_groups(setting: Setting) -> list[str]:
    """Quantization groups of --quant that do not divide the rows of a matrix."""
    if setting.quantization == setting.model.quantization or setting.layout.tp > 1:
        return []
    found: dict[tuple[int, int], dict[str, None]] = {}
    for _, op in setting.graph:
        if isinstance(op, Linear) and op.weight.format.group and op.weight.shape[-1] % op.weight.format.group:
            found.setdefault((op.weight.format.group, op.weight.shape[-1]), {})[op.name] = None
    return [
        f"quantization groups of {group} do not divide rows of {width} ({_few(list(names))}): kernels refuse or pad "
        "them"
        for (group, width), names in found.items()
    ]


def _substitutions(setting: Setting) -> list[str]:
    """Types without matrix units on this device, and the units used instead."""
    found: dict[str, None] = {}
    hardware = setting.hardware
    for row in (*setting.plan.operators, *setting.decode_plan.operators):
        wanted, compute = row.work.wanted, row.compute
        if wanted.unit is Unit.MATRIX and wanted != compute:
            found[
                f"{hardware.name} has no {wanted.dtype} matrix units: {wanted.dtype} matrix products are computed in "
                f"{compute.dtype} on {compute.unit} units ({setting.linked.described(compute)})"
            ] = None
    return list(found)
