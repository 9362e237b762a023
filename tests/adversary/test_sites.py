"""Files of sites that lie, are wrong, or would give a row away: refused, and the site is named."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import h5py
import jax.numpy as jnp
import numpy as np
import pytest

import shardmc
from shardmc.errors import DataError, ModelError, OptionError, RunError, ShardmcError
from shardmc.locate.expansion import Expansion
from shardmc.store.site import read_site

_spec = importlib.util.spec_from_file_location("linear", Path(__file__).parents[1] / "linear.py")
assert _spec is not None
assert _spec.loader is not None
linear = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(linear)

SIZES = (400, 1_600, 2_000)
TOTAL = sum(SIZES)
PARTS = [linear.rows_of(site, size) for site, size in enumerate(SIZES)]


@pytest.fixture(scope="module")
def model():
    return linear.model()


@pytest.fixture(scope="module")
def sampler():
    return linear.exact()


def sampled(model, sampler, **options):
    return [
        shardmc.sample_shard(
            model,
            part,
            share=size / TOTAL,
            draws=size // 4,
            seed=11,
            shard=site,
            sampler=sampler,
            **options,
        )
        for site, (part, size) in enumerate(zip(PARTS, SIZES, strict=True))
    ]


@pytest.fixture(scope="module")
def sites(model, sampler):
    return sampled(model, sampler)


def with_draws(site, change):
    return replace(site, chains=replace(site.chains, theta=change(site.chains.theta)))


# Draws against the site's own mode and curvature.

LIES = {
    "constant": lambda theta: np.zeros_like(theta) + theta.mean(axis=(0, 1)),
    "huge": lambda theta: np.full_like(theta, 1e300),
    "one huge": lambda theta: np.concatenate([theta[:, :-1], np.full_like(theta[:, :1], 1e300)], axis=1),
    "moved": lambda theta: theta + 0.5,
    "too wide": lambda theta: (
        theta.mean(axis=1, keepdims=True) + 10 * (theta - theta.mean(axis=1, keepdims=True))
    ),
    "too narrow": lambda theta: (
        theta.mean(axis=1, keepdims=True) + 0.1 * (theta - theta.mean(axis=1, keepdims=True))
    ),
    "on a line": lambda theta: (
        np.repeat(theta[..., :1] - theta[..., :1].mean(), 2, axis=-1) + theta.mean(axis=1, keepdims=True)
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_draws_that_do_not_fit_the_sites_own_mode_are_refused(sites, lie):
    altered = [sites[0], with_draws(sites[1], LIES[lie]), sites[2]]
    with pytest.raises(RunError, match=r"^Site 1's draws do not fit"):
        shardmc.combine_sites(altered)
    with pytest.raises(RunError, match=r"^Site 1's draws do not fit"):
        shardmc.locate_sites(altered)


def test_honest_sites_are_accepted(sites):
    assert shardmc.combine_sites(sites).num_draws > 0


@pytest.mark.slow
def test_few_draws_of_an_honest_site_are_accepted(model, sampler):
    """Three draws say little of their spread, and less must not be held against them."""
    modes = []
    for seed in range(20):
        sites = [
            shardmc.sample_shard(
                model, part, share=size / TOTAL, draws=3, seed=seed, shard=i, sampler=sampler
            )
            for i, (part, size) in enumerate(zip(PARTS, SIZES, strict=True))
        ]
        modes.append(shardmc.locate_sites(sites).theta)
    assert np.ptp(modes, axis=0).max() < 1e-5  # the mode is that of the rows, whatever the draws


def test_a_skewed_posterior_is_no_lie():
    """Few successes and a wide prior: mean and mode are a standard deviation apart."""
    model = shardmc.Model(
        lambda p, y: y * p["a"] - jnp.logaddexp(0.0, p["a"]), lambda p: -0.5 * (p["a"] / 5) ** 2, {"a": ()}
    )
    halves = [np.zeros(60, np.float32), np.zeros(60, np.float32)]
    halves[0][:1] = 1
    sites = [
        shardmc.sample_shard(model, part, share=0.5, draws=500, shard=i) for i, part in enumerate(halves)
    ]
    assert shardmc.combine_sites(sites).num_draws > 0


def test_huge_draws_of_a_site_without_a_mode_are_refused(sites):
    bare = replace(with_draws(sites[1], LIES["huge"]), mode=None, curvature=None)
    with pytest.raises(RunError, match=r"^Site 1's draws"):
        shardmc.combine_sites([sites[0], bare, sites[2]])


# Another model.


def test_another_model_is_refused_unless_allowed(sites):
    other = [*sites[:2], replace(sites[2], model="0" * 32)]
    with pytest.raises(RunError, match=r"Sites 2 and 0 used different models.*other_models"):
        shardmc.combine_sites(other)
    with pytest.raises(RunError, match="Sites 2 and 0 used different models"):
        shardmc.locate_sites(other)
    assert "not the same" in shardmc.combine_sites(other, other_models=True).notes[0]


def test_the_command_line_refuses_another_model_too(sites, tmp_path):
    from typer.testing import CliRunner

    from shardmc.cli.app import app

    files = [str(tmp_path / f"{site.shard}.nc") for site in sites]
    for site, file in zip(sites, files, strict=True):
        replace(site, model="0" * 32 if site.shard == 2 else site.model).save(file)
    call = ["combine", *files, "--out", str(tmp_path / "all.nc")]
    assert "Sites 2 and 0 used different models" in str(CliRunner().invoke(app, call).exception)
    assert CliRunner().invoke(app, [*call, "--other-models"]).exit_code == 0


def test_other_supports_are_named(sites):
    other = replace(sites[2], supports={"beta": ((2,), "positive")})
    with pytest.raises(RunError, match=r"'beta' is real at site 0 and positive at site 2"):
        shardmc.combine_sites([*sites[:2], other])
    bounded = replace(sites[2], supports={"beta": ((2,), ["interval", 0, 2])})
    with pytest.raises(RunError, match=r"'beta' is real at site 0 and interval\(0, 2\) at site 2"):
        shardmc.combine_sites([*sites[:2], bounded])


# Curvatures.


@pytest.mark.parametrize(
    "curvature", [np.zeros((2, 2)), np.ones((2, 2)), np.diag([1.0, -1.0]), np.array([[1.0, 0.9], [0.1, 1.0]])]
)
def test_a_curvature_that_is_none_is_refused(sites, curvature):
    broken = [sites[0], replace(sites[1], curvature=curvature), sites[2]]
    for call in (shardmc.combine_sites, shardmc.locate_sites):
        with pytest.raises(RunError, match=r"^Site 1's curvature is not that of a maximum.*beta\["):
            call(broken)


def test_a_mode_without_a_curvature_is_refused(sites, tmp_path):
    sites[1].save(tmp_path / "1.nc")
    with h5py.File(tmp_path / "1.nc", "a") as file:
        del file["shard/curvature"]
    with pytest.raises(RunError, match=r"1\.nc .*mode.*without.*curvature"):
        read_site(tmp_path / "1.nc")
    with pytest.raises(RunError, match=r"^Site 1 has a mode without a curvature"):
        shardmc.combine_sites([sites[0], replace(sites[1], curvature=None), sites[2]])


def test_a_singular_sum_at_the_common_point_is_a_sentence(sites):
    flat = Expansion(np.zeros(2), np.zeros(2), np.zeros((2, 2)))
    with pytest.raises(ModelError, match="At the point that the sites were given"):
        shardmc.locate_sites([replace(site, reference=flat) for site in sites])


# What leaves a site.


def test_a_site_of_few_rows_gives_nothing_away(model, sampler, tmp_path):
    few = {name: column[:49] for name, column in PARTS[0].items()}
    with pytest.raises(DataError, match=r"49 rows.*min_rows=50"):
        shardmc.sample_shard(model, few, share=0.5, draws=10, sampler=sampler, path=tmp_path / "0.nc")
    assert not (tmp_path / "0.nc").exists()
    site = shardmc.sample_shard(model, few, share=0.5, draws=10, sampler=sampler, min_rows=49)
    assert site.rows == 49
    for wrong in (0, 2.5, True):
        with pytest.raises(OptionError, match="min_rows must be a whole number"):
            shardmc.sample_shard(model, few, share=0.5, min_rows=wrong)


def test_rows_without_weight_do_not_count(model, sampler):
    weights = np.zeros(400)
    weights[0] = 1.0
    with pytest.raises(DataError, match=r"weights .* 1 row.*min_rows=50"):
        shardmc.sample_shard(model, PARTS[0], share=0.5, draws=10, sampler=sampler, weights=weights)


def test_noise_hides_the_mode_and_costs_what_is_said(model, sampler, sites):
    noisy = sampled(model, sampler, noise=10.0)
    for site, honest in zip(noisy, sites, strict=True):
        step = (site.mode - honest.mode) @ np.linalg.cholesky(honest.curvature)
        size = 10.0 / np.sqrt(site.share * site.rows)
        # A chi^2 with two degrees of freedom: outside with a probability of 1e-4 for each site.
        assert 1e-5 < (step @ step) / (2 * size**2) < 10
        assert np.abs(site.chains.theta.mean(axis=(0, 1)) - honest.mode).max() > 0
        assert not np.array_equal(site.curvature, honest.curvature)
    posterior = shardmc.combine_sites(noisy)
    assert any("added noise" in note for note in posterior.notes)
    mean, precision = linear.posterior(*PARTS)
    error = np.sqrt((posterior.mode - mean) @ precision @ (posterior.mode - mean))
    assert error < 6 * 10.0 * np.sqrt(3 / TOTAL)


def test_noise_cannot_be_repeated_and_is_in_the_file(model, sampler, tmp_path):
    """Whoever knows the seed must not be able to subtract it."""
    first, second = (
        shardmc.sample_shard(
            model, PARTS[0], share=0.5, draws=10, sampler=sampler, noise=1.0, path=tmp_path / "0.nc"
        )
        for _ in range(2)
    )
    assert not np.array_equal(first.mode, second.mode)
    assert read_site(tmp_path / "0.nc").noise == 1.0
    for wrong in (-1.0, float("nan"), "much"):
        with pytest.raises(OptionError, match="noise must be"):
            shardmc.sample_shard(model, PARTS[0], share=0.5, noise=wrong)


def test_noise_reaches_the_gradient_at_the_common_point(model, sampler, sites):
    mode = shardmc.locate_sites(sites)
    plain, noisy = (
        shardmc.sample_shard(model, PARTS[0], share=0.1, draws=10, sampler=sampler, noise=noise, located=mode)
        for noise in (0.0, 3.0)
    )
    assert plain.reference is not None
    assert noisy.reference is not None
    assert not np.allclose(plain.reference.gradient, noisy.reference.gradient, rtol=1e-6)
    assert not np.array_equal(plain.reference.curvature, noisy.reference.curvature)


def test_every_refusal_is_a_sentence(sites):
    with pytest.raises(ShardmcError, match=r"^[A-Z].*\.$"):
        shardmc.combine_sites([sites[0], with_draws(sites[1], LIES["constant"]), sites[2]])
