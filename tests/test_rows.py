"""Results that are tables: to_frame() has the rows of the CSV file."""

import pytest

import llmviewer

from .cases import first_fast

RESULTS = {
    "simulation": lambda: llmviewer.simulate("gpt2", "t4", rate=1, requests=5, prompt_lengths="100", gen_lengths="9"),
    "saturation": lambda: llmviewer.max_throughput("gpt2", "t4"),
    "plan": lambda: llmviewer.plan("gpt2", rate=1, hardware=["t4"], max_devices=1),
    "advice": lambda: llmviewer.advise("gpt2", "t4"),
    "comparison": lambda: llmviewer.compare("gpt2", ["t4", "l4"]),
    "split": lambda: llmviewer.split("gpt2", "t4", host="ryzen-9-7950x"),
    "fit": lambda: llmviewer.fit("t4", models=["qwen3-0.6b"]),
    "search": lambda: llmviewer.search("gpt2", "t4", {"depth": [6, 12]}, bound=True),
    "choice": lambda: llmviewer.choose("gpt2", hardware=["t4", "l4"]),
}


@pytest.mark.parametrize("name", first_fast(RESULTS, "each kind of result", 2))
def test_a_frame_has_the_rows_of_the_csv_file(name):
    found = RESULTS[name]()
    frame, rows = found.to_frame(), list(found.rows())
    assert len(frame) == len(rows) > 0
    assert list(frame.columns) == list(rows[0])


def test_a_result_is_a_few_lines_its_report_or_a_part_of_a_notebook():
    shown = [
        llmviewer.analyze("gpt2", "t4"), llmviewer.disaggregate("gpt2", "t4", "l4"), RESULTS["comparison"](),
        RESULTS["simulation"](),
    ]  # fmt: skip
    for found in shown:
        lines, cell = repr(found).splitlines(), found._repr_html_()
        assert 1 <= len(lines) <= 16
        assert max(map(len, lines)) <= 80
        assert str(found).startswith(lines[0])
        assert len(str(found)) > len(repr(found))
        assert lines[0].partition(" ")[0] in cell
        assert cell.count("<iframe") == 1
        assert len(cell) < 1_000_000  # plotly.js is not in it
