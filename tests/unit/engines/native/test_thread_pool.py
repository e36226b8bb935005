"""The thread pool, by a C++ program of its own (cpp/check/thread_pool_check.cc)."""

from __future__ import annotations

import os

import pytest
from support.kernels import cpp_checks

CHECKS = (
    "exactly_once",
    "short_loops",
    "concurrent_callers",
    "ranges_cover",
    "small_work_is_inline",
    "runs_in_parallel",
    "shares_and_theft",
    "active_threads_take_part",
    "active_changes_during_loops",
    "late_worker_sits_out",
    "one_core_is_not_shared",
    "leaves_double",
    "idle_costs_nothing",
    "fork_is_safe",
    "refuses_nonsense",
)


NEED_TWO_CORES = ("runs_in_parallel", "active_threads_take_part", "late_worker_sits_out")
"""On one core the caller does everything itself: ``one_core_is_not_shared``."""


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
def test_check(check: str) -> None:
    run("thread_pool_check", check)


@pytest.mark.slow
@pytest.mark.parametrize(
    "check",
    [
        "exactly_once",
        "short_loops",
        "concurrent_callers",
        "active_changes_during_loops",
        "late_worker_sits_out",
    ],
)
def test_no_data_race(check: str) -> None:
    """ThreadSanitizer makes the program fail when it sees a race."""
    run("watched_thread_pool_check", check)


def run(program: str, check: str) -> None:
    if check in NEED_TWO_CORES and len(os.sched_getaffinity(0)) < 2:
        pytest.skip("not shown: it needs two cores")
    cpp_checks.run(program, check)
