"""How the documentation is built: `sphinx-build -W -b html docs docs/_build/html`."""

import logging
import sys
from pathlib import Path
from typing import Any

from shardmc import __version__

project = "shardmc"
author = "The shardmc authors"
project_copyright = author
release = version = __version__

sys.path.insert(0, str(Path(__file__).parent))
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "mathml"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]

# Tables that scripts write appear in their lists as soon as they are committed; an empty list is no mistake. Sphinx
# gives this warning no type by which it could be suppressed.
logging.getLogger("sphinx.sphinx.directives.other").addFilter(
    lambda record: "didn't match any documents" not in record.getMessage()
)

myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["page.css"]
html_math_renderer = "mathml"
html_title = f"shardmc {release}"


def setup(app: Any) -> None:
    """Docstrings are plain text: their bars are absolute values, not reStructuredText's substitutions."""

    def escape_bars(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
        lines[:] = [line.replace("|", r"\|") for line in lines]

    app.connect("autodoc-process-docstring", escape_bars, priority=900)
