"""Skips tests of ``groups`` that the record covers; writes the record with ``TEST_PROVE``.

With ``--leave-out-recorded`` modules on record are not imported either, unless they are named: it
takes seconds of processor time in each process to import ``transformers`` for tests that then do
not run.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from support.recorded.groups import GROUPS, RECORD, ROOT
from support.recorded.record import PROVES, Record, imported_files, this_machine

_RECORD = pytest.StashKey[Record]()
_LEFT_OUT = pytest.StashKey[set[str]]()
"""The modules that this process, or a worker of it, did not import."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--leave-out-recorded", action="store_true", help="do not import modules that are on record"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_RECORD] = Record(RECORD, ROOT, GROUPS, this_machine)
    config.stash[_LEFT_OUT] = set()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_requested = config.getoption("--leave-out-recorded") and not os.environ.get(PROVES)
    if not is_requested or collection_path.suffix != ".py":
        return None  # a proof is of modules that ran: the record is not even asked
    module = collection_path.relative_to(ROOT).as_posix()
    if config.stash[_RECORD].reason_to_skip(module, ()) is None:
        return None
    config.stash[_LEFT_OUT].add(module)
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a worker of pytest-xdist has left out."""
    node.config.stash[_LEFT_OUT].update(getattr(node, "workeroutput", {}).get("left_out", ()))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if left_out := config.stash[_LEFT_OUT]:
        terminalreporter.write_line(f"on record: {len(left_out)} modules (tests/{RECORD.name})")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    modules: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        modules[_module(item)].append(item)
    for module, of_module in modules.items():
        reason = config.stash[_RECORD].reason_to_skip(module, [_name(item) for item in of_module])
        if reason is not None:
            for item in of_module:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.config.stash[_RECORD].note(_module(item), _name(item), has_passed=report.passed)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        left_out = session.config.stash[_LEFT_OUT]
        output["left_out"] = sorted(left_out)
    if os.environ.get(PROVES):
        for reason in session.config.stash[_RECORD].write(imported_files(ROOT)):
            print(f"\nnot recorded: {reason}")


def _module(item: pytest.Item) -> str:
    return item.path.relative_to(ROOT).as_posix()


def _name(item: pytest.Item) -> str:
    return f"{_module(item)}::{item.name}"
