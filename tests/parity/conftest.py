"""Keeps the record of what these tests show (``support.engines.proofs``).

    python -m pytest tests/parity --write-proofs

writes it anew. Without the option, a run of all parity tests fails if the record says anything else
than what was shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.engines.proofs import PROOFS, Proof, record_of, recorded, write_record

_HERE = Path(__file__).parent
_IS_PART = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-proofs", action="store_true", help="write docs/reference/models.json")


@pytest.fixture(autouse=True)
def _noted(request: pytest.FixtureRequest) -> Iterator[None]:
    PROOFS.noted.clear()
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed == failed:
        PROOFS.shown |= PROOFS.noted


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.config.stash[_IS_PART] = True


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a worker of pytest-xdist has shown."""
    output = getattr(node, "workeroutput", {})
    PROOFS.shown |= {
        Proof(family=family, files=files, engine=engine, features=frozenset(features))
        for family, files, engine, features in output.get("proofs", ())
    }
    if output.get("is_part", True):
        node.config.stash[_IS_PART] = True


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["is_part"] = not _is_whole(session)
        output["proofs"] = [
            (proof.family, proof.files, proof.engine, sorted(proof.features))
            for proof in PROOFS.shown
        ]
    elif session.config.getoption("--write-proofs", default=False):
        write_record(PROOFS.shown)
    elif _is_whole(session) and session.testsfailed == 0 and recorded() != record_of(PROOFS.shown):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line(
                "docs/reference/models.json is not what the parity tests show: run "
                "python -m pytest tests/parity --write-proofs and tools/models_reference.py"
            )


def _is_whole(session: pytest.Session) -> bool:
    """Whether no test of the folder was left out, by name, by mark or because it is on record."""
    if session.config.stash.get(_IS_PART, False):
        return False
    if session.config.pluginmanager.hasplugin("dsession"):
        return True  # the workers collect, and each has said whether it left something out
    items = [item for item in session.items if item.path.is_relative_to(_HERE)]
    has_all_modules = {item.path for item in items} == set(_HERE.glob("test_*.py"))
    return has_all_modules and not any(item.get_closest_marker("skip") for item in items)
