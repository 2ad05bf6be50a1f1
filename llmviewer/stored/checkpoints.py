"""What a checkpoint holds, by its headers, brought to the weights of a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ..graph import Block, Graph
from ..operators.base import Operator, Weight
from ..operators.linear import Linear
from ..precision import Format, Scheme
from .formats import Stored
from .gguf_files import StoredTensor

_FEW: Final = 3  # names that are told
_SAME: Final = 1e-3  # relative difference of bits that scales of whole tensors and the like make
_GGUF: Final = {  # tensor of GGUF: operator
    "attn_q": "q_proj", "attn_k": "k_proj", "attn_v": "v_proj", "attn_qkv": "qkv_proj", "attn_output": "o_proj",
    "attn_norm": "attn_norm", "attn_q_norm": "q_norm", "attn_k_norm": "k_norm", "ffn_norm": "mlp_norm",
    "ffn_gate": "gate_proj", "ffn_up": "up_proj", "ffn_down": "down_proj", "ffn_gate_inp": "router",
    "ffn_gate_exps": "expert_gate_proj", "ffn_up_exps": "expert_up_proj", "ffn_down_exps": "expert_down_proj",
    "token_embd": "embed_tokens", "output_norm": "final_norm", "output": "lm_head",
}  # fmt: skip
_GGUF_NAMES: Final = {op: name for name, op in _GGUF.items()}

Place = tuple[str, int | None]  # the name of a weight of the graph, and its layer


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Formats of weights by name and layer, where the checkpoint has them.

    own      the format of activations, and of weights that are not quantized
    schemes  what the config says besides: of activations, and of the cache
    """

    own: Format
    held: Mapping[Place, Format]
    schemes: Stored = Stored()  # noqa: RUF009  # it is frozen
    notes: tuple[str, ...] = ()

    @property
    def kv_cache(self) -> Format | None:
        return self.schemes.kv_cache

    def of(self, op: Linear, layers: Iterable[int | None]) -> dict[int | None, Scheme | None]:
        said = self.schemes.of(op, layers)
        return said if op.left_as_published else {layer: self._scheme(op, layer, said[layer]) for layer in said}

    def _scheme(self, op: Linear, layer: int | None, said: Scheme | None) -> Scheme | None:
        fmt = self.held.get((op.weight.name, layer))
        if fmt is None or fmt == self.own:
            return said if fmt is None else None
        if said and said.weight:
            same = abs(fmt.stored_bits / said.weight.stored_bits - 1) < _SAME
            return said if same else replace(said, weight=_taking(said.weight, fmt.stored_bits))
        return Scheme(text=f"{fmt} weights", weight=fmt)

    def applied(self, graph: Graph) -> Graph:
        """`graph` with what no quantization changes - tables, norms, biases, routers, heads - as it is stored."""
        return graph.map_blocks(lambda block: block.map(lambda op: op.with_weights(self._stored(block, op))))

    def _stored(self, block: Block, op: Operator) -> Callable[[Weight], Weight]:
        layer = block.layers[0] if block.layers else None
        matrix = op.weights[0] if isinstance(op, Linear) and not op.left_as_published else None

        def change(w: Weight) -> Weight:
            fmt = self.held.get((w.name, layer))
            return replace(w, format=fmt) if fmt and w != matrix else w

        return change


def _taking(fmt: Format, bits: float) -> Format:
    """`fmt` where an element takes `bits` in all."""
    return replace(fmt, bits=bits - (fmt.stored_bits - fmt.bits))


def _places(graph: Graph) -> Iterator[tuple[Operator, Weight, int | None]]:
    """Every weight of a graph, in every layer."""
    for block, op in graph:
        for w in op.weights:
            for layer in block.layers or (None,):
                yield op, w, layer


def gguf_checkpoint(tensors: Mapping[str, StoredTensor], graph: Graph, *, own: Format, file: str) -> Checkpoint:
    """The formats of the tensors of a GGUF file."""
    held: dict[Place, Format] = {}
    missing, differing, counted = [], [], set()
    for _, w, layer in _places(graph):
        name = _gguf_name(w, layer)
        if name not in tensors and w.tied:
            name = "token_embd.weight"
        tensor = tensors.get(name)
        if tensor is None:
            missing.append(name)
            continue
        counted.add(name)
        held[w.name, layer] = tensor.format
        if tensor.numel != w.numel:
            differing.append(name)
    tables = [name for name in tensors if name.startswith("rope_f")]  # frequencies: worked out, not learned
    extra = [name for name in tensors if name not in counted and name not in tables]
    stored = sum(t.numel for name, t in tensors.items() if name not in tables)
    return Checkpoint(
        own=own, held=held, notes=disagreement(file, stored, graph, missing=missing, extra=extra, differing=differing)
    )


def _gguf_name(w: Weight, layer: int | None) -> str:
    name, _, leaf = w.name.rpartition(".")
    stem = _GGUF_NAMES.get(name, name)
    return f"{stem}.{leaf}" if layer is None else f"blk.{layer}.{stem}.{leaf}"


def disagreement(
    file: str,
    stored: int,
    graph: Graph,
    *,
    missing: Sequence[str],
    extra: Sequence[str],
    differing: Sequence[str] = (),
) -> tuple[str, ...]:
    """A note where a checkpoint does not hold the parameters that the graph counts."""
    if not (missing or differing) and stored == graph.parameters:
        return ()
    said = f"{file} holds {stored} parameters, {stored - graph.parameters:+} to the {graph.parameters} counted"
    parts = (("not counted", extra), ("not in it", missing), ("of another size", differing))
    listed = [f"{what}: {_named(names)}" for what, names in parts if names]
    return ("; ".join((said, *listed)),)


def _named(names: Sequence[str]) -> str:
    more = len(names) - _FEW
    return ", ".join(names[:_FEW]) + (f" and {more} more" if more > 0 else "")
