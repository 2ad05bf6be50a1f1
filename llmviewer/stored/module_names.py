"""Names of modules: those of an architecture's operators, and lists of names and patterns in configs.

Names are canonical: without the names of wrappers before them, such as "model.language_model.".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum
from fnmatch import translate
from functools import cache, cached_property, lru_cache
from typing import Final

from ..documents import Section
from ..forms import SOURCE
from ..graph import Block, Graph
from ..operators.base import Operator, Weight
from ..records import frozen
from .module_layouts import DEFAULT_NAMES, LAYOUTS

_WRAPPER_NAMES: Final = """
    model language_model transformer backbone gpt_neox llm bert roberta distilbert albert mpnet electra data2vec_text
    camembert nomic_bert gte thinker esm rwkv biogpt text_model module
"""
_WRAPPERS: Final = frozenset(_WRAPPER_NAMES.split())
_ROOTS: Final = (  # of the names that patterns are written for
    "", "model.", "language_model.", "model.language_model.", "language_model.model.", "transformer.", "backbone.",
    "thinker.model.", "thinker.",
)  # fmt: skip
_SIDES: Final = ("encoder", "decoder")
_NUMBERED: Final = re.compile(
    r"(experts|norms|projections|albert_layer_groups|albert_layers)\.\d+(?=\.|$)|(?<=shard_)\d+"
)
_EXPERT: Final = re.compile(r"experts\.expert_\d+\.")
_STACKED: Final = re.compile(r"\.experts\.\w+$")  # all experts in one tensor
_LATER_EXPERT: Final = re.compile(r"experts\.[1-9]")
_FUSED: Final = {  # last part of a name: its name where a server fuses modules
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv_proj"),
    **dict.fromkeys(("gate_proj", "up_proj"), "gate_up_proj"),
    **dict.fromkeys(("in_proj_qkv", "in_proj_z"), "in_proj_qkvz"),
    **dict.fromkeys(("in_proj_a", "in_proj_b"), "in_proj_ba"),
    **dict.fromkeys(("q_a_proj", "kv_a_proj_with_mqa"), "fused_qkv_a_proj"),
}


@cache
def canonical(name: str) -> str:
    """`name` without leading wrappers; all experts have the name "*"."""
    parts = name.split(".")
    while len(parts) > 1 and parts[0] in _WRAPPERS:
        del parts[0]
    one = _EXPERT.sub("experts.*.", ".".join(parts))
    return _NUMBERED.sub(lambda match: f"{match[1]}.*" if match[1] else "*", one)


@frozen
class ModuleLayout:
    """Names of the modules of an architecture.

    names    templates by operator, or by weight
    layers   templates of the prefix of a layer
    stacks   equal stacks that share the layers
    wrapper  a leading name that only this architecture has
    """

    names: Mapping[str, tuple[str, ...]]
    layers: tuple[str, ...] = ("layers.{}",)
    stacks: tuple[str, ...] = ()
    wrapper: str = ""

    def canonical(self, name: str) -> str:
        """The canonical form of a name in a checkpoint."""
        return canonical(canonical(name).removeprefix(f"{self.wrapper}.")) if self.wrapper else canonical(name)

    def templates(self, weight: Weight) -> list[str]:
        """Names of the tensors that may hold a weight, before the layer is filled in."""
        op, _, leaf = weight.name.rpartition(".")
        unnamed = () if weight.name in self.names else (op or weight.name,)
        modules = self.names.get(op, unnamed)
        names = (*self.names.get(weight.name, ()), *(f"{name}.{leaf}" if op else name for name in modules))
        return [f"{layer}{name}" for name in names for layer in (self.layers if name.startswith(".") else ("",))]


@frozen
class Naming:
    """Names of the modules of a graph."""

    layout: ModuleLayout
    graph: Graph

    def tensors(self, block: Block, weight: Weight, layer: int | None) -> tuple[str, ...]:
        """Possible names of the tensors that hold a weight of `block` in `layer`; none for towers beside a decoder."""
        if not block.main and block.stream != SOURCE:
            return ()
        side, other = _SIDES if block.name.startswith(_SIDES[0]) else _SIDES[::-1]
        names = self._templates.get(weight.name)
        if names is None:  # the same in every layer
            names = self._templates[weight.name] = self.layout.templates(weight)
        if any(name.startswith(f"{side}.") for name in names):
            names = [name for name in names if not name.startswith(f"{other}.")]
        inside = [name for name in names if "{" in name]
        if layer is None:
            names = [name for name in names if "{" not in name]
            return tuple(name.replace("@", side) for name in names)
        nth = [name for name in inside if "{nth}" in name]
        inside = nth if nth and block.layers[0] else [name for name in inside if name not in nth]
        last = str(2 if side == _SIDES[1] else 1)
        inside = [name.replace("@", side).replace("{last}", last) for name in inside]
        filled = tuple(self._filled(name, layer, block) for name in inside) or tuple(names)
        if block.name.startswith("mtp"):
            place = layer - min(b.layers[0] for b in self._predicting)
            mtp_names = [self._filled(name, place, block) for name in inside]
            filled = (*filled, *(f"mtp{joint}{name}" for name in mtp_names for joint in "._"))
        return filled

    def modules(self, block: Block, op: Operator, layer: int | None) -> tuple[str, ...]:
        """Possible names of the modules of `op`."""
        names = (name for weight in op.weights for name in self.tensors(block, weight, layer))
        return tuple(dict.fromkeys(name.removesuffix(".weight").removesuffix(".bias") for name in names))

    @property
    def looped(self) -> bool:
        """Whether layers share weights, so that a checkpoint has fewer."""
        return len(self._own) < self.graph.layers

    @cached_property
    def _templates(self) -> dict[str, list[str]]:
        """Templates of the names of tensors so far, by weight."""
        return {}

    @cached_property
    def _predicting(self) -> list[Block]:
        """The blocks of multi-token prediction."""
        return [b for b in (*self.graph.blocks, *self.graph.prediction) if b.layers and b.name.startswith("mtp")]

    @cached_property
    def _own(self) -> dict[int, int]:
        """The places of the layers among those with most weights of their own.

        Layers of a later pass that have only a few are in the place of those of the pass before it.
        """
        full_layers: set[int] = set()
        passes: set[int] = set()
        for block in self.graph.blocks:
            stored = [not w.tied for op in block.operators for w in op.weights] if block.main else []
            (full_layers if 2 * sum(stored) > len(stored) else passes if any(stored) else set()).update(block.layers)
        places = {layer: place for place, layer in enumerate(sorted(full_layers))}
        repeated_layers = sorted(passes)
        return places | {layer: places.get(layer - len(repeated_layers), layer) for layer in repeated_layers}

    def _filled(self, name: str, layer: int, block: Block) -> str:
        place = self._own.get(layer, layer)
        if self.layout.stacks:
            stack, layer = divmod(place, len(self._own) // len(self.layout.stacks))
            name = name.replace("{stack}", self.layout.stacks[stack])
        if "{nth}" in name and layer in block.layers:
            name = name.replace("{nth}", str(block.layers.index(layer)))
        numbers = {"{}": layer, "{-1}": place - 1, "{place}": place, "{even}": 2 * place, "{odd}": 2 * place + 1}
        return _NUMBER.sub(lambda match: str(numbers[match[0]]), name)


@cache
def _layouts() -> dict[str, ModuleLayout]:
    """The layouts by model type."""
    default_names = _entries(DEFAULT_NAMES.split())
    layouts: dict[str, ModuleLayout] = {}
    types: list[str] = []
    entries: list[str] = []
    for line in (*LAYOUTS.splitlines(), ""):
        if line.startswith(" "):
            entries += line.split()
            continue
        if types and types[-1].endswith(":"):
            type_names = _entries(entries)
            layers, stacks = type_names.pop("layers", ("layers.{}",)), type_names.pop("stacks", ())
            (wrapper,) = type_names.pop("wrapper", ("",))
            layout = ModuleLayout({**default_names, **type_names}, layers=layers, stacks=stacks, wrapper=wrapper)
            layouts |= dict.fromkeys((kind.removesuffix(":") for kind in types), layout)
            types, entries = [], []
        types += line.split()
    return layouts


def _entries(words: Iterable[str]) -> dict[str, tuple[str, ...]]:
    return {key: tuple(names.split("|")) for key, _, names in (word.partition("=") for word in words)}


def known_layouts() -> Collection[str]:
    """The model types with a layout."""
    return _layouts().keys()


def layout_of(config: Section | None) -> ModuleLayout:
    """The layout of a config: of its model type, or of its text part where that has names of its own."""
    layouts, default = _layouts(), _layouts()["llama"]
    if config is None:
        return default
    named = config.get("architectures")
    if isinstance(named, list) and any("Eagle3" in str(name) for name in named):
        return layouts["eagle3"]
    layout = layouts.get(str(config.get("model_type") or config.get("_class_name")), default)
    key = config.first("text_config", "llm_config", "thinker_config")
    return layout_of(config.section(key)) if layout is default and isinstance(config.get(key), Mapping) else layout


class Matching(Enum):
    """The meaning of an entry that is no plain name of a module, by the library that reads it."""

    GLOB = "glob"  # ModelOpt: * and ?, of a whole name
    REGEX = "regex"  # GPTQModel: a regular expression that a name begins with
    MARKED = "marked"  # compressed-tensors: the same after "re:"
    SKIPPED = "skipped"  # transformers: a regular expression up to the end of a part, or the end of a name
    INSIDE = "inside"  # AutoAWQ: any part of a name


_NUMBER: Final = re.compile(r"\{(?:-1|place|even|odd)?\}")
_DIGIT: Final = re.compile(r"\d")
_ONE: Final = re.compile(r"[\d\[?\\{]|\.(?![*+])")  # in an expression: what may stand for a digit
_SPECIAL: Final = re.compile(r"[*?\[\]()|^$+\\]")
_FORMS: Final[Mapping[Matching, Callable[[str, bool], str]]] = {  # by pattern, and whether it has special characters
    Matching.GLOB: lambda p, special: f"{translate(p)}|{translate(p + '.*')}" if special else "",
    Matching.REGEX: lambda p, _: p,
    Matching.MARKED: lambda _p, _: "",
    Matching.SKIPPED: lambda p, special: rf"(?:{p})(?:(?<=\.)|(?=\.|$))" if special else rf".*{re.escape(p)}$",
    Matching.INSIDE: lambda p, _: f".*{re.escape(p)}",
}


@frozen
class ModuleNames:
    """A list of modules, by name or pattern. A name stands for a module and all inside it."""

    patterns: tuple[str, ...] = ()
    matching: Matching = Matching.GLOB

    @classmethod
    def of(cls, patterns: Iterable[str], matching: Matching = Matching.GLOB) -> ModuleNames:
        """The list of `patterns`. Raises re.error for an invalid regular expression."""
        names = cls(tuple(dict.fromkeys(patterns)), matching)
        _ = names._expressions
        return names

    @cached_property
    def numbered(self) -> bool:
        """Whether an entry may name some layers and not others; False only where none has anything like a number."""
        expressions = {entry for pairs in self._expressions.values() for _, entry in pairs}
        return any((_ONE if p in expressions else _DIGIT).search(p.replace("\\.", "")) for p in self.patterns)

    @cached_property
    def _plain(self) -> dict[str, str]:
        """Entries by their canonical names; the first expert stands for all."""
        plain = (p for p in self.patterns if not _LATER_EXPERT.search(p))
        return {canonical(p.removesuffix(".weight").strip(".")): p for p in plain}

    @cached_property
    def _expressions(self) -> dict[int | None, list[tuple[re.Pattern[str], str]]]:
        """(expression, entry) by the layer that the entry names; None: any."""
        by_layer: dict[int | None, list[tuple[re.Pattern[str], str]]] = {}
        for pattern in self.patterns:
            expression = _expression(pattern, self.matching)
            if expression:
                layer = re.match(r"[\w.\\]*(?:layers|h|blocks|block|layer)\\?\.(\d+)\\?\.", pattern)
                by_layer.setdefault(int(layer[1]) if layer else None, []).append((re.compile(expression), pattern))
        return by_layer

    def matching_entries(self, modules: Iterable[str], layer: int | None) -> Iterator[str]:
        """The entries that name one of `modules`, given by their canonical names, in `layer`."""
        expressions = [pair for key in {None, layer} for pair in self._expressions.get(key, ())]
        modules = tuple(modules)
        for module in _with_fused(modules):
            yield from (self._plain[part] for part in _parts(module) if part in self._plain)
        for module in _written(modules) if expressions else ():
            names = [f"{root}{module}".replace("*", "0") for root in _ROOTS]
            yield from (entry for expression, entry in expressions if any(map(expression.match, names)))


def _expression(pattern: str, matching: Matching) -> str:
    """The regular expression of an entry; "": it is a plain name."""
    if pattern.startswith("re:"):
        return pattern[3:]
    return _FORMS[matching](pattern, _SPECIAL.search(pattern) is not None)


@lru_cache(maxsize=1 << 16)
def _parts(name: str) -> tuple[str, ...]:
    """All runs of parts of a name."""
    parts = name.split(".")
    return tuple(".".join(parts[i:j]) for i in range(len(parts)) for j in range(i + 1, len(parts) + 1))


def _written(modules: tuple[str, ...]) -> tuple[str, ...]:
    """`modules` as checkpoints, for which patterns are written, name them: experts one by one if they do so."""
    if not any(".experts.*." in module for module in modules):
        return modules
    return tuple(module for module in modules if not _STACKED.search(module))


@lru_cache(maxsize=1 << 16)
def _with_fused(modules: tuple[str, ...]) -> tuple[str, ...]:
    """`modules`, and the modules into which servers fuse them."""
    fused = (f"{parent}.{_FUSED[last]}" for parent, _, last in (m.rpartition(".") for m in modules) if last in _FUSED)
    return tuple(dict.fromkeys((*modules, *fused)))
