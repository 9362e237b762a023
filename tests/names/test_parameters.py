"""Parameters of any name are fitted, saved, loaded, shown and reported under that name."""

import re

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from rich.console import Console

import shardmc
from shardmc.cli.console import show_posterior
from shardmc.errors import ModelError, OptionError
from shardmc.names import clash, shown, stored

CONTROL = [chr(code) for code in (*range(32), 0x7F, *range(0x80, 0xA0), 0x202E)]


@pytest.fixture(scope="module")
def fitted(hostile_parameters):
    """A model with all hostile names at once, and the same model with innocent ones."""
    rows = np.random.default_rng(0).normal(size=(400, len(hostile_parameters) + 1)).astype(np.float32)

    def fit(names):
        shapes = {
            name: 2 if place == hostile_parameters.index("v") else () for place, name in enumerate(names)
        }

        def log_likelihood(p, rows):
            theta = jnp.concatenate([jnp.ravel(p[name]) for name in names])
            return -0.5 * jnp.sum((rows - theta) ** 2, axis=1)

        return shardmc.fit(
            shardmc.Model(log_likelihood, None, shapes), rows, shards=2, draws=100, precision="single"
        )

    return fit(hostile_parameters), fit([f"p{k}" for k in range(len(hostile_parameters))])


@pytest.mark.slow
def test_draws_are_those_of_innocent_names(fitted, hostile_parameters):
    posterior, innocent = fitted
    assert list(posterior.draws) == hostile_parameters
    for (name, here), there in zip(posterior.draws.items(), innocent.draws.values(), strict=True):
        np.testing.assert_array_equal(here, there, err_msg=repr(name))
    assert not np.array_equal(posterior.draws["a/b"], posterior.draws["a÷b"])


@pytest.mark.slow
def test_names_come_back_from_a_file(fitted, tmp_path):
    posterior, _ = fitted
    again = shardmc.load(posterior.save(tmp_path / "posterior.nc"))
    assert again.names == posterior.names
    assert set(again.draws) == set(posterior.draws)
    for name, values in posterior.draws.items():
        np.testing.assert_array_equal(again.draws[name], values, err_msg=repr(name))
    assert again.certificate.names == posterior.certificate.names
    read = shardmc.combine([str(tmp_path / "posterior.nc")] * 2, "recenter")
    assert set(read.draws) == set(posterior.draws)
    back = shardmc.combine([str(read.save(tmp_path / f"{k}.nc")) for k in range(2)], "recenter")
    assert set(back.draws) == set(posterior.draws)


@pytest.mark.slow
def test_every_name_has_its_own_row_and_certificate(fitted):
    posterior, innocent = fitted
    summary, expected = posterior.summary(), innocent.summary()
    assert summary.index.is_unique
    np.testing.assert_array_equal(summary.to_numpy(), expected.to_numpy())
    assert np.isfinite(summary["mean_error"]).all()


@pytest.mark.slow
def test_no_control_character_reaches_the_terminal(fitted):
    posterior, _ = fitted
    console = Console(width=200, record=False, force_terminal=False)
    with console.capture() as captured:
        show_posterior(console, posterior)
    text = captured.get()
    assert not [c for c in CONTROL if c in text and c != "\n"]
    assert "\\x1b[31m" in text
    assert "\\x0b" in text
    assert "\x1b" not in repr(posterior)


@pytest.mark.slow
def test_the_report_shows_every_name(fitted, tmp_path):
    posterior, _ = fitted
    page = posterior.report(tmp_path / "report.html").read_text("utf-8")
    assert not [c for c in CONTROL if c in page and c not in "\t\n\r"]
    assert all(name in page for name in ("a/b", "a÷b", "\\x1b[31m"))
    assert "\x1b" not in posterior._repr_html_()


def original(name: str) -> str:
    """The name that `stored` made into this one, unless it was very long."""
    if name == stored(""):
        return ""
    escaped = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
    return escaped.sub(lambda m: bytes.fromhex(m[0].replace("%", "")).decode("utf-8", "surrogatepass"), name)


def test_escapes_are_injective():
    rng = np.random.default_rng(0)
    parts = [
        "a",
        "%",
        "2",
        "F",
        "/",
        "÷",
        " ",
        ".",
        "\0",
        "\x1b",
        "\\",
        "x",
        "b",
        "é",
        "\u0301",
        "~",
        "7",
        "E",
    ]
    parts += ["chain", "_dim_0", "_dim", "\ud800", "\u202e", "zarr.json", "\u1100", "\u1161"]
    names = {"".join(rng.choice(parts, size=size)) for size in rng.integers(0, 6, size=20_000)}
    assert len({stored(name) for name in names}) == len({shown(name) for name in names}) == len(names)
    assert all(original(stored(name)) == name for name in names)
    long = [f"{k}" + "x" * 300 for k in range(50)] + ["x" * 300 + f"{k}" for k in range(50)]
    assert len({stored(name) for name in long}) == len(long)
    assert max(len(stored(name).encode()) for name in long) <= 255
    # The control: the replacement of slashes that files once had is not.
    assert len({name.replace("/", "÷") for name in names}) < len(names)


def normal(parameters, derived=None):
    return shardmc.Model(
        lambda p, rows: sum(-0.5 * (rows - jnp.sum(value)) ** 2 for value in p.values()),
        None,
        parameters,
        derived=derived,
    )


ALIKE = "cannot be told apart: both have an entry called 'a\\[0\\]'. Rename one"


def test_a_number_named_like_an_entry_is_refused():
    with pytest.raises(ModelError, match=ALIKE):
        normal({"a": 2, "a[0]": ()})
    rows = np.zeros(40, np.float32)
    with pytest.raises(ModelError, match=ALIKE):
        shardmc.fit(normal({"a": 2}, derived=lambda p: {"a[0]": p["a"][1]}), rows)
    with pytest.raises(ModelError, match=ALIKE):
        shardmc.fit(normal({"a[0]": ()}, derived=lambda p: {"a": jnp.zeros(2)}), rows)
    with pytest.raises(OptionError, match=ALIKE):
        shardmc.combine([{"a": np.zeros((5, 2)), "a[0]": np.zeros(5)}] * 2)
    assert normal({"a": 2, "a[2]": (), "a[0]b": (), "a[00]": ()}).dim == 5  # names of no entry
    assert clash({"a": (2,), "a[0]": (2,), "a[0][0]": ()}) == ("a[0]", "a[0][0]")


@pytest.mark.slow
def test_a_numpyro_model_with_hostile_names(tmp_path):
    y = np.random.default_rng(0).normal(size=400).astype(np.float32)

    def fit(first, second):
        def model(y):
            mean = numpyro.sample(first, dist.Normal(0, 5)) + 2 * numpyro.sample(second, dist.Normal(0, 1))
            numpyro.sample("y", dist.Normal(mean, 1), obs=y)

        return shardmc.fit(
            shardmc.from_numpyro(model), {"y": y}, shards=2, draws=60, check=False, precision="single"
        )

    posterior, innocent = fit("chain", "a/\x1b"), fit("p", "q")
    again = shardmc.load(posterior.save(tmp_path / "posterior.nc"))
    np.testing.assert_array_equal(again.draws["chain"], innocent.draws["p"])
    np.testing.assert_array_equal(again.draws["a/\x1b"], innocent.draws["q"])

    def alike(y):
        numpyro.sample(
            "y", dist.Normal(jnp.sum(numpyro.sample("a", dist.Normal(0, 1).expand([2]))), 1), obs=y
        )
        numpyro.sample("a[0]", dist.Normal(0, 1))

    with pytest.raises(ModelError, match=ALIKE):
        shardmc.fit(shardmc.from_numpyro(alike), {"y": y})


@pytest.mark.slow
def test_a_pymc_model_with_hostile_names(tmp_path):
    pm = pytest.importorskip("pymc")
    values = np.random.default_rng(0).normal(size=400)

    def fit(name, column, observed):
        with pm.Model() as model:
            data = pm.Data(column, values)
            pm.Normal(observed, pm.Normal(name, 0, 5), 1, observed=data)
        return shardmc.fit(
            shardmc.from_pymc(model, rows=[column]),
            {column: values},
            shards=2,
            draws=60,
            check=False,
            precision="single",
        )

    # PyMC itself calls variables "..._observed" where observations are missing; here none are.
    expected = fit("p", "rows", "y").draws["p"]
    for name, column, observed in (("draw", "row number", "draw_observed"), ("a\x0b", "row weights", "y")):
        posterior = fit(name, column, observed)
        again = shardmc.load(posterior.save(tmp_path / "posterior.nc"))
        np.testing.assert_array_equal(again.draws[name], expected)
