"""The site: `make docs`. Pages are Markdown (MyST); warnings are errors; nothing is fetched when it is read."""

from __future__ import annotations

import sys
from pathlib import Path

import polyfed

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "polyfed"
author = "The polyfed developers"
copyright = author
version = release = polyfed.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
    "polyfed_docstrings",
    "polyfed_catalogue",
    "polyfed_results",
    "polyfed_mathjax",
]
exclude_patterns = ["_build", "_ext", "**/.ipynb_checkpoints"]
smartquotes = False  # values in tables are written as in a file
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!polyfed\b).*"),  # types in signatures: torch's and numpy's own pages are not looked up
    ("py:.*", r"polyfed\..*\.(T|Carry)"),  # type variables
    ("py:class", r"polyfed\.algorithms\..*\.(LocalTraining|Scalarised|Gramian|TaskModels)"),  # bases of methods
    ("py:class", r"polyfed\.core\.(fleet\.PartFleet|layer\.Layers|guard\.Guard|validate\.Expected)"),  # inside
    ("py:class", r"polyfed\.(run\.showing\.(Shown|Run)|study\.parameters\.Parameter)"),  # inside, too
    ("py:class", r"polyfed\.rates\.~.*"),  # a type inside an annotation, as autodoc writes it
]
suppress_warnings = ["myst.domains", "config.cache"]

myst_enable_extensions = ["dollarmath", "amsmath", "deflist", "colon_fence", "attrs_inline"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
nb_execution_mode = "off"  # the notebook is executed by the tests, and kept with its output
nb_merge_streams = True

autodoc_typehints = "description"
autodoc_typehints_format = "short"
autodoc_type_aliases = {
    name: name for name in ("ArrayLike", "Numbers", "Array", "PerExample", "Outputs", "Ids", "Index")
}
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
autodoc_default_options = {"show-inheritance": True}
napoleon_numpy_docstring = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90
intersphinx_mapping: dict[str, tuple[str, None]] = {}  # nothing from the network while building

html_theme = "furo"
html_title = "polyfed"
html_static_path = ["_static"]
html_css_files = ["polyfed.css"]
html_baseurl = "https://polyfed.github.io/polyfed/"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "source_repository": "https://github.com/polyfed/polyfed/",
    "source_branch": "main",
    "source_directory": "docs/",
    "light_css_variables": {"color-brand-primary": "#1f5f8b", "color-brand-content": "#1f5f8b"},
    "dark_css_variables": {"color-brand-primary": "#7fbfe6", "color-brand-content": "#7fbfe6"},
}
