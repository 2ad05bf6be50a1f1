"""The list of models, which needs none of their graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from llmviewer.model_index import ModelFacts
from llmviewer.units import si

from .columns import WIDTH, columns
from .listing import filled

_KINDS: Final = 2  # of attention that there is room for: where there are more, the first is that of a tower
_LEGEND: Final = (
    "total: parameters; active: those of one token where not all are, table and head among them (papers that leave "
    "out the table, as that of gpt-oss, say fewer). weights, KV of a token: bytes as published, most weights in that "
    "format. `llmviewer models NAME` and --format json say more."
)


def model_list(models: Sequence[ModelFacts], width: int = WIDTH) -> str:
    head = ("model", "total", "active", "weights", "in", "attention", "KV", "context")
    lines = [
        (m.name, _short(m.parameters), _active(m), _bytes(m.weight_bytes), m.precision,
         "+".join(m.attention_kinds[-_KINDS:]), _bytes(m.kv_bytes_per_token), _context(m))
        for m in models
    ]  # fmt: skip
    return columns([head, *lines], left=(0, 4, 5), gap=" ") + filled(_LEGEND, width) + "\n"


def _active(model: ModelFacts) -> str:
    """Active parameters where not all are."""
    return _short(model.active_parameters) if model.active_parameters != model.parameters else "-"


def _short(number: float) -> str:
    """Such as "6.74B", as papers write parameters."""
    return si(number).replace(" ", "").replace("G", "B")


def _bytes(number: float) -> str:
    """Such as "13.5G"."""
    return si(number).replace(" ", "") if number else "-"


def _context(model: ModelFacts) -> str:
    """Exact up to a million tokens."""
    tokens = model.max_context
    return (f"{tokens:,}" if tokens else "-") if tokens < 1_000_000 else si(tokens).replace(" ", "")
