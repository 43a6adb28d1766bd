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
    "myst_nb",
    "sphinx_copybutton",
    "sphinx_design",
    "summaries",
    "tables",
]
exclude_patterns = ["_build", "*.py", "start/*.py", "howto/*/*.py"]
html_theme = "pydata_sphinx_theme"
html_title = "streaming_gp"
html_static_path = ["static"]
html_css_files = ["figures.css"]
html_context = {"default_mode": "auto"}
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
}
nitpicky = True  # methods, functions, exceptions and modules that are referred to must be there
nitpick_ignore_regex = [
    ("py:class", ".*"),  # annotations name classes of other libraries, and some that have no page
    ("py:exc", "NotFittedError|OSError"),
]
linkcheck_timeout = 10
nb_custom_formats = {".py": ["jupytext.reads", {"fmt": "py:percent"}]}
nb_execution_mode = "cache"
nb_execution_timeout = 180
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_output_stderr = "remove"
copybutton_prompt_text = r">>> |\$ "
copybutton_prompt_is_regexp = True
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
plot_html_show_source_link = False
plot_formats = [("png", 120)]
