"""Programs that outlive their process: a second process of the same script compiles nothing anew."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from jax._src.lru_cache import LRUCache

import shardmc
from shardmc.errors import OptionError
from shardmc.programs.cache import cache_folder, keep_programs_of_command

SCRIPT = """
import sys
import jax, jax.monitoring, jax.numpy as jnp, numpy as np
import shardmc
import shardmc.programs.cache

# All programs count, however fast they were compiled: which ones would not depends on the machine's load.
shardmc.programs.cache.WORTH_KEEPING = 0
jax.jit(lambda x: x + 1)(1.0)  # JAX has already decided that there is no cache
folder = shardmc.keep_programs(*sys.argv[1:])
missed = []
jax.monitoring.register_event_listener(lambda event, **_: missed.append(event) if "cache_misses" in event else None)
rows = np.random.default_rng(0).normal(size=2_000).astype(np.float32)
model = shardmc.Model(lambda p, y: -0.5 * (y - p["mu"]) ** 2, lambda p: -0.5 * p["mu"] ** 2, {"mu": ()})
posterior = shardmc.fit(model, rows, shards=2, draws=50, precision="single")
print(folder, len(missed), posterior.theta.sum())
"""


def run(tmp_path, *arguments, **environment):
    chosen = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment = {**chosen, "XDG_CACHE_HOME": str(tmp_path / "cache"), **environment}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the folder of Windows is another")
def test_a_second_process_loads_what_the_first_compiled(tmp_path):
    folder, missed, draws = run(tmp_path)
    assert Path(folder).is_relative_to(tmp_path / "cache" / "shardmc")
    assert Path(folder).stat().st_mode & 0o777 == 0o700
    again, missed_again, same_draws = run(tmp_path)
    assert again == folder
    assert int(missed) > 0
    assert int(missed_again) == 0
    assert same_draws == draws
    chosen, _, _ = run(tmp_path, JAX_COMPILATION_CACHE_DIR=str(tmp_path / "chosen"))
    assert chosen == str(tmp_path / "chosen")


def test_the_folder_is_the_users(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder().is_relative_to(tmp_path / "shardmc")


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="the system has no owners of folders")
def test_a_folder_that_others_can_write_is_refused(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(OptionError, match="other users can write there"):
        shardmc.keep_programs(tmp_path / "open")


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="cannot keep programs"):
        shardmc.keep_programs(tmp_path / "file" / "folder")


def test_what_a_killed_process_left_half_written_is_removed(monkeypatch, tmp_path):
    """JAX keeps no program beside one that has no time of its use, and warns of every program."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    for name in ("JAX_COMPILATION_CACHE_MAX_SIZE", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"):
        monkeypatch.setenv(name, os.environ.get(name, "1"))  # so that they are restored
    folder = cache_folder()
    folder.mkdir(parents=True, mode=0o700)
    whole, half = folder / "jit_whole-1-cache", folder / "jit_half-2-cache"
    whole.write_bytes(b"program")
    (folder / "jit_whole-1-atime").write_bytes(bytes(8))
    half.write_bytes(b"prog")
    keep_programs_of_command()
    assert whole.exists()
    assert not half.exists()
    LRUCache(str(folder), max_size=1_000).put("jit_next-3", b"program")  # JAX's own: raised before
    assert (folder / "jit_next-3-cache").exists()


def test_a_size_is_positive(tmp_path):
    with pytest.raises(OptionError, match="positive number of GiB"):
        shardmc.keep_programs(tmp_path, size=0)
