"""Manners of the command line as a process: streams that are closed, terminals without colour, interrupts."""

import csv
import io
import os
import pty
import signal
import subprocess
import sys
import time

import pytest

from llmviewer.cli import main
from llmviewer.rows import csv_cell, csv_text

PROGRAM = (sys.executable, "-m", "llmviewer")


def on_a_terminal(arguments, **environment):
    """Output of a command whose standard output is a terminal."""
    ours, theirs = pty.openpty()
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    with subprocess.Popen(
        [*PROGRAM, *arguments], stdout=theirs, stderr=theirs, env=inherited | {"TERM": "xterm"} | environment
    ) as process:
        os.close(theirs)
        parts = []
        while part := read(ours):
            parts.append(part)
    os.close(ours)
    assert process.returncode == 0
    return b"".join(parts).decode()


def read(terminal):
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the other end is closed
        return b""


def test_a_terminal_gets_colours_unless_it_has_none_or_no_color_is_set():
    """https://no-color.org: any value that is not empty."""
    words = ["analyze", "gpt2", "t4", "--bound"]
    assert "\x1b[" in on_a_terminal(words)
    assert "\x1b[" not in on_a_terminal(words, NO_COLOR="1")
    assert "\x1b[" not in on_a_terminal(words, TERM="dumb")


@pytest.mark.parametrize("words", [["models", "gpt2"], ["analyze", "gpt2", "t4", "--bound"], ["--help"]])
def test_a_closed_standard_output_gets_one_line(words):
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *PROGRAM, *words], stderr=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (2, "llmviewer: cannot write to standard output: Bad file descriptor\n")


def test_a_report_to_a_file_needs_no_standard_output(tmp_path):
    words = ["analyze", "gpt2", "t4", "--bound", "-o", str(tmp_path / "report.json")]
    subprocess.run(["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *PROGRAM, *words], check=True)
    assert (tmp_path / "report.json").stat().st_size > 1000


@pytest.mark.slow("starts and kills a process")
def test_interrupted_sweep_reports_finished_shards_and_resumes(tmp_path):
    over = ["--over", "batch=1..200000", "--over", "prompt=1..40", "--shard-points", "100000"]
    words = ["sweep", "gpt2", "t4", *over, "-o", f"{tmp_path}/"]
    with subprocess.Popen([*PROGRAM, *words], stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + 60
        while not list(tmp_path.glob("**/[!.]*.parquet")) and time.monotonic() < end:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        said = process.communicate()[1]
    assert process.returncode == 130
    line = f"llmviewer: stopped; finished shards are in {tmp_path}; the same command resumes"
    assert said.splitlines()[-1] == line
    assert list(tmp_path.glob("**/[!.]*.parquet"))


@pytest.mark.parametrize("value", ["inf", "nan", "-inf"])
def test_numbers_are_finite(value, capsys):
    assert main(["analyze", "gpt2", "t4", "--expert-skew", value]) == 2
    said = f"llmviewer: Invalid value for '--expert-skew': must be a finite number; got '{value}'\n"
    assert capsys.readouterr() == ("", said)


def test_cells_of_csv_files_are_no_formulas():
    cells = {"=1+1": "'=1+1", "@sum": "'@sum", "-2+3": "'-2+3", "\t=1": "'\t=1", "+cmd": "'+cmd"}
    same = ("-", "+5 %", "-3.2 ms", "q_proj", -3.0, 7, "")
    assert {cell: csv_cell(cell) for cell in cells} == cells
    assert tuple(map(csv_cell, same)) == same
    assert csv_text([["a", "b"], [float("nan"), "=x"]]) == "a,b\n,'=x\n"


def test_unknown_values_are_empty_cells_of_a_sweep(capsys):
    """One generated token has no time per output token."""
    assert main(["sweep", "gpt2", "t4", "--over", "batch=1,2", "--gen", "1"]) == 0
    head, *lines = csv.reader(io.StringIO(capsys.readouterr().out))
    assert [line[head.index("tpot_s")] for line in lines] == ["", ""]


def test_group_sizes_divide_some_rows(capsys):
    assert main(["analyze", "llama-3.1-8b", "t4", "--quant", "W4A16g100"]) == 2
    assert capsys.readouterr().err == (
        "llmviewer: quantization W4A16g100: groups must divide the rows of a matrix; groups of 100 divide none of "
        "those of llama-3.1-8b, of 4096, 14336 values; try g128 or g64\n"
    )


def test_docs_command_prints_every_page(capsys):
    assert main(["docs"]) == 0
    pages = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    for page in pages:
        assert main(["docs", page]) == 0
        assert capsys.readouterr().out.startswith("# ")
    assert main(["docs", "servin"]) == 2
    assert capsys.readouterr().err == "llmviewer: no page 'servin': did you mean serving?\n"
