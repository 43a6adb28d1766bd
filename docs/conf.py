"""Sphinx settings."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import streaming_gp

project = "streaming_gp"
author = "the streaming_gp developers"
release = streaming_gp.__version__
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "matplotlib.sphinxext.plot_directive",
    "tables",
]
exclude_patterns = ["_build"]
html_theme = "alabaster"
html_theme_options = {"description": "prior × factors", "page_width": "1000px"}
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
plot_html_show_source_link = False
plot_formats = [("png", 120)]
