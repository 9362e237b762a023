"""The examples in docstrings run, and every public name has one."""

import doctest
import importlib
import importlib.util
import pkgutil
from pathlib import Path

import pytest

import shardmc


def has_examples(module: str) -> bool:
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None and ">>> " in Path(spec.origin).read_text()


MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(shardmc.__path__, "shardmc.")
    if not module.name.startswith(("shardmc.__main__", "shardmc.cli")) and has_examples(module.name)
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_of(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some examples write files
    # import_module, not attribute access: some public functions bear the names of their modules.
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("name", [name for name in shardmc.__all__ if name != "__version__"])
def test_public_name_has_an_example(name):
    assert ">>> " in getattr(shardmc, name).__doc__
