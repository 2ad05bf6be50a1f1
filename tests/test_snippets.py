"""Every Python snippet of the README and of docs/ runs as printed; commands print what is shown under them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from llmviewer.cli import cli, main

ROOT = Path(__file__).parents[1]
OF_A_GPU = "kernels.md"
RECORDED_ELSEWHERE = "gpt2.json.gz"
MODULES = """\
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

class Decoder(LlamaForCausalLM):
    def __init__(self):
        super().__init__(LlamaConfig(
            vocab_size=96, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2))

class Encoder(nn.Linear):
    def __init__(self):
        super().__init__(64, 64)

class Tower(nn.Conv2d):
    def __init__(self):
        super().__init__(3, 8, 14, stride=14)
"""


def snippets(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if snippets(page)]


# One process for all, each of which has names of its own: what they import is loaded once.
RUN = """
import runpy, sys
sys.path.insert(0, "")
for name in sys.argv[1:]:
    runpy.run_path(name, run_name="__main__")
"""


@pytest.mark.slow("runs all of the documentation")
def test_snippets_run_as_printed(tmp_path):
    """Those of trace.md see its first one as my_models, and ours as my_package."""
    (tmp_path / "my_package.py").write_text(MODULES)
    names = []
    for page in PAGES:
        for number, text in enumerate(snippets(page) if page.name != OF_A_GPU else ()):
            names.append("my_models.py" if (page.name, number) == ("trace.md", 0) else f"{page.stem}_{number}.py")
            (tmp_path / names[-1]).write_text(text)
    assert {"README_0.py", "my_models.py", "trace_1.py"} < set(names)
    run = [sys.executable, "-P", "-c", RUN, *names]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_first_command_prints_what_the_readme_shows(capsys):
    setup, shown, *_ = re.findall(r"```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert missing(re.search(r"bin/llmviewer (.*)", setup)[1], shown, capsys) == []


def test_commands_print_what_the_documentation_shows(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")
    for page in sorted((ROOT / "docs").glob("*.md")):
        for command, shown in re.findall(r"```\n\$ llmviewer ([^\n]*)\n(.*?)```", page.read_text(), re.DOTALL):
            if RECORDED_ELSEWHERE not in command:
                assert (page.name, missing(command, shown, capsys)) == (page.name, [])


COMMAND = re.compile(r"^(?:\w+=\S+ )*llmviewer (\S.*?)(?:\s+#.*)?$", re.MULTILINE)
PLACEHOLDER = re.compile(r"\b[A-Z]{3,}(_[A-Z]+)?\b(?!_)|\[|\.\.\.")  # MODEL, [--batch 8]; MXFP4_MOE is a file type
MADE_BEFORE = (
    "mine.yaml",
    "measured/",
    "m/",
    "my_models",
    "shortlist.py",
    "gpt2.json",
)  # files that a command before makes, or a reader
LASTING = ("measure", "web")
WRITTEN = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", *sorted((ROOT / "reports").rglob("*.md"))]


def commands(page):
    """Commands in the blocks of a page, without those whose output is shown."""
    for block in re.findall(r"```\n(.*?)```", page.read_text(), re.DOTALL):
        yield from COMMAND.findall(block.replace("\\\n", " "))


@pytest.mark.slow("runs all of the documentation")
def test_commands_of_the_documentation_run(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(ROOT)
    run = 0
    for page in WRITTEN:
        for command in commands(page):
            words = shlex.split(command)
            if PLACEHOLDER.search(command) or words[0] in LASTING or any(name in command for name in MADE_BEFORE):
                continue
            if "-o" in words:
                place = words.index("-o") + 1
                words[place] = str(tmp_path / words[place].replace("/", "_"))
            assert (command, main(words)) == (command, 0), capsys.readouterr().err
            run += 1
    assert run > 20


def test_options_that_the_documentation_names_exist():
    """In blocks and in lines, with what stands for a value."""
    named = 0
    for page in WRITTEN:
        lines = re.findall(r"`llmviewer (\S[^`]*)`", page.read_text())
        added = re.findall(r'^"""`llmviewer (\w+)`', page.read_text(), re.MULTILINE)  # by a recipe of that page
        for words in (re.split(r"[\s\[\]|]+", text) for text in (*commands(page), *lines)):
            command = cli.get_command(click.Context(cli), words[0])
            if words[0] not in ("COMMAND", "--help", *added):
                known = {*(option for one in command.params for option in (*one.opts, *one.secondary_opts)), "--help"}
                given = {word for word in words if re.fullmatch(r"--?[a-z][a-z-]*", word)}
                assert (page.name, words, given - known) == (page.name, words, set())
                named += len(given)
    assert named > 100


def missing(command, shown, capsys):
    """Lines that are shown and not printed."""
    assert main(shlex.split(command)) == 0
    printed = capsys.readouterr().out.splitlines()
    return [line for line in shown.splitlines() if line != "..." and line not in printed]
