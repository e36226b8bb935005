"""Only what is surely a worker of an earlier agent is ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.processes.orphans import LIKE_A_WORKER, SLEEP, Orphan
from support.processes.waiting import eventually

from potluck.cluster.agent.worker_notes import (
    WORKER_MODULE,
    ProcessFacts,
    WorkerNotes,
    process_facts,
)
from potluck.errors import EngineError

Start = Callable[..., Orphan]


@pytest.fixture
def start() -> Iterator[Start]:
    started = []

    def run(*command: str) -> Orphan:
        started.append(Orphan(*command))
        return started[-1]

    yield run
    for process in started:
        process.end()


def leave_over(notes: WorkerNotes, process: Orphan) -> None:
    notes.remember(process.pid)
    process.bereave()


def await_end(process: Orphan) -> None:
    eventually(lambda: not process.is_running, within=5)


def change(notes: WorkerNotes, process: int, changes: dict[str, Any]) -> None:
    path = notes.folder / str(process)
    noted = msgspec.json.decode(path.read_bytes(), type=ProcessFacts)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(noted, **changes)))


def test_a_worker_left_over_is_ended(tmp_path: Path, start: Start) -> None:
    notes = WorkerNotes(tmp_path)
    process = start(*LIKE_A_WORKER)
    leave_over(notes, process)
    assert [path.name for path in tmp_path.iterdir()] == [str(process.pid)]
    assert notes.end_leftovers() == 1
    await_end(process)
    assert list(tmp_path.iterdir()) == []


def test_a_worker_whose_agent_runs_is_spared(tmp_path: Path, start: Start) -> None:
    """The directory was copied, and the original's agent goes on."""
    notes = WorkerNotes(tmp_path)
    process = start(*LIKE_A_WORKER)
    notes.remember(process.pid)
    assert notes.end_leftovers() == 0
    assert process.is_running


def test_it_is_ended_without_descriptors_of_processes_too(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux before 5.3."""
    monkeypatch.delattr(os, "pidfd_open")
    notes = WorkerNotes(tmp_path)
    process = start(*LIKE_A_WORKER)
    leave_over(notes, process)
    assert notes.end_leftovers() == 1
    await_end(process)


@pytest.mark.parametrize(
    "changes",
    [
        {"start_ticks": 1},
        {"boot_id": "another"},
        {"pid_namespace": "pid:[1]"},
        {"uid": 4711},
        {"command_line": ("python", "-m", WORKER_MODULE)},
        {"pid": 1},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_process_that_differs_in_one_fact_is_spared(
    tmp_path: Path, start: Start, changes: dict[str, Any]
) -> None:
    notes = WorkerNotes(tmp_path)
    process = start(*LIKE_A_WORKER)
    leave_over(notes, process)
    change(notes, process.pid, changes)
    assert notes.end_leftovers() == 0
    assert process.is_running
    assert list(tmp_path.iterdir()) == []


def test_a_planted_note_does_not_end_another_program(tmp_path: Path, start: Start) -> None:
    """Every fact is right, but it is no worker."""
    process = start(*SLEEP)
    notes = WorkerNotes(tmp_path)
    leave_over(notes, process)
    facts = process_facts(process.pid)
    assert facts is not None
    assert not facts.is_worker
    assert notes.end_leftovers() == 0
    assert process.is_running


def test_a_process_of_another_user_is_spared(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = WorkerNotes(tmp_path)
    process = start(*LIKE_A_WORKER)
    leave_over(notes, process)
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    assert notes.end_leftovers() == 0
    assert process.is_running


def test_notes_that_are_none_do_no_harm(tmp_path: Path, start: Start) -> None:
    process = start(*LIKE_A_WORKER)
    for name, data in (
        ("0", b""),
        ("-1", b"{}"),
        ("9" * 30, b"{}"),
        ("name", b"\xff\0"),
        (str(process.pid), repr(1234.5).encode()),
    ):
        (tmp_path / name).write_bytes(data)
    os.mkfifo(tmp_path / "1")
    (tmp_path / "2").mkdir()
    assert WorkerNotes(tmp_path).end_leftovers() == 0
    assert process.is_running
    assert [path.name for path in tmp_path.iterdir()] == ["2"]
    assert WorkerNotes(tmp_path / "gone").end_leftovers() == 0


def test_a_worker_that_has_ended_is_not_noted(tmp_path: Path, start: Start) -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie
    WorkerNotes(tmp_path).remember(process.pid)
    assert list(tmp_path.iterdir()) == []
    process.wait()


def test_a_note_that_cannot_be_written_is_an_error_in_words(tmp_path: Path) -> None:
    notes = WorkerNotes(tmp_path / "missing")
    with pytest.raises(
        EngineError, match=r"cannot record a worker in .*missing: No such file"
    ) as caught:
        notes.remember(os.getpid())
    assert caught.value.hint
    notes.forget(os.getpid())
