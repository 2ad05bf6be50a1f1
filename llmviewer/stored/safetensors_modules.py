"""Formats of a graph's matrices from the modules of a safetensors checkpoint.

Matrices are identified by module names. Norms and tables, which no method quantizes, are only counted, because their
names differ between families.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from ..errors import InputError
from ..graph import Graph
from ..operators.linear import Linear
from ..precision import Format
from ..transforms.mixtures import Place
from .checkpoints import Checkpoint, disagreement
from .formats import Stored
from .gguf_files import StoredTensor
from .module_names import placed, tails

_LEAF: Final = re.compile(  # the end of a tensor's name, after its module
    r"(?P<module>.+?)(?:\.(?P<leaf>weight|bias|qweight|qzeros|scales|g_idx|scale|SCB|weight_\w+|weight\.[\w.]+"
    r"|input_\w+|[kqv]_scale)|_(?P<packed>blocks|scales|bias))?"
)
_TABLE: Final = re.compile(r"(?:embed|wte|wpe|pos_emb|tok_emb)")
_FLOATS: Final = frozenset(("fp64", "fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "e8m0"))

_Key: TypeAlias = tuple[int | None, str]  # (layer, module)


@dataclass
class _Module:
    """The tensors of a matrix: itself, scales, zero points."""

    names: list[str] = field(default_factory=list)
    bits: float = 0
    numel: int = 0  # of the matrix; 0 if several elements are packed into one
    format: Format | None = None  # of the matrix
    claims: dict[Place, int] = field(default_factory=dict)  # weights of the graph in it, with their sizes

    def add(self, tensor: StoredTensor, leaf: str) -> None:
        self.names.append(tensor.name)
        self.bits += tensor.numel * tensor.format.stored_bits
        if leaf in ("weight", ""):
            self.format = tensor.format
            self.numel += tensor.numel if tensor.format.name in _FLOATS else 0


def safetensors_checkpoint(
    tensors: Mapping[str, StoredTensor], graph: Graph, *, own: Format, schemes: Stored, file: str, predicting: int = 0
) -> Checkpoint:
    """The stored bits of each matrix, with scales and zero points; with a note if the parameters differ.

    predicting  multi-token prediction layers that it may hold too

    Raises InputError if its layers, or their sizes, are not those of the graph.
    """
    modules, others = _modules(tensors)
    _check_layers({layer for layer, _ in modules if layer is not None}, graph.layers, predicting, file)
    missing = _claim(modules, graph)
    _check_sizes(modules, file)
    bits: dict[Place, float] = {}
    sizes: dict[Place, int] = {}
    formats: dict[Place, Format | None] = {}
    for module in modules.values():
        whole = sum(module.claims.values())
        for place, numel in module.claims.items():
            bits[place] = bits.get(place, 0.0) + module.bits * numel / whole
            sizes[place], formats[place] = numel, module.format
    held = {place: _format(formats[place], bits[place] / sizes[place], own) for place in bits}
    left = [name for module in modules.values() if not module.claims for name in module.names]
    extra = [name for name in (*others, *left) if _foreign(tensors[name])]
    matrices = sum(m.numel or sum(m.claims.values()) for m in modules.values() if m.claims)
    stored = matrices + sum(tensors[name].numel for name in (*others, *left))
    return Checkpoint(
        own=own, held=held, schemes=schemes, notes=disagreement(file, stored, graph, missing=missing, extra=extra)
    )


def _check_layers(held: Collection[int], layers: int, predicting: int, file: str) -> None:
    """Raises InputError if the layers differ; names without layer numbers are not checked."""
    number = max(held, default=layers - 1) + 1
    if not layers <= number <= layers + predicting:
        raise InputError(
            f"{file}: has {number} layers, but its config.json has {layers}; one of the two belongs to another model"
        )


def _check_sizes(modules: Mapping[_Key, _Module], file: str) -> None:
    """Raises InputError if sizes differ; of unpacked matrices of layers that hold only their own weights."""
    for module in modules.values():
        for (_, layer), numel in module.claims.items():
            if layer is not None and len(module.claims) == 1 and module.numel not in (0, numel):
                said = f"{module.names[0]} has {module.numel} elements, and its config.json says {numel}"
                raise InputError(f"{file}: {said}; one of the two belongs to another model")


def _foreign(tensor: StoredTensor) -> bool:
    """Whether a tensor that belongs to no matrix is neither a table nor a norm."""
    plain = len(tensor.shape) < 2 and tensor.name.endswith((".weight", ".bias"))
    return not plain and not _TABLE.search(tensor.name)


def _modules(tensors: Mapping[str, StoredTensor]) -> tuple[dict[_Key, _Module], list[str]]:
    """Modules by layer and name, and the names of biases."""
    modules: dict[_Key, _Module] = {}
    biases: list[str] = []
    for name, tensor in tensors.items():
        layer, tail = placed(name)
        match = _LEAF.fullmatch(tail)
        assert match
        leaf = match["leaf"] or match["packed"] or ""
        if leaf == "bias":
            biases.append(name)
        else:
            modules.setdefault((layer, match["module"]), _Module()).add(tensor, leaf)
    return modules, biases


def _claim(modules: Mapping[_Key, _Module], graph: Graph) -> list[str]:
    """Assigns weights of the graph to modules; returns the weights that no module holds."""
    missing = []
    for block, op in graph:
        if not isinstance(op, Linear) or op.weight.tied or not block.main:
            continue
        for layer in block.layers or (None,):
            mine = [modules[layer, tail] for tail in tails(op.name) if (layer, tail) in modules]
            for module in mine:
                module.claims[op.weight.name, layer] = op.weight.numel
            if not mine:
                missing.append(op.weight.name if layer is None else f"{op.weight.name} of layer {layer}")
    return missing


def _format(fmt: Format | None, bits: float, own: Format) -> Format:
    """The format of a matrix with `bits` per element in all."""
    if fmt and fmt.bits >= own.bits and fmt.name in _FLOATS:
        return fmt
    if fmt and fmt.name in (*_FLOATS, "int8"):
        return Format(fmt.name, bits, fmt.compute)
    return Format("packed", bits, "table")
