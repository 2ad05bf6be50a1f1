"""Formats of a graph's weights from the tensors of a safetensors checkpoint."""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from ..errors import InputError
from ..graph import Block, Graph
from ..operators.base import Weight
from ..precision import Format
from .checkpoints import Checkpoint, Spot, disagreement
from .formats import Stored
from .gguf_files import StoredTensor
from .module_names import ModuleLayout, Naming

_STORED_WITH: Final = re.compile(  # the end of the name of a tensor that is stored with a matrix, or in its place
    r"(?P<matrix>.+?)(?:\.weight)?[._](?:"
    r"weight_(?:packed|scale\w*|zero_point|g_idx|shape|global_scale)|(?:input|output)_(?:scale\w*|global_scale|zero_point|min|max)|scale_inv|scales?|biases|blocks"
    r"|qweight|qzeros|g_idx|SCB|weight_format|absmax|quant_map|nested_absmax|nested_quant_map|quant_state\.\w+"
    r"|[kqv]_scale|codes|codebooks|W_q|meta|zero|_data|_scale|_shift|pre_quant_scale|amax)"
)
_CODES: Final = re.compile(r".*[._](?:weight_packed|qweight|blocks|codes|W_q|_data)|.*(?<!bias)")
_BUFFER: Final = re.compile(  # not learned: corrections of routers, frequencies, masks, statistics, decays
    r".*(?:e_score_correction_bias|expert_bias|router_bias|balancing_biases|inv_freq|original_inv_freq|(?:attn|attention)\.(?:masked_)?bias"
    r"|num_batches_tracked|running_mean|running_var|position_ids|layer_scalar|act_fn\.(?:beta|eps)|tid2eid"
    r"|final_logits_bias|slope_rate|(?:diagonal|key|query)_decay|layer_multipliers|ngram_heads_\w+|summary_idxs"
    r"|gate\.bias|[kqv]_scale|embed_scale)"
)
_FLOATS: Final = frozenset(("fp64", "fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "e8m0"))
_MLX: Final = {".switch_mlp.gate_proj.": ".w1.", ".switch_mlp.up_proj.": ".w3.", ".switch_mlp.down_proj.": ".w2."}
_LAYER: Final = re.compile(r"(?:layers|h|blocks)\.(\d+)\.")


@dataclass
class _StoredMatrix:
    """A matrix or vector of a checkpoint, with its scales and zero points.

    claims  weights of the graph in it, with their sizes
    numel   elements of the matrix; 0 if several are packed into one
    """

    claims: dict[Spot, int] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    bits: float = 0
    numel: int = 0
    packed: bool = False
    format: Format | None = None

    def add(self, tensor: StoredTensor, *, matrix: bool) -> None:
        self.names.append(tensor.name)
        self.bits += tensor.numel * tensor.format.stored_bits
        if matrix:
            self.format = tensor.format
            self.packed = self.packed or tensor.format.name not in _FLOATS
            self.numel += tensor.numel


def safetensors_checkpoint(
    tensors: Mapping[str, StoredTensor],
    graph: Graph,
    *,
    model_format: Format,
    schemes: Stored,
    file: str,
    predicting: int = 0,
) -> Checkpoint:
    """The stored bits of each weight, with scales and zero points; with a note if the parameters differ.

    predicting  multi-token prediction layers that it may hold too

    Raises InputError if its layers, or their sizes, are not those of the graph.
    """
    naming = Naming(schemes.layout, graph)
    parts: dict[str, _StoredMatrix] = {}
    weights = {spot: (weight, naming.tensors(block, weight, spot[2])) for block, weight, spot in spots(graph)}
    for spot, (weight, names) in weights.items():
        for name in names:
            parts.setdefault(name, _StoredMatrix()).claims[spot] = weight.numel
    left = _sorted_in(tensors, parts, naming.layout)
    parts = {name: part for name, part in parts.items() if part.names}
    if not naming.looped:
        _check_layers((*parts, *map(naming.layout.canonical, left)), graph.layers, predicting, file)
    _check_sizes(parts, weights, file)
    missing = {spot: weight for spot, (weight, names) in weights.items() if not any(name in parts for name in names)}
    others = _others(left, missing, parts, tensors, naming)
    bits: dict[Spot, float] = {}
    formats: dict[Spot, Format | None] = {}
    for part in (*parts.values(), *others):
        for spot, numel in part.claims.items():
            bits[spot] = bits.get(spot, 0.0) + part.bits * numel / sum(part.claims.values())
            formats[spot] = part.format
    weight_formats = {spot: _format(formats[spot], bits[spot] / weights[spot][0].numel, model_format) for spot in bits}
    for part in others:
        left = [name for name in left if name not in set(part.names)]
        missing = {spot: weight for spot, weight in missing.items() if spot not in part.claims}
    stored = sum(_parameters(part, weights, parts) for part in parts.values())
    stored += sum(sum(part.claims.values()) for part in others) + sum(tensors[name].numel for name in left)
    lacking = [name if layer is None else f"{name} of layer {layer}" for _, name, layer in missing]
    notes = disagreement(file, round(stored), graph, missing=lacking, extra=left)
    return Checkpoint(model_format=model_format, formats=weight_formats, schemes=schemes, notes=notes)


def spots(graph: Graph) -> Iterator[tuple[Block, Weight, Spot]]:
    """Every weight that is stored, with its place."""
    for block, op in graph:
        for weight in op.weights:
            if not weight.tied:
                for layer in block.layers or (None,):
                    yield block, weight, (block.name, weight.name, layer)


def _sorted_in(
    tensors: Mapping[str, StoredTensor], parts: Mapping[str, _StoredMatrix], layout: ModuleLayout
) -> list[str]:
    """Adds `tensors` to `parts`; returns the names of the others.

    Scales and buffers without a matrix belong to the matrix with the nearest name.
    """
    left: list[str] = []
    loose: list[str] = []
    for name, tensor in tensors.items():
        key, matrix = _key(layout.canonical(name), parts)
        if key:
            parts[key].add(tensor, matrix=matrix)
        elif _BUFFER.fullmatch(name):
            loose.append(name)
        else:
            left.append(name)
    names = sorted(name for name, part in parts.items() if part.names)
    for name in loose if names else ():
        plain = layout.canonical(name)
        place = bisect(names, plain)
        nearest = max(names[max(place - 1, 0) : place + 1], key=partial(_alike, plain))
        parts[nearest].add(tensors[name], matrix=False)
    return left


def _alike(first: str, second: str) -> int:
    """The length of the common beginning of two names."""
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def _key(name: str, parts: Collection[str]) -> tuple[str, bool]:
    """The part that a tensor belongs to, "" if none, and whether it is the matrix itself."""
    for other in _spellings(name):
        if other in parts:
            return other, True
        match = _STORED_WITH.fullmatch(other)
        if match and not other.endswith((".bias", ".weight")):
            for key in (f"{match['matrix']}.weight", match["matrix"]):
                if key in parts:
                    return key, bool(re.search(r"[._](?:weight_packed|qweight|blocks|codes|W_q|_data)$", other))
    return "", False


def _spellings(name: str) -> tuple[str, ...]:
    """`name`, and the names that transformers has for stacked experts of MLX."""
    if ".switch_mlp." not in name:
        return (name,)
    moved = name
    for ours, theirs in _MLX.items():
        moved = moved.replace(ours, f".experts.*{theirs}")
    return (name.replace(".switch_mlp.", ".experts.*."), moved)


def _check_layers(names: Iterable[str], layers: int, predicting: int, file: str) -> None:
    """Raises InputError if the layers differ; names without layer numbers are not checked."""
    layer_numbers = [int(match[1]) for name in names if (match := _LAYER.match(name))]
    number = max(layer_numbers, default=layers - 1) + 1
    if not layers <= number <= layers + predicting:
        raise InputError(
            f"{file}: has {number} layers, but its config.json has {layers}; one of the two belongs to another model"
        )


def _check_sizes(
    parts: Mapping[str, _StoredMatrix], weights: Mapping[Spot, tuple[Weight, tuple[str, ...]]], file: str
) -> None:
    """Raises InputError if the size of an unpacked matrix that is the only one of its weight differs."""
    for name, part in parts.items():
        for spot, numel in part.claims.items():
            is_only_matrix = len(part.claims) == 1 and [n for n in weights[spot][1] if n in parts] == [name]
            # Some classes keep experts that do nothing.
            checked = is_only_matrix and spot[2] is not None and "*" not in name
            if checked and not part.packed and part.numel not in (0, numel):
                mismatch = f"{part.names[0]} has {part.numel} elements, and its config.json says {numel}"
                raise InputError(f"{file}: {mismatch}; one of the two belongs to another model")


def _others(
    left: Iterable[str],
    missing: Mapping[Spot, Weight],
    parts: Iterable[str],
    tensors: Mapping[str, StoredTensor],
    naming: Naming,
) -> list[_StoredMatrix]:
    """Tensors without an operator of their name, as one matrix of all weights that are missing, if sizes agree.

    They are those of vision and audio encoders, whose names are not known, and those of the main network.
    """
    main = {block.name for block in naming.graph.blocks if block.main}
    roots = {name.partition(".")[0] for name in parts}
    matrices = []
    for inside in (True, False):
        joined = _StoredMatrix(claims={spot: w.numel for spot, w in missing.items() if (spot[0] in main) == inside})
        for name in left:
            root = naming.layout.canonical(name).partition(".")[0]
            if root != "mtp" and (root in roots) == inside:
                joined.add(tensors[name], matrix=not _STORED_WITH.fullmatch(name))
        size = sum(joined.claims.values())
        if joined.names and size and ((joined.packed and not inside) or joined.numel == size):
            matrices.append(joined)
    return matrices


def _parameters(
    part: _StoredMatrix, weights: Mapping[Spot, tuple[Weight, tuple[str, ...]]], parts: Collection[str]
) -> float:
    """The parameters in a part; of a packed one, its share of the weights that it holds."""
    if part.numel and not part.packed:
        return part.numel
    return sum(numel / sum(name in parts for name in weights[spot][1]) for spot, numel in part.claims.items())


def _format(fmt: Format | None, bits: float, model_format: Format) -> Format:
    """The format of a weight with `bits` per element in all."""
    if fmt and fmt.bits >= model_format.bits and fmt.name in _FLOATS:
        return fmt if fmt.bits == bits else Format(fmt.name, bits, fmt.compute)
    if fmt and fmt.name in (*_FLOATS, "int8"):
        return Format(fmt.name, bits, fmt.compute)
    return Format("packed", bits, "table")
