"""Settings that all tests share."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

# Equal programs of different tests are compiled once.
jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parent.parent / ".pytest_cache" / "jax"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The real data sets: where SHARDMC_DATA points, or ../shared/data from the project's root."""
    folder = Path(os.environ.get("SHARDMC_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"No real data: {folder} is not there, and SHARDMC_DATA does not point elsewhere.")
    return folder


@pytest.fixture(autouse=True, scope="module")
def _few_programs() -> Iterator[None]:
    """Forget compiled programs before the process has as many memory maps as Linux allows, 65,530, and crashes."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 15_000:
        jax.clear_caches()
        gc.collect()
