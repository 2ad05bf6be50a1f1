"""Every recipe of docs/extending.md, on a copy of the tree: its files are written, and its commands succeed."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TREE = (
    "llmviewer", "reports", "kernels", "webapp", "engines", "hardware", "models", "profiles", "docs", "tests",
    "pyproject.toml", "README.md",
)  # fmt: skip
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
RECIPES = {title: text for title, _, text in (part.partition("\n") for part in PAGE.split("\n## ")[1:])}
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PYTEST = "python -m pytest -q "


def blocks(text):
    """(language, file or "", content) of each block."""
    return [(match[1], match[2] or "", match[3]) for match in BLOCK.finditer(text)]


def patched(text, diff):
    """A text whose lines without "+" in `diff` are replaced by those without "-"."""
    lines = diff.splitlines(keepends=True)
    before, after = ("".join(line[1:] for line in lines if line[0] != mark) for mark in "+-")
    assert text.count(before) == 1, before
    return text.replace(before, after)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the tree with the files of all recipes."""
    folder = tmp_path_factory.mktemp("tree")
    for name in TREE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder)
    (folder / "packages").mkdir()  # pytest takes the root of a checkout off the path
    (folder / "packages" / "llmviewer").symlink_to(folder / "llmviewer")
    for language, file, content in blocks(PAGE):
        path = folder / file
        if language == "diff":
            path.write_text(patched(path.read_text(encoding="utf-8"), content), encoding="utf-8")
        elif file:
            assert not path.exists(), file
            path.write_text(content, encoding="utf-8")
    return folder


def run(tree, *command):
    environment = {**os.environ, "PYTHONPATH": str(tree / "packages"), "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    assert not done.returncode, f"{shlex.join(command)}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def commands(recipe):
    return [
        line for language, _, content in blocks(RECIPES[recipe]) if language == "sh" for line in content.splitlines()
    ]


def test_each_recipe_has_files_and_commands():
    links = re.findall(r"\[(\w+)\]\(#\w+\)", PAGE.partition("\n## ")[0])
    assert sorted(link.capitalize() for link in links) == sorted(RECIPES)
    for title, text in RECIPES.items():
        assert {file for _, file, _ in blocks(text) if file}, title
        assert commands(title), title


def test_the_modules_of_recipes_are_imported(tree):
    pytest.importorskip("dash")
    pytest.importorskip("triton")
    files = [file for language, file, _ in blocks(PAGE) if language == "python" and not file.startswith("tests/")]
    modules = [file.removesuffix(".py").removeprefix("llmviewer/").replace("/", ".") for file in files]
    run(tree, "-c", f"import {', '.join(f'llmviewer.{module}' for module in modules)}")


@pytest.mark.slow("a process for each command")
def test_the_commands_of_every_recipe_succeed(tree):
    """Recipes that are tests run together, after all others."""
    tests = []
    for title in RECIPES:
        for line in commands(title):
            if line.startswith(PYTEST):
                tests.append(line.removeprefix(PYTEST))
                continue
            program, *arguments = shlex.split(line)
            said = run(tree, *(("-m", "llmviewer") if program == "llmviewer" else ()), *arguments)
            assert "no kernel measured" not in said, line
    words = [shlex.split(line) for line in tests]
    files = [word for line in words for word in line if word.endswith(".py")]
    chosen = [f"({line[-1]})" if "-k" in line else " or ".join(Path(word).stem for word in line) for line in words]
    said = run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files, "-k", " or ".join(chosen))
    assert "skipped" not in said, said


def test_the_files_of_recipes_are_linted(tree):
    written = [file for language, file, _ in blocks(PAGE) if language == "python"]
    run(tree, "-m", "ruff", "check", "--no-cache", *written)
    run(tree, "-m", "ruff", "format", "--check", "--no-cache", *written)
