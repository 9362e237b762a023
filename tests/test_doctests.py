"""The examples in docstrings run, and every public name has one."""

import doctest
import importlib
import importlib.util
import pkgutil
import re
from pathlib import Path

import pytest

import shardmc

FITS = re.compile(
    r"^ *>>> .*\b(fit|glm|append|sample_shard|subsample|compare_methods|reproduce)\(", re.MULTILINE
)
"""An example that fits something takes seconds."""


def text_of(module: str) -> str:
    spec = importlib.util.find_spec(module)
    return "" if spec is None or spec.origin is None else Path(spec.origin).read_text()


TEXTS = {
    module.name: text_of(module.name)
    for module in pkgutil.walk_packages(shardmc.__path__, "shardmc.")
    if not module.name.startswith(("shardmc.__main__", "shardmc.cli"))
}
MODULES = [
    pytest.param(name, marks=pytest.mark.slow if FITS.search(text) else ())
    for name, text in sorted(TEXTS.items())
    if ">>> " in text
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some examples write files
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0
    assert result.failed == 0


def test_no_module_is_named_like_a_function_beside_it():
    """`import shardmc.a.b as b` would be the function."""
    modules = [importlib.import_module(name) for name in TEXTS]
    assert len(modules) > 150
    for module in modules:
        parent, _, name = module.__name__.rpartition(".")
        assert getattr(importlib.import_module(parent), name) is module


@pytest.mark.parametrize("name", [name for name in shardmc.__all__ if name != "__version__"])
def test_public_name_has_an_example(name):
    assert ">>> " in getattr(shardmc, name).__doc__
