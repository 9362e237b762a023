"""Rows of groups with a normal response are replaced by fewer ones: the likelihood is that of all rows."""

import jax
import numpy as np
import pandas as pd
import pytest

import shardmc
from shardmc.data import Partition, as_source, reduction
from shardmc.data.reduction import CONSTANT, Reduction
from shardmc.formulas.families import named_family
from shardmc.formulas.preparing import prepare
from shardmc.formulas.regression import model_of
from shardmc.model.precision import double_precision

NONE = {"offset": None, "exposure": None, "trials": None, "drop_missing": False}
taken = jax.jit(lambda batch: batch.take(0))
FORMULAS = [
    "y ~ x + z + (1 | g)",
    "y ~ x + z + (1 + x | g)",
    "y ~ x + (0 + z | g)",
    "y ~ x + z + (1 | g) + (1 | h)",
    "y ~ x + (1 + x || g) + (1 | h) + (1 | k)",
]


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    """Groups of 1 to 300 rows, with little noise and covariates that are far from zero."""
    rng = np.random.default_rng(3)
    g = rng.permutation(np.repeat(np.arange(30), rng.geometric(0.02, 30)))
    count = len(g)
    h, k = rng.integers(0, 4, count), rng.integers(0, 2, count)
    x, z = rng.normal(5, 1, count), rng.normal(size=count)
    y = 3 + 2 * x - z + rng.normal(size=30)[g] + 0.4 * rng.normal(size=4)[h] + 0.01 * rng.normal(size=count)
    weights = rng.integers(0, 4, count).astype(float)
    return pd.DataFrame({"y": y, "x": x, "z": z, "g": g, "h": h, "k": k, "w": weights})


def blocks_of(formula, table, weights, shards=2):
    prepared = prepare(formula, as_source(table), named_family("gaussian"), None, **NONE, taken=["w"])
    partition = Partition(shards, weights=table["w"].to_numpy() if weights else None)
    return model_of(prepared), prepared.source.split(partition, seed=0)


def values_of(model, blocks, point):
    """Log-likelihood of every group, its gradient, and the moments of the groups' effects."""

    def total(theta, rows, groups):
        every = groups * model.log_likelihood(theta, rows)
        return every.sum(), every

    @jax.jit
    def program(theta, rows, groups):
        gradient, every = jax.grad(total, has_aux=True)(theta, rows, groups)
        return gradient, every, model.log_likelihood_function.moments(model.constrain(theta), rows)

    found = []
    for _, batch in blocks.batches(range(blocks.num_shards), 1):
        rows, groups = taken(batch)
        gradient, every, moments = jax.device_get(program(point, rows, groups))
        present = np.asarray(groups) > 0
        found.append((every[present], gradient, *(each[present] for each in moments)))
    return found


@pytest.mark.parametrize(
    ("formula", "weights"),
    [
        (FORMULAS[0], False),
        *(pytest.param(formula, False, marks=pytest.mark.slow) for formula in FORMULAS[1:]),
        *(pytest.param(formula, True, marks=pytest.mark.slow) for formula in (FORMULAS[1], FORMULAS[4])),
    ],
)
def test_fewer_rows_have_the_likelihood_of_all(formula, weights, table, monkeypatch):
    with double_precision():
        model, less = blocks_of(formula, table, weights)
        monkeypatch.setattr(reduction, "_WORTH", 0.0)
        _, every = blocks_of(formula, table, weights)
        kept = [np.array([1, 3]), np.array([0])]
        less, every = less.keep(kept), every.keep(kept)
        assert less.layout.counts.sum() < 0.7 * every.layout.counts.sum() == 0.7 * len(table)
        point = np.asarray(model.initial) + 0.3 * np.random.default_rng(0).normal(size=model.dim)
        for found, right in zip(values_of(model, less, point), values_of(model, every, point), strict=True):
            for a, b in zip(found, right, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())


def test_single_precision_keeps_what_small_noise_tells(table):
    """The noise is a five-hundredth of the response: the sums of squares themselves would lose it."""
    _, less = blocks_of(FORMULAS[0], table, False, shards=1)
    _, batch = next(iter(less.batches([0], 1)))
    rows = batch.take(0)[0]
    values = np.asarray(rows.rows["response"], np.float64)
    design = np.concatenate(
        [np.asarray(rows.rows["design"], np.float64), np.asarray(rows.rows[CONSTANT])[..., None]], axis=2
    )
    of_group = [np.asarray(rows.group) == k for k in range(30)]
    scale = table["y"].std()
    for place, code in enumerate(less.layout.order):
        part = table[table["g"] == code]
        if len(part) < 10:
            continue
        columns = np.column_stack([part["x"], part["z"], np.ones(len(part))])
        right = np.linalg.lstsq(columns, part["y"], rcond=None)[1][0]
        root = np.sqrt(np.asarray(rows.weights, np.float64)[of_group[place]]).ravel()
        x = design[of_group[place]].reshape(-1, 3) * root[:, None]
        found = np.linalg.lstsq(x, values[of_group[place]].ravel() * root, rcond=None)[1][0]
        assert found * scale**2 == pytest.approx(right, rel=1e-3)


def test_groups_of_few_rows_stay_as_they_are():
    rows = {"y": np.arange(5.0), "x": np.ones((5, 2))}
    found, weights, codes = Reduction(())(rows, None, np.array([0, 1, 1, 0, 0]))
    assert sorted(found["y"]) == [0, 1, 2, 3, 4]
    assert sorted(codes) == [0, 0, 0, 1, 1]
    assert (weights == 1).all()
    assert (found[CONSTANT] == 1).all()


def test_cells_of_many_factors_with_many_levels_stay_apart():
    """Numbers of levels whose product exceeds 64 bits give the same rows as small ones in the same order."""
    rng = np.random.default_rng(5)
    codes, levels = rng.integers(0, 3, 600), {name: rng.integers(0, 3, 600) for name in "abc"}
    values = {"y": rng.normal(size=600), "x": rng.normal(size=600)}
    reduce = Reduction(("a", "b", "c"))
    small, *of_small = reduce({**values, **levels}, None, codes)
    far = 1_000_000_007
    large, *of_large = reduce({**values, **{name: far * each for name, each in levels.items()}}, None, codes)
    for name in ("y", "x", CONSTANT):
        np.testing.assert_array_equal(large[name], small[name])
    for name in levels:
        np.testing.assert_array_equal(large[name], far * small[name])
    for one, other in zip(of_large, of_small, strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(small["y"]) < 600


def test_files_and_memory_give_the_same_rows(table, tmp_path):
    path = tmp_path / "rows.parquet"
    table.to_parquet(path, row_group_size=100)
    _, memory = blocks_of(FORMULAS[3], table, False)
    prepared = prepare(FORMULAS[3], as_source(str(path)), named_family("gaussian"), None, **NONE, taken=["w"])
    files = prepared.source.split(Partition(2), seed=0)
    assert files.in_memory
    assert files.layout.counts.sum() == memory.layout.counts.sum()


@pytest.mark.slow
def test_a_fit_agrees_with_one_of_all_rows(table, monkeypatch):
    options = {"draws": 400, "shards": 1, "check": False, "predictive": False}
    less = shardmc.glm(FORMULAS[0], table, **options)
    monkeypatch.setattr(reduction, "_WORTH", 0.0)
    every = shardmc.glm(FORMULAS[0], table, **options)
    for name, draws in every.flat().items():
        assert abs(less.flat()[name].mean() - draws.mean()) < 0.05 * draws.std(), name
    a, b = less.effects("g"), every.effects("g")
    np.testing.assert_allclose(a["mean"], b["mean"], atol=0.05 * float(b["sd"].min()))
