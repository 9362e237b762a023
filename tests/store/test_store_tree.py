"""Trees survive netCDF and Zarr; other files are refused, and pickles are never read."""

import contextlib
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from shardmc.errors import RunError
from shardmc.posterior import load
from shardmc.store.files import load_tree, save_tree


@pytest.fixture
def tree() -> xr.DataTree:
    rng = np.random.default_rng(0)
    posterior = xr.Dataset(
        {
            "beta": (("chain", "draw", "term"), rng.normal(size=(2, 10, 3))),
            "sigma": (("chain", "draw"), np.ones((2, 10))),
        },
        coords={"term": ["x1", "x2", "β"]},
        attrs={"seed": 0, "verdict": "within"},
    )
    stats = xr.Dataset(
        {"accepted": (("chain", "draw"), rng.random((2, 10)) < 0.5), "empty": ("none", np.zeros(0))}
    )
    return xr.DataTree.from_dict(
        {"posterior": posterior, "sample_stats": stats, "/": xr.Dataset(attrs={"version": "1"})}
    )


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
@pytest.mark.filterwarnings("ignore:.*Zarr V3 specification", "ignore:.*Zarr format 3 specification")
def test_save_and_load(tmp_path, tree, suffix):
    if suffix == ".zarr":
        pytest.importorskip("zarr")
    save_tree(tree, tmp_path / f"posterior{suffix}")
    again = load_tree(tmp_path / f"posterior{suffix}")
    xr.testing.assert_identical(again, tree)
    assert [path.name for path in tmp_path.iterdir()] == [f"posterior{suffix}"]


def test_netcdf_is_replaced_while_the_old_one_is_in_use(tmp_path, tree):
    path = tmp_path / "posterior.nc"
    save_tree(tree, path)
    old = load_tree(path)
    save_tree(old * 2, path)
    np.testing.assert_array_equal(load_tree(path)["posterior/beta"], 2 * tree["posterior/beta"])


def test_a_failed_save_leaves_the_old_file(tmp_path, tree):
    path = tmp_path / "posterior.nc"
    save_tree(tree, path)
    broken = tree.copy()
    broken["posterior"].attrs["object"] = object()
    with pytest.raises(TypeError):
        save_tree(broken, path)
    xr.testing.assert_identical(load_tree(path), tree)
    assert [entry.name for entry in tmp_path.iterdir()] == ["posterior.nc"]


class Marker:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04", b"CDF\x01" + bytes(40), b"\x89HDF\r\n\x1a\n" + bytes(40)]
)
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "posterior.nc").write_bytes(content)
    with pytest.raises(RunError, match=r"posterior\.nc (is (.*, )?not a netCDF-4 file|cannot be read)"):
        load_tree(tmp_path / "posterior.nc")


def test_a_pickle_is_refused(tmp_path):
    (tmp_path / "posterior.nc").write_bytes(pickle.dumps(Marker(tmp_path / "marker")))
    with pytest.raises(RunError, match="not a netCDF-4 file"):
        load_tree(tmp_path / "posterior.nc")
    assert not (tmp_path / "marker").exists()


def test_a_truncated_file_is_refused(tmp_path, tree):
    path = tmp_path / "posterior.nc"
    save_tree(tree, path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(RunError, match="cannot be read"):
        load_tree(path)


def test_names_that_are_wrong(tmp_path, tree):
    with pytest.raises(RunError, match=r"suffix '\.pkl'.*'\.nc'"):
        save_tree(tree, tmp_path / "posterior.pkl")
    with pytest.raises(RunError, match="There is no"):
        load_tree(tmp_path / "absent.nc")
    with pytest.raises(RunError, match=r"could not be written: No such file or directory"):
        save_tree(tree, tmp_path / "absent" / "posterior.nc")
    (tmp_path / "folder.nc").mkdir()
    with pytest.raises(RunError, match="is not a regular file but a folder"):
        load_tree(tmp_path / "folder.nc")


def test_zarr_is_asked_for_where_it_is_missing(tmp_path, tree, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (tmp_path / "posterior.zarr").mkdir()
    for use in (lambda path: save_tree(tree, path), load_tree):
        with pytest.raises(RunError, match="package 'zarr', which is not installed"):
            use(tmp_path / "posterior.zarr")


@pytest.mark.filterwarnings("ignore:.*Zarr V3 specification", "ignore:.*Zarr format 3 specification")
def test_zarr_folders_are_not_replaced(tmp_path, tree):
    pytest.importorskip("zarr")
    (tmp_path / "precious.zarr").mkdir()
    with pytest.raises(RunError, match="are not replaced"):
        save_tree(tree, tmp_path / "precious.zarr")


def test_a_pickle_in_zarr_is_refused(tmp_path, monkeypatch):
    numcodecs = pytest.importorskip("numcodecs")
    pytest.importorskip("zarr")
    # Newer versions of numcodecs have this switch, older ones unpickle without asking.
    monkeypatch.setattr("numcodecs.pickles.ALLOW_UNSAFE_PICKLE_DECODE", True, raising=False)
    marker = tmp_path / "marker"
    array = tmp_path / "posterior.zarr" / "beta"
    array.mkdir(parents=True)
    (array.parent / ".zgroup").write_text('{"zarr_format": 2}')
    (array / ".zattrs").write_text('{"_ARRAY_DIMENSIONS": ["draw"]}')
    metadata = {
        "zarr_format": 2,
        "shape": [1],
        "chunks": [1],
        "dtype": "|O",
        "fill_value": None,
        "order": "C",
    }
    codecs = {"compressor": None, "filters": [{"id": "vlen-utf8"}, {"id": "pickle"}]}
    (array / ".zarray").write_text(json.dumps(metadata | codecs))
    (array / "0").write_bytes(numcodecs.Pickle().encode(np.array([Marker(marker)], dtype=object)))
    with pytest.raises(RunError, match="holds pickled objects"):
        load_tree(array.parent)
    assert not marker.exists()
    with contextlib.suppress(Exception):  # the control: without the refusal, reading runs it
        xr.open_datatree(array.parent, engine="zarr", consolidated=False).load()
    assert marker.exists()


def test_a_link_in_zarr_is_refused(tmp_path):
    pytest.importorskip("zarr")
    (tmp_path / "posterior.zarr").mkdir()
    (tmp_path / "posterior.zarr" / "beta").symlink_to(tmp_path)
    with pytest.raises(RunError, match="is a link"):
        load_tree(tmp_path / "posterior.zarr")


def test_what_is_not_there_is_said_to_be_so(tmp_path):
    with pytest.raises(RunError, match=r"There is no file or folder '.*nowhere'"):
        load(tmp_path / "nowhere")
    with pytest.raises(
        RunError, match=r"has no posterior\.nc: it is not a run folder, or its run is not finished"
    ):
        load(tmp_path)
