"""Reports the seconds of each tier and what could not be shown on this machine.

With ``TEST_DURATIONS``, a folder, it also leaves the seconds of each test there that was not
skipped.
"""

from __future__ import annotations

import gc
import os
import signal
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest
from support.recorded.record import ON_RECORD

# An example takes as long as the other processes of a busy machine let it.
hypothesis.settings.register_profile("potluck", deadline=None)
hypothesis.settings.load_profile("potluck")

pytest_plugins = ("support.recorded.plugin",)

_TESTS = Path(__file__).parent


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache that all tests share and nobody else: agents measure this machine once, not each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--timing", action="store_true", help="run the timing tests, and no others")
    parser.addoption("--exhaustive", action="store_true", help="run the exhaustive tests too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what says something of this machine's speed, or all else, and exhaustive tests.

    Not by ``-m``: a run with a mark is not whole, and the record of proofs is of whole runs.
    """
    is_timing = bool(config.getoption("--timing"))
    is_exhaustive = bool(config.getoption("--exhaustive"))
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        is_due = ("timing" in marks) == is_timing and (is_exhaustive or "exhaustive" not in marks)
        (kept if is_due else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def pytest_configure() -> None:
    """Let tests send Ctrl-C to what they start, also where a shell runs us in the background.

    Such a shell has SIGINT ignored, and children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep thousands of tests, which live to the end, from the garbage collector.

    It would go through them again and again, while they are collected and in every test.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    seconds: dict[str, float] = defaultdict(float)
    of_tests: dict[str, float] = defaultdict(float)
    skipped: set[str] = set()
    counts: dict[str, int] = defaultdict(int)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                tier = _tier(report)
                seconds[tier] += report.duration
                of_tests[report.nodeid] += report.duration
                counts[tier] += report.when == "call"
                if report.skipped:
                    skipped.add(report.nodeid)
    terminalreporter.section("tiers")
    for tier in sorted(seconds):
        terminalreporter.write_line(f"{tier:12} {counts[tier]:5} tests {seconds[tier]:7.1f} s")
    num_recorded = 0
    for report in terminalreporter.stats.get("skipped", []):
        if ON_RECORD in report.longrepr[2]:
            num_recorded += 1
        else:
            terminalreporter.write_line(f"not shown: {report.nodeid}: {report.longrepr[2]}")
    if num_recorded:
        terminalreporter.write_line(f"on record: {num_recorded} tests (tests/proof.json)")
    folder = os.environ.get("TEST_DURATIONS")
    if folder and "PYTEST_XDIST_WORKER" not in os.environ:  # a worker's are also its controller's
        ran = ((spent, name) for name, spent in of_tests.items() if name not in skipped)
        lines = [f"{spent:8.1f} s  {name}\n" for spent, name in ran]
        (Path(folder) / str(os.getpid())).write_text("".join(lines))


def _tier(report: pytest.TestReport) -> str:
    path = (_TESTS.parent / report.nodeid.split("::")[0]).relative_to(_TESTS)
    return path.parts[0]
