"""Stored formats of modules, by name, as a `Quantization` of a graph."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from typing import Protocol

from ..forms import SOURCE
from ..graph import Block, Graph
from ..operators.base import Operator, Weight
from ..operators.embedding import Embedding
from ..operators.linear import Linear
from ..precision import AS_PUBLISHED, Format, Scheme
from ..records import frozen
from ..transforms.quantize import UNQUANTIZED, Override, Quantization, ranges
from .module_names import ModuleLayout, ModuleNames, Naming, canonical

_MAX_LISTED_OPERATORS = 6  # operators in a text
_TOWER = re.compile(r"vis(?:ion|ual)|image|audio|sound|speech|radio|\bvit\b")  # in entries for encoders
_ELSEWHERE = re.compile(  # parts of checkpoints without operators of their own names: towers, heads, further tokens
    r"vis(?:ion|ual)|audio|image|project|merger|aligner|connector|patch|mm_|mtp|nextn|eagle|talker|code2wav|radio"
    r"|embed|norm|conv|wte|lm_head|score|head$"
)


@frozen
class Rule:
    """A scheme for the modules in `names`, or for all matrices but routers and heads; scheme None: not quantized.

    towers  whether "all" includes the layers of vision and audio encoders
    """

    scheme: Scheme | None
    names: ModuleNames | None = None
    towers: bool = False

    def of_tower(self) -> bool:
        """Whether the rule is for vision and audio encoders: their modules are known by the entry of the whole."""
        return self.towers or any(_TOWER.search(p) for p in (self.names.patterns if self.names else ()))


class FormatSource(Protocol):
    """Source of the stored formats of a model's matrices."""

    @property
    def kv_cache(self) -> Format | None: ...

    @property
    def layout(self) -> ModuleLayout: ...

    def of(self, naming: Naming, block: Block, op: Linear) -> dict[int | None, Scheme | None]:
        """The stored scheme of `op` in each layer of `block`; None: not quantized."""
        ...


@frozen(kw_only=True)
class Stored:
    """Rules on the formats of a checkpoint; the last rule that matches a module applies.

    unknown  settings that are not supported, so that weights may have another size; "": none
    layout   names of the modules of the architecture
    tables   whether the rules apply to embeddings too
    """

    rules: tuple[Rule, ...] = ()
    kv_cache: Format | None = None
    unknown: str = ""
    notes: tuple[str, ...] = ()
    layout: ModuleLayout = ModuleLayout({})  # it is frozen
    tables: bool = False

    def of(self, naming: Naming, block: Block, op: Operator) -> dict[int | None, Scheme | None]:
        schemes: dict[int | None, Scheme | None] = dict.fromkeys(block.layers or (None,))
        modules = cache(partial(naming.modules, block, op))
        tower = not block.main and block.stream != SOURCE
        for rule in self.rules:
            if tower:
                named = list(schemes) if block.layers and rule.of_tower() else []
            elif rule.names is None:
                named = [] if isinstance(op, Linear) and op.left_as_published else list(schemes)
            else:
                layers = list(schemes) if rule.names.numbered else [next(iter(schemes))]  # else all layers are alike
                named = [i for i in layers if any(rule.names.matching_entries(modules(i), i))]
                named = list(schemes) if named and not rule.names.numbered else named
            schemes.update(dict.fromkeys(named, rule.scheme))
        return schemes

    def applied(self, graph: Graph) -> Graph:
        """`graph` with quantized embeddings, and heads that share them."""
        if not self.tables:
            return graph
        naming = Naming(self.layout, graph)
        formats: dict[tuple[int, ...], Format] = {}
        for block, op in graph:
            if isinstance(op, Embedding):
                scheme = self.of(naming, block, op).get(None)
                if scheme and scheme.weight:
                    formats |= dict.fromkeys((w.shape for w in op.weights), scheme.weight)

        def change(w: Weight) -> Weight:
            return replace(w, format=formats[w.shape]) if w.shape in formats else w

        def changed(block: Block) -> Block:
            return block.map(lambda op: op.with_weights(change) if _shares(op) else op)

        return Graph(tuple(map(changed, graph.blocks)), tuple(map(changed, graph.prediction)))

    def unmatched(self, graph: Graph) -> list[str]:
        """The entries of its lists that name no module of `graph`, without those of parts that it does not model.

        Entries that differ in the number of a layer count as one.
        """
        lists = [rule.names for rule in self.rules if rule.names]
        left: dict[str, str] = {}
        for entry in (p for names in lists for p in names.patterns if not _ELSEWHERE.search(p)):
            left.setdefault(_any_layer(entry), entry)
        naming = Naming(self.layout, graph)
        layer_limit = None if any(names.numbered for names in lists) else 1  # else all layers of a block are alike
        places = ((block, op, layer) for block, op in graph for layer in (block.layers or (None,))[:layer_limit])
        for place in places:
            if not left:
                break
            modules = naming.modules(*place)
            for names in lists:
                for entry in names.matching_entries(modules, place[-1]):
                    left.pop(_any_layer(entry), None)
        return list(left.values())


@lru_cache(maxsize=1 << 16)
def _any_layer(entry: str) -> str:
    """The canonical form of an entry without its numbers."""
    return re.sub(r"\d+", "#", canonical(entry))


def _shares(op: Operator) -> bool:
    """Whether an operator reads a table of embeddings: its own, or the one that a head shares."""
    return isinstance(op, Embedding) or any(w.tied for w in op.weights)


def quantization_of(stored: FormatSource, graph: Graph, model_format: Format) -> Quantization:
    """The quantization that gives `graph`, whose format is `model_format`, the formats of `stored`.

    Its scheme is that of most weights; overrides are for the others.
    """
    unquantized = Scheme(text=model_format.name, weight=model_format, activation=model_format)
    naming = Naming(stored.layout, graph)
    schemes_by_operator: dict[str, dict[int | None, Scheme]] = {}
    sizes: dict[Scheme, int] = {}
    left: set[str] = set()
    for block, op in graph:
        if not isinstance(op, Linear):
            continue
        schemes = {i: scheme or unquantized for i, scheme in stored.of(naming, block, op).items()}
        schemes_by_operator.setdefault(op.name, {}).update(schemes)
        if op.left_as_published:
            left.add(op.name)
            continue
        for scheme in schemes.values():
            sizes[scheme] = sizes.get(scheme, 0) + op.weight.numel
    main_scheme = max(sizes, key=sizes.__getitem__) if sizes else unquantized
    if (
        all(scheme is unquantized for schemes in schemes_by_operator.values() for scheme in schemes.values())
        and not stored.kv_cache
    ):
        return UNQUANTIZED
    base = AS_PUBLISHED if main_scheme is unquantized else main_scheme
    base = Scheme(text=base.text, weight=base.weight, activation=base.activation, kv_cache=stored.kv_cache)
    defaults = {name: unquantized if name in left else main_scheme for name in schemes_by_operator}
    overrides = tuple(
        o
        for name, schemes in schemes_by_operator.items()
        for o in _overrides(name, schemes, defaults[name], model_format)
    )
    return Quantization(scheme=base, overrides=overrides, text=_text(main_scheme.text, stored, overrides))


def _overrides(
    name: str, schemes: Mapping[int | None, Scheme], default: Scheme, model_format: Format
) -> Iterator[Override]:
    """Overrides for the operators of one name that are not stored as usual."""
    layers: dict[Scheme, list[int | None]] = {}
    for layer, scheme in schemes.items():
        layers.setdefault(scheme, []).append(layer)
    for scheme, places in layers.items():
        if scheme == default:
            continue
        inside = () if len(layers) == 1 else tuple(sorted(i for i in places if i is not None))
        where = f"{name} of layers {', '.join(ranges(inside))}" if inside else name
        full = Scheme(text=scheme.text, weight=scheme.weight, activation=scheme.activation or model_format)
        yield Override(text=f"{where} in {scheme.text}", pattern=name, scheme=full, layers=frozenset(inside) or None)


def _text(main_text: str, stored: FormatSource, overrides: Sequence[Override]) -> str:
    """A summary such as "published: nvfp4 weights and activations, fp8_e4m3 KV cache; bf16: q_proj, k_proj"."""
    parts = [f"published: {main_text}" + (f", {stored.kv_cache} KV cache" if stored.kv_cache else "")]
    by_scheme: dict[str, list[str]] = {}
    for o in overrides:
        layer_count = f" of {len(o.layers)} layer{'s' if len(o.layers) > 1 else ''}" if o.layers else ""
        by_scheme.setdefault(o.scheme.text, []).append(f"{o.pattern}{layer_count}")
    for text, names in by_scheme.items():
        if text == main_text:  # differences that the text does not show
            continue
        parts.append(
            f"{text}: "
            + (", ".join(names) if len(names) <= _MAX_LISTED_OPERATORS else f"{len(names)} kinds of operator")
        )
    return "; ".join(parts)
