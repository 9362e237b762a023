"""Ctrl-C ends a fit at once, also while a compiled program runs, and a forked process says why it cannot compute."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="Signals and forks are POSIX's.")

ROOT = Path(__file__).resolve().parents[2]

ENDLESS = """
import jax, jax.numpy as jnp, numpy as np
import shardmc

MU = {"mu": ()}


def draw(key, rows, weights, power):
    # Draws of one shard take minutes, in one compiled program.
    mu = jax.lax.fori_loop(0, 2_000_000_000, lambda i, v: jnp.cos(v), jnp.sum(rows))

    return {"mu": mu + jax.random.normal(key)}


def started(stage, done, total):
    print(stage, flush=True)


model = shardmc.Model(lambda params, rows: -0.5 * (rows - params["mu"]) ** 2, None, MU)
rows = np.random.default_rng(0).normal(size=400).astype(np.float32)
try:
    shardmc.fit(model, rows, shards=2, draws=20, sampler=shardmc.Exact(draw), progress=started)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
"""


def start(script: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.Popen(
        [sys.executable, "-c", script],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def sampling():
    """A process that is in the middle of sampling, inside a program that takes minutes."""
    child = start(ENDLESS)
    assert child.stdout is not None
    for line in child.stdout:
        if line == "sample\n":
            break
    time.sleep(1)  # until the program is compiled and runs
    yield child
    child.kill()
    child.communicate()


@pytest.mark.slow
def test_an_interruption_does_not_wait_for_a_compiled_program(sampling):
    sampling.send_signal(signal.SIGINT)
    shown, errors = sampling.communicate(timeout=20)  # the program itself would take minutes
    assert shown.splitlines()[-1] == "interrupted"
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    assert sampling.returncode == -signal.SIGINT


FORK = """
import os
import numpy as np
import shardmc

model = shardmc.Model(lambda params, rows: -0.5 * (rows - params["mu"]) ** 2, None, {"mu": ()})
rows = np.random.default_rng(0).normal(size=400).astype(np.float32)


def fit():
    return shardmc.fit(model, rows, shards=2, draws=20)


if os.fork() == 0:  # before the first fit
    fit()
    os._exit(0)
_, first = os.wait()
fit()
if os.fork() == 0:
    try:
        fit()
    except shardmc.ShardmcError as error:
        print(error, flush=True)
    os._exit(0)
_, second = os.wait()
print(first, second)
"""


@pytest.mark.slow
def test_a_fork_after_a_fit_is_refused_in_a_sentence():
    child = start(FORK)
    try:
        shown, errors = child.communicate(timeout=60)
    finally:
        child.kill()
    refusal, codes = shown.splitlines()
    assert refusal.startswith("This process was forked from one that had already computed")
    assert "'spawn'" in refusal
    assert codes == "0 0", errors
