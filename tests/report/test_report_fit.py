"""The report of a real fit, from the rows to the page."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import shardmc
from shardmc.report import repr_html, write_report


@pytest.fixture(scope="module")
def posterior():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4_000, 2)).astype(np.float32)
    y = (x @ np.array([0.5, -1.0]) + rng.normal(size=4_000)).astype(np.float32)
    model = shardmc.Model(
        lambda params, rows: (
            -0.5 * ((rows[1] - rows[0] @ params["beta"]) / params["sigma"]) ** 2 - jnp.log(params["sigma"])
        ),
        lambda params: -params["sigma"],
        {"beta": (2,), "sigma": "positive"},
    )
    return shardmc.fit(model, (x, y), shards=5, draws=2_000, seed=3)


def test_page_of_a_fit(posterior, tmp_path):
    source = write_report(posterior, tmp_path).read_text(encoding="utf-8")
    for part in (
        "beta[0]",
        "sigma (unconstrained)",
        "locate shards",
        "seed=3",
        'id="agreement"',
        'id="pair"',
    ):
        assert part in source
    assert posterior.certificate.sentence.partition(": ")[2][1:] in source


def test_page_of_a_saved_fit_is_the_same(posterior, tmp_path):
    saved = shardmc.load(posterior.save(tmp_path / "posterior.nc"))
    first = write_report(posterior, tmp_path / "first.html").read_text(encoding="utf-8")
    second = write_report(saved, tmp_path / "second.html").read_text(encoding="utf-8")
    assert first == second


def test_fragment_of_a_fit(posterior):
    assert "2,000 draws of 3 parameters from 5 shards of 4,000 rows" in repr_html(posterior)
