"""The report on a terminal: what is cut where there is no room, and that nothing is where there is no terminal."""

import click
import pytest

from llmviewer.analysis import analyze
from llmviewer.reports.text import render


@pytest.fixture(scope="module")
def analysis():
    return analyze("mixtral-8x7b", "h100-sxm", layout="tp=2")


def tables(text):
    """The lines of operators, of both phases."""
    lines = click.unstyle(text).splitlines()
    heads = [i for i, line in enumerate(lines) if line.startswith("operator ")]
    return [
        line
        for head in heads
        for line in lines[head : next(i for i in range(head, len(lines)) if "total" in lines[i]) + 1]
    ]


def test_tables_fit_the_terminal(analysis):
    lines = tables(render(analysis, width=80))
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("  all_reduce ") for line in lines)  # under the operator whose outputs it adds up
    assert any(line.startswith("…") and "_gate_proj" in line for line in lines)


@pytest.mark.parametrize("width", [0, 120])
def test_names_are_whole_where_there_is_room_or_no_terminal(analysis, width):
    text = "\n".join(tables(render(analysis, width=width)))
    assert "…" not in text
    for phase in (analysis.phases.prefill, analysis.phases.decode):
        assert all(f"\n{op.name} " in text for op in phase.operators)
