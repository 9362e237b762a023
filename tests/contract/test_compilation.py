"""What holds in the fast compilation of the tests holds in the compilation that users have.

Optimised programs add up sums in another order and compute a value once or twice as they see fit. These tests are the
ones whose result could depend on it: equal draws for every batch size, derivatives, rounding, and XLA's threads.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
CASES = (
    "contract/test_samplers.py::test_same_seed_same_draws_for_any_batch_size_and_any_order[nuts]",
    "test_fit.py::test_same_seed_same_draws_twice_and_for_any_batch_size",
    "test_gathered_fit.py::test_the_draws_are_those_of_a_copy[weighted]",
    "model/test_both_precisions.py::test_derivatives_of_the_smaller_of_two_numbers_survive_compilation",
    "model/test_rewrite.py::test_a_covariance_model_ends",
)


@pytest.mark.slow
def test_programs_compiled_as_users_compile_them():
    command = [sys.executable, "-m", "pytest", *CASES]
    # Optimised, though by one thread; and no part of the run of pytest-xdist that this process may belong to.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["XLA_FLAGS"] = "--xla_cpu_parallel_codegen_split_count=1"
    done = subprocess.run(command, cwd=TESTS, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert f"{len(CASES)} passed" in done.stdout
