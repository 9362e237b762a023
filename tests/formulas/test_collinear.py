"""Columns that others imply: which are found, and which of them is left out."""

import numpy as np
import pytest

from shardmc.formulas.design_checks import find_dependences


def planted(seed, columns=30, dependent=8, noise=0.0):
    """Random columns, some of which are combinations of earlier ones, on very different scales."""
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(200, columns))
    places = np.sort(rng.choice(np.arange(5, columns), dependent, replace=False))
    for k in places:
        matrix[:, k] = matrix[:, :k] @ rng.normal(size=k) + noise * rng.normal(size=200)
    return matrix * 10.0 ** rng.uniform(-6, 6, columns), places.tolist()


@pytest.mark.parametrize("seed", range(5))
def test_every_later_column_of_a_combination_is_found(seed):
    matrix, places = planted(seed)
    found = find_dependences(matrix.T @ matrix)
    assert list(found) == places
    assert not {partner for partners in found.values() for partner in partners} & set(places)


def test_columns_that_nearly_depend_are_kept():
    matrix, _ = planted(0, noise=1e-2)
    assert find_dependences(matrix.T @ matrix) == {}


def test_one_factorisation_finds_many():
    matrix = np.random.default_rng(0).normal(size=(500, 100))
    doubled = np.concatenate([matrix, matrix], axis=1)
    assert find_dependences(doubled.T @ doubled) == {100 + k: [k] for k in range(100)}
