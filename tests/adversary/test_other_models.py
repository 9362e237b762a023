"""Another model is never taken for the one of a run, however its prior was changed; the same model always is."""

from __future__ import annotations

import functools
import subprocess
import sys
import types
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import shardmc
from shardmc.errors import RunError
from shardmc.store.records import Manifest

from . import helper_module
from .helper_module import log_density

ROWS = {"x": np.ones((8, 2), np.float32), "y": np.arange(8, dtype=np.float32)}
SCALE = 2.0
SETTINGS = types.SimpleNamespace(scale=2.0)
LIBRARY = types.ModuleType("library")
LIBRARY.scale = 2.0  # pyright: ignore[reportAttributeAccessIssue]
exec("def log_density(x): return -0.5 * (x / scale) ** 2", LIBRARY.__dict__)


def model(log_prior, log_likelihood=None) -> shardmc.Model:
    def likelihood(params, rows):
        return -0.5 * (rows["y"] - rows["x"] @ params["b"]) ** 2

    return shardmc.Model(log_likelihood or likelihood, log_prior, {"b": 2, "sigma": "positive"})


def print_of(recipe, rows=ROWS) -> str:
    return recipe.bind(rows).fingerprint(rows)


class Prior:
    scale = 2.0

    def __call__(self, params):
        return self.density(params["b"]).sum()

    def density(self, x):
        return -0.5 * (x / self.scale) ** 2


class StaticPrior(Prior):
    @staticmethod
    def density(x):
        return -0.5 * (x / 2.0) ** 2


class SlottedPrior:
    __slots__ = ("scale",)

    def __init__(self) -> None:
        self.scale = 2.0

    def __call__(self, params):
        return -0.5 * jnp.sum((params["b"] / self.scale) ** 2)


slotted = SlottedPrior()


def _numpyro(x, y):
    b = numpyro.sample("b", dist.Normal(0, helper_module.SCALE).expand([2]))
    sigma = numpyro.sample("sigma", dist.Exponential(1))
    numpyro.sample("y", dist.Normal(x @ b, sigma), obs=y)


def _through(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


def _global_function(x):
    return -0.5 * (x / SCALE) ** 2


# Name -> a model, the object to alter, its attribute, and the new value.
WAYS: dict[str, tuple[Callable[[], shardmc.Model], object, str, object]] = {
    "global constant": (
        lambda: model(lambda p: -0.5 * jnp.sum((p["b"] / SCALE) ** 2)),
        sys.modules[__name__],
        "SCALE",
        3.0,
    ),
    "global function": (
        lambda: model(lambda p: jnp.sum(_global_function(p["b"]))),
        sys.modules[__name__],
        "_global_function",
        lambda x: -0.5 * (x / 3.0) ** 2,
    ),
    "constant of a module": (
        lambda: model(lambda p: -0.5 * jnp.sum((p["b"] / helper_module.SCALE) ** 2)),
        helper_module,
        "SCALE",
        3.0,
    ),
    "imported helper": (lambda: model(lambda p: jnp.sum(log_density(p["b"]))), helper_module, "SCALE", 3.0),
    "function of a module": (
        lambda: model(lambda p: jnp.sum(helper_module.log_density(p["b"]))),
        helper_module,
        "log_density",
        lambda x: -0.5 * (x / 3.0) ** 2,
    ),
    "module object": (lambda: model(lambda p: jnp.sum(LIBRARY.log_density(p["b"]))), LIBRARY, "scale", 3.0),
    "object": (lambda: model(lambda p: -(jnp.sum(p["b"] / SETTINGS.scale) ** 2)), SETTINGS, "scale", 3.0),
    "class attribute": (lambda: model(Prior()), Prior, "scale", 3.0),
    "method": (lambda: model(Prior()), Prior, "density", lambda self, x: -0.5 * (x / 3.0) ** 2),
    "static method": (
        lambda: model(StaticPrior()),
        StaticPrior,
        "density",
        staticmethod(lambda x: -0.5 * (x / 3.0) ** 2),
    ),
    "__slots__": (lambda: model(slotted), slotted, "scale", 3.0),
    "decorated": (lambda: model(_through(Prior())), Prior, "scale", 3.0),
    "numpyro": (lambda: shardmc.from_numpyro(_numpyro), helper_module, "SCALE", 3.0),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_prior_changed_in_any_way_is_another_model(way, monkeypatch):
    make, place, name, value = WAYS[way]
    before = print_of(make())
    assert print_of(make()) == before
    monkeypatch.setattr(place, name, value)
    changed = print_of(make())
    assert changed != before
    monkeypatch.undo()
    assert print_of(make()) == before


def test_likelihood_derived_quantities_parameters_and_columns_count():
    def plain(**options):
        return print_of(shardmc.Model(**{**base, **options}))

    def likelihood(params, rows):
        return -0.5 * (rows["y"] - params["mu"]) ** 2

    base = {"log_likelihood": likelihood, "log_prior": lambda p: -(p["mu"] ** 2), "parameters": {"mu": ()}}
    others = [
        {"log_likelihood": lambda p, rows: -0.25 * (rows["y"] - p["mu"]) ** 2},
        {"log_likelihood": lambda p, rows: -0.5 * (rows["x"][:, 0] - p["mu"]) ** 2},
        {"log_prior": None},
        {"parameters": {"mu": "positive"}},
        {"derived": lambda p: {"twice": 2 * p["mu"]}},
        {"derived": lambda p: {"thrice": 2 * p["mu"]}},
        {"derived": lambda p: {"thrice": 3 * p["mu"]}},
    ]
    assert len({plain(), *(plain(**other) for other in others)}) == 8


def test_the_same_computation_is_the_same_model():
    """The names of variables, the number of rows and their values do not count; nor does dead code."""
    first = model(lambda p: -0.5 * jnp.sum((p["b"] / 2.0) ** 2))
    second = model(lambda q: (jnp.sum(q["b"] + 1), -0.5 * jnp.sum((q["b"] / SCALE) ** 2))[1])
    fewer = {name: column[::3] + 1 for name, column in ROWS.items()}
    assert print_of(first) == print_of(second) == print_of(first, fewer)


def test_the_fingerprint_of_a_python_callback_follows_its_code():
    def through(factor):
        def outside(x):
            return np.asarray(factor * x, np.float32)

        def log_prior(params):
            shape = jax.ShapeDtypeStruct((2,), jnp.float32)
            return -jnp.sum(jax.pure_callback(outside, shape, params["b"]) ** 2)

        return print_of(model(log_prior))

    assert through(2.0) == through(2.0) != through(3.0)


STABLE = """
import numpy as np, jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist, pandas as pd
import shardmc
from shardmc.data import as_source
from shardmc.formulas.families import named_family
from shardmc.formulas.linear_model import model_of
from shardmc.formulas.preparing import prepare

names = {"a", "b", "c", "d"}
constants = np.arange(3.0)

def plain(params, rows):
    total = sum(jax.nn.log_sigmoid(rows["x"][:, 0] * params[name]) for name in sorted(names))
    return total + jax.scipy.special.betaln(params["a"], 2.0) + constants.sum()

def hierarchy(x, y):
    r = numpyro.sample("r", dist.LKJCholesky(3, 2.0))
    s = numpyro.sample("s", dist.Dirichlet(jnp.ones(3)))
    numpyro.sample("y", dist.StudentT(4, x @ s[:2] + r[1, 0], 1.0), obs=y)

rows = {"x": np.ones((8, 2), np.float32), "y": np.arange(8, dtype=np.float32)}
model = shardmc.Model(plain, None, {name: "positive" for name in sorted(names)})
print(model.fingerprint(rows))
print(shardmc.from_numpyro(hierarchy).bind(rows).fingerprint(rows))
rng = np.random.default_rng(0)
table = pd.DataFrame({"x": rng.normal(size=400), "g": rng.choice(list("abcde"), 400), "y": rng.poisson(2.0, 400)})
import pymc as pm
with pm.Model() as regression:
    x, y = pm.Data("x", np.ones((6, 2))), pm.Data("y", np.ones(6))
    weights = pm.Dirichlet("weights", np.ones(2))
    pm.Normal("response", x @ weights, pm.HalfNormal("sigma", 1), observed=y)
bound = shardmc.from_pymc(regression, ["x", "y"]).bind(rows)
print(bound.fingerprint(rows))
# PyMC's compiler for JAX must not have changed JAX's precision or devices.
state = jax.config.jax_enable_x64, bound.log_prior(bound.initial).dtype, len(jax.devices())
assert str(state) == "(False, dtype('float32'), 1)", state
nothing = {"offset": None, "exposure": None, "trials": None, "drop_missing": False}
for formula in ("y ~ x + C(g)", "y ~ x + (1 | g)"):
    found = prepare(formula, as_source(table), named_family("poisson"), None, **nothing)
    print(model_of(found).fingerprint(found.source.row_shapes()))
"""


@pytest.mark.slow
def test_fingerprints_are_the_same_in_every_session(monkeypatch, capsys):
    exec(STABLE, {"__name__": "here"})
    here = capsys.readouterr().out
    monkeypatch.setenv("PYTHONHASHSEED", "12345")
    there = subprocess.run([sys.executable, "-c", STABLE], capture_output=True, check=True, text=True).stdout
    assert there == here
    assert len(set(here.split())) == 5


def test_constants_keep_their_type_after_a_fingerprint():
    """The model is traced in double precision, and still computes in single precision afterwards."""
    steps = np.linspace(0.0, 1.0, 8)
    made = shardmc.Model(lambda p, rows: steps[: rows["y"].shape[0]] * p["mu"], None, {"mu": ()})
    print_of(made)
    program = jax.jit(made.log_likelihood)
    assert program(made.initial, ROWS).dtype == jnp.float32
    print_of(made)
    assert jax.jit(lambda t, r: made.log_likelihood(t, r))(made.initial, ROWS).dtype == jnp.float32


@pytest.mark.slow
def test_a_changed_prior_is_reported_as_a_changed_prior(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    table = {"x": rng.normal(size=400), "y": rng.normal(size=400)}
    few = {"shards": 2, "draws": 40, "check": False, "sampler": "independence"}
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    own = shardmc.Model(
        lambda p, rows: -0.5 * (rows["y"] - p["b"] * rows["x"]) ** 2,
        lambda p: -0.5 * (p["b"] / SCALE) ** 2,
        {"b": ()},
    )
    shardmc.fit(own, table, run_dir=tmp_path / "own", **few)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    with pytest.raises(RunError, match=r"another run: its model or priors are different\. Use"):
        shardmc.fit(own, table, run_dir=tmp_path / "own", **few)
    shardmc.glm("y ~ x", table, run_dir=tmp_path / "glm", **few)
    with pytest.raises(RunError, match=r"another run: its model or priors are different\. Use"):
        shardmc.glm("y ~ x", table, priors={"x": "normal(0, 1)"}, run_dir=tmp_path / "glm", **few)


def test_another_version_is_named_where_the_model_differs():
    there = Manifest({"shards": 1}, data="a", model="b", versions={"jax": "0.1"})
    here = Manifest({"shards": 1}, data="a", model="c", versions={"jax": "0.2"})
    assert there.differences(here) == [
        "its model or priors are different, or computed differently by other versions (jax 0.1 there, 0.2 here)"
    ]


def test_a_gibbs_sampler_that_computes_something_else_is_another_run(monkeypatch):
    """Its steps contain the prior, so they count like the model."""

    def step(key, state, y, weights):
        precision = weights.sum() + 1 / helper_module.SCALE**2
        mean = weights @ y / precision
        return {"mu": mean + jax.random.normal(key) / jnp.sqrt(precision), "sweeps": state["sweeps"] + SCALE}

    def content(observed="mu"):
        gibbs = shardmc.Gibbs(
            step,
            lambda key, y, weights: {"mu": weights @ y / weights.sum(), "sweeps": 0.0},
            lambda state: {"mu": state[observed]},
        )
        return gibbs.content(jax.ShapeDtypeStruct((1,), np.float32))

    before = content()
    assert content() == before != content("sweeps")
    monkeypatch.setattr(helper_module, "SCALE", 3.0)
    assert content() != before
    monkeypatch.undo()
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert content() != before, "what is not observed counts too"


def test_other_weights_are_reported_as_such():
    there = Manifest({"shards": 1, "content": "1"}, data="a", model="b")
    here = Manifest({"shards": 1, "content": "2"}, data="a", model="b")
    assert there.differences(here) == [
        "its row weights, its strata or the functions of its sampler are different"
    ]
