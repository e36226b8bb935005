"""The thread pool, by a C++ program of its own (thread_pool_check.cc)."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.kernels import cpp_checks

SOURCE = Path(__file__).with_name("thread_pool_check.cc")
CHECKS = (
    "exactly_once",
    "short_loops",
    "concurrent_callers",
    "ranges_cover",
    "small_work_is_inline",
    "runs_in_parallel",
    "shares_and_theft",
    "late_worker_sits_out",
    "one_core_is_not_shared",
    "leaves_double",
    "idle_costs_nothing",
    "fork_is_safe",
    "refuses_nonsense",
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cpp_checks.build(tmp_path_factory.mktemp("pool"), SOURCE, "thread_pool", "cores")


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
def test_check(program: Path, check: str) -> None:
    cpp_checks.run(program, check)


@pytest.fixture(scope="module")
def watched_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watched_pool")
    return cpp_checks.build(
        folder, SOURCE, "thread_pool", "cores", flags=("-g", "-fsanitize=thread")
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "check", ["exactly_once", "short_loops", "concurrent_callers", "late_worker_sits_out"]
)
def test_no_data_race(watched_program: Path, check: str) -> None:
    """ThreadSanitizer makes the program fail when it sees a race."""
    cpp_checks.run(watched_program, check)
