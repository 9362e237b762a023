"""`shardmc reproduce` on the command line, for a result that is made in seconds."""

import json

import pytest
from typer.testing import CliRunner

from shardmc.cli.app import app


@pytest.mark.slow
def test_a_result_is_shown_and_written(tmp_path):
    name = "figure-1"
    done = CliRunner().invoke(app, ["reproduce", name, "--quick", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / f"{name}.json").read_text("utf-8"))
    assert f"# {record['title']}" in done.output
    assert "quick version" in done.output
    assert "index.html" in done.output
    assert record["provenance"]["peak_memory_gb"] > 0
    assert all(claim["holds"] for claim in record["claims"])
    for suffix in ("png", "svg"):
        assert (tmp_path / f"{name}.{suffix}").stat().st_size > 10_000
