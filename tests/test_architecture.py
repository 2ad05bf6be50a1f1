"""Imports point one way, and heavy ones stay where they are used."""

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import llmviewer

from .cases import for_each

ROOT = Path(__file__).resolve().parent.parent

# From the bottom up: a module imports from lines above its own, or from its own.
LAYERS = (
    ("_layout", "errors", "parsed_files", "records", "parameters", "plugins", "rows", "writing", "yaml_text"),
    ("units", "resource", "forms"),
    ("precision", "ggml", "workload", "documents"),
    ("devices",),
    ("operators",),
    ("graph",),
    ("transforms", "architectures", "parallel"),
    ("stored", "hub"),
    ("roofline", "model"),
    ("tracing",),
    ("memory", "generation", "model_index", "model_files", "model_records"),
    ("expectation",),
    ("techniques",),
    ("lowering", "options", "arguments"),
    ("setting", "request"),
    ("server_memory",),
    ("variants",),
    ("analyzing",),
    ("timelines", "sweeping"),
    ("comparing",),
    ("serving",),
    ("reports",),
    ("kernels",),
    ("measuring",),
    ("webapp",),
    ("cli",),
    ("deprecated",),
    ("__main__",),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
DRAWN = (
    "accuracy_figures", "analysis_figures", "comparison_figures", "curves", "drawing", "pareto_figures",
    "precision_figures", "rooflines", "search_figures", "simulation_figures", "timeline_figures", "timeline_lanes",
)  # fmt: skip
DRAWING = {ROOT / "reports" / f"{name}.py" for name in DRAWN}
WITHOUT_DASH = {"answers", "asked", "edits", "fields", "state", "words"}
HEAVY = {"torch", "triton", "dash", "distributed", "plotly", "pandas", "pyarrow", "kaleido", "huggingface_hub"}
FILES = [path for top in ("llmviewer", "reports", "kernels", "webapp") for path in sorted((ROOT / top).rglob("*.py"))]


@cache
def parsed(path):
    return ast.parse(path.read_text())


def place(path):
    """The name in LAYERS that a file belongs to."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0] if parts[0] in ("reports", "kernels", "webapp") else parts[1]


def dotted(path):
    """The name by which a file is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "llmviewer" else ("llmviewer", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imported(path):
    """(dotted name inside llmviewer or of another package, line, whether at the top of the module) of each import."""
    return list(_imported(path))


def _imported(path):
    package = ("llmviewer", *path.relative_to(ROOT).parts[:-1])
    package = package[1:] if package[1:2] == ("llmviewer",) else package
    tree = parsed(path)
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno, id(node) in top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            name = ".".join(filter(None, (base, node.module)))
            whole = name == "llmviewer"
            for alias in node.names:
                yield (f"{name}.{alias.name}" if whole else name, node.lineno, id(node) in top)


@for_each("path", FILES)
def test_imports_point_down(path):
    if path.name == "__init__.py" and path.parent.name == "llmviewer":
        return  # the interface: names of all layers, imported when asked for
    own = place(path)
    for name, line, _ in imported(path):
        parts = name.split(".")
        if parts[0] == "llmviewer" and parts[1:] and parts[1] != "__version__":
            assert RANK[parts[1]] <= RANK[own], f"{path.name}:{line} imports {name}"


def test_no_import_cycles():
    modules = {dotted(path): path for path in FILES if dotted(path) != "llmviewer"}
    needs = {name: {n for n, *_ in imported(path) if n in modules} - {name} for name, path in modules.items()}
    assert len(list(TopologicalSorter(needs).static_order())) == len(FILES) - 1


@for_each("path", FILES)
def test_heavy_packages_are_imported_where_they_are_used(path):
    checks = [node for node in parsed(path).body if isinstance(node, ast.If)]
    typing_only = {n.lineno for check in checks for n in ast.walk(check) if isinstance(n, ast.Import | ast.ImportFrom)}
    at_once = {name.split(".")[0] for name, line, at_top in imported(path) if at_top and line not in typing_only}
    if place(path) == "kernels":
        assert at_once & HEAVY <= {"torch", "triton"}  # the package imports none of its modules by itself
    elif place(path) == "webapp":  # which no other part imports before it is asked for
        inner = path.parent.name == "views" or path.stem in WITHOUT_DASH
        assert at_once & HEAVY <= ({"plotly"} if inner else {"plotly", "dash"})
    else:
        assert at_once & HEAVY == ({"plotly"} if path in DRAWING else set())


def test_private_modules_are_imported_within_their_folder_alone():
    for path in FILES:
        own = dotted(path) if path.name == "__init__.py" else dotted(path).rpartition(".")[0]
        for name, line, _ in imported(path):
            folder, private, _ = name.partition("._")
            if private and folder not in ("", "llmviewer"):
                assert f"{own}.".startswith(f"{folder}."), f"{path.relative_to(ROOT)}:{line} imports {name}"


def test_scripts_import_modules_that_are_there():
    modules = {dotted(path) for path in FILES}
    scripts = [path for folder in ("benchmarks", "tests/oracle") for path in sorted((ROOT / folder).glob("*.py"))]
    names = [(path.name, line, name) for path in scripts for name, line, _ in imported(path)]
    ours = [(*place, name) for *place, name in names if name.startswith("llmviewer.")]
    assert len(ours) > 100
    assert [one for one in ours if one[-1] not in modules and one[-1].partition(".")[2] not in llmviewer.__all__] == []


def test_names_of_classes_are_unique():
    """Prefix a class with its domain if another has the name: two of one name are hard to follow and to find."""
    places = {}
    for path in FILES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_every_module_has_a_layer():
    assert {place(path) for path in FILES} - {"__init__"} == RANK.keys()


def test_the_table_in_contributing_is_of_all_modules_and_imports_come_from_above():
    cells = [line.split("|")[1] for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines() if line[:3] == "| `"]
    lines = [re.findall(r"`(?:llmviewer/)?(\w+)(\.py|/)`", cell) for cell in cells]
    folders = {place(path) for path in FILES if place(path) != path.stem}
    rows = {name: row for row, names in enumerate(lines) for name, end in names if end == ".py" or name in folders}
    assert rows.keys() == RANK.keys() - {"_layout", "__main__"}
    for path in FILES:
        for name, line, _ in imported(path) if place(path) in rows else ():
            below = rows.get(name.partition(".")[2].partition(".")[0], 0) if name.startswith("llmviewer.") else 0
            assert below <= rows[place(path)], f"{path.relative_to(ROOT)}:{line} imports {name}"


def test_nothing_prints_but_the_command_line():
    for path in FILES:
        calls = [n for n in ast.walk(parsed(path)) if isinstance(n, ast.Call)]
        assert not [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == "print"], path


def test_architectures_read_numbers_of_layers_as_counts():
    """Layers are made one by one, so a number of them that is read with integer() can take all memory; use count()."""
    size = re.compile(r'\.integer\(f?"(?!max_window_|\w*_every_n_|\w*_per_attn_)\w*(?:layers|depth|repeat|n_layer)"')
    assert not [
        path.name for path in (ROOT / "llmviewer" / "architectures").rglob("*.py") if size.search(path.read_text())
    ]
