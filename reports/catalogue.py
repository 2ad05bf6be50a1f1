"""What ships: lists of models and devices, and the facts of one with their sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from llmviewer.hardware import Hardware
from llmviewer.model import Model
from llmviewer.resource import Resource, Unit
from llmviewer.units import si

from .columns import columns

_DTYPES: Final = ("fp16", "fp8", "int8", "int4")


def model_list(models: Sequence[Model]) -> str:
    lines = [
        (m.name, f"{m.parameters:,}", _active(m), str(m.graph.layers), m.format.name, m.attention,
         f"{si(m.kv_bytes_per_token)}B", str(m.max_context or "-"), m.source.split()[0])
        for m in models
    ]  # fmt: skip
    head = ("model", "parameters", "active", "layers", "dtype", "attention", "KV/token", "context", "published as")
    return columns([head, *lines], left=(0, 4, 5, 8))


def _active(model: Model) -> str:
    """Active parameters where not all are."""
    return f"{model.active_parameters:,}" if model.active_parameters != model.parameters else "-"


def model_card(model: Model) -> str:
    widths = {op.name: op for block, op in model.graph}
    facts = [
        ("name", model.name),
        ("published as", model.source),
        ("also known as", ", ".join(model.aliases) or "-"),
        ("architecture", model.model_type),
        ("parameters", f"{model.parameters:,}"),
        ("active for a token", f"{model.active_parameters:,}"),
        ("attention", model.attention),
        ("layers", str(model.graph.layers)),
        ("dtype", model.format.name),
        ("weights", f"{si(model.parameters * model.format.stored_bits / 8)}B"),
        ("KV cache per token", f"{model.kv_bytes_per_token:,.0f} B"),
        ("context", f"{model.max_context or '-'}"),
        ("operators of a layer", ", ".join(widths)),
        *(("note", note) for note in model.notes),
    ]
    return f"{model.title}\n{columns(facts, left=(0, 1))}"


def hardware_list(devices: Sequence[Hardware]) -> str:
    head = ("device", "memory", "bandwidth", *(f"{d} matrix" for d in _DTYPES), "fp32 vector", "year", "status")
    lines = [
        (h.name, f"{si(h.capacity)}B", f"{si(h.bandwidth())}B/s",
         *(_rate(h, Resource(Unit.MATRIX, d)) for d in _DTYPES), _rate(h, Resource(Unit.VECTOR, "fp32")),
         str(h.released), h.status)
        for h in devices
    ]  # fmt: skip
    return columns([head, *lines], left=(0, len(head) - 1)) + "Dense rates, a multiply-add is two OPs.\n"


def hardware_card(device: Hardware) -> str:
    facts = [("key", "value", "source"), *((f.key, f.text, f.source or f.note) for f in device.facts)]
    sources = [(key, f"{source}{f' <{source.url}>' if source.url else ''}") for key, source in device.sources.items()]
    remarks = [f"{f.key}: {f.note}" for f in device.facts if f.note and f.source] + list(device.notes)
    about = f"{device.title} ({device.architecture}, {device.released}, {device.status})"
    parts = [about, columns(facts, left=(0, 2)), "Sources", columns(sources, left=(0, 1))]
    if remarks:
        parts += ["Notes", *(f"  {' '.join(remark.split())}" for remark in remarks)]
    return "\n".join(part.rstrip("\n") for part in parts) + "\n"


def _rate(device: Hardware, resource: Resource) -> str:
    return f"{si(device.rates[resource])}" if resource in device.rates else "-"
