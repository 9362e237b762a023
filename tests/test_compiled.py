"""Options of the compiler: a version of XLA that lacks one still compiles."""

from __future__ import annotations

import pytest

from shardmc.programs.compiled import COMPILES_FAST, CompiledFor, _is_known, compiled_with, jit


def test_an_option_that_the_compiler_lacks_is_left_out() -> None:
    import jax

    missing = {"xla_no_such_option": True}
    assert jit(lambda x: x + 1, compiler_options=missing)(1) == 2
    assert not _is_known("xla_no_such_option", True)
    with pytest.raises(Exception, match="xla_no_such_option"):  # the control: XLA refuses it
        jax.jit(lambda x: x + 1, compiler_options=missing)(1)


def test_options_may_depend_on_the_arguments() -> None:
    asked = []

    def options(power: int, x: float) -> dict[str, bool]:
        asked.append((power, x))
        return dict(COMPILES_FAST)

    function = CompiledFor(lambda power, x: x**power, static=1, most=2, compiler_options=options)
    assert function(2, 3.0) == 9.0
    assert asked == [(2, 3.0)]


class _Lowered:
    """A program that the compiler refuses, whatever the options are."""

    def __init__(self) -> None:
        self.tried: list[dict[str, object]] = []

    def compile(self, compiler_options: dict[str, object]) -> None:
        import jax

        self.tried.append(compiler_options)
        raise jax.errors.JaxRuntimeError("The program is wrong.")


@pytest.mark.parametrize(("options", "times"), [(COMPILES_FAST, 1), ({"xla_no_such_option": True}, 2)])
def test_an_error_of_the_compiler_is_raised(options: dict[str, object], times: int) -> None:
    lowered = _Lowered()
    with pytest.raises(Exception, match="The program is wrong"):
        compiled_with(lowered, options)  # type: ignore[arg-type]
    assert len(lowered.tried) == times
    assert ("xla_no_such_option" in lowered.tried[-1]) is False
