"""fit from end to end: determinism, compilation, options, results that come back from disk."""

import ast
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import shardmc
from shardmc.engine.local import compiled_batch
from shardmc.errors import OptionError, RunError

ROWS = 3_001
MEASURES_PRECISION = True


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(ROWS), rng.normal(size=(ROWS, 2))]).astype(np.float32)
    y = (rng.random(ROWS) < 1 / (1 + np.exp(-x @ np.array([0.5, 1.0, -1.0])))).astype(np.float32)
    return x, y


def log_likelihood(params, rows):
    x, y = rows
    eta = x @ params["beta"]
    return y * eta - jax.nn.softplus(eta)


def log_prior(params):
    return -0.5 * jnp.sum(params["beta"] ** 2) / 25


@pytest.fixture(scope="module")
def model():
    return shardmc.Model(log_likelihood, log_prior, {"beta": 3})


@pytest.fixture(scope="module")
def posterior(model, rows):
    return shardmc.fit(model, rows, shards=10, draws=500, seed=1)


def test_what_comes_back(posterior):
    assert posterior.draws["beta"].shape == (500, 3)
    assert posterior.theta.shape == (500, 3)
    assert posterior.chains == (10, 50)
    measures = ["mean", "sd", "2.5%", "97.5%", "ess", "r_hat", "mean_error", "sd_ratio"]
    assert list(posterior.summary().columns) == measures
    assert list(posterior.summary().index) == ["beta[0]", "beta[1]", "beta[2]"]
    assert posterior.plan.rows == ROWS
    assert posterior.plan.kept_rows >= 0
    assert set(posterior.seconds) >= {"read", "locate", "locate shards", "sample", "combine", "check"}
    assert posterior.passes["sample"] >= 50
    assert posterior.certificate is not None
    assert "500 draws" in repr(posterior)


def test_tree_is_in_arviz_layout(posterior):
    assert isinstance(posterior.tree, xr.DataTree)
    assert posterior.tree["posterior"]["beta"].dims == ("chain", "draw", "beta_dim")
    assert posterior.tree["posterior"]["beta"].shape == (10, 50, 3)
    assert posterior.tree["shards"]["draws"].shape == (10, 50, 3)


def test_save_and_load_give_the_same_posterior(posterior, tmp_path):
    again = shardmc.load(posterior.save(tmp_path / "posterior.nc"))
    np.testing.assert_array_equal(again.draws["beta"], posterior.draws["beta"])
    np.testing.assert_array_equal(again.shard, posterior.shard)
    assert again.names == posterior.names
    assert again.plan == posterior.plan
    assert again.certificate.sentence == posterior.certificate.sentence
    assert again.summary().equals(posterior.summary())


@pytest.mark.slow
def test_names_with_slashes_are_kept_and_read_again(rows, tmp_path):
    """NumPyro's scope makes them; in a tree of results a slash is a path. NumPy's whole numbers are written too."""
    import numpyro
    import numpyro.distributions as dist

    def part(x):
        return x @ numpyro.sample("beta", dist.Normal(0, 5).expand([3]).to_event(1))

    def scoped(x, y):
        eta = numpyro.handlers.scope(part, prefix="trend")(x)
        numpyro.sample("y", dist.Bernoulli(logits=eta), obs=y)

    x, y = rows
    options = {
        "shards": np.int64(2),
        "draws": np.int64(100),
        "seed": np.int64(1),
        "run_dir": tmp_path / "run",
    }
    posterior = shardmc.fit(shardmc.from_numpyro(scoped), {"x": x, "y": y}, **options)
    assert set(posterior.draws) == {"trend/beta"}
    assert "trend%2Fbeta" in posterior.tree["posterior"].data_vars
    for again in (shardmc.load(tmp_path / "run"), shardmc.load(posterior.save(tmp_path / "posterior.nc"))):
        np.testing.assert_array_equal(again.draws["trend/beta"], posterior.draws["trend/beta"])
        assert again.names == posterior.names


def test_a_file_that_is_no_posterior_is_refused(tmp_path):
    xr.Dataset({"x": ("a", [1.0])}).to_netcdf(tmp_path / "other.nc", engine="h5netcdf")
    with pytest.raises(RunError, match="written by another program"):
        shardmc.load(tmp_path / "other.nc")


@pytest.mark.slow
def test_same_seed_same_draws_twice_and_for_any_batch_size(model, rows):
    def drawn(batch, seed=1, workers=None):
        options = {"shards": 10, "draws": 500, "check": False, "precision": "single"}
        return shardmc.fit(model, rows, seed=seed, engine=shardmc.Local(batch, workers), **options).theta

    first = drawn(1)
    np.testing.assert_array_equal(drawn(None), first)
    np.testing.assert_array_equal(drawn(7, workers=1), first)
    assert not np.array_equal(drawn(1, seed=2), first)


@pytest.mark.slow
def test_plain_functions_and_numpyro_give_the_same_draws(rows, posterior):
    import numpyro
    import numpyro.distributions as dist

    def model(x, y):
        beta = numpyro.sample("beta", dist.Normal(0, 5).expand([3]).to_event(1))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)

    x, y = rows
    again = shardmc.fit(shardmc.from_numpyro(model), {"x": x, "y": y}, shards=10, draws=500, seed=1)
    sd = posterior.theta.std(axis=0)
    # The same proposals at the same frames; an accept decision may flip where two densities differ by rounding.
    same = np.isclose(again.theta / sd, posterior.theta / sd, atol=1e-2).all(axis=1)
    assert same.mean() > 0.99


@pytest.mark.slow
def test_the_number_of_traces_does_not_grow_with_the_number_of_shards(rows):
    calls = 0

    def counted(params, rows):
        nonlocal calls
        calls += 1
        return log_likelihood(params, rows)

    model = shardmc.Model(counted, log_prior, {"beta": 3})
    shardmc.fit(model, rows, shards=64, draws=64, seed=0, engine=shardmc.Local(batch=2))
    first = calls
    # Six programs, each traced for its shape, its batch and its derivatives: fewer than there are shards.
    assert first <= 60
    shardmc.fit(model, rows, shards=64, draws=64, seed=3, engine=shardmc.Local(batch=2))
    assert calls - first <= 8  # validation on a few rows; nothing is compiled again


@pytest.mark.slow
def test_unequal_shares_give_draws_in_proportion(model, rows):
    weights = np.random.default_rng(0).integers(1, 3, ROWS)
    fitted = shardmc.fit(model, rows, shards=7, draws=701, weights=weights)
    assert fitted.num_draws >= 700
    counts = np.bincount(fitted.shard, minlength=7)
    assert counts.max() - counts.min() <= 1


@pytest.mark.slow
def test_tables_and_parquet_give_what_arrays_give(rows, tmp_path):
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    def columns_likelihood(params, rows):
        eta = params["a"] + params["b"] * rows["x1"]
        return rows["y"] * eta - jax.nn.softplus(eta)

    x, y = rows
    model = shardmc.Model(columns_likelihood, None, {"a": (), "b": ()})
    table = pd.DataFrame({"x1": x[:, 1], "y": y, "note": "text that no model reads"})
    pq.write_table(pa.Table.from_pandas(table), tmp_path / "rows.parquet")
    first = shardmc.fit(model, {"x1": x[:, 1], "y": y}, shards=5, draws=200)
    for data in (table, pa.Table.from_pandas(table), str(tmp_path / "rows.parquet")):
        again = shardmc.fit(model, data, shards=5, draws=200)
        np.testing.assert_allclose(again.theta, first.theta, atol=1e-4)


def test_a_run_folder_resumes_and_keeps_the_result(model, rows, posterior, tmp_path):
    first = shardmc.fit(model, rows, shards=10, draws=500, seed=1, run_dir=tmp_path / "run")
    np.testing.assert_array_equal(first.theta, posterior.theta)
    (tmp_path / "run" / "shards" / "00004.npz").unlink()
    again = shardmc.fit(model, rows, shards=10, draws=500, seed=1, run_dir=tmp_path / "run")
    np.testing.assert_array_equal(again.theta, posterior.theta)
    assert any("9 of 10 shards were already done" in note for note in again.notes)
    np.testing.assert_array_equal(shardmc.load(tmp_path / "run").theta, posterior.theta)
    with pytest.raises(RunError, match="seed"):
        shardmc.fit(model, rows, shards=10, draws=500, seed=2, run_dir=tmp_path / "run")


@pytest.mark.parametrize("method", ["algorithm-1", "consensus", "swiss", "laplace"])
def test_other_combiners_through_fit(model, rows, posterior, method):
    # With the shapes of `posterior`, so that nothing is compiled again.
    fitted = shardmc.fit(model, rows, shards=10, draws=500, combiner=method, check=False)
    assert fitted.num_draws >= 500
    gap = (fitted.theta.mean(axis=0) - posterior.theta.mean(axis=0)) / posterior.theta.std(axis=0)
    assert np.abs(gap).max() < 2


@pytest.mark.slow
def test_algorithm_1_on_the_natural_scale(rows):
    y = rows[1]
    model = shardmc.Model(
        lambda params, y: y * jnp.log(params["p"]) + (1 - y) * jnp.log1p(-params["p"]),
        None,
        {"p": "unit_interval"},
    )
    fitted = shardmc.fit(
        model, y, shards=5, draws=500, combiner=shardmc.Recenter.algorithm_1(space="natural")
    )
    assert abs(fitted.draws["p"].mean() - y.mean()) < 4 * np.sqrt(y.mean() * (1 - y.mean()) / ROWS / 100)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"shards": 0}, "between 1 and the number of rows, 3001; 0 was given"),
        ({"shards": ROWS + 1}, "between 1 and the number of rows"),
        ({"shards": 2.5}, "whole number or"),
        ({"shards": "many"}, "whole number or"),
        ({"draws": 0}, "draws must be a positive whole number"),
        ({"draws": True}, "draws must be a positive whole number"),
        ({"seed": -1}, "seed must be"),
        ({"keep": -0.1}, "keep must be"),
        ({"keep": True}, "keep must be"),
        ({"sampler": "nutz"}, "Did you mean 'nuts'"),
        ({"combiner": "consensis"}, "Did you mean 'consensus'"),
    ],
)
def test_bad_options_are_one_sentence(model, rows, options, sentence):
    with pytest.raises(OptionError, match=sentence):
        shardmc.fit(model, rows, **options)


@pytest.mark.slow
def test_double_precision_where_the_user_has_asked_jax_for_it():
    """In a process of its own: the library never flips JAX's configuration, and works with either."""
    import subprocess
    import sys

    program = """
import jax
jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp, numpy as np, shardmc
y = np.random.default_rng(0).normal(1e6, 1.0, size=2_000)
model = shardmc.Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})
posterior = shardmc.fit(model, y, shards=4, draws=8_000)
assert abs(posterior.draws["mu"].mean() - y.mean()) < 0.01, posterior.draws["mu"].mean() - y.mean()
assert posterior.certificate.verdict == "within", posterior.certificate.sentence
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_newton_steps_move_the_centre_from_the_mean_of_means_to_the_mode(model, rows):
    """Remark 1: no step is Algorithm 1, a few steps are the converged centre."""
    options = {"shards": 10, "draws": 500, "seed": 1, "check": False}
    plain = shardmc.fit(model, rows, combiner=shardmc.Recenter("mean", "none"), **options)
    none = shardmc.fit(model, rows, combiner=shardmc.Recenter("newton", "none", steps=0), **options)
    five = shardmc.fit(model, rows, combiner=shardmc.Recenter("newton", "none", steps=5), **options)
    converged = shardmc.fit(model, rows, combiner=shardmc.Recenter("newton", "none"), **options)
    sd = converged.theta.std(axis=0)
    np.testing.assert_allclose(none.theta / sd, plain.theta / sd, atol=1e-6)
    np.testing.assert_allclose(five.theta / sd, converged.theta / sd, atol=0.02)
    with pytest.raises(OptionError, match="need the rows"):
        shardmc.combine(np.zeros((2, 5, 1)), shardmc.Recenter("newton", "none", steps=2))


FIRST_FIT = """
import sys
import jax, numpy as np, shardmc

compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, duration, **info: compiled.append(info.get("fun_name", ""))
    if event.endswith("backend_compile_duration") else None
)
model = shardmc.Model(lambda p, y: -0.5 * (y - p["mu"]) ** 2, None, {"mu": ()})
shardmc.fit
before = set(sys.modules)
shardmc.fit(model, np.random.default_rng(0).normal(size=2_000), shards=4, draws=400)
loaded = set(sys.modules)
shardmc.glm, shardmc.compare
others = [name for name in sys.modules if name.startswith(("shardmc.field", "blackjax", "scipy.stats"))]
print([compiled, "scipy" in before, sorted(loaded), others])
"""


@pytest.mark.slow
def test_a_first_fit_loads_and_compiles_nothing_that_it_does_not_need():
    done = subprocess.run([sys.executable, "-c", FIRST_FIT], capture_output=True, text=True, check=True)
    compiled, scipy, loaded, of_other_methods = ast.literal_eval(done.stdout)
    assert not scipy  # it is loaded while the first stages compute
    # Each of these takes long to load; a fit of arrays needs none of them.
    heavy = {
        "scipy.stats",
        "scipy.optimize",
        "scipy.spatial",
        "pandas",
        "pyarrow",
        "narwhals",
        "rich",
        "xarray",
    }
    assert not (heavy | {"matplotlib", "blackjax", "numpyro"}).intersection(loaded)
    assert not of_other_methods
    # No small programs for single operations: each costs as much as a thousand rows. Values of a few rows, rounding in
    # both precisions, prior's gradients; terms, leverage, tails, draws, gradients of shards.
    wanted = ["_values"] + ["_rounding"] * 2 + ["_prior_gradients"] + ["compiled_batch"] * 5
    names = [name for name in compiled if name != "jit(with_option)"]  # empty programs
    assert sorted(names) == sorted(f"jit({name})" for name in wanted)


@pytest.mark.slow
def test_what_is_prepared_is_what_runs(rows, monkeypatch):
    """Programs prepared in another shape than they are run in would be compiled twice."""

    def compiled(factor: float) -> int:
        before = compiled_batch.made  # models that differ in a number that meets rows share no programs
        model = shardmc.Model(
            lambda params, rows: factor * log_likelihood(params, rows), log_prior, {"beta": 3}
        )
        shardmc.fit(model, rows, shards=5, draws=500)
        return compiled_batch.made - before

    ahead = compiled(1.0001)
    monkeypatch.setattr(shardmc.Local, "prepare", lambda *args: None)
    assert 0 < ahead == compiled(1.0002)
