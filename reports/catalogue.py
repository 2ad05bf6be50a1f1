"""All facts of a model or a device with their sources."""

from __future__ import annotations

from typing import Final

from llmviewer.devices.hardware import Hardware
from llmviewer.memory import weight_bytes
from llmviewer.model import Model
from llmviewer.resource import Unit
from llmviewer.transforms.quantize import UNQUANTIZED
from llmviewer.units import si

from .columns import WIDTH, columns
from .operator_table import number
from .tables import filled

_KEY: Final = 22  # characters of the longest key of a model, and a gap


def model_card(model: Model, width: int = WIDTH) -> str:
    """Facts of a model as text: source, parameters, attention, sizes of weights and KV cache, and notes."""
    quantized = model.quantization != UNQUANTIZED
    looked_up = f" ({model.looked_up_parameters:,} only looked up)" if model.looked_up_parameters else ""
    facts = [
        ("name", model.name),
        ("source", model.source),
        ("also known as", ", ".join(model.aliases) or "-"),
        ("architecture", model.model_type),
        ("parameters", f"{model.parameters:,}"),
        ("active per token", f"{model.active_parameters:,}{looked_up}"),
        ("attention", model.attention),
        ("layers", str(model.graph.layers)),
        ("dtype", model.format.name),
        ("quantized", str(model.quantization).removeprefix("published: ") if quantized else "-"),
        ("weights", "not known" if model.unsupported_quantization else f"{si(weight_bytes(model.published))}B"),
        ("KV cache per token", _cache_per_token(model)),
        ("context", f"{model.max_context:,}" if model.max_context else "-"),
        ("operators", ", ".join(dict.fromkeys(op.name for _, op in model.graph))),
        *(("note", note) for note in (model.unsupported_quantization, *model.notes) if note),
    ]
    lines = (filled(text, width, first=f"{key:<{_KEY}}", others=" " * _KEY) for key, text in facts)
    return "\n".join((model.title, *lines, ""))


def _cache_per_token(model: Model) -> str:
    """Growth of the KV cache within all attention windows, and beyond them where that is less."""
    within, beyond = model.kv_bytes_per_token, model.kv_bytes_per_token_beyond_windows
    if within == beyond:
        return f"{within:,.0f} B"
    return f"{within:,.0f} B within all windows, {beyond:,.0f} B beyond them"


def hardware_card(device: Hardware, width: int = WIDTH) -> str:
    """Every number of a device by block, as in its file, with the keys of its sources."""
    about = f"{device.title} ({device.architecture}, {device.released}, {device.status})"
    parts = [_wrapped(about, width), columns(_facts(device), left=(0, 1, 2)), _ridge_points(device, width), "Sources"]
    for key, source in device.sources.items():
        parts += [_wrapped(f"{key}: {source}", width), *([f"    {source.url}"] if source.url else [])]
    remarks = [f"{f.key}: {f.note}" for f in device.facts if f.note and f.source] + list(device.notes)
    if remarks:
        parts += ["Notes", *(_wrapped(remark, width) for remark in remarks)]
    return "\n".join(part.rstrip("\n") for part in parts) + "\n"


def _facts(device: Hardware) -> list[tuple[str, str, str]]:
    return [("key", "value", "source"), *((f.key, f.text, f.source or "what-if") for f in device.facts)]


def _ridge_points(device: Hardware, width: int) -> str:
    """Ridge points by data type, with equal ones together."""
    parts = []
    for unit in (Unit.MATRIX, Unit.VECTOR):
        points: dict[float, list[str]] = {}
        rates = {resource.dtype: rate for resource, rate in device.rates.items() if resource.unit is unit}
        for dtype, rate in sorted(rates.items(), key=lambda item: item[1]):
            points.setdefault(rate / device.bandwidth(), []).append(dtype)
        each = ", ".join(f"{' '.join(dtypes)} {number(point)}" for point, dtypes in points.items())
        parts += [f"{unit} units {each}"] if each else []
    return _wrapped(f"Ridge points, OP/B: {'; '.join(parts)}", width)


def _wrapped(text: str, width: int) -> str:
    return filled(text, width, others="    ")
