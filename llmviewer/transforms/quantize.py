"""Quantization: other formats for weights, operands of matrix products, and the KV cache.

An activation is quantized by its writer if only quantized products read it, else by a launch of its own. Tensors that
are neither operands nor cached keep the model's format.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from fnmatch import fnmatchcase
from typing import Final

from ..errors import InputError, suggest
from ..graph import Block, Graph, Transform
from ..operators.base import Operator, Role, Tensor, Weight
from ..operators.collectives import AllToAll
from ..operators.elementwise import Quantize
from ..operators.linear import Linear
from ..precision import AS_PUBLISHED, HALF, Format, Scheme, notation, parse_scheme, resolved
from ..records import frozen
from .cast import cast
from .mixtures import MIXTURES, Mixture, Place

_RUNS: Final = 4  # of layers in the name of a block
_LAYERS: Final = re.compile(r"layers\.(\d+)(?:-(\d+))?(?:\.(.+))?")


@frozen(kw_only=True)
class Override:
    """`scheme` for the operators whose names match `pattern` (wildcards * and ?).

    layers  its layers; None: the whole model
    """

    text: str
    pattern: str
    scheme: Scheme
    layers: range | frozenset[int] | None = None

    def covers(self, block: Block) -> bool:
        """Whether the override applies to `block`. Blocks are cut so that it applies to all of their layers or none."""
        return self.layers is None or bool(block.main and block.layers and block.layers[0] in self.layers)


@frozen(kw_only=True)
class Quantization:
    """A scheme for the network, and overrides for parts of it, of which the last one applies.

    The scheme applies to every Linear except heads and routers, which keep their format unless an override names them.
    A format of 16 bits or more applies to the whole network.

    text     its name; "": as the user wrote it
    mixture  formats by tensor and layer; the scheme then has the most common one
    """

    scheme: Scheme = AS_PUBLISHED
    overrides: tuple[Override, ...] = field(default=())
    text: str = ""
    mixture: Mixture | None = None

    def __str__(self) -> str:
        return self.text or ", ".join((self.scheme.text, *(o.text for o in self.overrides)))

    def over(self, published: Quantization) -> Quantization:
        """The quantization itself if it sets all weights or operands; else `published` with its changes."""
        if self == UNQUANTIZED:
            return published
        if self.scheme.weight or self.scheme.activation or published == UNQUANTIZED:
            return self
        texts = (
            str(published),
            *([self.scheme.text] if self.scheme.kv_cache else []),
            *(o.text for o in self.overrides),
        )
        return Quantization(
            scheme=self.scheme.over(published.scheme),
            overrides=(*published.overrides, *self.overrides),
            text=", ".join(texts),
        )

    def as_in(self, checkpoints: Iterable[Quantization]) -> Quantization:
        """The quantization with the parts that a checkpoint with the same scheme has in other formats.

        It is unchanged if it names parts itself, or there is no such checkpoint.
        """
        operands = (self.scheme.weight, self.scheme.activation)
        for one in checkpoints:
            if not self.overrides and not self.mixture and operands == (one.scheme.weight, one.scheme.activation):
                return replace(self, overrides=one.overrides)
        return self

    def scheme_of(self, block: Block, op: Operator) -> Scheme:
        """The scheme for the weight and operands of `op`."""
        left = isinstance(op, Linear) and op.left_as_published
        scheme = AS_PUBLISHED if left else self.scheme
        for override in self.overrides:
            named = fnmatchcase(op.name, override.pattern) and not (left and override.pattern == "*")
            if named and override.covers(block):
                scheme = override.scheme.over(scheme)
        return scheme

    def kv_cache(self, block: Block) -> Format | None:
        """The cache format of `block`: that of the scheme, or of an override of all its operators; None: unchanged."""
        scheme = self.scheme
        for override in self.overrides:
            if override.pattern == "*" and override.covers(block):
                scheme = override.scheme.over(scheme)
        return scheme.kv_cache


UNQUANTIZED: Final = Quantization()
_FILE_TYPE: Final = re.compile(r"[it]?q\d", re.IGNORECASE)
PUBLISHED: Final = "published"  # as users write it


def unless_published(quant: str | None) -> str | None:
    """`quant`, or None for "published" and "": the precision of the model."""
    return None if quant in ("", PUBLISHED) else quant


def parse_quantization(text: str) -> Quantization:
    """The Quantization of "SCHEME" or "SCHEME,PATTERN=SCHEME,...".

    An example is "W4A16g128,down_proj=W8A16,layers.0-3=W16A16". "published" is AS_IT_IS, with overrides if any follow.
    A file type of llama.cpp may be followed by formats of activations and cache: "Q4_K_M,A8g32KV8".

    Raises InputError if a part does not parse.
    """
    first, *rest = (part.strip() for part in text.split(","))
    if first.upper() in MIXTURES:
        return _mixed(MIXTURES[first.upper()], *rest)
    if _FILE_TYPE.match(first):
        nearest = suggest(first, map(str.lower, MIXTURES))
        raise InputError(f"quantization {first!r}: no such file type of llama.cpp; {nearest}")
    if first == PUBLISHED:
        return Quantization(overrides=tuple(map(_override, rest)))
    if "=" in first:
        return Quantization(overrides=tuple(map(_override, (first, *rest))))
    scheme = parse_scheme(first)
    if rest and rest[0] and "=" not in rest[0] and _parses(first + rest[0]):
        raise InputError(
            f"quantization {text!r}: the scheme of the whole model must be one word; write {first}{rest[0]}"
        )
    return Quantization(scheme=scheme, overrides=tuple(map(_override, rest)))


def _parses(scheme: str) -> bool:
    try:
        parse_scheme(scheme)
    except InputError:
        return False
    return True


def as_typed(scheme: Scheme, mixture: Mixture | None = None) -> str:
    """The text that parse_quantization() reads as `scheme`, with the weights of `mixture` if given."""
    if mixture is None:
        return notation(scheme)
    return ",".join(filter(None, (mixture.name, notation(replace(scheme, weight=None)))))


def _mixed(mixture: Mixture, *parts: str) -> Quantization:
    scheme = Scheme(text=mixture.name, weight=mixture.format)
    if parts and "=" not in parts[0]:
        text, parts = f"{mixture.name},{parts[0]}", parts[1:]
        scheme = parse_scheme(text.partition(",")[2])
        if scheme.weight:
            raise InputError(f"quantization {text}: {mixture.name} already sets the weights; leave out W")
        scheme = replace(scheme, text=text, weight=mixture.format)
    return Quantization(scheme=scheme, overrides=tuple(map(_override, parts)), mixture=mixture)


def _override(text: str) -> Override:
    pattern, equals, notation = (part.strip() for part in text.partition("="))
    if not equals or not pattern:
        raise InputError(f"quantization {text!r}: must be OPERATORS=SCHEME, such as down_proj=W8A16 or layers.0-3=W8A8")
    scheme = parse_scheme(notation)
    layers = _LAYERS.fullmatch(pattern)
    if layers:
        first = int(layers[1])
        last = int(layers[2]) if layers[2] else first
        if last < first:
            raise InputError(f"quantization {text!r}: layers must be in ascending order, as in layers.0-3")
        run = range(first, last + 1)
        override = Override(text=text, pattern=layers[3] or "*", scheme=scheme, layers=run)
    else:
        override = Override(text=text, pattern=pattern, scheme=scheme)
    if scheme.kv_cache and override.pattern != "*":
        raise InputError(f"quantization {text!r}: KV must be set for whole layers, as in layers.0-3=KV8")
    return override


def quantize(quantization: Quantization, model: Graph | None = None) -> Transform:
    """A transform to the formats of `quantization`.

    model  the graph before division among devices, from whose tensors a mixture takes its formats; None: the graph

    Raises InputError if an override matches nothing or names layers that the model lacks.
    """
    scheme, mixture = quantization.scheme, quantization.mixture
    activation = _wide(scheme.activation)  # for everything that is not quantized, weights too
    in_wide = cast(weight=_wide(scheme.weight) or activation, activation=activation)

    def transform(graph: Graph) -> Graph:
        graph = in_wide(graph)
        weight_formats = mixture.formats(model or graph) if mixture else {}
        cut = Graph(
            tuple(piece for block in graph.blocks for piece in _cut(block, quantization.overrides, weight_formats))
        )
        for override in quantization.overrides:
            _must_match(override, cut)
        if mixture:
            unmixed = replace(quantization, scheme=replace(scheme, weight=None))
            return cut.map_blocks(lambda block: _quantized(_stored(block, weight_formats, mixture.format), unmixed))
        return cut.map_blocks(lambda block: _quantized(block, quantization))

    return transform


def _stored(block: Block, weight_formats: Mapping[Place, Format], default_format: Format) -> Block:
    """`block` with weights in `weight_formats`; matrices that files lack get `default_format`."""
    layer = block.layers[0] if block.layers else None

    def store(op: Operator) -> Operator:
        is_quantized = isinstance(op, Linear) and not op.left_as_published
        return op.with_weights(
            lambda w: replace(
                w,
                format=weight_formats.get(
                    (w.name, layer), default_format if is_quantized and w == op.weights[0] else w.format
                ),
            )
        )

    return block.map(store)


def _must_match(override: Override, graph: Graph) -> None:
    operators = [
        (block, op)
        for block, op in graph
        if isinstance(op, Linear) or (override.scheme.activation and _inputs_as_published(op))
    ]
    if isinstance(override.layers, range) and override.layers.stop > graph.layers:
        raise InputError(f"quantization {override.text!r}: layers must be from 0 to {graph.layers - 1}")
    names = {op.name for block, op in operators if override.covers(block)}
    if not any(fnmatchcase(name, override.pattern) for name in names):
        suggestion = suggest(override.pattern, names)
        raise InputError(f"quantization {override.text!r} matches no matrix product; {suggestion}")


def _cut(block: Block, overrides: Sequence[Override], weight_formats: Mapping[Place, Format]) -> Iterator[Block]:
    """`block` cut so that each override covers all layers of a piece or none, and its layers have the same formats."""
    layer_sets = [o.layers for o in overrides if o.layers is not None]
    names = [w.name for op in block.operators for w in op.weights] if weight_formats else []
    pieces: dict[tuple[object, ...], list[int]] = {}
    for layer in block.layers if block.main else ():
        alike = (*(layer in one for one in layer_sets), *(weight_formats.get((name, layer)) for name in names))
        pieces.setdefault(alike, []).append(layer)
    if len(pieces) < 2:
        yield block
        return
    for layers in pieces.values():
        runs = ranges(layers)
        places = ",".join(runs if len(runs) <= _RUNS else (*runs[: _RUNS - 1], "..."))
        yield replace(block, name=f"{block.name}.{places}", layers=tuple(layers))


def ranges(numbers: Iterable[int]) -> list[str]:
    """Runs of ascending numbers, such as "0-2" and "5"."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]


def _quantized(block: Block, quantization: Quantization) -> Block:
    schemes = {op.name: quantization.scheme_of(block, op) for op in block.operators if isinstance(op, Linear)}
    kv_cache = quantization.kv_cache(block)
    operators = tuple(_with_weight(op, schemes[op.name].weight) if op.name in schemes else op for op in block.operators)
    if kv_cache:
        operators = tuple(
            op.with_tensors(
                lambda t: _in_format(kv_cache, t) if t.role is Role.KV_CACHE and not t.left_as_published else t
            )
            for op in operators
        )
    named_formats = _named_formats(block, quantization)
    if named_formats:
        operators = tuple(
            op.with_tensors(lambda t: replace(t, format=named_formats.get(t.name, t.format))) for op in operators
        )
    cached = {
        op.name for op in operators if op.inputs and op.inputs[0].role is Role.KV_CACHE
    }  # cached inputs keep their format
    operand_formats = {
        name: fmt
        for name, scheme in schemes.items()
        if (fmt := scheme.activation) and not _wide(fmt) and name not in cached
    }
    return replace(block, operators=tuple(_with_operands(block, operators, operand_formats)))


def _inputs_as_published(op: Operator) -> tuple[str, ...]:
    """Names of the inputs of `op` that schemes leave as published."""
    return tuple(t.name for t in op.inputs if t.left_as_published)


def _named_formats(block: Block, quantization: Quantization) -> dict[str, Format]:
    """Formats of inputs left as published, by tensor name, where an override names their operator."""
    formats: dict[str, Format] = {}
    for override in quantization.overrides:
        fmt = override.scheme.activation
        if fmt and override.pattern != "*" and override.covers(block):
            for op in block.operators:
                if fnmatchcase(op.name, override.pattern):
                    formats |= dict.fromkeys(_inputs_as_published(op), resolved(fmt, op.inputs[-1].format))
    return formats


def _wide(fmt: Format | None) -> Format | None:
    """`fmt` if it has at least 16 bits, else None."""
    return fmt if fmt and fmt.bits >= HALF.bits else None


def _in_format(fmt: Format, t: Tensor) -> Tensor:
    return replace(t, format=resolved(fmt, t.format))


def _with_weight(op: Operator, fmt: Format | None) -> Operator:
    """`op` with its matrix in `fmt` and its bias unchanged; a tied matrix is then stored separately."""
    if fmt is None:
        return op

    def change(weight: Weight) -> Weight:
        new = resolved(fmt, weight.format)
        if weight != op.weights[0] or new == weight.format:
            return weight
        return replace(weight, format=new, tied=False)

    return op.with_weights(change)


def _with_operands(
    block: Block, operators: tuple[Operator, ...], operand_formats: dict[str, Format]
) -> Iterator[Operator]:
    """`operators` with first inputs in `operand_formats`, by operator name.

    All-to-alls send tokens in the format that experts want (arXiv:2412.19437, section 3.3.3).
    """
    formats: dict[str, set[Format | None]] = {block.output: {None}}
    for op in reversed(operators):
        sent = formats.get(op.result.name, {None}) if isinstance(op, AllToAll) else None
        for t in op.inputs:
            formats.setdefault(t.name, set()).update(
                sent or {operand_formats.get(op.name) if t == op.inputs[0] else None}
            )
    written = {t.name for op in operators for t in op.outputs}
    at_writer = {
        name: next(iter(requested_formats))
        for name, requested_formats in formats.items()
        if len(requested_formats) == 1 and name in written
    }

    def fused(t: Tensor) -> Tensor:
        fmt = at_writer.get(t.name)
        return replace(t, format=fmt) if fmt and t.role is Role.ACTIVATION else t

    converted: set[str] = set()
    for op in operators:
        fmt = operand_formats.get(op.name)
        if fmt and not at_writer.get(op.inputs[0].name):
            x = op.inputs[0]
            low = replace(x, name=f"{x.name}_{fmt}".replace(" ", "_"), format=fmt)
            if low.name not in converted:
                converted.add(low.name)
                yield Quantize(name=f"{x.name}_to_{fmt}".replace(" ", "_"), inputs=(x,), outputs=(low,))
            op = replace(op, inputs=(low, *op.inputs[1:]))  # noqa: PLW2901
        yield op.with_tensors(fused)
