"""The examples run in their quick mode, write the files that they name, and skip with a message without data."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCRIPTS = {
    "covertype": "covtype.npz",
    "fremtpl2": "freMTPL2.parquet",
    "late_flights": "nycflights13_flights.parquet",
    "nycflights13": "nycflights13_flights.parquet",
}


def run(name: str, folder: Path, data: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", "--quick", "--out", folder],
        env={**os.environ, "SHARDMC_DATA": str(data)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "file"), SCRIPTS.items())
def test_example_runs(name, file, data_folder, tmp_path):
    if not (data_folder / file).exists():
        pytest.skip(f"{file} is not in {data_folder}.")
    result = run(name, tmp_path, data_folder)
    assert result.returncode == 0, result.stderr
    assert "Warning" not in result.stderr  # XLA may say that a busy machine compiles slowly
    assert "<html" in (tmp_path / f"{name}.html").read_text()
    assert (tmp_path / f"{name}.nc").stat().st_size > 0
    assert f"Wrote {tmp_path / name}.nc and {tmp_path / name}.html." in result.stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_example_without_data_says_so(name, tmp_path):
    result = run(name, tmp_path, tmp_path / "nowhere")
    assert result.returncode == 0
    assert "Skipped" in result.stdout + result.stderr
    assert "does not exist" in result.stdout + result.stderr


def test_every_example_is_tried():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SCRIPTS, "options"}
