"""Labels with multiplicity against their exact distributions; every test here has a false-alarm rate below 1e-7."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from shardmc.sample import binomial_labels, multinomial_labels, whole_multiplicities

ALARM = 1e-8
DRAWS = 100_000

labels = jax.jit(binomial_labels)


def misfit(counts: np.ndarray, masses: np.ndarray) -> float:
    """P-value of the chi-square test, cells pooled until each expects ten."""
    expected = masses * counts.sum()
    order = np.argsort(-expected)
    big = order[expected[order] >= 10]
    rest = np.setdiff1d(order, big)
    observed = np.append(counts[big], counts[rest].sum())
    predicted = np.append(expected[big], expected[rest].sum())
    if predicted[-1] < 10:
        smallest = len(big) - 1
        observed[smallest] += observed[-1]
        predicted[smallest] += predicted[-1]
        observed, predicted = observed[:-1], predicted[:-1]
    if len(predicted) == 1:
        return 1.0
    statistic = ((observed - predicted) ** 2 / predicted).sum()
    return float(stats.chi2.sf(statistic, len(predicted) - 1))


@pytest.mark.parametrize("copies", [1, 7, 50, 250])
def test_binomial_labels_have_the_binomial_distribution(copies):
    for number, p in enumerate((0.001, 0.3, 0.5, 0.8, 0.999)):
        key = jax.random.fold_in(jax.random.key(copies), number)
        z = np.asarray(labels(key, jnp.full(DRAWS, float(copies)), jnp.full(DRAWS, p)))
        counts = np.bincount(z.astype(int), minlength=copies + 1)
        assert len(counts) == copies + 1
        masses = stats.binom.pmf(np.arange(copies + 1), copies, np.float64(np.float32(p)))
        assert misfit(counts, masses) > ALARM
    wrong = stats.binom.pmf(np.arange(copies + 1), copies, 0.8)
    z = np.asarray(labels(jax.random.key(1), jnp.full(DRAWS, float(copies)), jnp.full(DRAWS, 0.83)))
    assert misfit(np.bincount(z.astype(int), minlength=copies + 1), wrong) < ALARM


@pytest.mark.slow
def test_binomial_labels_of_rows_that_differ():
    copies = jnp.array([0.0, 1.0, 3.0, 120.0, 5.0, 5.0])
    p = jnp.array([0.5, 0.2, 0.9, 0.4, 0.0, 1.0])
    keys = jax.random.split(jax.random.key(0), DRAWS)
    z = np.asarray(jax.vmap(lambda key: labels(key, copies, p))(keys))
    assert (z[:, 0] == 0).all()
    assert (z[:, 4] == 0).all()
    assert (z[:, 5] == 5).all()
    for row in (1, 2, 3):
        n, q = int(copies[row]), float(p[row])
        counts = np.bincount(z[:, row].astype(int), minlength=n + 1)
        assert misfit(counts, stats.binom.pmf(np.arange(n + 1), n, q)) > ALARM
    correlation = np.corrcoef(z[:, 1:4].T)[np.triu_indices(3, 1)]
    assert np.abs(correlation).max() < stats.norm.isf(ALARM) / np.sqrt(DRAWS)


def test_multinomial_labels_have_the_multinomial_distribution():
    p = np.array([0.1, 0.0, 0.6, 0.3])
    copies = 4
    z = np.asarray(multinomial_labels(jax.random.key(3), jnp.full(DRAWS, 4.0), jnp.tile(2 * p, (DRAWS, 1))))
    assert (z.sum(axis=1) == copies).all()
    cells = [
        (a, 0, b, copies - a - b) for a in range(copies + 1) for b in range(copies + 1) if a + b <= copies
    ]
    counts = np.array([(z == cell).all(axis=1).sum() for cell in cells])
    assert counts.sum() == DRAWS

    def masses(p):
        return np.array([stats.multinomial.pmf(cell, copies, p) for cell in cells])

    assert misfit(counts, masses(p)) > ALARM
    assert misfit(counts, masses([0.12, 0.0, 0.58, 0.3])) < ALARM


def test_padding_has_no_multinomial_labels():
    z = multinomial_labels(jax.random.key(0), jnp.array([0.0, 2.0]), jnp.ones((2, 3)))
    assert np.asarray(z).sum(axis=1).tolist() == [0, 2]


def test_whole_multiplicities_keep_whole_weights_totals_and_means():
    weights = jnp.array([50.0, 50.0, 1.0, 0.0, 20.000001])
    whole = whole_multiplicities(jax.random.key(0), weights)
    assert whole.tolist() == [50, 50, 1, 0, 20]
    weights = jnp.array([19.25, 19.25, 0.5, 0.0, 1.0, 0.5])
    keys = jax.random.split(jax.random.key(1), DRAWS)
    whole = np.asarray(jax.vmap(lambda key: whole_multiplicities(key, weights))(keys))
    assert (whole == np.round(whole)).all()
    assert (np.abs(whole.sum(axis=1) - float(weights.sum())) < 1).all()
    assert (np.abs(whole - np.asarray(weights)) < 1).all()
    error = np.abs(whole.mean(axis=0) - np.asarray(weights))
    assert (error <= stats.norm.isf(ALARM) * 0.5 / np.sqrt(DRAWS)).all()
    assert np.abs(np.floor(weights) - np.asarray(weights)).max() > 0.1
