"""How the documentation site is built (`make docs`): pages are Markdown, the reference is generated from the code."""

from __future__ import annotations

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

# For `tools.reference`, however sphinx-build was started.
sys.path.insert(0, str(Path(__file__).parents[1]))

project = "Everwork"
author = "Everwork contributors"
release = version = installed_version("everwork")
html_title = "Everwork"
copyright = "Everwork contributors"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "tools.reference.extension"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_templates", "images"]
templates_path = ["_templates"]

# Strict: every reference leads somewhere, or the build fails (`make docs` passes -W).
nitpicky = True
# Names of the standard library and of packages: their documentation is on other hosts, which a build does not ask.
nitpick_ignore_regex = [("py:.*", r"(?!everwork).*")]

# Markdown as a code forge shows it: tables, strikethrough, headings that can be linked to.
myst_heading_anchors = 4
myst_heading_slug_func = "tools.reference.anchors.slug"
myst_enable_extensions = ["deflist"]
myst_links_external_new_tab = False
# Anchors are ours; Pygments has no lexer for these.
suppress_warnings = ["myst.xref_ambiguous"]

# The Python reference. Docstrings have code in single backticks, and arguments in Google's style.
napoleon_numpy_docstring = False
napoleon_use_rtype = False
default_role = "code"
# `--engine` has two hyphens, wherever it is written.
smartquotes = False
autodoc_class_signature = "mixed"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 72
add_module_names = False
toc_object_entries_show_parents = "hide"

# The look: colors and type of the dashboard, in _static/site.css.
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/icon.svg"
html_logo = "_static/icon.svg"
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": False, "top_of_page_buttons": []}
html_search_scorer = str(Path(__file__).with_name("_static") / "scorer.js")
