"""The examples in docstrings run."""

import doctest
import importlib
import pkgutil

import pytest

import shardmc

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(shardmc.__path__, "shardmc.")
    if not module.name.startswith(("shardmc.__main__", "shardmc.cli"))
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_of(name):
    # import_module, not attribute access: some public functions bear the names of their modules.
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0
