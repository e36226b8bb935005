"""Children that behave and children that do not."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.kernels.build import not_shown
from support.machines.strange_child import ANSWER
from support.process_facts import num_descriptors
from support.processes.waiting import done_within, eventually

from potluck.host.child import (
    ChildAnswer,
    ChildFailure,
    ChildOutcome,
    Failure,
    run_child,
)

TESTS = Path(__file__).parents[2]
CHILD = "support.machines.strange_child"
_SLEEPER = b"# of a strange child"
MIB = 1 << 20


def run(
    *arguments: str,
    deadline_seconds: float = 20.0,
    max_resident_bytes: int = 512 * MIB,
    on_progress: Callable[[float], None] | None = None,
) -> ChildOutcome:
    return run_child(
        CHILD,
        arguments,
        deadline_seconds=deadline_seconds,
        max_resident_bytes=max_resident_bytes,
        environment={**os.environ, "PYTHONPATH": str(TESTS)},
        on_progress=on_progress,
    )


def failure_of(outcome: ChildOutcome) -> tuple[Failure, str]:
    assert isinstance(outcome, ChildFailure), outcome
    return outcome.failure, outcome.reason


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Neither threads nor open files nor processes that nobody has reaped.

    Threads and files of earlier tests in this process may end meanwhile.
    """
    threads, files = set(threading.enumerate()), num_descriptors()
    yield
    assert set(threading.enumerate()) <= threads
    assert num_descriptors() <= files
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_an_answer() -> None:
    outcome = run("answer")
    assert isinstance(outcome, ChildAnswer)
    assert outcome.document == ANSWER
    assert 0 < outcome.seconds < 20


def test_a_child_stands_alone() -> None:
    outcome = run("tell", "PYTHONPATH", "HOME")
    assert isinstance(outcome, ChildAnswer)
    document = outcome.document
    assert document["session"] == document["pid"] != os.getpid()
    assert document["stdin"] == ""
    assert document["core"] in (0, 1)
    assert document["first_path"] != ""  # the current directory has no say in what is imported
    package = str(TESTS.parent / "src")
    assert document["environment"] == {
        "PYTHONPATH": f"{package}:{TESTS}",
        "HOME": os.environ.get("HOME"),
    }


def test_progress_comes_before_the_answer() -> None:
    seen: list[float] = []
    outcome = run("progress", on_progress=seen.append)
    assert isinstance(outcome, ChildAnswer)
    assert outcome.document == ANSWER
    assert seen == [0.25, 1.0]


def test_progress_that_nobody_wants() -> None:
    assert isinstance(run("progress"), ChildAnswer)


def test_progress_that_makes_no_sense_is_malformed() -> None:
    assert failure_of(run("odd_progress"))[0] is Failure.MALFORMED


def test_what_the_callback_raises_ends_the_child() -> None:
    def stop(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("progress", on_progress=stop)


def test_a_refusal_is_one_line() -> None:
    assert failure_of(run("refuse")) == (Failure.REFUSED, "no such library")


@pytest.mark.slow
@pytest.mark.parametrize(
    "behaviour",
    ["hang", "hang_and_ignore_signals", "close_stdout_and_hang", "stop"],
)
def test_a_child_that_hangs(behaviour: str) -> None:
    with done_within(5):
        outcome = run(behaviour, deadline_seconds=0.5)
    assert failure_of(outcome) == (Failure.HUNG, "did not respond within 0.5 s")


@pytest.mark.slow
@pytest.mark.parametrize(
    "behaviour",
    [
        "answer_after_queueing",
        "answer_after_children_have_queued",
        "answer_after_threads_have_queued",
    ],
)
def test_waiting_for_a_cpu_is_not_hanging(behaviour: str) -> None:
    started = time.monotonic()
    outcome = run(behaviour, deadline_seconds=1.0)
    assert isinstance(outcome, ChildAnswer), outcome
    assert time.monotonic() - started > 1.0, "there was no need to wait"


@pytest.mark.slow
def test_a_child_that_gets_no_cpu_is_not_called_hanging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time in the queue puts a deadline off so often, and no longer."""
    monkeypatch.setattr("potluck.host.child._MOST_QUEUED", 0.3)
    failure, reason = failure_of(run("answer_after_queueing", deadline_seconds=0.6))
    assert failure is Failure.STARVED
    assert re.fullmatch(r"waited \d.* s for a CPU: this machine is too busy", reason)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGUSR1", "SIGTERM", "SIGHUP", "SIGINT", "SIGSEGV", "SIGSTOP"])
def test_a_child_that_signals_its_parent(name: str) -> None:
    outcome = run("signal_parent", name)
    assert isinstance(outcome, ChildAnswer), outcome
    assert outcome.document == ANSWER


def test_a_child_that_kills_its_parent() -> None:
    assert failure_of(run("signal_parent", "SIGKILL")) == (
        Failure.EXITED,
        "killed its supervisor with SIGKILL",
    )


def test_a_child_that_kills_its_parent_and_leaves_orphans() -> None:
    assert failure_of(run("leave_orphans_and_kill_parent"))[0] is Failure.EXITED
    _await_end_of_sleepers()


@pytest.mark.parametrize(("name", "failure"), [("SIGUSR1", "CRASHED"), ("SIGKILL", "EXITED")])
def test_a_child_that_signals_its_group(name: str, failure: str) -> None:
    assert failure_of(run("signal_group", name)) == (Failure[failure], f"was killed by {name}")


@pytest.mark.slow
def test_a_child_that_stops_its_group() -> None:
    assert failure_of(run("signal_group", "SIGSTOP", deadline_seconds=0.5))[0] is Failure.HUNG


def test_orphans_end_with_the_child() -> None:
    outcome = run("leave_orphans")
    assert isinstance(outcome, ChildAnswer), outcome
    assert not _running(_SLEEPER)


@pytest.mark.slow
def test_orphans_end_with_a_child_that_hangs() -> None:
    assert failure_of(run("leave_orphans_and_hang", deadline_seconds=1))[0] is Failure.HUNG
    assert not _running(_SLEEPER)


@pytest.mark.slow
def test_its_own_children_are_killed_with_it() -> None:
    with done_within(5):
        assert failure_of(run("hang_with_a_child", deadline_seconds=1))[0] is Failure.HUNG
    _await_end_of_sleepers()


def test_a_child_of_its_own_that_keeps_the_pipe_open() -> None:
    with done_within(5):
        outcome = run("leave_a_child_with_the_pipes", deadline_seconds=40)
    assert isinstance(outcome, ChildAnswer)
    _await_end_of_sleepers()


def _await_end_of_sleepers() -> None:
    """Fails if a process that the strange child started still runs; a kill takes a moment."""
    _await_end_of(_SLEEPER)


def _await_end_of(marker: bytes) -> None:
    eventually(lambda: not _running(marker), within=5, what=f"no {marker!r} runs any more")


def _running(marker: bytes) -> list[bytes]:
    return [line for line in _command_lines() if marker in line]


def _command_lines() -> Iterator[bytes]:
    """Of all processes; that of a zombie is empty."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield path.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGSEGV", "SIGILL", "SIGBUS", "SIGABRT", "SIGFPE"])
def test_a_crash(name: str) -> None:
    assert failure_of(run("die", name)) == (
        Failure.CRASHED,
        f"was killed by {name}: about to die",
    )


def test_a_real_segmentation_fault() -> None:
    assert failure_of(run("segfault")) == (Failure.CRASHED, "was killed by SIGSEGV")


def test_an_answer_of_a_child_that_then_crashes_does_not_count() -> None:
    assert failure_of(run("answer_and_crash"))[0] is Failure.CRASHED


def test_a_child_that_was_killed_from_outside_has_not_crashed() -> None:
    assert failure_of(run("die", "SIGKILL"))[0] is Failure.EXITED


def test_an_exception_is_told_with_its_last_line() -> None:
    assert failure_of(run("throw")) == (
        Failure.EXITED,
        "exited with code 1: RuntimeError: the driver said 42",
    )


def test_an_exit_code_spoils_an_answer() -> None:
    assert failure_of(run("leave", "3")) == (Failure.EXITED, "exited with code 3")


def test_a_module_that_is_not_there() -> None:
    outcome = run_child("potluck.no_such_module", deadline_seconds=20, max_resident_bytes=512 * MIB)
    failure, reason = failure_of(outcome)
    assert failure is Failure.EXITED
    assert "No module named potluck.no_such_module" in reason


@pytest.mark.slow
def test_a_child_that_grows() -> None:
    outcome = run("grow", max_resident_bytes=200 * MIB)
    assert failure_of(outcome) == (Failure.TOO_BIG, "used more than 200 MiB of memory")


def test_a_child_whose_child_grows() -> None:
    assert failure_of(run("grow_in_a_child", max_resident_bytes=200 * MIB))[0] is Failure.TOO_BIG


@pytest.mark.slow
def test_files_in_memory_are_no_growth(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(300 * MIB)
    outcome = run("map_a_large_file", str(path), max_resident_bytes=200 * MIB)
    assert isinstance(outcome, ChildAnswer), outcome


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("hello", "Expecting value"),
        ('{"a": ', "Expecting value"),
        ('{"a": [1, 2', "delimiter"),
        ('{"a": NaN}', "NaN is not a number"),
        ('{"a": -Infinity}', "-Infinity is not a number"),
        ('{"a": 1e999}', "1e999 is too large"),
        ('{"a": ' + "9" * 5000 + "}", "digit"),
        ("[" * 100_000, "recursion"),
        ("[1, 2]", "that is not an object"),
        ('{"a": 1} {"b": 2}', "Extra data"),
        ('{"refused": 5}', "refused without a reason"),
        ("", "printed nothing"),
        ("\n \n", "printed nothing"),
    ],
)
def test_malformed_output(text: str, reason: str) -> None:
    failure, message = failure_of(run("print_raw", text))
    assert failure is Failure.MALFORMED
    assert reason in message
    assert "\n" not in message
    assert len(message) <= 300


def test_bytes_that_are_no_text() -> None:
    assert failure_of(run("print_bytes"))[0] is Failure.MALFORMED


def test_a_child_that_prints_nothing() -> None:
    assert failure_of(run("print_nothing")) == (Failure.MALFORMED, "printed nothing")


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", ["print_endlessly", "progress_endlessly"])
def test_a_child_that_prints_endlessly(behaviour: str) -> None:
    assert failure_of(run(behaviour)) == (Failure.MALFORMED, "printed too much output")


@pytest.mark.slow
def test_standard_error_never_blocks() -> None:
    assert isinstance(run("complain_endlessly"), ChildAnswer)


def test_what_libraries_print_is_not_the_answer() -> None:
    outcome = run("chatter")
    assert isinstance(outcome, ChildAnswer)
    assert outcome.document == ANSWER


def test_a_program_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    failure, reason = failure_of(run("answer"))
    assert failure is Failure.NOT_STARTED
    assert "No such file" in reason


def test_too_many_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pipe", refuse)
    failure, reason = failure_of(run("answer"))
    assert failure is Failure.NOT_STARTED
    assert "Too many open files" in reason


def test_an_argument_that_no_process_can_get() -> None:
    assert failure_of(run("answer", "a\0b"))[0] is Failure.NOT_STARTED


def test_a_child_ends_with_its_parent() -> None:
    """The parent is killed; the child and its orphans, which would sleep on, are too."""
    code = (
        "from potluck.host.child import run_child\n"
        f"run_child({CHILD!r}, ('leave_orphans_and_hang',), deadline_seconds=60,"
        " max_resident_bytes=1 << 30)"
    )
    path = f"{TESTS.parent / 'src'}:{TESTS}"
    with subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}
    ) as parent:
        eventually(lambda: len(_running(_SLEEPER)) >= 2, within=20, what="they are started")
        parent.kill()
    _await_end_of_sleepers()
    _await_end_of(b"leave_orphans_and_hang")  # the supervisor leaves after those it has killed


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
def test_a_child_that_the_kernel_keeps() -> None:
    """As a driver may keep it: here in a frozen control group, where a kill must wait."""
    freezer = Path("/sys/fs/cgroup/freezer") / f"potluck-{os.getpid()}"
    try:
        freezer.mkdir()
    except OSError as error:
        not_shown(f"no freezer of control groups (v1) to use: {error}")
    frozen: list[int] = []

    def freeze(_: float) -> None:
        (supervisor,) = _children(os.getpid())
        frozen.extend(_children(supervisor))
        (freezer / "tasks").write_text(str(frozen[0]))
        (freezer / "freezer.state").write_text("FROZEN")

    try:
        outcome = run("progress_and_hang", deadline_seconds=2, on_progress=freeze)
    finally:
        (freezer / "freezer.state").write_text("THAWED")
        eventually(lambda: not (freezer / "tasks").read_text(), what="it was thawed, and ends")
        freezer.rmdir()
    assert failure_of(outcome) == (
        Failure.HUNG,
        "did not respond within 2 s, and cannot be killed because it hangs in the kernel",
    )
