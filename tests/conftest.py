"""Settings that all tests share."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Read when NumPy and JAX are first imported, by this process and by those that tests start.
os.environ |= {
    # The workers of pytest-xdist use the cores already. More threads of BLAS would wait for each other.
    "OPENBLAS_NUM_THREADS": "1",
    # Equal programs are compiled once, whichever test, worker or run needs them.
    "JAX_COMPILATION_CACHE_DIR": str(Path(__file__).resolve().parents[1] / ".pytest_cache" / "jax"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    # Programs without the lines of Python that they come from are lowered a little faster.
    "JAX_INCLUDE_FULL_TRACEBACKS_IN_LOCATIONS": "0",
    "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",
    # No programs in the user's folder. None elsewhere either: tests replace parts of the package, and programs that
    # are loaded from files would not notice.
    "SHARDMC_PROGRAMS": "off",
    # No bars, even if the tests write to a terminal.
    "TTY_INTERACTIVE": "0",
}
# Most of a test's time is compilation, so compile fast. `XLA_FLAGS= pytest ...` compiles as users do. If a release of
# JAX drops one of these flags, XLA stops and names it.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
)

import jax
import jax.monitoring
import numpy as np

gc.set_threshold(200_000)  # with the usual 700, looking for garbage takes a tenth of the time


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The real data sets: where SHARDMC_DATA points, or ../shared/data from the project's root."""
    folder = Path(os.environ.get("SHARDMC_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"No real data: {folder} is not there, and SHARDMC_DATA does not point elsewhere.")
    return folder


@pytest.fixture
def command(tmp_path, monkeypatch, capfd) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command of shardmc in `tmp_path`, in this process: a process of its own would take seconds to start."""
    from shardmc.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["shardmc", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return subprocess.CompletedProcess(arguments, int(ended.value.code or 0), *capfd.readouterr())

    return run


@pytest.fixture(scope="session")
def exact_draws() -> Callable[..., np.ndarray]:
    """(log_density, start, count, seed) -> draws (count, dim) of a density with one mode, for references.

    Importance resampling from sixteen times as many draws of a Student t with the density's mode and curvature. It is
    a hundred times as fast as NUTS, and the draws are independent, but for one in sixteen that is there twice. The
    density takes points (point, dim).
    """
    from scipy import optimize, stats

    def draw(log_density: Callable[..., np.ndarray], start: np.ndarray, count: int, seed: int) -> np.ndarray:
        found = optimize.minimize(lambda x: -float(log_density(x[None])[0]), start, method="BFGS")
        mode, steps = found.x, 0.5 * np.sqrt(np.diag(found.hess_inv))
        corners = steps * np.eye(len(mode))
        signs = [(1, 1), (1, -1), (-1, 1), (-1, -1)]
        around = [mode + a * x + b * y for x in corners for y in corners for a, b in signs]
        values = log_density(np.array(around)).reshape(len(mode), len(mode), 4)
        curvature = -(values @ [1, -1, -1, 1]) / (4 * np.outer(steps, steps))
        proposal = stats.multivariate_t(mode, np.linalg.inv(curvature), df=8, seed=seed)
        points = proposal.rvs(16 * count)
        logs = log_density(points) - proposal.logpdf(points)
        share = np.exp(logs - logs.max())
        share /= share.sum()
        assert 1 / (share @ share) > 0.5 * len(share), "the proposal is too far from the density"
        return np.random.default_rng(seed).choice(points, count, p=share)

    return draw


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    """A list that grows with every program that XLA compiles or loads from a cache."""
    found: list[str] = []

    def listen(event: str, duration: float, **_: object) -> None:
        if event.endswith("backend_compile_duration"):
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.fixture(autouse=True, scope="session")
def _many_models() -> None:
    """Keep the programs of more models than a user alternates between: tests do, and share many of them."""
    from shardmc.engine.local import compiled_batch
    from shardmc.locate import gradient_sums, precision
    from shardmc.model.validation import _values

    for kept in (
        compiled_batch,
        precision._in_single,
        precision._in_double,
        gradient_sums._prior_gradients,
        _values,
    ):
        kept._most *= 4


MEASURED = {"contract", "formulas", "locate", "mixed", "model", "sample", "statistical"}
"""Folders whose fits choose their precision by measuring the noise of single precision, as those of users do, and their
sampler by comparing tails."""


@pytest.fixture(autouse=True, scope="module")
def _single_precision(request: pytest.FixtureRequest) -> Iterator[None]:
    """Elsewhere a fit without `precision=` is in single precision: the measurement takes a third of a new fit's time.

    Nor does it compare tails, which takes one more program. A module with `MEASURES_PRECISION` is an exception to what
    its folder does.
    """
    from shardmc.locate import precision
    from shardmc.sample import sampling

    if getattr(request.module, "MEASURES_PRECISION", request.path.parent.name in MEASURED):
        yield
        return
    asked = precision._asked
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(precision, "_asked", lambda wanted: asked("single" if wanted == "auto" else wanted))
        patch.setattr(sampling, "_probes", lambda blocks: False)
        yield


@pytest.fixture(autouse=True, scope="module")
def _few_programs() -> Iterator[None]:
    """Forget compiled programs before the process has as many memory maps as Linux allows, 65,530, and crashes."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 30_000:
        jax.clear_caches()
        gc.collect()
