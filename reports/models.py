"""The list of models, from their index alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from llmviewer.model_index import ModelFacts
from llmviewer.units import si

from .columns import WIDTH, columns
from .tables import filled

_MAX_ATTENTION_KINDS: Final = (
    2  # of attention that there is room for: where there are more, the first is that of a tower
)
_LEGEND: Final = (
    "total: parameters; act.: active per token if not all are, embedding table and head included (papers that leave "
    "out the table, such as that of gpt-oss, give fewer). bytes: of the published weights; in: the format of most. KV: "
    "bytes that a token adds to the cache within all attention windows; KV>w: beyond them. ctx: longest context in "
    "tokens. `llmviewer models NAME` and --format json have all digits."
)


def model_list(models: Sequence[ModelFacts], width: int = WIDTH) -> str:
    """Table of models as text with a legend, at most `width` columns wide."""
    head = ("model", "total", "act.", "bytes", "in", "attention", "KV", "KV>w", "ctx")
    lines = [
        (m.name, _parameter_count(m.parameters), _active(m), _bytes(m.weight_bytes), m.precision,
         "+".join(m.attention_kinds[-_MAX_ATTENTION_KINDS:]), _two_digits(m.kv_bytes_per_token),
         _two_digits(m.kv_bytes_per_token_beyond_windows), _context(m))
        for m in models
    ]  # fmt: skip
    return columns([head, *lines], left=(0, 4, 5), gap=" ") + filled(_LEGEND, width) + "\n"


def _active(model: ModelFacts) -> str:
    """Active parameters; "-" if all are."""
    return _parameter_count(model.active_parameters) if model.active_parameters != model.parameters else "-"


def _parameter_count(number: float) -> str:
    """Such as "6.74B", as papers write parameters."""
    return si(number).replace(" ", "").replace("G", "B")


def _bytes(number: float, digits: int = 3) -> str:
    """Such as "13.5G"; "-" for 0."""
    return si(number, digits).replace(" ", "") if number else "-"


def _two_digits(number: float) -> str:
    """Such as "98k" and "1.2M"; "-" for 0."""
    return _bytes(number, digits=2)


def _context(model: ModelFacts) -> str:
    """The longest context, with all digits below 100,000 tokens."""
    tokens = model.max_context
    return (f"{tokens:,}" if tokens else "-") if tokens < 100_000 else _bytes(tokens)
