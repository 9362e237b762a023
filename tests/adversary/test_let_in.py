"""Files and texts of somebody else: what leads out of them, or would run for ever, is refused in one sentence."""

import os
import shutil
import socket

import h5py
import numpy as np
import pytest

import shardmc
from shardmc.errors import ShardmcError

SECRET = np.arange(1_000.0) + 0.125  # what the reader has on disk and the sender wants to see


def mean_model():
    return shardmc.Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A posterior, two files of draws and two files of sites, all of them honest."""
    folder = tmp_path_factory.mktemp("good")
    y = np.random.default_rng(0).normal(3.0, 1.0, size=2_000).astype(np.float32)
    shardmc.fit(mean_model(), y, shards=2, draws=200, check=False).save(folder / "posterior.nc")
    for number, part in enumerate(np.split(y, 2)):
        shardmc.sample_shard(
            mean_model(), part, share=0.5, draws=100, shard=number, path=folder / f"site-{number}.nc"
        )
        with h5py.File(folder / f"shard-{number}.nc", "w") as file:
            file["posterior/mu"] = np.random.default_rng(number).normal(size=(1, 1_000))
            for name, length in (("chain", 1), ("draw", 1_000)):
                scale = file["posterior"].create_dataset(name, data=np.arange(length))
                scale.make_scale(name)
            for axis, name in enumerate(("chain", "draw")):
                file["posterior/mu"].dims[axis].attach_scale(file["posterior"][name])
    return folder


def external_storage(file, place, folder):
    SECRET.tofile(folder / "secret.bin")
    shape = file[place].shape
    del file[place]
    size = int(np.prod(shape)) * 8
    file.create_dataset(place, shape, "f8", external=[(str(folder / "secret.bin"), 0, size)])


def virtual_dataset(file, place, folder):
    secret(folder)
    shape = file[place].shape
    layout = h5py.VirtualLayout(shape, "f8")
    layout[...] = h5py.VirtualSource(folder / "secret.h5", "values", SECRET.shape)[: np.prod(shape)]
    del file[place]
    file.create_virtual_dataset(place, layout)


def external_link(file, place, folder):
    secret(folder)
    del file[place]
    file[place] = h5py.ExternalLink(str(folder / "secret.h5"), "values")


def soft_link(file, place, folder):
    group, _, name = place.rpartition("/")
    file[f"{group}/{name}_again"] = h5py.SoftLink(f"/{group}")


def loop(file, place, folder):
    group = place.rpartition("/")[0]
    file[f"{group}/again"] = file[group]


def secret(folder):
    with h5py.File(folder / "secret.h5", "w") as file:
        file["values"] = SECRET


LEADS_OUT = [external_storage, virtual_dataset, external_link, soft_link, loop]


@pytest.fixture
def altered(good, tmp_path):
    """A copy of an honest file after somebody has changed it."""

    def alter(name, place, change):
        path = tmp_path / name
        shutil.copy(good / name, path)
        with h5py.File(path, "a") as file:
            change(file, place, tmp_path)
        return path

    return alter


@pytest.mark.parametrize("change", LEADS_OUT)
class TestFilesThatLeadElsewhere:
    def test_combine_refuses_them(self, good, altered, change):
        bad = altered("shard-0.nc", "posterior/mu", change)
        with pytest.raises(ShardmcError, match=r"shard-0\.nc.*(another file|link|twice)"):
            shardmc.combine([bad, good / "shard-1.nc"])

    def test_an_h5_file_is_no_exception(self, good, altered, change):
        bad = altered("shard-0.nc", "posterior/mu", change)
        bad = bad.rename(bad.with_suffix(".h5"))
        with pytest.raises(ShardmcError, match=r"shard-0\.h5.*(another file|link|twice)"):
            shardmc.combine([bad, good / "shard-1.nc"])

    def test_combine_sites_refuses_them(self, good, altered, change):
        bad = altered("site-0.nc", "shard/draws", change)
        with pytest.raises(ShardmcError, match=r"site-0\.nc.*(another file|link|twice)"):
            shardmc.combine_sites([bad, good / "site-1.nc"])

    def test_load_refuses_them(self, altered, change):
        bad = altered("posterior.nc", "unconstrained/theta", change)
        with pytest.raises(ShardmcError, match=r"posterior\.nc.*(another file|link|twice)"):
            shardmc.load(bad)


def test_honest_files_are_read(good):
    """The control: what the tests above refuse is not refused for another reason."""
    assert shardmc.combine([good / "shard-0.nc", good / "shard-1.nc"]).values.shape[1] == 1
    assert shardmc.combine_sites([good / "site-0.nc", good / "site-1.nc"]).num_draws == 200
    assert shardmc.load(good / "posterior.nc").num_draws == 200


# Things that would take minutes, or for ever.


def test_a_pipe_called_nc_is_not_waited_for(good, tmp_path):
    pipe = tmp_path / "site-0.nc"
    os.mkfifo(pipe)
    for read in (
        lambda: shardmc.load(pipe),
        lambda: shardmc.combine([pipe, good / "shard-1.nc"]),
        lambda: shardmc.combine_sites([pipe, good / "site-1.nc"]),
    ):
        with pytest.raises(ShardmcError, match=r"site-0\.nc.*is not a regular file"):
            read()


def test_a_socket_called_nc_is_refused(tmp_path):
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(tmp_path / "s.nc"))
        with pytest.raises(ShardmcError, match="is not a regular file"):
            shardmc.load(tmp_path / "s.nc")


@pytest.mark.parametrize("reader", ["load", "combine"])
def test_deep_and_many_groups_are_refused(tmp_path, reader):
    deep, many = tmp_path / "deep.nc", tmp_path / "many.nc"
    with h5py.File(deep, "w") as file:
        file.create_group("/".join(["a"] * 300))
    with h5py.File(many, "w") as file:
        for number in range(50):
            file.create_group(f"g{number}")
    read = shardmc.load if reader == "load" else lambda path: shardmc.combine([path, path])
    with pytest.raises(ShardmcError, match=r"nested .* deep; the limit is .*--limit depth="):
        read(deep)
    with (
        shardmc.limits(objects=20),
        pytest.raises(ShardmcError, match=r"more than 20 groups and variables.*--limit objects="),
    ):
        read(many)


@pytest.mark.parametrize("reader", ["load", "combine"])
def test_a_small_file_that_claims_to_be_huge_is_refused(tmp_path, reader):
    path = tmp_path / "huge.nc"
    with h5py.File(path, "w") as file:
        file.create_dataset("posterior/mu", (10**6, 10**6), "f8", chunks=(1_000, 1_000), compression="gzip")
    read = shardmc.load if reader == "load" else lambda path: shardmc.combine([path, path])
    with pytest.raises(ShardmcError, match=r"8,000\.0 GB.*limit.*--limit unpacking="):
        read(path)


def test_the_command_line_has_one_option_for_all_limits(good, tmp_path):
    from typer.testing import CliRunner

    from shardmc.cli.app import app

    call = ["combine", *[str(good / f"shard-{i}.nc") for i in (0, 1)], "--out", str(tmp_path / "out.nc")]
    refused = CliRunner().invoke(app, ["--limit", "objects=1", *call])
    assert "--limit objects=" in str(refused.exception)
    assert "Unknown limit 'object'" in str(CliRunner().invoke(app, ["--limit", "object=1", *call]).exception)
    assert "name=number" in str(CliRunner().invoke(app, ["--limit", "objects", *call]).exception)
    allowed = CliRunner().invoke(app, ["--limit", "objects=7", "--limit", "depth=2", *call])
    assert allowed.exit_code == 0
