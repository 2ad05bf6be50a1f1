"""The changes that advice, the page and memory fixes try: precisions, attention, batches, devices, offload, techniques.

Which of them a caller tries depends on what it answers; how each is named, merged with a setting and typed does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Final

from ..errors import InputError
from ..graph import Block, Graph
from ..model import Model, vocabulary
from ..model_files import load_model, model_names
from ..operators.linear import Linear
from ..parameters import Accounting, AttentionMode
from ..precision import BF16, FP16, NAMED, Format, Scheme, notation, parse_scheme
from ..resource import matrix
from ..setting import Setting
from ..techniques import Requirement, Technique, parse_technique, techniques
from ..transforms.mixtures import MIXTURES
from ..transforms.offload import HOST
from ..transforms.quantize import PUBLISHED
from .evaluation import Evaluation
from .quantization import given_scheme
from .variant import Change

PRECISION, CACHE, ATTENTION, BATCH, LAYOUT, OFFLOAD = "precision", "cache", "attention", "batch", "layout", "offload"
PRECISIONS: Final = {  # those in common use, by text for --quant
    "fp8": "fp8 weights and activations", "W8A8": "8-bit weights and activations", "W4A16g128": "4-bit weights",
    "W4A8g128": "4-bit weights and 8-bit activations", "nvfp4": "nvfp4 weights and activations",
}  # fmt: skip
# Bits of a weight with its scales, of the precisions in which engines on one user's machine run models. GGUF files:
# those of Llama 3.1 8B (github.com/ggml-org/llama.cpp, tools/quantize/README.md); MLX: groups of 64 with scale and bias
# of 16 bits (github.com/ml-explore/mlx-lm, mlx_lm/convert.py).
LOCAL_PRECISIONS: Final[Mapping[str, Mapping[str, float]]] = {
    "llama.cpp": {"Q8_0": 8.5, "Q6_K": 6.56, "Q5_K_M": 5.7, "Q4_K_M": 4.89},
    "mlx": {"W8A16g64": 8.5, "W6A16g64": 6.5, "W4A16g64": 4.5},
}
_BITS_TOLERANCE: Final = 0.2  # of these: weights of a file type have up to 0.1 bits fewer in other models (Qwen3 8B)
_SAVED_BITS: Final = 1  # of a weight, from which a precision of servers is narrower
_8_BIT_CACHE: Final = "an 8-bit KV cache"
_SERVER_CACHES: Final = {"KVfp8": "an fp8 KV cache"}
_LOCAL_CACHES: Final = {
    "llama.cpp": {"KVq8_0": _8_BIT_CACHE},
    "mlx": {"KV8g64z16": _8_BIT_CACHE},  # --kv-bits 8, with its default --kv-group-size
}
CACHES: Final = {"KV8": _8_BIT_CACHE, "KV4": "a 4-bit KV cache"}
DEGREES: Final = (2, 4, 8, 16, 32, 64)  # of tensor parallelism
_BATCHES: Final = (2, 4, 8, 16)  # times the batch
_OPERANDS: Final = ("int8", "fp8_e4m3", "nvfp4", "int4")  # formats with fewer bits that devices multiply
_DRAFT_RATIO: Final = 5  # parameters of the model over those of a model that drafts for it, at least
TAU: Final = 1.9  # tokens of a pass that verifies a draft, the middle of those measured (arXiv:2404.14294, table 5)
_FAMILY: Final = re.compile(r"[a-z]+")
_GENERATION: Final = re.compile(r"[a-z]+-?\d+")  # qwen3 of qwen3-32b, llama-3 of llama-3.1-70b


def precisions(setting: Setting) -> Iterator[Change]:
    """Precisions in common use, of weights and activations or of the cache, except that of `setting`."""
    current, _ = given_scheme(setting)
    for texts, group in ((PRECISIONS, PRECISION), (CACHES, CACHE)):
        for text, about in texts.items():
            scheme = parse_scheme(text).over(current)
            if _formats(scheme) != _formats(current):
                yield _precision(text, about, group)


def deployed_precisions(setting: Setting) -> Iterator[Change]:
    """Precisions in which engines run models on the device, narrower than that of `setting`, and 8-bit KV caches."""
    engine = setting.engine.name if setting.engine else ""
    current, _ = given_scheme(setting)
    bits = _mean_bits(setting.graph)
    if engine in LOCAL_PRECISIONS:
        widest = bits - _BITS_TOLERANCE
        narrow = ((text, each) for text, each in LOCAL_PRECISIONS[engine].items() if each < widest)
        texts = {text: f"{_named_bits(text, each):g}-bit weights" for text, each in narrow}
    else:
        texts = {text: about for text, about in PRECISIONS.items() if _is_deployed(text, setting, bits)}
    for text, about in texts.items():
        yield _precision(text, about)
    cache = current.kv_cache
    if cache is None or cache.bits > 8:
        for text, about in _LOCAL_CACHES.get(engine, _SERVER_CACHES).items():
            yield _precision(text, about, CACHE)


def _named_bits(text: str, bits: float) -> float:
    """The bits by which users name a precision: of a file type with its scales, of a format without."""
    weight = None if text in MIXTURES else parse_scheme(text).weight
    return weight.bits if weight else bits


def _is_deployed(text: str, setting: Setting, bits: float) -> bool:
    """Whether a precision has fewer than `bits`, and the device multiplies its operands or it is of weights alone."""
    scheme, rates = parse_scheme(text), setting.hardware.rates
    if scheme.weight is None or scheme.weight.stored_bits > bits - _SAVED_BITS:
        return False
    if scheme.activation is None or scheme.activation.bits > 8:
        return True
    natively = matrix(scheme.activation.compute) in rates and scheme.weight.bits == scheme.activation.bits
    return natively and not (text == "W8A8" and matrix(NAMED["fp8_e4m3"].compute) in rates)


def narrower(model: Model, quants: Sequence[str]) -> tuple[str, ...]:
    """The precisions that do not widen the published weights: a model of 4-bit weights is served in them."""
    bits = _mean_bits(model.published)
    schemes = ((text, parse_scheme(text).weight if text != PUBLISHED else None) for text in quants)
    return tuple(text for text, weight in schemes if weight is None or weight.stored_bits <= bits - _SAVED_BITS)


def _mean_bits(graph: Graph) -> float:
    """Mean bits of a weight of matrix products, with its scales; 0 if there are none."""
    weights = [(block.repeat * op.weight.numel, op.weight.format.stored_bits) for block, op in _linears(graph)]
    return sum(count * bits for count, bits in weights) / max(sum(count for count, _ in weights), 1)


def flash_attention(setting: Setting) -> Iterator[Change]:
    """Flash attention, if attention is eager."""
    if setting.attention is AttentionMode.EAGER:
        yield Change(name="flash attention", about="scores stay on the chip", group=ATTENTION,
                     options={"attention": "flash"})  # fmt: skip


def fewer_bytes(setting: Setting) -> Iterator[Change]:
    """Changes that move fewer bytes: flash attention, fewer bits per weight and per cached number.

    With an engine, its precisions.
    """
    yield from flash_attention(setting)
    if _wide(setting):
        yield from _half(setting)
    if setting.engine:
        yield from deployed_precisions(setting)
        return
    yield from _four_bits(setting)
    cache = setting.quantization.scheme.kv_cache
    if cache is None or cache.bits > 8:
        yield _precision("KV8", CACHES["KV8"], CACHE)


def lower_bits(setting: Setting) -> Iterator[Change]:
    """Weights and activations in each format of fewer bits that the device has matrix units for.

    With an engine, its precisions.
    """
    if _wide(setting):
        yield from _half(setting)
    if setting.engine:
        yield from deployed_precisions(setting)
        return
    for fmt in (NAMED[name] for name in _OPERANDS):
        if matrix(fmt.compute) in setting.hardware.rates:
            yield from _operands(setting, fmt)


def smaller_weights(setting: Setting) -> Iterator[Change]:
    """Precisions with fewer bits per weight, the widest first: 8-bit operands that the device multiplies, 4 bits."""
    for fmt in (NAMED["fp8_e4m3"], NAMED["int8"]):
        if matrix(fmt.compute) in setting.hardware.rates:
            yield from _operands(setting, fmt)
    yield from _four_bits(setting)


def larger_batches(base: Evaluation, limit: int | None = None) -> Iterator[Change]:
    """Larger batches up to 16 times as many sequences, and the largest that fits and is within `limit`."""
    largest = min((number for number in (base.memory.max_batch, limit) if number is not None), default=0)
    larger = {int(base.batch) * factor for factor in _BATCHES} | {largest}
    yield from map(_batch, sorted(n for n in larger if n > base.batch and (limit is None or n <= limit)))


def larger_batch(batch: int, max_batch: int | None) -> int:
    """The batch to offer in place of `batch`: 16 times as large, or the largest that fits (which may be smaller)."""
    largest = _BATCHES[-1] * batch
    return largest if max_batch is None else min(largest, max_batch)


def fullest_batch(batch: int, max_batch: int | None) -> Iterator[Change]:
    """larger_batch() as a change, if it is larger."""
    larger = larger_batch(batch, max_batch)
    if larger > batch:
        largest = ", as many as fit" if larger == max_batch else ""
        yield _batch(larger, f"more sequences share a reading of the weights{largest}")


def more_devices(degrees: Iterable[int]) -> Iterator[Change]:
    """Tensor parallelism of each degree."""
    for degree in degrees:
        yield Change(name=f"tp={degree}", about=f"tensor parallelism of {degree}", group=LAYOUT, options={"tp": degree})


def expert_layouts(setting: Setting, degrees: Iterable[int]) -> Iterator[Change]:
    """Experts divided among each number of devices, with attention sharded or replicated; nothing without experts."""
    if not any(op.kind == "experts" for _, op in setting.graph):
        return
    for degree in degrees:
        for layout, about in ((f"tp={degree} ep={degree}", "sharded"), (f"dp={degree} ep={degree}", "replicated")):
            yield Change(
                name=layout, about=f"experts on {degree} devices, attention {about}", group=LAYOUT,
                options={"layout": layout},
            )  # fmt: skip


def chunked_prefill() -> Change:
    """Prompts processed in chunks, which lowers the peak of activations."""
    return technique_change(techniques()["chunked-prefill"])


def more_layers_on_host(setting: Setting) -> Iterator[Change]:
    """More layers of which the host computes a part, one more at a time; nothing without a host."""
    parts = [name for name in ("experts", "layers", "attention") if getattr(setting.placement, name)]
    if not setting.host or len(parts) != 1:
        return
    (part,) = parts
    for layers in range(getattr(setting.placement, part) + 1, setting.model.graph.layers + 1):
        text = f"{part}={layers}"
        yield Change(name=f"on host {text}", about="more layers on the host", group=OFFLOAD, options={"on_host": text})


def offloading(base: Evaluation) -> Iterator[Change]:
    """The smallest share of weights, in whole percents, in host memory that makes the request fit.

    Nothing if the request fits without, if no share suffices, or if the device's file has no host link.
    """
    lengths, share = base, base.setting.offload.weights
    needed_bytes, capacity = float(base.memory_bytes), base.capacity_bytes
    change = None
    while needed_bytes > capacity:  # once; of a pipeline, until no stage is too full
        weights = float(lengths.weight_bytes)
        model_bytes = weights / (1 - share) if share < 1 else 0.0
        share = ceil(100 * (share + (needed_bytes - capacity) / model_bytes) - 1e-9) / 100 if model_bytes else 2.0
        if share > 1 or f"{HOST}.bandwidth" not in base.setting.hardware.numbers:
            return
        text = str(replace(base.setting.offload, weights=share))
        change = Change(
            name=f"offload {text}", about="weights in host memory", group=OFFLOAD, options={"offload": text}
        )
        lengths = base.changed(change.applied(base.setting))
        needed_bytes = float(lengths.memory_bytes)
    if change:
        yield change


def technique_change(kind: type[Technique], name: str = "", text: str = "") -> Change:
    """A technique; with its default parameters if no `text` gives others."""
    return Change(
        name=name or kind.name, about=kind.text().partition("\n\n")[0].replace("\n", " "), group=str(kind.kind),
        options={"techniques": (text or kind.name,)}, requires=kind.requires,
    )  # fmt: skip


def further_techniques(used: Sequence[str]) -> Iterator[Change]:
    """Every technique with its default parameters whose name is not in `used`."""
    for name, kind in techniques().items():
        if name not in used and not _why_not_alone(name):
            yield technique_change(kind)


def techniques_to_choose(used: Sequence[str]) -> Iterator[tuple[Change, str]]:
    """Techniques that need parameters, with the reason, except those that other changes stand for."""
    reported = {"quantized", "speculative", *used}
    for name, kind in techniques().items():
        if name not in reported and (why := _why_not_alone(name)):
            yield technique_change(kind), why


def drafting(model: Model) -> Iterator[Change]:
    """Speculative decoding with the smallest shipped draft model of the family, if there is one."""
    if draft := _draft(model):
        text = f"speculative:draft={draft},tau={TAU}"
        yield technique_change(techniques()["speculative"], f"draft {draft}", text)


def _precision(text: str, about: str, group: str = PRECISION) -> Change:
    return Change(name=text, about=about, group=group, options={"quant": text}, requires=Requirement.OTHER_OUTPUT)


def _batch(number: int, about: str = "") -> Change:
    return Change(name=f"batch {number}", about=about, group=BATCH, batch=number)


def _why_not_alone(name: str) -> str:
    """Why a technique cannot be given by its name alone; "" if it can."""
    try:
        parse_technique(name)
    except InputError as error:
        return str(error)
    return ""


def _four_bits(setting: Setting) -> Iterator[Change]:
    """4-bit weights, with activations and cache as they are."""
    weight = setting.quantization.scheme.weight
    if weight is None or weight.bits > 4:
        yield _precision("W4g128", PRECISIONS["W4A16g128"])


def _half(setting: Setting) -> Iterator[Change]:
    """Weights and activations in a 16-bit format that the device has matrix units for."""
    multiplied = [fmt for fmt in (BF16, FP16) if matrix(fmt.compute) in setting.hardware.rates]
    yield from _operands(setting, (multiplied or [BF16])[0])


def _operands(setting: Setting, fmt: Format) -> Iterator[Change]:
    """Weights and activations in `fmt`; activations alone if weights are as narrow already."""
    survey = setting.accounting is Accounting.SURVEY  # which has the cache in the format of the operands
    scheme, parts = given_scheme(setting)
    cache = fmt if survey else None
    if not any(_as_narrow(operands, fmt) for operands in _weights(setting)):
        pair = notation(Scheme(weight=fmt, activation=fmt, kv_cache=cache))
        yield _precision(pair, PRECISIONS.get(pair, f"{fmt} weights and activations"))
    elif not survey or (scheme.weight and not parts):  # survey accounting has one precision for all
        yield _precision(notation(Scheme(activation=fmt, kv_cache=cache)), f"{fmt} activations")


def _as_narrow(scheme: Format, fmt: Format) -> bool:
    """Whether `scheme` is as narrow as `fmt`, which then brings no gain."""
    return scheme.bits < fmt.bits or (scheme.bits == fmt.bits and scheme.compute == fmt.compute)


def _weights(setting: Setting) -> tuple[Format, ...]:
    """Formats of the weights that --quant applies to."""
    if setting.accounting is Accounting.SURVEY:
        return (setting.quantization.scheme.weight or FP16,)
    return tuple({op.weight.format for _, op in _linears(setting.graph)})


def _wide(setting: Setting) -> bool:
    """Whether operands of matrix products are in more than 16 bits."""
    products = (op for _, op in _linears(setting.graph))
    return any(max(op.weight.format.bits, op.inputs[0].format.bits) > BF16.bits for op in products)


def _linears(graph: Graph) -> Iterator[tuple[Block, Linear]]:
    """Yields matrix products that --quant applies to, fused ones too, with their blocks."""
    return ((block, op) for block, op in graph.parts() if isinstance(op, Linear) and not op.left_as_published)


def _formats(scheme: Scheme) -> tuple[Format | None, ...]:
    return scheme.weight, scheme.activation, scheme.kv_cache


def _draft(model: Model) -> str:
    """The smallest shipped model of the same family and vocabulary that is small enough to draft; "" if there is none.

    Models of the same generation come first.
    """
    family = _FAMILY.match(model.name)
    names = (name for name in model_names() if family and name.startswith(family[0]))
    draft = (other for other in map(load_model, names) if other.generates and not other.is_encoder_decoder)
    alike = (other for other in draft if vocabulary(other) == vocabulary(model))
    able = [other for other in alike if other.parameters * _DRAFT_RATIO <= model.parameters]

    def order(other: Model) -> tuple[bool, int, bool]:
        ours, theirs = _GENERATION.match(model.name), _GENERATION.match(other.name)
        same = ours and theirs and ours[0] == theirs[0]
        return not same, other.parameters, not other.name.startswith(model.name.rpartition("-")[0])

    return min(able, key=order).name if able else ""
