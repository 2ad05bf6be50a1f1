"""Sphinx configuration of the documentation site: README, docs/ and an API reference from docstrings.

`sphinx-build -W -b html -c docs/site . build/site`, from the repository's root (extra `docs`), without network.
"""

import re
from inspect import isfunction

from sphinx.application import Sphinx

import llmviewer

project = "llmviewer"
author = "llmviewer contributors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/site/index"
include_patterns = ["*.md", "docs/*.md", "docs/tutorials/*.md", "docs/site/*.md", "reports/*/*.md"]
html_theme = "furo"
html_title = "llmviewer"
html_extra_path = ["start"]  # index.html of the site's root
suppress_warnings = ["misc.highlighting_failure"]  # Pygments knows no CSV
myst_heading_anchors = 4
autodoc_typehints = "description"
autodoc_typehints_format = "short"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"  # results are not made by users
napoleon_custom_sections = [("Options", "params_style")]

API_PAGE = "docs/site/api"
ROW = re.compile(r"(?P<names>\w+(?:, \w+)*) {2,}(?P<text>\S.*)")


def setup(app: Sphinx) -> None:
    """Registers the handlers below with Sphinx."""
    app.connect("source-read", list_public_names)
    app.connect("autodoc-process-docstring", describe_parameters)


def list_public_names(_app: object, page: str, source: list[str]) -> None:
    """Adds all public names to the page of the API, functions first."""
    if page == API_PAGE:
        members = {name: getattr(llmviewer, name) for name in sorted(llmviewer.__all__) if not name.startswith("_")}
        functions = [f".. autofunction:: llmviewer.{name}" for name, value in members.items() if isfunction(value)]
        options = "\n   :members:\n   :exclude-members: __init__"
        classes = [f".. autoclass:: llmviewer.{name}{options}" for name in members if not isfunction(members[name])]
        for title, blocks in (("Functions", functions), ("Classes", classes)):
            source[0] += "\n## {}\n\n```{{eval-rst}}\n{}\n```\n".format(title, "\n\n".join(blocks))


def describe_parameters(
    _app: object, _object_type: str, _name: str, _object: object, _options: object, lines: list[str]
) -> None:
    """Makes definition lists of the columns of a docstring: names of parameters or fields, then their descriptions."""
    converted: list[str] = []
    inside = False
    for line in lines:
        if row := ROW.fullmatch(line):
            converted += ["", f"``{row['names']}``", f"    {row['text']}"]
            inside = True
        elif inside and line.startswith("    "):
            converted.append(f"    {line.strip()}")
        else:
            converted += [""] * inside + [line]
            inside = False
    lines[:] = converted
