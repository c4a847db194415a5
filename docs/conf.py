"""Settings of the documentation site. `make docs` builds it into build/docs."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "Penstock"
copyright = "2026, The Penstock authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "reference"]
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]

html_theme = "furo"
html_title = "Penstock"
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["wide.css"]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4

autodoc_typehints = "description"
autodoc_member_order = "bysource"
