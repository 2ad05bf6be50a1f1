"""What a reader of the numbers has to know besides: conversions, what-ifs, limits that were passed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Final

from ..devices.keys import ON_CHIP
from ..expectation.formats import TYPES
from ..expectation.kernels import Kernels
from ..graph import Block, Graph
from ..lowering import Accounting, Mla
from ..operators.attention import Indexer
from ..operators.base import Operator
from ..operators.block_sparse import BlockIndexer
from ..operators.collectives import OUT, UP
from ..operators.fused import Fused
from ..operators.linear import LatentExpansion, Linear
from ..parallel import busiest
from ..parallel.layout import Network
from ..parallel.overlap import Overlapped
from ..precision import Format
from ..resource import Unit, link
from ..setting import Setting
from ..transforms.skew import chooses, skew
from ..units import seconds, si
from ..workload import Workload

_NAMED: Final = 4  # operators that are told by name
_LITTLE: Final = {  # what-ifs that change few numbers
    "power.": "changes no bound, and expected times only where kernels are carried over from another device; "
    "compare, choose and plan count it",
    "price.": "changes no time; compare, choose and plan count it",
    "sparse.": "changes what --with sparsity computes, and nothing else",
}
_WIDE: Final = 16  # bits from which on formats are alike to a kernel of products


def notes(setting: Setting, *, batch: int, prompt: int, written: int, images: int = 0) -> tuple[str, ...]:
    """One sentence each; `prompt`, with `images` in it, and `written` are the longest asked for. [tokens]

    batch  of all devices together
    """
    model = setting.model
    ours = (note for one in setting.techniques for note in one.notes(setting))
    unknown = [f"{model.unknown}: weights are counted as asked"] if model.unknown else []
    found = [*unknown, *model.notes, *ours, *_conversions(setting), *_substitutions(setting), *_links(setting)]
    read = Workload.prefill(batch=1, prompt=prompt, images=images)
    found += [*_full(setting), *_whose(setting), *_borrowed(setting, read, prompt), *_stand_ins(setting, read)]
    found += [*_copied(setting), *_torn(setting), *_groups(setting)]
    if model.picture and prompt != model.picture:
        found.append(
            f"{model.name} reads pictures of {model.picture} tokens: --prompt {model.picture} counts what it does"
        )
    if model.sees and not images:
        takes = f"; each adds {model.image_tokens} tokens to the prompt" if model.image_tokens else ""
        what = "audio clips of 30 s and the encoder" if model.hears else "pictures and the tower"
        found.append(f"text only: --images counts {what} that reads them{takes}")
    if not model.generates:
        found.append(f"{model.name} does not generate: it reads its prompt in one pass, and there is no decode step")
    context = max(prompt, written) if model.encodes else prompt + written  # encoder and decoder each count their own
    if model.max_context and context > model.max_context:
        found.append(f"{context} tokens are more than the {model.max_context} positions of {model.name}")
    if model.max_answer and written > model.max_answer:
        found.append(f"{written} tokens written are more than the {model.max_answer} positions of its decoder")
    found.extend(_altered(setting))
    routed = chooses(model.graph)
    if setting.expert_skew:
        asked = f"expert skew {setting.expert_skew:g}"
        chosen = f"{asked}: the popularity of experts falls as rank^-{setting.expert_skew:g} instead of being uniform"
        found.append(chosen if routed else f"{asked} has no effect: {model.name} has no experts")
    found.extend(_idle(setting, batch))
    if setting.layout.two_batch_overlap:
        found.extend(_two_batches(setting, batch=batch, prompt=prompt))
    uneven = setting.expert_skew or setting.layout.redundant_experts
    if setting.layout.ep > 1 and routed and uneven:
        load = busiest(model.graph.then(skew(setting.expert_skew)), Network.of(setting.hardware, setting.layout))
        found.append(f"the busiest of {setting.layout.ep} ranks has {load:.2f} times the mean of tokens for experts")
    if setting.layout.ep > 1 and not routed:
        found.append(f"ep={setting.layout.ep} has no effect: {model.name} has no experts")
    if setting.mla is not Mla.AUTO and not any(isinstance(op, LatentExpansion) for _, op in model.graph):
        found.append(f"mla {setting.mla} has no effect: {model.name} has no latent attention")
    if setting.accounting is Accounting.SURVEY:
        found.append(
            'survey accounting follows the paper "LLM Inference Unveiled" (arXiv:2402.16363): no causal mask, '
            "no embedding, half the OPs of lm_head; use faithful accounting for anything else"
        )
    return tuple(found)


def _full(setting: Setting) -> list[str]:
    """That all weights are in fp32, where nothing was asked: few serve them so."""
    widths = {weight.format.stored_bits for _, op in setting.graph for weight in op.weights}
    if setting.quantization != setting.model.quantization or widths != {32}:
        return []
    return [f"{setting.model.name} comes with all weights in fp32; most serve it in 16 bits (--quant bf16)"]


def _altered(setting: Setting) -> list[str]:
    """What-ifs, what follows from them, and what little some of them do."""
    hardware = setting.hardware
    found = [f"what-if: {change} instead of the device's own number" for change in hardware.changes]
    if hardware.follows:
        found.append(f"these follow, where they are not given: {', '.join(hardware.follows)}")
    small = [change for change in hardware.changes if change.partition(".")[0] in ON_CHIP and ".capacity" in change]
    if small:
        found.append(
            f"{', '.join(small)}: on-chip capacities size the tiles of attention, and the last-level cache affects "
            "expected times; little else depends on them"
        )
    up = [change for change in hardware.changes if change.startswith(f"{UP}.")]
    if up and setting.layout.devices == 1:
        found.append(f"{', '.join(up)}: one device sends nothing over these links; --tp and other degrees use them")
    for key, does in _LITTLE.items():
        if own := [change for change in hardware.changes if change.startswith(key)]:
            found.append(f"{', '.join(own)}: {does}")
    return found


def _links(setting: Setting) -> list[str]:
    """What is not known of the links that a layout uses, and what is taken instead."""
    hardware, linked, layout = setting.hardware, setting.linked, setting.layout
    network = Network.of(hardware, layout)
    rows = (*setting.plan.operators, *setting.decode_plan.operators)
    used = {resource.dtype for row in rows for resource in row.busy_s if resource.unit is Unit.LINK}
    found = []

    def others(tier: str) -> str:
        return f"{tier.replace('_', '-')} links ({si(linked.rates[link(tier)])}B/s each)"

    if network.inside != UP and network.inside in used:
        found.append(f"{hardware.name} has no scale-up link: devices talk over their {others(network.inside)}")
    elif layout.devices > network.domain and network.outside != OUT and network.outside in used:
        joined = f"scale-up links of {hardware.name} join {network.domain:.0f} devices"
        found.append(f"{joined}: beyond, they talk over their {others(network.outside)}")
    elif UP in used and f"{UP}.devices" not in hardware.numbers:
        found.append(
            f"the file of {hardware.name} does not say how many devices its {UP} links join: all are taken to be joined"
        )
    found.extend(
        f"{r.dtype}.latency of {hardware.name} is not known and counts as none; --hardware-set {r.dtype}.latency=VALUE"
        for r, rate in linked.rates.items()
        if r.unit is Unit.HOP and rate == inf and r.dtype in used
    )
    return found


def _idle(setting: Setting, batch: int) -> list[str]:
    """Copies of the model that no sequence is left for."""
    layout = setting.layout
    idle = layout.dp - batch
    if idle <= 0:
        return []
    each = layout.devices // layout.dp
    devices = f"{idle * each} of {layout.devices} devices"
    busy = " but for their experts" if layout.ep > layout.tp and chooses(setting.model.graph) else ""
    return [f"batch {batch} is less than dp={layout.dp}: {devices} have no sequence and are idle{busy}"]


def _two_batches(setting: Setting, *, batch: int, prompt: int) -> list[str]:
    """Where two batches that overlap take longer than one: halves read all weights, and are smaller for kernels."""
    layout = setting.layout
    if layout.parts(batch) == 1:
        return [f"batch {batch} leaves each device of {layout} one sequence, which is not cut in two"]
    plain = replace(setting, layout=replace(layout, two_batch_overlap=False))
    found = []
    for phase, name in (("prefill", "the prefill"), ("decode", "decode steps"))[: 1 + setting.model.generates]:
        own, other = (_pass_s(one, phase, batch=batch, prompt=prompt) for one in (setting, plain))
        if own > other:
            times = f"{seconds(own)} with it and {seconds(other)} without"
            found.append(f"two-batch overlap does not pay in {name}: {times}, as both halves read all weights")
    return found


def _pass_s(setting: Setting, phase: str, *, batch: int, prompt: int) -> float:
    """What a pass is expected to take, or its bound where no more is known. [s]"""
    share = setting.layout.share(batch)
    if phase == "decode":
        workload = setting.step(Workload.decode(batch=share, kv_len=prompt + 1, prompt=prompt))
    else:
        workload = setting.prefill(Workload.prefill(batch=share, prompt=prompt))
    expected = setting.expected_time(phase, workload, batch)
    return expected.numbers()[0] if expected else float(setting.time_s(phase, workload, batch))


def _whose(setting: Setting) -> list[str]:
    """The library that an engine brings, where another would be expected without it."""
    engine = setting.engine
    usual = Kernels(setting.hardware, profiles=setting.profiles).library if engine else ""
    if not engine or engine.library == usual:
        return []
    whose = f"kernels of {usual}" if usual else "kernels of several libraries"
    return [f"engine {engine.name} brings kernels of {engine.library}; without it {whose} are expected"]


def _borrowed(setting: Setting, read: Workload, prompt: int) -> list[str]:
    """What the library that was asked for has no kernels for, and whose are expected."""
    kernels = setting.kernels
    if not setting.library or kernels is None or isinstance(kernels.device, str):
        return []
    passes = [(setting.plan, setting.prefill(read))]
    if setting.model.generates:
        passes.append((setting.decode_plan, setting.step(Workload.decode(batch=1, kv_len=prompt + 1, prompt=prompt))))
    found: dict[tuple[str, ...], dict[str, None]] = {}
    for plan, seen in passes:
        rows = plan.estimate(seen).operators
        for launch in kernels.laid(rows, seen):
            others = tuple(dict.fromkeys(name for kernel in launch.kernels for name in kernels.others(kernel)))
            if others:
                found.setdefault(others, {}).update((rows[member].operator.name, None) for member in launch.members)
    return [
        f"no kernels of {setting.library} were measured for {_few(list(names))}: those of {' and '.join(others)} are "
        "expected"
        for others, names in found.items()
    ]


def _copied(setting: Setting) -> list[str]:
    """Matrix products, routers apart, and choices of keys that every rank of tensor parallelism does in full."""
    if setting.layout.tp == 1:
        return []
    whole, heads = _shapes(setting.model.graph), _heads(setting.model.graph)
    copied = dict.fromkeys(
        op.name
        for block, op in setting.graph
        if (isinstance(op, Linear) and op.kind != "router" and whole.get(_place(block, op)) == op.weight.shape)
        or (isinstance(op, Indexer | BlockIndexer) and heads.get(_place(block, op)) == op.heads.num_heads)
    )
    return [f"tp={setting.layout.tp}: {', '.join(copied)} run whole on every rank"] if copied else []


def _torn(setting: Setting) -> list[str]:
    """Matrices of which ranks of tensor parallelism have parts of blocks that share a scale."""
    if setting.layout.tp == 1:
        return []
    whole = _shapes(setting.model.graph)
    torn = dict.fromkeys(
        op.name
        for block, op in setting.graph
        if isinstance(op, Linear) and (uncut := whole.get(_place(block, op)))
        for part, before, edge in zip(op.weight.shape[-2:], uncut[-2:], _block(op), strict=True)
        if part % edge and not before % edge
    )
    cut = f"tp={setting.layout.tp} cuts blocks of weights that share a scale, which engines refuse or pad"
    return [f"{cut}: {', '.join(torn)}"] if torn else []


def _shapes(graph: Graph) -> dict[tuple[str, str], tuple[int, ...]]:
    """Of the matrices of products."""
    return {_place(block, op): op.weight.shape for block, op in graph if isinstance(op, Linear)}


def _heads(graph: Graph) -> dict[tuple[str, str], int]:
    """Of what chooses keys for an attention."""
    return {_place(block, op): op.heads.num_heads for block, op in graph if isinstance(op, Indexer | BlockIndexer)}


def _place(block: Block, op: Operator) -> tuple[str, str]:
    """The kind of layer that an operator is in, whose stages are called such as "moe.3-30", and its name there."""
    return block.name.partition(".")[0], op.name


def _block(op: Linear) -> tuple[int, int]:
    """Rows and columns of a matrix that share a scale: those of a row, or squares as wide as groups of its operand."""
    weight, operand = op.weight.format.group or 1, op.inputs[0].format.group
    columns = operand if operand and weight % operand == 0 else weight
    return weight // columns, columns


def _conversions(setting: Setting) -> list[str]:
    """Matrix products whose weights are stored in another type than they are multiplied in."""
    found: dict[tuple[Format, str, Format], dict[str, None]] = {}
    for _, op in setting.graph:
        if isinstance(op, Linear) and op.weight.format.compute != (dtype := op.work().wanted.dtype):
            found.setdefault((op.weight.format, dtype, op.inputs[0].format), {})[op.name] = None
    return [
        f"weights of {_few(list(names))} in {_told(weight)} are multiplied in {dtype}: a low-bit unit works only if "
        f"all operands have its type, and activations are in {activation}"
        for (weight, dtype, activation), names in found.items()
    ]


def _stand_ins(setting: Setting, workload: Workload) -> list[str]:
    """Formats of matrix products that no measured kernel has, and those of the kernels whose times are expected."""
    kernels = setting.kernels
    if kernels is None or isinstance(kernels.device, str):
        return []
    seen = setting.prefill(workload)
    rows = setting.plan.estimate(seen).operators
    laid = kernels.laid(rows, seen)
    known = kernels.expect(rows, seen, laid).launches
    found: dict[tuple[Format, Format, str], dict[str, None]] = {}
    for launch in laid:
        types = [kernel.stack.dtype for kernel in launch.kernels if kernel.family in ("gemm", "moe")]
        for member in launch.members if types else ():
            for op in _linears(rows[member].operator):
                formats = op.inputs[0].format, op.weight.format
                if known[member].modelled and not any(_has(dtype, *formats) for dtype in types):
                    found.setdefault((*formats, types[0]), {})[op.name] = None
    return [
        f"no kernel of {weight.name} weights and {activation.name} activations was measured "
        f"({_few(list(names))}): expected as {dtype}, with {_bits(TYPES[dtype].weight)}-bit weights and "
        f"{_bits(TYPES[dtype].activation)}-bit activations"
        for (activation, weight, dtype), names in found.items()
    ]


def _linears(op: Operator) -> tuple[Linear, ...]:
    """The products in what is launched."""
    op = op.first if isinstance(op, Overlapped) else op
    return tuple(part for part in (op.parts if isinstance(op, Fused) else (op,)) if isinstance(part, Linear))


def _has(dtype: str, activation: Format, weight: Format) -> bool:
    """Whether kernels of a measured type have operands of such formats. None looks weights up in a table."""
    kernel = TYPES[dtype]
    pairs = ((activation, kernel.activation), (weight, kernel.weight))
    return weight.compute != "table" and all(min(fmt.bits, _WIDE) == min(_bits(size), _WIDE) for fmt, size in pairs)


def _bits(size: float) -> int:
    """Of an element of `size` bytes, its part of scales left out."""
    return int(8 * size)


def _told(fmt: Format) -> str:
    """Such as "fp8_e4m3 (a scale for every 16384)"."""
    return f"{fmt.name} (a scale for every {fmt.group})" if fmt.group else fmt.name


def _few(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _groups(setting: Setting) -> list[str]:
    """Groups of a scale that was asked for which rows do not consist of."""
    if setting.quantization == setting.model.quantization or setting.layout.tp > 1:
        return []
    found: dict[tuple[int, int], dict[str, None]] = {}
    for _, op in setting.graph:
        if isinstance(op, Linear) and op.weight.format.group and op.weight.shape[-1] % op.weight.format.group:
            found.setdefault((op.weight.format.group, op.weight.shape[-1]), {})[op.name] = None
    return [
        f"groups of {group} do not divide rows of {width} ({_few(list(names))}): kernels refuse or pad them"
        for (group, width), names in found.items()
    ]


def _substitutions(setting: Setting) -> list[str]:
    """Types that this device has no matrix unit for, and what stands in for them."""
    found: dict[str, None] = {}
    hardware = setting.hardware
    for row in (*setting.plan.operators, *setting.decode_plan.operators):
        wanted, compute = row.work.wanted, row.compute
        if wanted.unit is Unit.MATRIX and wanted != compute:
            found[
                f"{hardware.name} has no {wanted.dtype} matrix units: products in {wanted.dtype} are computed "
                f"in {compute.dtype} on its {compute.unit} units ({si(hardware.rates[compute])}OP/s)"
            ] = None
    return list(found)
