"""Input, files and folders that once gave a wrong result without a word: now the right result, or a refusal."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray as xr

import shardmc
from shardmc.data import Partition, as_source
from shardmc.data.scratch import ScratchSink
from shardmc.errors import DataError, OptionError, RunError

ROWS = 4_000


def csv_lines(last: str = "text") -> list[str]:
    return ["y,x,note", *(f'"{i}",{i / 7:.3f},{last}' for i in range(ROWS))]


MODEL = shardmc.Model(
    lambda params, rows: -0.5 * (rows["y"] - params["b"] * rows["x"]) ** 2,
    lambda params: -0.5 * jnp.square(params["b"]),
    {"b": ()},
)
FEW = {"shards": 2, "draws": 40, "check": False, "sampler": "independence", "precision": "single"}


@pytest.fixture(scope="module")
def table() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=600)
    return {"x": x, "y": 2.0 * x + rng.normal(size=600), "w": np.full(600, 3.0)}


@pytest.fixture(scope="module")
def fitted(table) -> shardmc.Posterior:
    return shardmc.fit(MODEL, table, **FEW)


# Quotes in CSV files.


@pytest.mark.parametrize("block", [1 << 12, 1 << 22])
@pytest.mark.parametrize("others", ["text", '"text"', '"a ""b"" c"', 'a "b" c'])
def test_a_csv_file_with_an_unclosed_quote_is_refused(tmp_path, monkeypatch, others, block):
    monkeypatch.setattr("shardmc.data.readers._BLOCK", block)
    lines = csv_lines(others)
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(lines) + "\n")
    assert as_source(path).num_rows == ROWS
    lines[101] = '100,1.0,"open'
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match="line 102"):
        as_source(path, columns=["y", "x"])


@pytest.mark.parametrize("entry", ['"open', '"open"ed', '"open" ed', '"'])
def test_a_quote_that_is_not_closed_in_the_last_line_is_refused(tmp_path, entry):
    path = tmp_path / "rows.csv.gz"
    lines = [*csv_lines()[:50], f"50,1.0,{entry}"]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    with pytest.raises(DataError, match="line 51"):
        as_source(path)


@pytest.mark.parametrize("block", [1 << 10, 1 << 22])
def test_quoted_line_breaks_and_quotes_inside_of_text_are_read(tmp_path, monkeypatch, block):
    monkeypatch.setattr("shardmc.data.readers._BLOCK", block)
    lines = csv_lines('"two\nlines, with a ""quote""" ')
    lines[2::5] = [f'{i},0.5,5" pipe' for i in range(1, ROWS, 5)]
    path = tmp_path / "rows.csv"
    path.write_text("﻿" + "\n".join(lines), encoding="utf-8")
    source = as_source(path)
    assert source.num_rows == ROWS
    blocks = source.split(Partition(1, shuffle=False), 0)
    np.testing.assert_array_equal(blocks.rows["y"][:ROWS], np.arange(ROWS))
    (table,) = source.tables(["note"], ROWS) if block == 1 << 22 else [None]
    if table is not None:
        assert table["note"].slice(0, 2).to_pylist() == ['two\nlines, with a "quote" ', '5" pipe']


def test_every_fit_says_how_many_rows_it_read(fitted, capsys):
    from rich.console import Console

    from shardmc.cli.console import show_posterior

    show_posterior(Console(), fitted)
    assert "600 rows" in capsys.readouterr().out
    assert "600 rows" in repr(fitted)
    assert "600 rows" in fitted._repr_html_()


# Shard files.


@pytest.fixture
def parquet(tmp_path, table) -> Path:
    pq.write_table(pa.table(table), tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


def streamed(path: Path, scratch: Path, shards: int = 5):
    return as_source(path, columns=["x", "y"], memory=0, scratch=scratch).split(Partition(shards), 0)


def rows_of(blocks) -> np.ndarray:
    """The column x of all shards, sorted."""
    parts = []
    for (shard,), batch in blocks.batches(range(blocks.num_shards), 1):
        parts.append(np.asarray(batch.rows["x"])[: blocks.sizes[shard]])
    return np.sort(np.concatenate(parts))


def test_two_runs_that_share_a_scratch_folder_do_not_write_the_same_files(parquet, tmp_path, monkeypatch):
    """The second run splits the same rows while the first one is in the middle of writing them."""
    expected = rows_of(streamed(parquet, tmp_path / "elsewhere"))
    original, found = ScratchSink.write, []

    def write(sink, number, entries, placement):
        if not found:
            found.append(None)
            found[0] = rows_of(streamed(parquet, tmp_path / "scratch"))
            # A reader of the finished files, while the first run writes its own.
            original(sink, number, np.zeros_like(entries), placement)
            found.append(rows_of(streamed(parquet, tmp_path / "scratch")))
        original(sink, number, entries, placement)

    monkeypatch.setattr(ScratchSink, "write", write)
    blocks = streamed(parquet, tmp_path / "scratch")
    for rows in (*found, rows_of(blocks)):
        np.testing.assert_array_equal(rows, expected)
    assert len(list((tmp_path / "scratch").iterdir())) == 1


@pytest.mark.parametrize("kept", [False, True], ids=["read", "kept"])
def test_a_damaged_shard_file_is_noticed(parquet, tmp_path, kept):
    blocks = streamed(parquet, tmp_path / "scratch")
    expected = rows_of(blocks)
    file = blocks.scratch.column_file(0)
    content = file.read_bytes()
    half = len(content) // 2
    file.write_bytes(content[:half] + bytes(len(content) - half))
    again = streamed(parquet, tmp_path / "scratch")
    with pytest.raises(DataError, match=r"damaged.*Remove that folder"):
        again.keep([np.array([0])] * 5) if kept else rows_of(again)
    shutil.rmtree(blocks.scratch.path)
    np.testing.assert_array_equal(rows_of(streamed(parquet, tmp_path / "scratch")), expected)


def test_shard_files_that_a_killed_run_left_are_removed(parquet, tmp_path):
    code = (
        "import os, sys\n"
        "from shardmc.data import Partition, as_source\n"
        "from shardmc.data.scratch import ScratchSink\n"
        "ScratchSink.write = lambda *_: os._exit(9)\n"
        "as_source(sys.argv[1], memory=0, scratch=sys.argv[2]).split(Partition(5), 0)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, parquet, tmp_path / "scratch"], check=False)
    assert killed.returncode == 9
    left = list((tmp_path / "scratch").iterdir())
    assert len(left) == 1
    rows_of(streamed(parquet, tmp_path / "scratch"))
    assert not left[0].exists()
    assert len(list((tmp_path / "scratch").iterdir())) == 1


# Files that change, and links.


def big_parquet(folder: Path) -> Path:
    """A file of more than 4 MiB, without compression, so that numbers can be altered in place."""
    x = np.random.default_rng(0).normal(size=900_000)
    pq.write_table(pa.table({"x": x}), folder / "big.parquet", compression=None, use_dictionary=False)
    return folder / "big.parquet"


def alter(path: Path) -> None:
    """Change one byte, between the stretches that the hash of a large file covers."""
    with path.open("r+b") as file:
        file.seek((path.stat().st_size - (1 << 16)) // 31 // 2 * 3)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("whole", [None, 1 << 20], ids=["hashed as a whole", "hashed in part"])
def test_a_file_altered_in_place_is_another_one(tmp_path, monkeypatch, whole):
    if whole is not None:
        monkeypatch.setattr("shardmc.data.locations._WHOLE", whole)
    path = big_parquet(tmp_path)
    before, size = as_source(path).fingerprint, path.stat().st_size
    assert as_source(path).fingerprint == before
    alter(path)
    assert path.stat().st_size == size
    assert as_source(path).fingerprint != before


def test_a_copied_file_is_the_same_if_it_is_hashed_as_a_whole_or_trusted(tmp_path, monkeypatch):
    path = big_parquet(tmp_path)
    copy = tmp_path / "copy" / path.name
    copy.parent.mkdir()
    shutil.copy(path, copy)
    os.utime(copy, (1, 1))
    assert as_source(copy).fingerprint == as_source(path).fingerprint
    monkeypatch.setattr("shardmc.data.locations._WHOLE", 1 << 20)
    assert as_source(copy).fingerprint != as_source(path).fingerprint
    assert as_source(copy, trust_files=True).fingerprint == as_source(path, trust_files=True).fingerprint


def test_a_run_is_resumed_with_copied_files_only_if_they_are_trusted(tmp_path, monkeypatch, parquet):
    monkeypatch.setattr("shardmc.data.locations._WHOLE", 0)
    first = shardmc.fit(MODEL, parquet, run_dir=tmp_path / "run", **FEW)
    os.utime(parquet, (1, 1))
    with pytest.raises(RunError, match=r"modification time.*trust_files=True"):
        shardmc.fit(MODEL, parquet, run_dir=tmp_path / "run", **FEW)
    trusted = as_source(parquet, trust_files=True)
    again = shardmc.fit(MODEL, trusted, run_dir=tmp_path / "run", **FEW)
    np.testing.assert_array_equal(again.theta, first.theta)


def test_links_in_a_data_folder_count_every_file_once(tmp_path, parquet):
    folder, other = tmp_path / "rows", tmp_path / "other"
    (folder / "a").mkdir(parents=True)
    other.mkdir()
    shutil.copy(parquet, folder / "a" / "one.parquet")
    shutil.copy(parquet, other / "two.parquet")
    (folder / "0.parquet").symlink_to(folder / "a" / "one.parquet")
    (folder / "0").symlink_to(folder / "a")
    (folder / "b").symlink_to(other)
    (folder / "c.parquet").symlink_to(other / "two.parquet")
    assert as_source(folder).num_rows == 1_200


def test_a_data_folder_with_a_link_to_itself_or_to_nothing_is_refused(tmp_path, parquet):
    folder = tmp_path / "rows"
    (folder / "a").mkdir(parents=True)
    shutil.copy(parquet, folder / "a" / "one.parquet")
    (folder / "a" / "loop").symlink_to(folder)
    with pytest.raises(DataError, match="link to a folder that contains it"):
        as_source(folder)
    (folder / "a" / "loop").unlink()
    (folder / "gone.parquet").symlink_to(tmp_path / "nothing.parquet")
    with pytest.raises(DataError, match="points to nothing"):
        as_source(folder)


# Results on disk.


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_a_flipped_bit_anywhere_in_a_result_is_refused(fitted, tmp_path):
    content = fitted.save(tmp_path / "posterior.nc").read_bytes()
    np.testing.assert_array_equal(shardmc.load(tmp_path / "posterior.nc").theta, fitted.theta)
    bits = np.random.default_rng(1).integers(0, 8 * len(content), 40)
    at_the_end = [8 * len(content) - 1 - n for n in range(0, 900, 30)]
    for bit in (*bits.tolist(), *at_the_end):
        (tmp_path / "posterior.nc").write_bytes(flipped(content, bit))
        with pytest.raises(RunError, match=r"posterior\.nc"):
            shardmc.load(tmp_path / "posterior.nc")
    (tmp_path / "posterior.nc").write_bytes(flipped(content, 4 * len(content)))
    with pytest.raises(RunError, match=r"posterior\.nc"):
        shardmc.combine([tmp_path / "posterior.nc"], combiner="consensus")


@pytest.mark.parametrize("cut", [1, 40, 100, 5_000])
def test_a_result_that_was_cut_short_is_refused(fitted, tmp_path, cut):
    content = fitted.save(tmp_path / "posterior.nc").read_bytes()
    (tmp_path / "posterior.nc").write_bytes(content[:-cut])
    with pytest.raises(RunError, match=r"posterior\.nc"):
        shardmc.load(tmp_path / "posterior.nc")


def test_a_result_that_another_program_wrote_again_says_how_to_read_it(fitted, tmp_path):
    path = fitted.save(tmp_path / "posterior.nc")
    with xr.open_datatree(path, engine="h5netcdf") as tree:  # other programs read the file as it is
        tree.load().to_netcdf(tmp_path / "again.nc", engine="h5netcdf")
    with pytest.raises(RunError, match=r"has no checksum.*Posterior\.from_tree\(xarray\.open_datatree"):
        shardmc.load(tmp_path / "again.nc")
    with xr.open_datatree(tmp_path / "again.nc", engine="h5netcdf") as tree:
        np.testing.assert_array_equal(shardmc.Posterior.from_tree(tree.load()).theta, fitted.theta)


def test_a_flipped_bit_in_a_file_of_a_site_is_refused(table, tmp_path):
    rows = {name: table[name] for name in ("x", "y")}
    shardmc.sample_shard(MODEL, rows, share=1.0, draws=40, sampler="independence", path=tmp_path / "site.nc")
    content = (tmp_path / "site.nc").read_bytes()
    (tmp_path / "site.nc").write_bytes(flipped(content, 8 * (len(content) - 500)))
    with pytest.raises(RunError, match=r"site\.nc"):
        shardmc.combine_sites([tmp_path / "site.nc"])


# Rows with weights.


@pytest.mark.slow
def test_appending_to_a_weighted_posterior_needs_the_old_weights(table):
    old = {name: table[name][:400] for name in ("x", "y")}
    new = {name: table[name][400:] for name in ("x", "y")}
    weights = table["w"][:400]
    first = shardmc.fit(MODEL, old, weights=weights, **FEW)
    few = {"shards": 1, "check": False, "sampler": "independence"}
    with pytest.raises(OptionError, match=r"weights.*old_weights="):
        shardmc.append(first, MODEL, new, old_data=old, **few)
    with pytest.raises(OptionError, match="give both, or neither"):
        shardmc.append(first, MODEL, new, old_weights=weights, **few)
    both = shardmc.append(first, MODEL, new, old_data=old, old_weights=weights, **few)
    precision = 1 + 3 * np.sum(old["x"] ** 2) + np.sum(new["x"] ** 2)
    mean = (3 * np.sum(old["x"] * old["y"]) + np.sum(new["x"] * new["y"])) / precision
    np.testing.assert_allclose(both.mode, [mean], rtol=1e-4)
    plain = shardmc.fit(MODEL, old, **FEW)
    with pytest.raises(OptionError, match="without weights"):
        shardmc.append(plain, MODEL, new, old_data=old, old_weights=weights, **few)
    assert shardmc.append(plain, MODEL, new, weights=np.full(200, 2.0), **few).plan.weighted


# The command line.


def test_the_command_line_refuses_in_one_sentence(tmp_path, command):
    lines = csv_lines()
    lines[101] = '100,1.0,"open'
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    done = command("fit", "rows.csv", "y ~ x", "--out", "run")
    assert done.returncode == 2
    assert "the quote that opens in line 102 is not closed" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_command_line_resumes_with_trusted_files(tmp_path, command, monkeypatch, parquet):
    monkeypatch.setattr("shardmc.data.locations._WHOLE", 0)
    call = ("fit", "rows.parquet", "y ~ x", "--draws", "40", "--shards", "2", "--no-report", "--out", "run")
    assert command(*call).returncode == 0
    os.utime(parquet, (1, 1))
    refused = command(*call)
    assert refused.returncode == 2
    assert "--trust-files" in refused.stderr
    assert command(*call, "--trust-files").returncode == 0
