"""Names that are, look like, or once were those of shardmc's own columns, parameters, dimensions and files."""

import pytest

COLUMNS = [
    "row weights",
    "row number",
    "strata of rows",
    "weights",
    "chain",
    "draw",
    "Intercept",
    "design (computed)",
    "response (computed)",
    "response",
    "sigma",
    "coefficients",
    "coefficients[0]",
    "a/b",
    "a÷b",
    "a[0]",
    "class",
    "Sum",
    "np",
    "0",
    " ",
    "\x1b[31m",
    "tab\there",
    "é/ü",
    "long " * 80,
]
"""Columns of a table."""

PARAMETERS = [
    "chain",
    "draw",
    "shard",
    "theta",
    "mode",
    "mean",
    "sd",
    "index",
    "x",
    "lp",
    "posterior",
    "sample_stats",
    "coordinate",
    "parameter",
    "v_dim_0",
    "v",
    "a/b",
    "a÷b",
    "a%2Fb",
    "50%",
    "%7E",
    ".",
    " ",
    " a",
    "a ",
    "\x00",
    "nul\x00",
    "\x0b",
    "\x1b[31m",
    "\\x1b[31m",
    "line\nbreak",
    "é",
    "e\u0301",
    "\u202eright to left",
    "$x$",
    "<b>&",
    "long " * 80,
    "long " * 80 + "!",
]
"""Parameters of a model; `v` is a vector beside them."""


@pytest.fixture(scope="session")
def hostile_columns() -> list[str]:
    return COLUMNS


@pytest.fixture(scope="session")
def hostile_parameters() -> list[str]:
    return PARAMETERS
