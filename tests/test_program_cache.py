"""Programs that outlive their process: the next one neither traces nor compiles them, and computes the same."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import shardmc
from shardmc.engine.local import compiled_batch
from shardmc.errors import OptionError
from shardmc.locate import gradient_sums, precision
from shardmc.model import shared, traced
from shardmc.model.validation import _values
from shardmc.programs import cache, compiled, kept
from shardmc.programs.cache import cache_folder

ROWS = np.random.default_rng(0).normal(size=2_000).astype(np.float32)


PROGRAMS = (
    compiled_batch,
    precision._in_single,
    precision._in_double,
    gradient_sums._prior_gradients,
    _values,
)


def forget():
    """Forget the programs of this process, as a new process has none."""
    for programs in PROGRAMS:
        programs._programs.clear()


def with_cache_of_jax(used):
    jax.config.update("jax_enable_compilation_cache", used)
    compilation_cache.reset_cache()  # JAX decides at its first program whether it is used


@contextmanager
def keeping(path: Path) -> Iterator[Path]:
    """Like a new process that keeps its programs in a folder. Afterwards other tests find theirs again."""
    others, chosen = [programs._programs.copy() for programs in PROGRAMS], cache._chosen
    forget()
    with_cache_of_jax(False)
    yield shardmc.keep_programs(path)
    with_cache_of_jax(True)
    cache._chosen = chosen
    for programs, before in zip(PROGRAMS, others, strict=True):
        programs._programs.clear()
        programs._programs.update(before)


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """The draws of the usual fit, and the folder in which it kept its programs."""
    with keeping(tmp_path_factory.mktemp("usual") / "programs") as path:
        return fitted(), path


@pytest.fixture
def folder(tmp_path):
    with keeping(tmp_path / "programs") as path:
        yield path


@pytest.fixture
def filled(usual, tmp_path):
    """A folder with the programs of the usual fit, in a process that has none of them."""
    shutil.copytree(usual[1], tmp_path / "programs")
    with keeping(tmp_path / "programs") as path:
        yield path


helper = SimpleNamespace(square=lambda x: x**2)


def model(scale=1.0, prior=1.0):
    return shardmc.Model(
        lambda p, y: -0.5 * helper.square((y - p["mu"]) * jnp.exp(-p["mu"] * 0)) / scale,
        lambda p: -0.5 * (p["mu"] / prior) ** 2,
        {"mu": ()},
    )


def fitted(made=None, **options):
    made = model() if made is None else made
    options = {"shards": 2, "draws": 50, "precision": "single", "check": False, **options}
    return shardmc.fit(made, ROWS, **options).theta


def without_folder(*args, **options):
    chosen, cache._chosen = cache._chosen, None
    forget()
    try:
        return fitted(*args, **options)
    finally:
        cache._chosen = chosen
        forget()


def test_what_was_kept_is_not_compiled_again_and_gives_the_same_draws(usual, filled, compilations):
    np.testing.assert_array_equal(fitted(), usual[0])
    assert not compilations


def test_without_what_was_kept_it_is_compiled(usual, folder, compilations):
    np.testing.assert_array_equal(fitted(), usual[0])
    assert compilations


SCRIPT = """
import hashlib, jax, jax.monitoring, numpy as np
import shardmc
events = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, duration, **info: events.append((event, info.get("fun_name")))
)
rows = np.random.default_rng(0).normal(size=2_000).astype(np.float32)
model = shardmc.Model(lambda p, y: -0.5 * (y - p["mu"]) ** 2, lambda p: -0.5 * p["mu"] ** 2, {"mu": ()})
few = {"shards": 2, "draws": 50, "precision": "single", "check": False}
draws = shardmc.fit(model, rows, **few).theta.tobytes()
compiled = sum("backend_compile" in event for event, _ in events)
traced = sum("trace" in event and name in ("compiled_batch", "_values") for event, name in events)
# Reading a formula compiles programs of a line or two, which are not kept. The others are.
draws += shardmc.glm("y ~ x", {"x": rows[::-1], "y": rows + rows[::-1]}, **few).theta.tobytes()
print(compiled, traced, hashlib.sha256(draws).hexdigest())
"""


def start(tmp_path):
    chosen = {
        name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "SHARDMC_PROGRAMS"))
    }
    environment = {**chosen, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-c", SCRIPT]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process):
    out, error = process.communicate()
    assert process.returncode == 0, error
    compiled, traced, draws = out.split()
    return int(compiled), int(traced), draws


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the folder of Windows is another")
def test_a_second_process_traces_and_compiles_nothing(tmp_path):
    two = [start(tmp_path) for _ in range(2)]  # at the same time
    compiled, traced, draws = finish(two[0])
    assert finish(two[1])[2] == draws
    assert compiled > 0
    assert traced > 0
    (where,) = (tmp_path / "cache" / "shardmc").iterdir()
    before = {path.name: path.stat().st_ino for path in where.glob("*.program")}
    assert finish(start(tmp_path)) == (0, 0, draws)
    # A program that is compiled again is written again.
    assert {path.name: path.stat().st_ino for path in where.glob("*.program")} == before
    assert where.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "other",
    [
        lambda: fitted(model(scale=2.0)),
        lambda: fitted(model(prior=0.01)),
        lambda: fitted(sampler=shardmc.HMC(trajectory=1.0)),
        lambda: fitted(precision="double"),
    ],
    ids=["constant", "prior", "option", "double"],
)
@pytest.mark.slow
def test_another_fit_is_right(usual, filled, other):
    found = other()
    chosen, cache._chosen = cache._chosen, None
    forget()
    np.testing.assert_array_equal(found, other())
    cache._chosen = chosen
    assert not np.array_equal(found, usual[0])


@pytest.mark.slow
def test_another_helper_that_the_model_calls_is_right(usual, filled, monkeypatch):
    monkeypatch.setattr(helper, "square", lambda x: 1.5 * x**2)
    found = fitted()
    np.testing.assert_array_equal(found, without_folder())
    assert not np.array_equal(found, usual[0])


@pytest.mark.slow
def test_negative_control_a_key_without_what_the_model_computes_is_wrong(folder, monkeypatch):
    """What the tests above would find: without the traced form in the key, the wrong program is loaded."""
    monkeypatch.setattr(shared.SharedFunction, "kept_form", lambda self, args: "")
    usual = fitted()
    forget()
    monkeypatch.setattr(helper, "square", lambda x: 1.5 * x**2)
    np.testing.assert_array_equal(fitted(), usual)


@pytest.mark.slow
def test_a_function_that_depends_on_the_number_of_rows_is_right(folder):
    """For a few rows both models have the same program."""

    def made(factor):
        def log_likelihood(p, y):
            return -0.5 * (y - p["mu"]) ** 2 * (factor if y.shape[0] > 500 else 1.0)

        return shardmc.Model(log_likelihood, None, {"mu": ()})

    fitted(made(1.0))
    forget()
    np.testing.assert_array_equal(fitted(made(4.0)), without_folder(made(4.0)))


def with_derivative(factor):
    @jax.custom_jvp
    def half_square(x):
        return 0.5 * x**2

    half_square.defjvp(lambda point, direction: (half_square(*point), factor * point[0] * direction[0]))
    return half_square


def with_partial_derivatives(factor):
    half_square = jax.custom_jvp(lambda x: 0.5 * x**2)
    half_square.defjvps(lambda direction, _, x: factor * x * direction)
    return half_square


@pytest.mark.parametrize("with_derivative", [with_derivative, with_partial_derivatives])
def test_the_rule_of_a_derivative_is_part_of_the_key(with_derivative):
    x = np.zeros((), np.float32)

    def key(factor):
        half_square = with_derivative(factor)
        return traced.exact_hash(jax.make_jaxpr(half_square)(x), 0, 3)

    one, same, other = map(key, (1.0, 1.0, 2.0))
    assert one == same
    assert one != other


def test_derivatives_of_functions_of_jax_are_known_by_name(monkeypatch):
    """They need not be traced, but two functions of equal values have different keys."""
    monkeypatch.setattr(jax, "jvp", None)
    x = np.zeros(3, np.float32)
    assert "_logaddexp_jvp" in traced.exact_hash(jax.make_jaxpr(lambda x: jnp.logaddexp(x, 0.0))(x), 0, 3)
    assert "_xlogy_jvp" in traced.exact_hash(jax.make_jaxpr(lambda x: jax.scipy.special.xlogy(x, x))(x), 0, 3)


def test_python_that_no_program_shows_is_not_kept():
    def calls_back(x):
        return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((), np.float32), x)

    with pytest.raises(kept.Unkept):
        traced.exact_hash(jax.make_jaxpr(calls_back)(np.zeros((), np.float32)), 0, 1)
    with pytest.raises(kept.Unkept):
        kept.content(lambda x: x, [])
    with pytest.raises(kept.Unkept):
        kept.content((1, SimpleNamespace(a=1)), [])


@pytest.mark.parametrize("damage", [lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda b: b[:100], lambda b: b""])
@pytest.mark.slow
def test_a_damaged_file_is_replaced(usual, filled, compilations, damage):
    files = {file: file.read_bytes() for file in filled.glob("*.program")}
    assert files
    for file, whole in files.items():
        file.write_bytes(damage(whole))
    np.testing.assert_array_equal(fitted(), usual[0])
    assert compilations
    assert all(cache.read_program(file) is not None for file in files)


@pytest.mark.parametrize(("function", "is_kept"), [(jnp.linalg.solve, False), (jnp.matmul, True)])
def test_programs_that_call_lapack_are_not_kept(tmp_path, function, is_kept):
    """A process that loaded one and had not traced any would crash."""
    with keeping(tmp_path / "programs") as folder:
        program = jax.jit(lambda a, b: function(a, b)).lower(jnp.eye(3), jnp.ones(3)).compile()
        kept.Entry(folder, "one.program", [], None).save(program, [])
        assert (folder / "one.program").exists() is is_kept


@pytest.mark.slow
def test_a_full_disk_is_no_obstacle(folder, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert np.isfinite(fitted()).all()
    assert not list(folder.iterdir())


def test_the_folder_does_not_grow_beyond_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_chosen", cache.ProgramFolder(tmp_path, 100))
    for number in range(5):
        cache.write_program(tmp_path, f"{number}.program", bytes(10))  # and 32 of the checksum
        os.utime(tmp_path / f"{number}.program", (number, number))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["3.program", "4.program"]
    assert cache.read_program(tmp_path / "3.program") == bytes(10)
    cache.write_program(tmp_path, "5.program", bytes(10))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["3.program", "5.program"]  # 3 was used last


def test_the_folder_is_the_users(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder().is_relative_to(tmp_path / "shardmc")


@pytest.mark.slow
def test_switched_off_nothing_is_written(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache, "_chosen", cache._NOT_CHOSEN)
    monkeypatch.setenv("SHARDMC_PROGRAMS", "off")
    forget()
    fitted()
    assert not list(tmp_path.iterdir())
    assert shardmc.keep_programs(False) is None


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="the system has no owners of folders")
def test_a_folder_that_others_can_write_is_not_used(tmp_path, monkeypatch):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(OptionError, match="other users can write there"):
        shardmc.keep_programs(tmp_path / "open")
    monkeypatch.setenv("SHARDMC_PROGRAMS", str(tmp_path / "open"))
    assert cache._usual() is None


def test_a_folder_that_cannot_be_made_is_not_used(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="cannot keep programs"):
        shardmc.keep_programs(tmp_path / "file" / "folder")
    monkeypatch.setenv("SHARDMC_PROGRAMS", str(tmp_path / "file" / "folder"))
    assert cache._usual() is None


def test_a_size_is_positive(tmp_path):
    with pytest.raises(OptionError, match="positive number of GiB"):
        shardmc.keep_programs(tmp_path, size=0)


def test_an_option_that_the_compiler_does_not_have_is_left_out():
    double = compiled.CompiledFor(
        lambda x: 2 * x, static=0, most=1, compiler_options={"xla_cpu_no_such_option": True}
    )
    assert float(double(3.0)) == 6.0
