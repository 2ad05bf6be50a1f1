"""Quantization as a change of formats: of weights, of the operands of matrix products, and of the KV cache.

Activations are quantized by whoever writes them where only quantized products read them, and by a launch of its own
where something else does too. What is neither an operand nor cached keeps the model's format.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Final

from ..errors import InputError, suggest
from ..graph import Block, Graph, Transform
from ..operators.base import Operator, Role, Tensor, Weight
from ..operators.collectives import AllToAll
from ..operators.elementwise import Quantize
from ..operators.linear import Linear
from ..precision import AS_PUBLISHED, HALF, Format, Scheme, notation, parse_scheme, resolved
from .cast import cast
from .mixtures import MIXTURES, Mixture, Place

_RUNS: Final = 4  # of layers in a name
_LAYERS: Final = re.compile(r"layers\.(\d+)(?:-(\d+))?(?:\.(.+))?")


@dataclass(frozen=True, kw_only=True)
class Override:
    """`scheme` for the operators that `pattern` (as in file names, * and ?) matches.

    layers  the layers that it is for; None where it is for all of the model
    """

    text: str
    pattern: str
    scheme: Scheme
    layers: range | frozenset[int] | None = None

    def covers(self, block: Block) -> bool:
        """Whether the layers of `block` are among its own. Blocks are cut so that it is all of them or none."""
        return self.layers is None or bool(block.main and block.layers and block.layers[0] in self.layers)


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """A scheme for the network, and others for parts of it; where several speak of one thing, the last one holds.

    The scheme goes to every Linear but heads and routers, which keep their format unless an override names them; where
    it asks for 16 bits or more, that goes to the whole network.

    text     what it is called, where that is not what a user wrote
    mixture  of formats, by tensor and layer, of which the scheme has the one that most weights have
    """

    scheme: Scheme = AS_PUBLISHED
    overrides: tuple[Override, ...] = field(default=())
    text: str = ""
    mixture: Mixture | None = None

    def __str__(self) -> str:
        return self.text or ", ".join((self.scheme.text, *(o.text for o in self.overrides)))

    def over(self, published: Quantization) -> Quantization:
        """Itself where it says what all weights or operands are; else what it says, over what is published."""
        if self == AS_IT_IS:
            return published
        if self.scheme.weight or self.scheme.activation or published == AS_IT_IS:
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

    def of(self, block: Block, op: Operator) -> Scheme:
        """What holds for the weight and the operands of `op`."""
        left = isinstance(op, Linear) and op.left_as_published
        scheme = AS_PUBLISHED if left else self.scheme
        for override in self.overrides:
            named = fnmatchcase(op.name, override.pattern) and not (left and override.pattern == "*")
            if named and override.covers(block):
                scheme = override.scheme.over(scheme)
        return scheme

    def kv_cache(self, block: Block) -> Format | None:
        """What the cache of a block is kept in: that of the scheme, or of an override of all of its operators."""
        scheme = self.scheme
        for override in self.overrides:
            if override.pattern == "*" and override.covers(block):
                scheme = override.scheme.over(scheme)
        return scheme.kv_cache


AS_IT_IS: Final = Quantization()
PUBLISHED: Final = "published"  # what a user calls it


def unless_published(quant: str | None) -> str | None:
    """A precision as analyze() takes it; None is the one that the model has."""
    return None if quant in ("", PUBLISHED) else quant


def parse_quantization(text: str) -> Quantization:
    """Read "SCHEME", or "SCHEME,PATTERN=SCHEME,...", such as "W4A16g128,down_proj=W8A16,layers.0-3=W16A16".

    "published" is AS_IT_IS, and what follows it says what is otherwise. A file type of llama.cpp may be followed by
    what activations and cache are in: "Q4_K_M,A8g32KV8".

    Raises InputError where a part does not parse.
    """
    first, *rest = (part.strip() for part in text.split(","))
    if first.upper() in MIXTURES:
        return _mixed(MIXTURES[first.upper()], *rest)
    if first == PUBLISHED:
        return Quantization(overrides=tuple(map(_override, rest)))
    if "=" in first:
        return Quantization(overrides=tuple(map(_override, (first, *rest))))
    scheme = parse_scheme(first)
    if rest and rest[0] and "=" not in rest[0] and _parses(first + rest[0]):
        raise InputError(f"quantization {text!r}: what the whole model has is one word; write {first}{rest[0]}")
    return Quantization(scheme=scheme, overrides=tuple(map(_override, rest)))


def _parses(scheme: str) -> bool:
    try:
        parse_scheme(scheme)
    except InputError:
        return False
    return True


def as_typed(scheme: Scheme, mixture: Mixture | None = None) -> str:
    """What parse_quantization() reads as `scheme`, with the weights of `mixture`, if any, in place of its own."""
    if mixture is None:
        return notation(scheme)
    return ",".join(filter(None, (mixture.name, notation(replace(scheme, weight=None)))))


def _mixed(mixture: Mixture, *parts: str) -> Quantization:
    scheme = Scheme(text=mixture.name, weight=mixture.format)
    if parts and "=" not in parts[0]:
        text, parts = f"{mixture.name},{parts[0]}", parts[1:]
        scheme = parse_scheme(text.partition(",")[2])
        if scheme.weight:
            raise InputError(f"quantization {text}: {mixture.name} says what weights are; leave out W")
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
            raise InputError(f"quantization {text!r}: layers must go from the first to the last, as in layers.0-3")
        run = range(first, last + 1)
        override = Override(text=text, pattern=layers[3] or "*", scheme=scheme, layers=run)
    else:
        override = Override(text=text, pattern=pattern, scheme=scheme)
    if scheme.kv_cache and override.pattern != "*":
        raise InputError(f"quantization {text!r}: KV belongs to whole layers, such as layers.0-3=KV8")
    return override


def quantize(quantization: Quantization, model: Graph | None = None) -> Transform:
    """The graph with the formats that `quantization` asks for.

    model  what a file would hold, which a mixture goes by: the graph before it is shared out among devices, if it is

    Raises InputError where an override matches nothing, or has layers that there are not.
    """
    scheme, mixture = quantization.scheme, quantization.mixture
    activation = _wide(scheme.activation)  # what is not quantized is computed in it, weights too
    in_wide = cast(weight=_wide(scheme.weight) or activation, activation=activation)

    def transform(graph: Graph) -> Graph:
        graph = in_wide(graph)
        held = mixture.formats(model or graph) if mixture else {}
        cut = Graph(tuple(piece for block in graph.blocks for piece in _cut(block, quantization.overrides, held)))
        for override in quantization.overrides:
            _must_match(override, cut)
        if mixture:
            said = replace(quantization, scheme=replace(scheme, weight=None))
            return cut.map_blocks(lambda block: _quantized(_stored(block, held, mixture.format), said))
        return cut.map_blocks(lambda block: _quantized(block, quantization))

    return transform


def _stored(block: Block, held: Mapping[Place, Format], usual: Format) -> Block:
    """`block` with all weights as they are `held`, and matrices that no file has in the `usual` format."""
    layer = block.layers[0] if block.layers else None

    def store(op: Operator) -> Operator:
        made = isinstance(op, Linear) and not op.left_as_published
        return op.with_weights(
            lambda w: replace(w, format=held.get((w.name, layer), usual if made and w == op.weights[0] else w.format))
        )

    return block.map(store)


def _must_match(override: Override, graph: Graph) -> None:
    named = [(block, op) for block, op in graph if isinstance(op, Linear) or (override.scheme.activation and _left(op))]
    if isinstance(override.layers, range) and override.layers.stop > graph.layers:
        raise InputError(f"quantization {override.text!r}: the model has layers 0 to {graph.layers - 1}")
    names = {op.name for block, op in named if override.covers(block)}
    if not any(fnmatchcase(name, override.pattern) for name in names):
        known = suggest(override.pattern, names)
        raise InputError(f"quantization {override.text!r} matches no matrix product; {known}")


def _cut(block: Block, overrides: Sequence[Override], held: Mapping[Place, Format]) -> Iterator[Block]:
    """`block` in pieces whose layers an override covers all or none of, and whose weights are held alike."""
    covered = [o.layers for o in overrides if o.layers is not None]
    names = [w.name for op in block.operators for w in op.weights] if held else []
    pieces: dict[tuple[object, ...], list[int]] = {}
    for layer in block.layers if block.main else ():
        alike = (*(layer in one for one in covered), *(held.get((name, layer)) for name in names))
        pieces.setdefault(alike, []).append(layer)
    if len(pieces) < 2:
        yield block
        return
    for layers in pieces.values():
        runs = ranges(layers)
        places = ",".join(runs if len(runs) <= _RUNS else (*runs[: _RUNS - 1], "..."))
        yield replace(block, name=f"{block.name}.{places}", layers=tuple(layers))


def ranges(numbers: Iterable[int]) -> list[str]:
    """Such as "0-2" and "5", of numbers that rise."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]


def _quantized(block: Block, quantization: Quantization) -> Block:
    schemes = {op.name: quantization.of(block, op) for op in block.operators if isinstance(op, Linear)}
    kv_cache = quantization.kv_cache(block)
    operators = tuple(_with_weight(op, schemes[op.name].weight) if op.name in schemes else op for op in block.operators)
    if kv_cache:
        operators = tuple(
            op.with_tensors(lambda t: _in(kv_cache, t) if t.role is Role.KV_CACHE and not t.left_as_published else t)
            for op in operators
        )
    left = _named_formats(block, quantization)
    if left:
        operators = tuple(op.with_tensors(lambda t: replace(t, format=left.get(t.name, t.format))) for op in operators)
    cached = {op.name for op in operators if op.inputs and op.inputs[0].role is Role.KV_CACHE}  # in their own format
    wanted = {
        name: fmt
        for name, scheme in schemes.items()
        if (fmt := scheme.activation) and not _wide(fmt) and name not in cached
    }
    return replace(block, operators=tuple(_with_operands(block, operators, wanted)))


def _left(op: Operator) -> tuple[str, ...]:
    """The tensors that an operator multiplies in a format of its own."""
    return tuple(t.name for t in op.inputs if t.left_as_published)


def _named_formats(block: Block, quantization: Quantization) -> dict[str, Format]:
    """What overrides say of such tensors, by naming the operators that multiply them."""
    found: dict[str, Format] = {}
    for override in quantization.overrides:
        fmt = override.scheme.activation
        if fmt and override.pattern != "*" and override.covers(block):
            for op in block.operators:
                if fnmatchcase(op.name, override.pattern):
                    found |= dict.fromkeys(_left(op), resolved(fmt, op.inputs[-1].format))
    return found


def _wide(fmt: Format | None) -> Format | None:
    """`fmt` if networks are computed in it, and None if it is a quantization."""
    return fmt if fmt and fmt.bits >= HALF.bits else None


def _in(fmt: Format, t: Tensor) -> Tensor:
    return replace(t, format=resolved(fmt, t.format))


def _with_weight(op: Operator, fmt: Format | None) -> Operator:
    """`op` with the matrix of its product in `fmt`; its bias stays as it is. A tied matrix is then held twice."""
    if fmt is None:
        return op

    def change(weight: Weight) -> Weight:
        new = resolved(fmt, weight.format)
        if weight != op.weights[0] or new == weight.format:
            return weight
        return replace(weight, format=new, tied=False)

    return op.with_weights(change)


def _with_operands(block: Block, operators: tuple[Operator, ...], wanted: dict[str, Format]) -> Iterator[Operator]:
    """`operators` with the first input of each that `wanted` names in the format it gives. What experts of other ranks
    are sent goes in the format that they want (arXiv:2412.19437, section 3.3.3).
    """
    formats: dict[str, set[Format | None]] = {block.output: {None}}
    for op in reversed(operators):
        sent = formats.get(op.result.name, {None}) if isinstance(op, AllToAll) else None
        for t in op.inputs:
            formats.setdefault(t.name, set()).update(sent or {wanted.get(op.name) if t == op.inputs[0] else None})
    written = {t.name for op in operators for t in op.outputs}
    at_writer = {name: next(iter(asked)) for name, asked in formats.items() if len(asked) == 1 and name in written}

    def fused(t: Tensor) -> Tensor:
        fmt = at_writer.get(t.name)
        return replace(t, format=fmt) if fmt and t.role is Role.ACTIVATION else t

    converted: set[str] = set()
    for op in operators:
        fmt = wanted.get(op.name)
        if fmt and not at_writer.get(op.inputs[0].name):
            x = op.inputs[0]
            low = replace(x, name=f"{x.name}_{fmt}".replace(" ", "_"), format=fmt)
            if low.name not in converted:
                converted.add(low.name)
                yield Quantize(name=f"{x.name}_to_{fmt}".replace(" ", "_"), inputs=(x,), outputs=(low,))
            op = replace(op, inputs=(low, *op.inputs[1:]))  # noqa: PLW2901
        yield op.with_tensors(fused)
