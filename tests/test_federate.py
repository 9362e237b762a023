"""Sites of unequal size: their files alone give the posterior of all rows, and nothing else is in them."""

import importlib.util
import pickle
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import shardmc
from shardmc.errors import DataError, ModelError, OptionError, RunError, SamplingError
from shardmc.store.site import is_site_file, read_site
from shardmc.types import Mode

_spec = importlib.util.spec_from_file_location("linear", Path(__file__).with_name("linear.py"))
assert _spec is not None
assert _spec.loader is not None
linear = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(linear)

SIZES = (400, 1_000, 2_600)
TOTAL = sum(SIZES)
PARTS = [linear.rows_of(site, size) for site, size in enumerate(SIZES)]


@pytest.fixture(scope="module")
def model():
    return linear.model()


@pytest.fixture(scope="module")
def sampler():
    return linear.exact()


def sample_sites(model, sampler, shares, draws=None, folder=None):
    return [
        shardmc.sample_shard(
            model,
            part,
            share=share,
            draws=draws or size,  # in proportion to the shares: every draw is used once
            seed=11,
            shard=site,
            sampler=sampler,
            path=None if folder is None else folder / f"site-{site}.nc",
        )
        for site, (part, size, share) in enumerate(zip(PARTS, SIZES, shares, strict=True))
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sites")


@pytest.fixture(scope="module")
def sites(model, sampler, folder):
    return sample_sites(model, sampler, [size / TOTAL for size in SIZES], folder=folder)


@pytest.fixture(scope="module")
def files(sites, folder):
    return [folder / f"site-{site}.nc" for site in range(3)]


def test_the_files_give_the_posterior_of_all_rows(files):
    posterior = shardmc.combine_sites(files)
    assert posterior.num_draws == TOTAL
    assert not linear.rejects(posterior.theta, *linear.posterior(*PARTS))
    np.testing.assert_array_equal(posterior.draws["beta"], posterior.theta)
    np.testing.assert_allclose(posterior.shards.share, np.array(SIZES) / TOTAL)
    assert list(posterior.shards.size) == list(SIZES)
    assert posterior.certificate is None


def test_sites_that_ignore_their_share_are_rejected(model, sampler):
    """The control: unweighted rows make every site's posterior wider than that of all rows."""
    sites = sample_sites(model, sampler, [1.0, 1.0, 1.0])
    as_if = [replace(site, share=size / TOTAL) for site, size in zip(sites, SIZES, strict=True)]
    assert linear.rejects(shardmc.combine_sites(as_if).theta, *linear.posterior(*PARTS))


def test_any_shares_that_sum_to_1_are_right(model, sampler):
    """Weights of 1 / share make up for whatever the share is: sum_i a_i w_ij = 1 for every row."""
    sites = sample_sites(model, sampler, [1 / 3] * 3, draws=1_000)
    assert not linear.rejects(shardmc.combine_sites(sites).theta, *linear.posterior(*PARTS))


def test_files_are_what_sample_shard_returned(sites, files):
    for site, file in zip(sites, files, strict=True):
        read = read_site(file)
        assert is_site_file(file)
        assert (read.shard, read.share, read.rows, read.names) == (
            site.shard,
            site.share,
            site.rows,
            site.names,
        )
        assert read.supports == site.supports
        assert read.precision == site.precision == "single"
        np.testing.assert_array_equal(read.chains.theta, site.chains.theta)
        np.testing.assert_array_equal(read.mode, site.mode)
        np.testing.assert_array_equal(read.curvature, site.curvature)


def test_the_order_of_the_files_does_not_matter(files):
    there = shardmc.combine_sites(files)
    assert there.plan.precision == "single"
    back = shardmc.combine_sites(files[::-1])
    np.testing.assert_array_equal(there.theta, back.theta)


def test_what_leaves_a_site(files):
    """The list in the documentation, and nothing that is as long as the rows."""
    with xr.open_datatree(files[2], engine="h5netcdf") as tree:
        assert set(tree.children) == {"shard"}
        variables = set(tree["shard"].data_vars)
        assert variables == {"draws", "acceptance", "divergences", "mode", "curvature"}
        assert set(tree.attrs) == {"shardmc_site"}
        lengths = set(tree["shard"].sizes.items())
    assert lengths == {("chain", 1), ("draw", SIZES[2]), ("coordinate", 2), ("other_coordinate", 2)}
    content = files[2].read_bytes()
    for column in (PARTS[2]["y"], PARTS[2]["x"][:, 1]):
        assert not any(value.tobytes() * 2 in content for value in column[:50])
        assert column[:8].tobytes() not in content
        assert column[:4].astype(np.float64).tobytes() not in content


def test_sites_with_the_same_rows_and_seed_draw_differently(model, sampler):
    first, second = (
        shardmc.sample_shard(model, PARTS[0], share=0.5, draws=20, shard=shard, sampler=sampler)
        for shard in (0, 1)
    )
    assert not np.array_equal(first.chains.theta, second.chains.theta)
    again = shardmc.sample_shard(model, PARTS[0], share=0.5, draws=20, shard=1, sampler=sampler)
    np.testing.assert_array_equal(again.chains.theta, second.chains.theta)


def test_shards_know_nothing_of_the_rows_any_more(files):
    with pytest.raises(OptionError, match="sites' draws are rescaled"):
        shardmc.combine_sites(files, combiner="consensus")
    assert shardmc.combine_sites(files, combiner="wasserstein").num_draws > 0


# The mode of all rows, one round and two.


@pytest.fixture(scope="module")
def logistic():
    return shardmc.Model(
        lambda params, rows: (
            rows["y"] * (rows["x"] @ params["beta"]) - jax.nn.softplus(rows["x"] @ params["beta"])
        ),
        lambda params: -0.5 * jnp.sum(params["beta"] ** 2) / 25,
        {"beta": 2},
    )


@pytest.fixture(scope="module")
def patients():
    rng = np.random.default_rng(4)
    parts = []
    for site, size in enumerate((80, 200, 520)):
        x = np.column_stack([np.ones(size), rng.normal(0.5 * site, 1.0, size)]).astype(np.float32)
        y = rng.random(size) < 1 / (1 + np.exp(-x @ np.array([-1.5, 1.0])))
        parts.append({"x": x, "y": y.astype(np.float32)})
    return parts


def exact_mode(parts):
    """Newton in double precision on all rows."""
    x = np.concatenate([part["x"] for part in parts]).astype(np.float64)
    y = np.concatenate([part["y"] for part in parts]).astype(np.float64)
    beta = np.zeros(2)
    for _ in range(30):
        p = 1 / (1 + np.exp(-x @ beta))
        precision = (x.T * (p * (1 - p))) @ x + np.eye(2) / 25
        beta = beta + np.linalg.solve(precision, x.T @ (y - p) - beta / 25)
    return beta, precision


@pytest.mark.slow
def test_a_second_round_finds_the_mode_exactly(logistic, patients, tmp_path):
    mode, precision = exact_mode(patients)
    sizes = [len(part["y"]) for part in patients]

    def round_of(located):
        return [
            shardmc.sample_shard(
                logistic,
                part,
                share=size / sum(sizes),
                draws=size,
                shard=site,
                sampler="independence",
                located=located,
            )
            for site, (part, size) in enumerate(zip(patients, sizes, strict=True))
        ]

    def error(found):
        return float(np.sqrt((found - mode) @ precision @ (found - mode)))

    first = shardmc.combine_sites(round_of(None))
    assert "computed from the modes and curvatures of the sites" in first.notes[0]
    first.save(tmp_path / "first.nc")
    second = shardmc.combine_sites(round_of(tmp_path / "first.nc"))
    third = shardmc.locate_sites(round_of(shardmc.locate_sites(round_of(first))))
    # One Newton step squares the error; what remains is single precision.
    assert error(first.mode) > 0.02
    assert error(second.mode) < error(first.mode) ** 2 + 1e-3
    assert error(third.theta) < 2e-3
    assert third.decrement < 0.01


def test_a_site_without_a_mode_needs_a_common_point(logistic, patients):
    separated = {"x": patients[0]["x"], "y": np.zeros(len(patients[0]["y"]), np.float32)}
    flat = shardmc.Model(logistic.log_likelihood_function, None, {"beta": 2})
    with pytest.raises(ModelError, match="no mode"):
        shardmc.sample_shard(flat, separated, share=0.5, draws=50, sampler="independence")


# Parameters on their natural scale.


def test_files_say_how_parameters_are_bounded(tmp_path):
    model = shardmc.Model(
        lambda params, y: -0.5 * (y / params["sigma"]) ** 2 - jnp.log(params["sigma"]),
        lambda params: -params["sigma"],
        {"sigma": "positive"},
        derived=lambda params: {"variance": params["sigma"] ** 2},
    )
    y = np.random.default_rng(0).normal(0, 2, size=600).astype(np.float32)
    sites = [
        shardmc.sample_shard(
            model,
            part,
            share=1 / 2,
            draws=100,
            shard=i,
            sampler="independence",
            path=tmp_path / f"{i}.nc",
        )
        for i, part in enumerate(np.split(y, 2))
    ]
    files = [tmp_path / "0.nc", tmp_path / "1.nc"]
    without, given = shardmc.combine_sites(files), shardmc.combine_sites(sites, model=model)
    np.testing.assert_allclose(without.draws["sigma"], np.exp(without.theta[:, 0]), rtol=1e-6)
    np.testing.assert_array_equal(without.draws["sigma"], given.draws["sigma"])
    assert set(without.draws) == {"sigma"}
    assert set(given.draws) == {"sigma", "variance"}


def test_a_support_without_a_name_needs_the_model(sites):
    opaque = [replace(site, supports={"beta": ((2,), None)}) for site in sites]
    with pytest.raises(RunError, match="a support that a file cannot describe; give the model"):
        shardmc.combine_sites(opaque)
    assert shardmc.combine_sites(opaque, model=linear.model()).num_draws == TOTAL
    recipe = shardmc.from_numpyro(lambda x, y: None)
    with pytest.raises(OptionError, match=r"a shardmc\.Model, not NumPyroModel.*give model\.bind\(rows\)"):
        shardmc.combine_sites(opaque, model=recipe)


# What is refused.


@pytest.mark.parametrize("share", [0, -0.1, 1.5, float("nan"), "all"])
def test_a_share_that_is_none_is_refused(model, share):
    with pytest.raises(OptionError, match="share must be the site's part of all rows"):
        shardmc.sample_shard(model, PARTS[0], share=share)


@pytest.mark.parametrize(("name", "value"), [("draws", 0), ("seed", -1), ("shard", 0.5)])
def test_numbers_that_are_none_are_refused(model, name, value):
    with pytest.raises(OptionError, match=f"{name} must be a whole number"):
        shardmc.sample_shard(model, PARTS[0], share=0.5, **{name: value})


def test_a_point_of_another_model_is_refused(model):
    mode = Mode(np.zeros(3), np.eye(3), 0.0, 0.0)
    with pytest.raises(OptionError, match="located has 3 parameters; the model has 2"):
        shardmc.sample_shard(model, PARTS[0], share=0.5, located=mode)


def test_missing_and_repeated_sites_are_refused(files, sites):
    with pytest.raises(DataError, match=r"shares sum to 0.35, not to 1: a site is missing"):
        shardmc.combine_sites(files[:2])
    with pytest.raises(DataError, match="Site 1 is given twice"):
        shardmc.combine_sites([*files, files[1]])
    with pytest.raises(OptionError, match="No site was given"):
        shardmc.combine_sites([])
    with pytest.raises(OptionError, match="give a list with all of them"):
        shardmc.combine_sites(files[0])
    other = replace(sites[2], names=("beta[0]", "gamma"))
    with pytest.raises(RunError, match="Sites 0 and 2 have different models"):
        shardmc.combine_sites([*sites[:2], other])


def test_a_shard_that_cannot_be_sampled_is_said_at_the_site(model):
    broken = shardmc.Exact(lambda key, rows, weights, power: {"beta": jnp.full(2, jnp.nan)})
    with pytest.raises(SamplingError, match="The site's shard could not be sampled: Exact produced values"):
        shardmc.sample_shard(model, PARTS[0], share=0.5, draws=10, sampler=broken)


def test_files_that_are_none_are_refused(files, tmp_path):
    cut = tmp_path / "cut.nc"
    cut.write_bytes(files[0].read_bytes()[:2_000])
    pickled = tmp_path / "pickled.nc"
    pickled.write_bytes(pickle.dumps(np.zeros(3)))
    other = tmp_path / "other.nc"
    xr.Dataset({"draws": ("x", [1.0])}).to_netcdf(other, engine="h5netcdf")
    for file in (cut, pickled, other, tmp_path / "missing.nc"):
        assert not is_site_file(file)
        with pytest.raises(RunError):
            shardmc.combine_sites([file, *files[1:]])


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: tree["shard"].data_vars["mode"].values.fill(np.nan),
        lambda tree: tree.attrs.update(shardmc_site="{}"),
        lambda tree: tree.attrs.update(
            shardmc_site=tree.attrs["shardmc_site"].replace('"share"', '"sharing"')
        ),
    ],
)
def test_files_that_were_altered_are_refused(files, tmp_path, change):
    with xr.open_datatree(files[0], engine="h5netcdf") as tree:
        loaded = tree.load()
    change(loaded)
    loaded.to_netcdf(tmp_path / "altered.nc", engine="h5netcdf")
    with pytest.raises(RunError, match="is not a site's file"):
        read_site(tmp_path / "altered.nc")
