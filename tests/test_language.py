"""The language of the code: rules that keep it readable for a newcomer who knows the field."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = [p for top in ("llmviewer", "reports", "webapp", "kernels", "benchmarks") for p in (ROOT / top).rglob("*.py")]
TESTS = list((ROOT / "tests").rglob("*.py"))


def word_set(text):
    """The words of a text."""
    return frozenset(re.findall(r"\w+", text))


# A docstring that begins with one of these has no subject ("What a step takes", "Of all devices", "As the paper has
# it"): which thing it describes is left open, and it reads only beside the line that its author had in mind.
HEADLESS = word_set("""
    As And At But By For From How If In It Its Of On Only Some That Their They Those To What When Where Which Who Whose
    With Without
""")
# The docstring of a test states what holds, which may well begin "With one device, ..."; with these it states nothing.
HEADLESS_OF_TESTS = frozenset(["Of", "That", "Those", "What", "Which", "Who", "Whose"])

# Words without a noun among them. A variable, field, constant or class with a name of these alone says how a value came
# about or where it stands in a sentence (found, given, own), not what it holds (matching_kernels, options, own_rows).
FUNCTION_WORDS = word_set("""
    again alone apart aged as asked asks away beside both crowded done for from further gave get gets given gives
    give gone has have heats held here in it its keep keeps kept known let lets made many much needed nothing of off
    often or own rather said say says seen shown so some something sought such taken takes tell tells that them then
    there these things those thing to together told turns up usual waits wanted what whether which whole whose with
""")
# Adjectives name no constant (MOST, of what?), but a parameter, which stands beside its noun (`least=1` of a count).
ADJECTIVES = frozenset(["big", "few", "large", "least", "less", "little", "long", "more", "most", "short", "small"])
# Fields that are left, as documents, files, keywords of public functions or many callers have them. None is added.
LEFT = {
    "llmviewer/analyzing/afd.py": "alone together",
    "llmviewer/analyzing/effect.py": "held said",
    "llmviewer/analyzing/measured.py": "said",
    "llmviewer/analyzing/one_kernel.py": "needed usual what",
    "llmviewer/architectures/_kinds.py": "what",
    "llmviewer/architectures/blocks/actions.py": "own",
    "llmviewer/architectures/blocks/decoder.py": "given",
    "llmviewer/architectures/blocks/family.py": "whole",
    "llmviewer/architectures/described.py": "many",
    "llmviewer/architectures/inkling2.py": "made",
    "llmviewer/architectures/t5.py": "own",
    "llmviewer/architectures/zamba.py": "given",
    "llmviewer/comparing/breakdown.py": "waits",
    "llmviewer/comparing/cells.py": "waits",
    "llmviewer/deprecated.py": "given",
    "llmviewer/measuring/ceilings.py": "known what",
    "llmviewer/measuring/summary.py": "of what",
    "llmviewer/memory.py": "beside kept",
    "llmviewer/parallel/overlap.py": "then",
    "llmviewer/serving/advice.py": "alone together wanted",
    "llmviewer/serving/fleet_times.py": "needed",
    "llmviewer/serving/metrics.py": "known",
    "llmviewer/serving/search.py": "known",
    "llmviewer/techniques/_linears.py": "of",
    "llmviewer/techniques/_technique.py": "NOTHING",
    "llmviewer/tracing/fitting.py": "told",
    "llmviewer/tracing/recorder.py": "given",
    "llmviewer/tracing/recording.py": "kept made",
    "llmviewer/variants/evaluation.py": "given",
}
# Words of which the field has better ones, as part of a name of any kind.
DIALECT = {
    "cure": "memory fix", "cures": "memory fixes", "kin": "similar devices", "kinship": "device similarity",
    "rivals": "faster libraries", "somebody": "a request", "nobody": "no request", "stories": "examples",
}  # fmt: skip


@cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def docstrings(path):
    """Line and docstring of the module, of its classes and of its functions."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text


def names(path, *kinds):
    """Line and name of the definitions of some kinds in a file."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, kinds) and not (isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store)):
            name = node.arg if isinstance(node, ast.arg) else node.id if isinstance(node, ast.Name) else node.name
            if not name.startswith("__"):
                yield node.lineno, name


def words(name):
    """The words of a name, in lower case."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def place(path, line):
    return f"{path.relative_to(ROOT)}:{line}"


@pytest.mark.parametrize(("files", "openers"), [(PRODUCT, HEADLESS), (TESTS, HEADLESS_OF_TESTS)], ids=["code", "tests"])
def test_docstrings_begin_with_a_noun_or_a_verb(files, openers):
    """Name the thing ("Fixed cost of a launch. [us]") or open with a verb ("Removes frames shorter than ...")."""
    headless = [
        f"{place(path, line)}: {text.splitlines()[0]}"
        for path in files
        for line, text in docstrings(path)
        if re.split(r"\W", text, maxsplit=1)[0] in openers
    ]
    assert not headless, "\n".join(headless)


def test_names_of_values_hold_a_noun():
    """Functions may have the name of a verb, or of a preposition that reads with its receiver (`Form.at(workload)`)."""
    nameless = [
        (str(path.relative_to(ROOT)), name, line)
        for path in PRODUCT
        for line, name in names(path, ast.Name, ast.arg, ast.ClassDef)
        if words(name) and words(name) <= (FUNCTION_WORDS | ADJECTIVES if name.isupper() else FUNCTION_WORDS)
    ]
    added = [f"{path}:{line}: {name}" for path, name, line in nameless if name not in LEFT.get(path, "").split()]
    assert not added, "\n".join(added)
    left = {(path, name) for path, several in LEFT.items() for name in several.split()}
    assert left == {(path, name) for path, name, _ in nameless}, "LEFT has names that are there no more"


def test_names_are_words_of_the_field():
    dialect = [
        f"{place(path, line)}: {name}; say {DIALECT[word]}"
        for path in PRODUCT
        for line, name in names(path, ast.Name, ast.arg, ast.ClassDef, ast.FunctionDef)
        for word in words(name) & DIALECT.keys()
    ]
    assert not dialect, "\n".join(dialect)


def test_rules_detect_violations():
    assert words("_MOST_OF") == {"most", "of"}
    assert words("TopKOf2") == {"top", "k", "of"}
    example = ast.parse('def of(found, least):\n    "Of all."\n    MOST = found\n')
    stored = [n.id for n in ast.walk(example) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    assert stored == ["MOST"]
