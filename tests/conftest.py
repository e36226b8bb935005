"""Reports the seconds of each tier and what could not be shown on this machine."""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

_TESTS = Path(__file__).parent


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache that all tests share and nobody else: agents measure this machine once, not each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def pytest_configure() -> None:
    """Let tests send Ctrl-C to what they start, also where a shell runs us in the background.

    Such a shell has SIGINT ignored, and children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    seconds: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                tier = _tier(report)
                seconds[tier] += report.duration
                counts[tier] += report.when == "call"
    terminalreporter.section("tiers")
    for tier in sorted(seconds):
        terminalreporter.write_line(f"{tier:12} {counts[tier]:5} tests {seconds[tier]:7.1f} s")
    for report in terminalreporter.stats.get("skipped", []):
        terminalreporter.write_line(f"not shown: {report.nodeid}: {report.longrepr[2]}")


def _tier(report: pytest.TestReport) -> str:
    path = (_TESTS.parent / report.nodeid.split("::")[0]).relative_to(_TESTS)
    return path.parts[0]
