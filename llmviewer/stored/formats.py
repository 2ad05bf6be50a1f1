"""Stored formats of modules, by name, as a `Quantization` of a graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..graph import Graph
from ..operators.linear import Linear
from ..precision import AS_PUBLISHED, Format, Scheme
from ..transforms.quantize import AS_IT_IS, Override, Quantization, ranges
from .module_names import ModuleNames

_FEW = 6  # operators in a text


@dataclass(frozen=True)
class Rule:
    """A scheme for the modules in `names`, or for all matrices but routers and heads; scheme None: not quantized."""

    scheme: Scheme | None
    names: ModuleNames | None = None


class Says(Protocol):
    """Source of the stored formats of a model's matrices."""

    @property
    def kv_cache(self) -> Format | None: ...

    def of(self, op: Linear, layers: Iterable[int | None]) -> dict[int | None, Scheme | None]:
        """The stored scheme of `op` in each of `layers`; None: not quantized."""
        ...


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Rules on the formats of a checkpoint; the last rule that matches a module applies.

    unknown  settings that are not supported, so that weights may have another size; "": none
    """

    rules: tuple[Rule, ...] = ()
    kv_cache: Format | None = None
    unknown: str = ""
    notes: tuple[str, ...] = ()

    def of(self, op: Linear, layers: Iterable[int | None]) -> dict[int | None, Scheme | None]:
        found: dict[int | None, Scheme | None] = dict.fromkeys(layers)
        for rule in self.rules:
            if rule.names is None:
                named = set() if op.left_as_published else set(found)
            else:
                named = rule.names.holding(op.name, found)
            found.update(dict.fromkeys(named, rule.scheme))
        return found


def quantization_of(stored: Says, graph: Graph, own: Format) -> Quantization:
    """The quantization that gives `graph`, whose format is `own`, the formats of `stored`.

    Its scheme is that of most weights; overrides are for the others.
    """
    kept = Scheme(text=own.name, weight=own, activation=own)
    found: dict[str, dict[int | None, Scheme]] = {}
    sizes: dict[Scheme, int] = {}
    left: set[str] = set()
    for block, op in graph:
        if not isinstance(op, Linear):
            continue
        schemes = {i: scheme or kept for i, scheme in stored.of(op, block.layers or (None,)).items()}
        found.setdefault(op.name, {}).update(schemes)
        if op.left_as_published:
            left.add(op.name)
            continue
        for scheme in schemes.values():
            sizes[scheme] = sizes.get(scheme, 0) + op.weight.numel
    most = max(sizes, key=sizes.__getitem__) if sizes else kept
    if all(scheme is kept for schemes in found.values() for scheme in schemes.values()) and not stored.kv_cache:
        return AS_IT_IS
    base = AS_PUBLISHED if most is kept else most
    base = Scheme(text=base.text, weight=base.weight, activation=base.activation, kv_cache=stored.kv_cache)
    usual = {name: kept if name in left else most for name in found}
    overrides = tuple(o for name, schemes in found.items() for o in _overrides(name, schemes, usual[name], own))
    return Quantization(scheme=base, overrides=overrides, text=_text(most.text, stored, overrides))


def _overrides(name: str, schemes: Mapping[int | None, Scheme], usual: Scheme, own: Format) -> Iterator[Override]:
    """Overrides for the operators of one name that are not stored as usual."""
    layers: dict[Scheme, list[int | None]] = {}
    for layer, scheme in schemes.items():
        layers.setdefault(scheme, []).append(layer)
    for scheme, places in layers.items():
        if scheme == usual:
            continue
        inside = () if len(layers) == 1 else tuple(sorted(i for i in places if i is not None))
        where = f"{name} of layers {', '.join(ranges(inside))}" if inside else name
        full = Scheme(text=scheme.text, weight=scheme.weight, activation=scheme.activation or own)
        yield Override(text=f"{where} in {scheme.text}", pattern=name, scheme=full, layers=frozenset(inside) or None)


def _text(most: str, stored: Says, overrides: Sequence[Override]) -> str:
    """A summary such as "published: nvfp4 weights and activations, fp8_e4m3 KV cache; bf16: q_proj, k_proj"."""
    parts = [f"published: {most}" + (f", {stored.kv_cache} KV cache" if stored.kv_cache else "")]
    by_scheme: dict[str, list[str]] = {}
    for o in overrides:
        some = f" of {len(o.layers)} layer{'s' if len(o.layers) > 1 else ''}" if o.layers else ""
        by_scheme.setdefault(o.scheme.text, []).append(f"{o.pattern}{some}")
    for text, names in by_scheme.items():
        if text == most:  # differences that the text does not show
            continue
        parts.append(f"{text}: " + (", ".join(names) if len(names) <= _FEW else f"{len(names)} kinds of operator"))
    return "; ".join(parts)
