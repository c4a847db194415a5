"""Settings of the documentation site. `make docs` builds it into build/docs."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "Penstock"
copyright = "2026, The Penstock authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "reference", "small_screens"]
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]

html_theme = "furo"
html_title = "Penstock"
html_show_sourcelink = False
html_use_index = False
html_domain_indices = False
html_static_path = ["_static"]
html_css_files = ["wide.css"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_member_order = "bysource"

# Single backticks in docstrings are code, and attributes a list, which the right column leaves out.
default_role = "code"
napoleon_use_ivar = True


def setup(app: Any) -> None:
    """Leaves the arguments of classes out: users get their objects from functions."""
    app.connect("autodoc-process-signature", lambda app, kind, *_: ("", "") if kind == "class" else None)
