"""Files and texts of somebody else: what leads out of them, or would run for ever, is refused in one sentence."""

import gzip
import os
import shutil
import socket
import zipfile
from dataclasses import replace

import h5py
import numpy as np
import pandas as pd
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
    shardmc.fit(mean_model(), y, shards=2, draws=200, check=False, precision="single").save(
        folder / "posterior.nc"
    )
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


# Formulas that grow.

ROWS = {name: np.random.default_rng(k).normal(size=300) for k, name in enumerate("yabcdx")}


@pytest.mark.parametrize(
    "formula",
    [
        "y ~ (a + b + c + d)**50",
        "y ~ ((((a + b)**9)**9)**9)**9",
        "y ~ (a + b)**99999999999",
        "y ~ " + " * ".join(["(a + b + c + d)"] * 12),
        "y ~ (a + b + c + d + x)**3:(a + b + c + d + x)**3",
        "y ~ " + " - ".join(["(a + b + c + d)**5"] * 9),
        "y ~ x + ((a + b + c + d)**50 | a)",
    ],
)
def test_formulas_that_expand_to_many_terms_are_refused(formula):
    with pytest.raises(ShardmcError, match=r"terms.*the limit is 5,000.*--limit terms="):
        shardmc.glm(formula, ROWS)


def test_the_limit_of_terms_can_be_raised_and_honest_formulas_are_below():
    from shardmc.formulas.formula import Formula

    assert len(Formula.parse("y ~ (a + b + c + d)**4", list("yabcdx")).predictors) == 16
    text = "y ~ (a + b + c + d)**4"
    with shardmc.limits(terms=10), pytest.raises(ShardmcError, match="limit is 10"):
        Formula.parse(text, list("yabcdx"))
    wide = [f"x{k}" for k in range(30)]
    assert len(Formula.parse("y ~ .**2", ["y", *wide]).predictors) == 1 + 30 + 30 * 29 // 2
    with pytest.raises(ShardmcError, match="--limit terms="):
        Formula.parse("y ~ .**2", ["y", *(f"x{k}" for k in range(100))])


@pytest.mark.parametrize(
    ("formula", "reason"),
    [
        ("y ~ I(((((9**64)**64)**64)**64)**64)", "exponents"),
        ("y ~ I((x**9)**9)", "exponents"),
        ("y ~ I(((9**64) * 1)**64)", "exponents"),
        ("y ~ I(x + (1 << 10000000000))", "arithmetic"),
        ("y ~ I(x @ x)", "arithmetic"),
        ("y ~ I(x == 'a' * 1000000000)", "text"),
        ("y ~ I(x == '%999999999d' % 5)", "text"),
        ("y ~ I(x == ([1] * 1000000000))", "text"),
    ],
)
def test_expressions_that_explode_are_refused(formula, reason):
    with pytest.raises(ShardmcError, match=rf"is not allowed: .*{reason}"):
        shardmc.glm(formula, ROWS)


@pytest.mark.parametrize(
    "term",
    [
        "poly(x, 100000)",
        "poly(x, degree=100000)",
        "bs(x, df=100000)",
        "cr(x, 5000)",
        "bs(x, degree=900, df=5)",
    ],
)
def test_bases_with_many_columns_are_refused(term):
    with pytest.raises(ShardmcError, match=r"columns; the limit is 200.*--limit basis="):
        shardmc.glm(f"y ~ {term}", ROWS)


def test_bounds_of_splines_are_not_columns():
    from shardmc.formulas.expression import parse_expression

    assert parse_expression("bs(x, df=5, lower_bound=0, upper_bound=100000)").transforms


def test_products_of_many_levels_are_refused_before_they_are_computed():
    rng = np.random.default_rng(0)
    levels = np.array([f"l{k}" for k in range(60)])
    table = {"y": rng.normal(size=9_000), "g": rng.choice(levels, 9_000), "h": rng.choice(levels, 9_000)}
    with pytest.raises(ShardmcError, match=r"columns; the limit is 2,000.*--limit coefficients="):
        shardmc.glm("y ~ g:h", table)


# Tables that are wide, or that unpack.


def test_wide_tables_are_refused_before_they_are_read(tmp_path):
    names = [f"x{k}" for k in range(101)]
    csv, parquet = tmp_path / "wide.csv", tmp_path / "wide.parquet"
    csv.write_text(",".join(names) + "\n" + ",".join("1" * 101) + "\n")
    table = pd.DataFrame(np.ones((3, 101)), columns=names)
    table.to_parquet(parquet)
    for data in (csv, parquet, table, dict(table)):
        with (
            shardmc.limits(columns=100),
            pytest.raises(ShardmcError, match=r"101 columns; the limit is 100.*--limit columns=101"),
        ):
            shardmc.glm("x0 ~ x1", data)
    with shardmc.limits(columns=101):
        from shardmc.data import as_source

        assert len(as_source(csv).column_names) == 101


def test_a_hundred_thousand_columns_are_refused(tmp_path):
    csv = tmp_path / "wide.csv"
    with csv.open("w") as file:
        for _ in range(2):
            file.write(",".join(["1"] * 100_000) + "\n")
    with pytest.raises(ShardmcError, match="100,000 columns"):
        shardmc.glm("y ~ x", csv)


def test_many_columns_cost_no_more_than_their_number():
    """The schema of a table was looked up for every column: 10^6 times for 1,000 columns."""
    import narwhals as nw

    from shardmc.data.table import FrameReader

    calls = 0

    class Counting(nw.DataFrame):
        @property
        def schema(self):
            nonlocal calls
            calls += 1
            return super().schema

    frame = nw.from_native(pd.DataFrame(np.ones((3, 50)), columns=[f"x{k}" for k in range(50)]))
    counting = Counting(frame._compliant_frame, level="full")
    FrameReader(counting)
    assert calls <= 2


def test_rows_that_unpack_to_hundreds_of_times_their_size_are_refused(tmp_path):
    path = tmp_path / "rows.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write("y,x\n")
        for _ in range(80):
            file.write("0,0\n" * 250_000)
    assert path.stat().st_size < 200_000
    with pytest.raises(ShardmcError, match=r"rows\.csv.* unpacks to .*--limit unpacking="):
        shardmc.glm("y ~ x", path)


@pytest.mark.parametrize("packing", ["gz", "zip"])
@pytest.mark.slow
def test_draws_that_unpack_to_hundreds_of_times_their_size_are_refused(tmp_path, packing):
    path = tmp_path / f"draws.csv.{packing}"
    content = b"a,b\n" + b"0,0\n" * 20_000_000
    if packing == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("draws.csv", content)
    else:
        path.write_bytes(gzip.compress(content))
    with pytest.raises(ShardmcError, match=r"draws\.csv.* unpacks to .*--limit unpacking="):
        shardmc.combine([path, path])


@pytest.mark.parametrize("packing", ["gz", "bz2", "xz", "zip"])
def test_honest_packed_draws_are_read(tmp_path, packing):
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(100, 2)), columns=["a", "b"])
    path = tmp_path / f"draws.csv.{packing}"
    table.to_csv(path, index=False)
    assert shardmc.combine([path, path]).values.shape[1] == 2


def test_a_pipe_called_csv_is_not_waited_for(good, tmp_path):
    pipe = tmp_path / "rows.csv"
    os.mkfifo(pipe)
    with pytest.raises(ShardmcError, match=r"rows\.csv"):
        shardmc.glm("y ~ x", pipe)
    with pytest.raises(ShardmcError, match=r"rows\.csv"):
        shardmc.combine([pipe, pipe])


# Escape sequences.

HOSTILE = "ok\x1b[2J\x07\u202e"


@pytest.fixture(scope="module")
def hostile():
    rng = np.random.default_rng(0)
    table = {
        "y": rng.normal(size=400),
        "g": rng.choice(["a", HOSTILE], 400),
        "clinic": rng.choice([f"{HOSTILE}{k}" for k in range(10)], 400),
    }
    return shardmc.glm("y ~ g + (1 | clinic)", table, draws=60, shards=1, check=False, precision="single")


def is_plain(text):
    return not any(c in text for c in HOSTILE[2:] if not c.isprintable())


@pytest.mark.slow
def test_nothing_that_is_printed_holds_an_escape_sequence(hostile):
    assert any(HOSTILE in name for name in hostile.draws)
    for shown in (hostile, hostile.summary(), hostile.effects(), hostile.notes, hostile.findings):
        assert is_plain(str(shown))
        assert is_plain(repr(shown))
    assert is_plain(hostile._repr_html_())
    assert any("\\x1b" in name for name in hostile.summary().index)


def test_a_certificate_shows_names_without_escape_sequences():
    y = np.random.default_rng(0).normal(3.0, 1.0, size=1_000).astype(np.float32)
    certificate = shardmc.fit(mean_model(), y, shards=1, draws=60).certificate
    assert certificate is not None
    assert is_plain(repr(replace(certificate, sentence=f"The mean of {HOSTILE} is off.")))


def test_messages_hold_no_escape_sequence(hostile):
    from shardmc.errors import DataError

    assert is_plain(str(DataError(f"Column {HOSTILE} is empty.")))
    with pytest.raises(ShardmcError) as caught:
        hostile.predict({"g": [f"new{HOSTILE}"], "clinic": ["x"]})
    assert is_plain(str(caught.value))


def test_the_command_line_prints_no_escape_sequence(hostile, tmp_path):
    from typer.testing import CliRunner

    from shardmc.cli.app import app

    hostile.save(tmp_path / "posterior.nc")
    out = tmp_path / f"page{HOSTILE[2:5]}.html"
    written = CliRunner().invoke(app, ["report", str(tmp_path / "posterior.nc"), "--out", str(out)])
    assert written.exit_code == 0
    assert is_plain(written.output)
