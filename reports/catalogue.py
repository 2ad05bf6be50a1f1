"""What ships: lists of models and devices, and the facts of one with their sources."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Final

from llmviewer.hardware import Hardware
from llmviewer.model import Model
from llmviewer.resource import Resource, Unit
from llmviewer.units import si

from .columns import columns

_NARROW: Final = ("fp8", "int8", "fp4")
_WIDTH: Final = 80


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
    head = ("device", "memory", "bandwidth", "16-bit", *_NARROW, "fp32")
    lines = [(h.name, f"{si(h.capacity)}B", f"{si(h.bandwidth())}B/s", *_rates(h)) for h in devices]
    announced = ", ".join(h.name for h in devices if h.status == "announced")
    notes = "Dense OP/s of matrix units, fp32 of vector units; a multiply-add is two OPs.\n"
    return columns([head, *lines], left=(0,)) + notes + (f"Announced: {announced}.\n" if announced else "")


def hardware_card(device: Hardware) -> str:
    """Every number under its block, as the file has it; sources by their key; what is too long for a line wraps."""
    about = f"{device.title} ({device.architecture}, {device.released}, {device.status})"
    parts = [*_wrapped(about), columns(_facts(device), left=(0, 1, 2)), "Sources"]
    for key, source in device.sources.items():
        parts += _wrapped(f"{key}: {source}") + ([f"    {source.url}"] if source.url else [])
    remarks = [f"{f.key}: {f.note}" for f in device.facts if f.note and f.source] + list(device.notes)
    if remarks:
        parts += ["Notes", *(line for remark in remarks for line in _wrapped(remark))]
    return "\n".join(part.rstrip("\n") for part in parts) + "\n"


def _facts(device: Hardware) -> list[tuple[str, str, str]]:
    return [("key", "value", "source"), *((f.key, f.text, f.source or "what-if") for f in device.facts)]


def _wrapped(text: str) -> list[str]:
    return wrap(text, _WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def _rates(device: Hardware) -> tuple[str, ...]:
    """fp16, or bf16 where there is no fp16, first."""
    wide = "fp16" if Resource(Unit.MATRIX, "fp16") in device.rates else "bf16"
    asked = (*(Resource(Unit.MATRIX, dtype) for dtype in (wide, *_NARROW)), Resource(Unit.VECTOR, "fp32"))
    return tuple(si(device.rates[r]).rstrip() if r in device.rates else "-" for r in asked)
