"""A Dask client as everybody makes one: it is the process's default, and results are still saved."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardmc

pytestmark = pytest.mark.cluster

PAGE = Path(__file__).resolve().parents[2] / "docs" / "clusters.md"

MODEL = """
import jax.numpy as jnp
import shardmc

model = shardmc.Model(
    lambda params, rows: -0.5 * (rows["y"] - params["mu"]) ** 2,
    lambda params: -0.5 * (params["mu"] / 10) ** 2,
    {"mu": ()},
)
"""


def lines_of_the_page() -> str:
    """The first Python block under the heading 'A Dask cluster'."""
    section = PAGE.read_text().split("\n## A Dask cluster\n")[1]
    found = re.search(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def page(tmp_path, monkeypatch):
    """What the names of the page stand for, after its lines have run beside a file of rows."""
    monkeypatch.chdir(tmp_path)
    y = np.random.default_rng(0).normal(2.0, 1.0, 2_000).astype(np.float32)
    pq.write_table(pa.table({"y": y}), "rows.parquet")
    names: dict = {"__name__": "__main__"}
    exec(MODEL, names)
    try:
        exec(lines_of_the_page(), names)
        yield names
    finally:
        if "client" in names:
            names["client"].close()
            names["client"].cluster.close()


@pytest.mark.slow
def test_the_lines_of_the_page_leave_a_result(page, tmp_path):
    from distributed import default_client

    assert default_client() is page["client"], (
        "the page's client is not the default one: the test shows nothing"
    )
    posterior = page["posterior"]
    np.testing.assert_array_equal(shardmc.load(tmp_path / "run").theta, posterior.theta)
    np.testing.assert_array_equal(shardmc.load(posterior.save("again.nc")).theta, posterior.theta)
    combined = shardmc.combine([posterior.draws["mu"][:, None]] * 2)
    assert combined.save("combined.nc").exists()
