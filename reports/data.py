"""The report of an analysis for programs: JSON and CSV, in SI units and full precision."""

from __future__ import annotations

from dataclasses import fields

from llmviewer.analyzing.analysis import Analysis
from llmviewer.analyzing.phases import OperatorResult
from llmviewer.rows import csv_text

from .tables import json_of


def render_json(analysis: Analysis) -> str:
    return json_of(analysis.to_dict())


def render_csv(analysis: Analysis) -> str:
    """One row per phase and operator, as Analysis.to_frame() has them."""
    names = [f.name for f in fields(OperatorResult) if f.name != "per_call"]
    lines = (
        [phase_name, *(_cell(getattr(op, name)) for name in names)]
        for phase_name, phase in analysis.phases
        for op in phase.operators
    )
    return csv_text([["phase", *names], *lines])


def _cell(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value
