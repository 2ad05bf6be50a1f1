"""Sphinx configuration of the documentation site: README, docs/ and an API reference from docstrings.

`sphinx-build -W -b html -c docs/site . build/site`, from the repository's root (extra `docs`), without network.
"""

project = "llmviewer"
author = "llmviewer contributors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/site/index"
include_patterns = ["*.md", "docs/*.md", "docs/site/*.md", "reports/*/*.md"]
html_theme = "furo"
html_title = "llmviewer"
html_extra_path = ["start"]  # index.html of the site's root
myst_heading_anchors = 4
autodoc_typehints = "description"
autodoc_typehints_format = "short"
autodoc_member_order = "groupwise"
napoleon_numpy_docstring = False
