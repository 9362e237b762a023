"""The examples run in their quick mode, write the files that they name, and skip with a message without data."""

import runpy
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCRIPTS = {
    "covertype": "covtype.npz",
    "fremtpl2": "freMTPL2.parquet",
    "late_flights": "nycflights13_flights.parquet",
    "nycflights13": "nycflights13_flights.parquet",
}
EVERY = 3
"""Every third row of the files, of which the quick mode takes a twentieth. With fewer rows the fits need HMC."""


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Runs an example as a script, in this process, and returns what it prints."""
    monkeypatch.syspath_prepend(EXAMPLES)

    def script(name: str, data: Path) -> str:
        arguments = ["--quick", "--out", str(tmp_path), "--data", str(data)]
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
        main = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]
        if data.exists():
            main()
        else:
            with pytest.raises(SystemExit, match=r"^0$"):
                main()
        shown = capsys.readouterr()
        return shown.out + shown.err

    return script


def thinned(path: Path, folder: Path) -> Path:
    small = folder / path.name
    if path.suffix == ".parquet":
        pq.write_table(pq.read_table(path)[::EVERY], small)
    else:
        with np.load(path) as stored:
            np.savez(small, **{k: v if k == "names" else v[::EVERY] for k, v in stored.items()})
    return small


@pytest.mark.slow
@pytest.mark.parametrize(("name", "file"), SCRIPTS.items())
def test_example_runs(name, file, run, data_folder, tmp_path, recwarn):
    if not (data_folder / file).exists():
        pytest.skip(f"{file} is not in {data_folder}.")
    shown = run(name, thinned(data_folder / file, tmp_path))
    assert [str(w.message) for w in recwarn if w.category in (UserWarning, RuntimeWarning)] == []
    assert "<html" in (tmp_path / f"{name}.html").read_text()
    assert (tmp_path / f"{name}.nc").stat().st_size > 0
    assert f"Wrote {tmp_path / name}.nc and {tmp_path / name}.html." in shown


@pytest.mark.parametrize(("name", "file"), SCRIPTS.items())
def test_example_without_data_says_so(name, file, run, tmp_path):
    shown = run(name, tmp_path / "nowhere" / file)
    assert "Skipped" in shown
    assert "does not exist" in shown


def test_every_example_is_tried():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SCRIPTS, "options"}
