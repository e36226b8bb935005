"""Skips tests of ``groups`` that the record covers; writes the record with ``TEST_PROVE``."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator

import pytest
from support.recorded.groups import GROUPS, RECORD, ROOT
from support.recorded.record import PROVES, Record, imported_files, this_machine

_RECORD = pytest.StashKey[Record]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    modules: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        modules[_module(item)].append(item)
    record = Record(RECORD, ROOT, GROUPS, this_machine)
    config.stash[_RECORD] = record
    for module, of_module in modules.items():
        reason = record.reason_to_skip(module, [_name(item) for item in of_module])
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
    record = session.config.stash.get(_RECORD, None)
    if record is not None and os.environ.get(PROVES):
        for reason in record.write(imported_files(ROOT)):
            print(f"\nnot recorded: {reason}")


def _module(item: pytest.Item) -> str:
    return item.path.relative_to(ROOT).as_posix()


def _name(item: pytest.Item) -> str:
    return f"{_module(item)}::{item.name}"
