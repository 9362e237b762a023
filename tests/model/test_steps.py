"""Traced programs without what their results do not need, and without calls of a few steps."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal, jaxpr_as_fun

import shardmc
from shardmc.model.shared import SharedDensity, split
from shardmc.model.steps import needed, run_open

ROWS = {"x": np.linspace(-1, 1, 100, dtype=np.float32)}


def names(program):
    return [step.primitive.name for step in program.eqns]


def opened(closed):
    """The program after its steps were run by `run_open`."""

    def run(*args):
        values = dict(zip(closed.jaxpr.invars, args, strict=True))
        for step in needed(closed.jaxpr):
            values.update(
                zip(
                    step.outvars,
                    run_open(step, [v.val if isinstance(v, Literal) else values[v] for v in step.invars]),
                    strict=True,
                )
            )
        return [values[v] for v in closed.jaxpr.outvars]

    return jax.make_jaxpr(run)(*closed.in_avals)


def test_steps_that_no_result_needs_are_left_out():
    def function(x):
        jnp.sum(jnp.sin(x))
        return jnp.cos(x)

    closed = jax.make_jaxpr(function)(np.ones(3))
    assert "sin" in names(closed.jaxpr)  # the control: JAX keeps them
    assert [step.primitive.name for step in needed(closed.jaxpr)] == ["cos"]


def test_a_step_with_an_effect_is_needed():
    def function(x):
        jax.debug.print("{}", x)
        return x + 1

    assert len(needed(jax.make_jaxpr(function)(1.0).jaxpr)) == 2


def test_calls_of_a_few_steps_are_opened_at_any_depth_and_others_are_not():
    @jax.jit
    def long(x):
        for _ in range(9):
            x = jnp.sin(x)
        return x

    @jax.jit
    def short(x, y):
        return jnp.where(x > y, long(x), y)

    closed = jax.make_jaxpr(lambda x, y: short(x, y))(np.float32(1), np.float32(2))
    result = opened(closed)
    assert names(closed.jaxpr) == ["jit"]
    assert sorted(names(result.jaxpr)) == ["gt", "jit", "select_n"]
    for point in (1.0, 3.0):
        assert jaxpr_as_fun(closed)(point, 2.0) == jaxpr_as_fun(result)(point, 2.0)


def test_a_call_on_a_device_of_its_own_stays():
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    placed, free = jax.jit(lambda x: x + 1, in_shardings=place), jax.jit(lambda x: x + 1)
    for function, found in ((placed, ["jit"]), (free, ["add"])):
        assert names(opened(jax.make_jaxpr(function)(np.float32(1))).jaxpr) == found


def test_arrays_and_numbers_that_no_result_needs_are_no_arguments_of_programs():
    def model(table, used):
        def log_prior(params):
            other = 3.0 * jnp.sum(jnp.asarray(table) * params["a"])
            return -0.5 * params["a"] ** 2 + (other if used else 0.0)

        return shardmc.Model(lambda params, rows: rows["x"] * params["a"], log_prior, {"a": ()})

    for used in (False, True):
        kind, ((single, arrays), _) = split(model(np.ones(5, np.float32), used), ROWS)
        assert isinstance(kind, SharedDensity)
        assert len(arrays) == used
        assert (3.0 in single) == used
