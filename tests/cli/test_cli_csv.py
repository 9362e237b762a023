"""CSV on the command line: missing values are counted and refused, or dropped on request."""

import numpy as np
import pandas as pd
import pytest

import shardmc


@pytest.mark.slow
def test_missing_values_of_a_csv_are_refused_or_dropped(tmp_path, command):
    rng = np.random.default_rng(0)
    x = rng.normal(size=1_000)
    table = pd.DataFrame({"x": x, "g": rng.choice(["a", "b"], 1_000), "y": x + rng.normal(size=1_000)})
    table.loc[:6, "x"] = np.nan
    table.loc[995:, "g"] = None
    table.to_csv(tmp_path / "rows.csv", index=False)
    fit = ("fit", "rows.csv", "y ~ x + g", "--draws", "200", "--shards", "1", "--out", "run", "--no-report")
    done = command(*fit)
    assert done.returncode == 2
    assert "Columns 'x' (7), 'g' (5) have missing values, 12 of 1,000 rows in all." in done.stderr
    assert "--drop-missing" in done.stderr
    done = command(*fit, "--drop-missing")
    assert done.returncode == 0, done.stderr
    posterior = shardmc.load(tmp_path / "run")
    assert posterior.plan.rows == 988
    assert "12 rows with missing values were dropped." in posterior.notes
    table.dropna().to_csv(tmp_path / "whole.csv", index=False)
    assert len(posterior.predict(tmp_path / "whole.csv")) == 988
