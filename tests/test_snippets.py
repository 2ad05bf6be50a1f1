"""Python snippets and commands of the README and of docs/ run and print the shown output."""

import re
import shlex
import subprocess
import sys

import click
import pytest
import yaml

from llmviewer.cli import cli, main

from .documented import DOCS, PAGES, ROOT, TRANSCRIPT, fill_workplace, with_output

NEEDS_A_GPU = DOCS / "kernels.md"
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


# One process runs all snippets, each in a namespace of its own: the packages they import are loaded once.
RUN = """
import runpy, sys
sys.path.insert(0, "")
for name in sys.argv[1:]:
    runpy.run_path(name, run_name="__main__")
"""


@pytest.mark.slow("runs all of the documentation")
def test_snippets_run_as_printed(tmp_path):
    """Snippets of trace.md import its first one as my_models, and MODULES as my_package."""
    (tmp_path / "my_package.py").write_text(MODULES)
    names = []
    for page in PAGES:
        for number, text in enumerate(snippets(page) if page != NEEDS_A_GPU else ()):
            name = "_".join(page.relative_to(ROOT).with_suffix("").parts)
            names.append("my_models.py" if (name, number) == ("docs_trace", 0) else f"{name}_{number}.py")
            (tmp_path / names[-1]).write_text(text)
    assert {"README_0.py", "my_models.py", "docs_trace_1.py"} < set(names)
    run = [sys.executable, "-P", "-c", RUN, *names]
    finished = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr


SLOW_PAGES = {
    "docs/afd.md": "searches all splits of 64 devices",
    "docs/tutorials/kernels.md": "calibrates a profile",
    "docs/tutorials/paper.md": "analyzes several models",
    "docs/tutorials/serving.md": "simulates, advises and plans",
}
QUOTING_PAGES = [str(page.relative_to(ROOT)) for page in PAGES if TRANSCRIPT.search(page.read_text())]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow(SLOW_PAGES[name]) if name in SLOW_PAGES else ())
        for name in QUOTING_PAGES
    ],
)
def test_documented_commands_print_the_shown_output(name, monkeypatch, tmp_path):
    fill_workplace(tmp_path)
    monkeypatch.chdir(tmp_path)
    page = ROOT / name
    assert page.read_text() == with_output(page), f"make it anew: python -m tests.documented --write {name}"


COMMAND = re.compile(r"^(?:\w+=\S+ )*llmviewer (\S.*?)(?:\s+#.*)?$", re.MULTILINE)
PLACEHOLDER = re.compile(r"\b[A-Z]{3,}(_[A-Z]+)?\b(?!_)|\[|\.\.\.")  # MODEL, [--batch 8]; MXFP4_MOE is a file type
USER_FILES = ("mine.yaml", "measured/", "m/", "my_models", "shortlist:", "gpt2.json")
BLOCK = re.compile(r"^ *```([^`\n]*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
LONG_RUNNING = ("measure", "web")  # run by test_measure.py and, in a browser, test_webapp_browser.py
WRITTEN = [*PAGES, *sorted((ROOT / "reports").rglob("*.md"))]


def commands(page):
    """Commands in the blocks of a page, without those whose output is shown."""
    for language, block in BLOCK.findall(page.read_text()):
        if not language:
            yield from COMMAND.findall(block.replace("\\\n", " "))


def yaml_files(page, folder):
    """Paths of the YAML files that a page shows, by `NAME.yaml` of their names; they are written to `folder`."""
    blocks = [block for language, block in BLOCK.findall(page.read_text()) if language == "yaml"]
    paths = {f"{yaml.safe_load(block)['name']}.yaml": block for block in blocks if block.startswith("name: ")}
    for name, block in paths.items():
        (folder / name).write_text(block)
    return {name: str(folder / name) for name in paths}


@pytest.mark.slow("runs all of the documentation")
def test_commands_of_the_documentation_run(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(ROOT)
    run = 0
    for page in WRITTEN:
        shown_files = yaml_files(page, tmp_path)
        for command in commands(page):
            words = [shown_files.get(word, word) for word in shlex.split(command)]
            needs_user_files = any(name in command for name in USER_FILES)
            if PLACEHOLDER.search(command) or words[0] in LONG_RUNNING or needs_user_files:
                continue
            if "-o" in words:
                place = words.index("-o") + 1
                words[place] = str(tmp_path / words[place].replace("/", "_"))
            assert (command, main(words)) == (command, 0), capsys.readouterr().err
            run += 1
    assert run > 30


def test_options_that_the_documentation_names_exist():
    """Commands in blocks and in lines, also those with placeholders."""
    checked = 0
    for page in WRITTEN:
        lines = re.findall(r"`llmviewer (\S[^`]*)`", page.read_text())
        added = re.findall(r'^"""`llmviewer (\w+)`', page.read_text(), re.MULTILINE)  # commands that a recipe adds
        for words in (re.split(r"[\s\[\]|]+", text) for text in (*commands(page), *lines)):
            command = cli.get_command(click.Context(cli), words[0])
            if words[0] not in ("COMMAND", "--help", *added):
                declared = {*(option for each in command.params for option in (*each.opts, *each.secondary_opts))}
                options = {word for word in words if re.fullmatch(r"--?[a-z][a-z-]*", word)}
                assert (page.name, words, options - declared - {"--help"}) == (page.name, words, set())
                checked += len(options)
    assert checked > 100
