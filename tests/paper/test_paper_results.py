"""Reproduced results: what is written, how methods are compared, and small versions of the examples."""

import json

import numpy as np
import pytest

from shardmc.errors import DataError, OptionError
from shardmc.paper import NAMES, recompute, reproduce
from shardmc.paper.beta_bernoulli import DataSet, method_draws
from shardmc.paper.comparison import (
    OURS,
    MethodComparison,
    default_is_closest,
    distance_table,
    ranking_table,
    record,
    thinned,
)
from shardmc.paper.gaussian import NormalInverseGamma, exact_methods
from shardmc.paper.logistic import _Job, _methods, _Reference, load_covertype, newton_from, synthetic
from shardmc.paper.result import ORDER, Call


@pytest.mark.slow
def test_a_result_is_written_with_its_numbers_and_shown_in_the_index(tmp_path):
    told = []
    written = reproduce("remark-2", tmp_path, quick=True, progress=lambda *step: told.append(step))
    assert [p.name for p in written] == [
        "remark-2.md",
        "remark-2.json",
        "remark-2.png",
        "remark-2.svg",
        "index.html",
    ]
    record = json.loads((tmp_path / "remark-2.json").read_text())
    assert record["provenance"]["quick"] is True
    assert set(record["numbers"]["slopes_against_N"]) == set(record["numbers"]["fixed_N"]["error"])
    assert told[0][0] == "remark-2"
    assert told[-1] == ("remark-2", 4, 4)
    page = (tmp_path / "index.html").read_text()
    assert 'id="remark-2"' in page
    assert "remark-2.svg" in page
    reproduce("theorem-1", tmp_path, quick=True)
    page = (tmp_path / "index.html").read_text()
    assert page.index('id="theorem-1"') < page.index('id="remark-2"')
    for name in ("theorem-1", "remark-2"):
        record = json.loads((tmp_path / f"{name}.json").read_text("utf-8"))
        assert record["provenance"]["peak_memory_gb"] > 0
        assert all(claim["holds"] for claim in record["claims"])
        for suffix in ("png", "svg"):
            assert (tmp_path / f"{name}.{suffix}").stat().st_size > 10_000


def test_the_same_seed_gives_the_same_numbers():
    one, two, other = (recompute("remark-2", Call(quick=True, seed=seed)).numbers for seed in (5, 5, 6))
    assert one == two
    assert one != other


def test_names_and_seeds_are_checked(tmp_path):
    with pytest.raises(OptionError, match=r"Unknown result 'tabel-1'\. Did you mean 'table-1'\?"):
        reproduce("tabel-1", tmp_path)
    with pytest.raises(OptionError, match="seed must be a whole number"):
        reproduce("table-1", tmp_path, seed=-1)
    assert set(NAMES) == {*ORDER, "all"}


def cell(**distances):
    printed = {"CMC": 1.0, "AR": 2.0, "WS": 3.0, "MP": None}
    values = {name: np.array(v) for name, v in distances.items()}
    return MethodComparison("K = 2", values, np.array([0.9, 1.0, 1.1]), printed)


def test_methods_are_ordered_and_reversals_explained():
    found = cell(CMC=[5.0, 5.1], AR=[4.0, 4.1], WS=[0.9, 1.0], MP=[9.0, 9.0], **{OURS: [1.0, 1.1]})
    assert found.winner == f"WS = {OURS}"
    assert found.reversed_pairs() == [("CMC", "AR"), ("CMC", "WS"), ("AR", "WS")]
    row = ranking_table("order", [found]).rows[0]
    assert row[1:3] == ("CMC < AR < WS", "WS < AR < CMC")
    assert "AR is closer than CMC" in row[3]
    assert default_is_closest([found], "here").holds
    table = distance_table("distances", [found])
    assert table.rows[0][2] == "2"
    assert table.rows[1][2:7] == ("–", "1", "2", "3", "–")
    assert record([found])[0]["noise_floor"] == [0.9, 1.0, 1.1]


def test_a_default_that_is_beaten_is_named():
    found = cell(CMC=[2.0], AR=[3.0], WS=[4.0], MP=[5.0], **{OURS: [2.5]})
    claim = default_is_closest([found], "here")
    assert not claim.holds
    assert "Not in K = 2" in claim.text


def test_thinning_keeps_every_shards_part():
    assert thinned(np.repeat(np.arange(4), 6), 8).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_newton_finds_the_mode():
    rows = synthetic(2_000, (0,))
    path = newton_from(rows["x"], rows["y"], 10.0, np.array([0.0, 3.0, -5.0, 1.0, -12.0]), 12)
    x, theta = rows["x"].astype(np.float64), path[-1]
    gradient = x.T @ (rows["y"] - 1 / (1 + np.exp(-x @ theta))) - theta / 100
    np.testing.assert_allclose(gradient, 0, atol=1e-8)


def test_methods_of_example_1_find_the_posterior():
    y = np.sqrt(10) * np.random.default_rng(0).standard_normal(20_000)
    exact = NormalInverseGamma.of(y, 1, "rescaled").marginals()
    found = exact_methods(y, 10, 2_000, 0)
    # Means of 2,000 draws: six standard errors for what is exact, and MP's spread of sqrt(10) sds is seen.
    for column, marginal in enumerate(exact):
        error = {m: abs(v[:, column].mean() - marginal.mean()) / marginal.std() for m, v in found.items()}
        assert error[OURS] < 6 / np.sqrt(2_000)
        assert found["MP"][:, column].std() > 1.5 * marginal.std()
        assert found[OURS][:, column].std() == pytest.approx(marginal.std(), rel=0.1)


@pytest.mark.slow
def test_methods_of_example_3_find_the_posterior_of_rare_events():
    data = DataSet.simulate(0.004, 10_000, 20, (0,))
    found = method_draws(data, 2_000, 0)
    posterior = data.posterior
    assert set(found) == {"CMC", "AR", "WS", "MP", OURS}
    assert abs(found[OURS].mean() - posterior.mean()) < 6 * posterior.std() / np.sqrt(2_000)
    assert found[OURS].std() == pytest.approx(posterior.std(), rel=0.1)
    # One success more or less moves a shard by three sds, and M-posterior leaves it there.
    assert found["MP"].std() > 1.5 * posterior.std()


@pytest.mark.slow
def test_methods_of_example_2_find_the_posterior():
    rows = synthetic(10_000, (1,))
    job = _Job("synthetic", (4,), (rows,), 1, reference=4_000, output=1_000, rescaled=1_000)
    reference = _Reference.of(rows, job, 0)
    draws, newton = _methods(rows, 4, reference.mode, job, 0)
    assert newton[0] > 0.1
    assert newton[-1] < 0.01
    mean, sd = reference.draws.mean(axis=0), reference.draws.std(axis=0)
    for name in ("AR", OURS):
        error = np.abs(draws[name].mean(axis=0) - mean) / sd
        assert error.max() < 0.3
    # M-posterior leaves the shards where they are. How far four of them are apart along a coordinate is chance, that of
    # this partition; the spread of 1,000 draws is known to some percent.
    wide = draws["MP"].std(axis=0) / sd
    assert wide.min() > 1.2
    assert wide.mean() > 1.5


def test_covertype_from_a_file(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    x, kind = rng.integers(0, 300, (50, 10)), rng.integers(1, 8, 50)
    path = tmp_path / "covtype.npz"
    np.savez(path, X10=x.astype(np.int16), cover_type=kind.astype(np.int8))
    text = tmp_path / "covtype.data"
    np.savetxt(text, np.column_stack([x, kind]), fmt="%d", delimiter=",")
    monkeypatch.setenv("SHARDMC_DATA", str(tmp_path))
    for found in (load_covertype(str(path)), load_covertype(str(text)), load_covertype()):
        assert found is not None
        np.testing.assert_array_equal(found.attributes, x[:, :3])
        np.testing.assert_array_equal(found.response, kind == 2)
        rows = found.rows(40, 0)
        assert rows["x"].shape == (40, 4)
        np.testing.assert_allclose(rows["x"][:, 1:].mean(axis=0), 0, atol=1e-6)


def test_a_file_that_is_not_covertype_is_refused(tmp_path):
    with pytest.raises(DataError, match="There is no file"):
        load_covertype(str(tmp_path / "nothing.npz"))
    bad = tmp_path / "bad.npz"
    np.savez(bad, z=np.zeros(3))
    with pytest.raises(DataError, match="does not hold the Covertype data"):
        load_covertype(str(bad))
