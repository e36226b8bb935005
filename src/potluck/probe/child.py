"""Child processes that touch a driver: started, watched, ended, and their answer judged.

A driver's library may raise, hang, crash, take all memory, signal its parent or print what it
likes; here that costs one line of reason. The child prints lines ``{"progress": 0.3}`` if it likes,
and then one JSON object: its answer, or ``{"refused": "why"}``. Between it and this process is one
that the library may do to what it likes (``potluck.probe.child_supervisor``).
"""

from __future__ import annotations

import contextlib
import enum
import os
import selectors
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from potluck.child_environment import child_environment
from potluck.probe.child_output import (
    Document,
    Refusal,
    Rubbish,
    Status,
    Stdout,
    Tail,
    read_document,
)
from potluck.probe.child_processes import Processes, kill_marked
from potluck.quantities import format_bytes

_POLL_SECONDS = 0.02
"""How often memory is looked at: at 10 GB/s, which is fast for page faults, 200 MB are taken in
between."""

_MOST_QUEUED: Final = 9
"""Of a deadline, by which the time that a child waits for a CPU may put it off: a tenth of a core
is what is left to it where ten others want the same one."""

_END_SECONDS = 3.0
"""For the supervisor to end its child: it gives up after 2 s itself (``child_supervisor``)."""

_MARK = "_POTLUCK_CHILD"
"""A variable of the environment that a child and all that it starts have. It is no setting."""

SIGNALS_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals that no driver dies of: somebody sent them, such as the kernel when memory ran out."""


class Failure(enum.Enum):
    """How a child failed."""

    REFUSED = "refused"
    """It said itself, in an orderly way, that it cannot: a missing library, a driver's error."""
    EXITED = "exited"
    """It ended with an exit code (an exception that nobody caught), or was killed from outside:
    that says nothing about the device."""
    CRASHED = "crashed"
    """It died of a signal of its own making."""
    HUNG = "hung"
    STARVED = "starved"
    """It had no CPU to answer on for so long that nobody can say whether it would: that says
    nothing about the device."""
    TOO_BIG = "too big"
    RUBBISH = "rubbish"
    NOT_STARTED = "not started"
    QUARANTINED = "quarantined"
    """It was not started: an earlier one crashed, hung or grew on the same device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildAnswer:
    """The JSON document that a child printed, and how long that took, without its waits for a
    CPU.
    """

    document: dict[str, object]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildFailure:
    """Why there is no document, in one line; ``seconds`` as in ``ChildAnswer``."""

    failure: Failure
    reason: str
    seconds: float


ChildOutcome = ChildAnswer | ChildFailure


def run_child(
    module: str,
    arguments: tuple[str, ...] = (),
    *,
    deadline_seconds: float,
    max_resident_bytes: int,
    environment: Mapping[str, str] | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> ChildOutcome:
    """Run ``python -m module`` in a session of its own, and wait until it has ended.

    It is killed, with all that it started, after ``deadline_seconds``, in which the time that it or
    a process of its own waited for a CPU to run on does not count (at most nine times as much), or
    when they hold more than ``max_resident_bytes`` of memory that is not a file's. ``environment``
    is its whole environment, that of this process if None; what finds this package is added.
    ``on_progress`` gets fractions from 0 to 1; what it raises comes out of here, when the child
    has been ended. May be called from any thread. The child ends with this process.
    """
    started = time.monotonic()
    read_end, write_end = os.pipe()
    mark = f"{_MARK}={os.getpid()}-{write_end}-{time.monotonic_ns()}"
    command = [sys.executable, "-P", "-m", "potluck.probe.child_supervisor", str(write_end), module]
    try:
        supervisor = subprocess.Popen(
            [*command, *arguments],
            env={
                **_with_this_package(os.environ if environment is None else environment),
                **dict([mark.split("=")]),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            pass_fds=(write_end,),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # a ValueError: a NUL in an argument
        os.close(read_end)
        return ChildFailure(
            failure=Failure.NOT_STARTED,
            reason=f"could not be started: {error}",
            seconds=time.monotonic() - started,
        )
    finally:
        os.close(write_end)
    stdout, stderr, status = Stdout(on_progress), Tail(), Status()
    with os.fdopen(read_end, "rb", buffering=0) as told:
        takers = ((told, status), (supervisor.stdout, stdout), (supervisor.stderr, stderr))
        try:
            killed, queued_seconds = _watch(
                supervisor, takers, stdout, status, deadline_seconds, max_resident_bytes
            )
        finally:
            _end(supervisor, told, status, mark)
    seconds = max(0.0, time.monotonic() - started - queued_seconds)
    if killed is None:
        return _judge(status, supervisor.returncode or 0, stdout, stderr, seconds)
    reasons = {
        Failure.HUNG: f"gave no answer within {deadline_seconds:.3g} s",
        Failure.STARVED: f"waited {queued_seconds:.3g} s for a CPU: this machine is too busy",
        Failure.TOO_BIG: f"took more than {format_bytes(max_resident_bytes)} of memory",
        Failure.RUBBISH: "printed without end",
    }
    stuck = ", and cannot be killed: it hangs in the kernel" if status.is_stuck else ""
    return ChildFailure(failure=killed, reason=reasons[killed] + stuck, seconds=seconds)


def _end(supervisor: subprocess.Popen[bytes], told: IO[bytes], status: Status, mark: str) -> None:
    """Have the supervisor kill what is left, and end it: by force, where it was stopped or killed.

    What a supervisor that was killed has left is known by its environment, which has ``mark``. A
    process that waits within a driver may not be killed until the driver lets go; it ends then.
    """
    for pipe in (supervisor.stdin, supervisor.stdout, supervisor.stderr):
        if pipe is not None:
            pipe.close()
    try:
        _continue(supervisor.pid)
        supervisor.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        supervisor.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # such as one that is swapped out
            supervisor.wait(_END_SECONDS)
    os.set_blocking(told.fileno(), False)
    status.take(told.read(1 << 16) or b"")
    if not status.has_ended:
        kill_marked(mark)


def _judge(
    status: Status, supervisor_status: int, stdout: Stdout, stderr: Tail, seconds: float
) -> ChildOutcome:
    """The outcome of a child that ended before anything had to be done about it."""
    last_words = f": {stderr.last_line}" if stderr.last_line else ""
    returncode = status.returncode
    if returncode is None and supervisor_status < 0:
        reason = f"ended its supervisor by {signal_name(-supervisor_status)}{last_words}"
        return ChildFailure(failure=Failure.EXITED, reason=reason, seconds=seconds)
    if returncode is None:  # a process that may not have another, or a child that cannot be killed
        returncode = supervisor_status or 1
    if returncode < 0:
        failure = Failure.EXITED if -returncode in SIGNALS_FROM_OUTSIDE else Failure.CRASHED
        reason = f"was killed by {signal_name(-returncode)}{last_words}"
        return ChildFailure(failure=failure, reason=reason, seconds=seconds)
    if returncode > 0:
        reason = f"ended with exit code {returncode}{last_words}"
        return ChildFailure(failure=Failure.EXITED, reason=reason, seconds=seconds)
    match read_document(stdout.data):
        case Document(value):
            return ChildAnswer(document=value, seconds=seconds)
        case Refusal(reason):
            return ChildFailure(failure=Failure.REFUSED, reason=reason, seconds=seconds)
        case Rubbish(reason):
            return ChildFailure(failure=Failure.RUBBISH, reason=reason, seconds=seconds)


def _watch(
    supervisor: subprocess.Popen[bytes],
    takers: Sequence[tuple[IO[bytes] | None, Stdout | Tail | Status]],
    stdout: Stdout,
    status: Status,
    deadline_seconds: float,
    max_resident_bytes: int,
) -> tuple[Failure | None, float]:
    """Take what the child prints until it ends (None) or must be ended (why); and for how long it
    waited for a CPU.

    The end is that of the process and not of its pipes: it may close them early, and leave them
    to processes of its own.
    """
    started, next_look = time.monotonic(), 0.0
    processes: Processes | None = None
    queued_seconds = 0.0
    with selectors.DefaultSelector() as selector:
        for pipe, taker in takers:
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, selectors.EVENT_READ, taker)
        while True:
            has_ended = status.has_ended or _has_ended(supervisor.pid)
            # When it has ended only what is in the pipes already: others may still write to them.
            _take(selector, 0.0 if has_ended else _POLL_SECONDS)
            if stdout.is_too_long:
                return Failure.RUBBISH, queued_seconds
            if has_ended:
                return None, queued_seconds
            now = time.monotonic()
            if now < next_look:
                continue
            next_look = now + _POLL_SECONDS
            _continue(supervisor.pid)
            if processes is None and status.pid is not None:
                processes = Processes(status.pid)
            if processes is not None:
                processes.look()
                queued_seconds = processes.queued_seconds
                if processes.resident_bytes > max_resident_bytes:
                    return Failure.TOO_BIG, queued_seconds
            if now - started >= deadline_seconds + queued_seconds:
                return Failure.HUNG, queued_seconds
            if now - started >= (1 + _MOST_QUEUED) * deadline_seconds:
                return Failure.STARVED, queued_seconds


def _take(selector: selectors.BaseSelector, timeout_seconds: float) -> None:
    """Read once from each pipe that has something; a pipe holds 64 KiB, so once is all of it."""
    for key, _ in selector.select(timeout_seconds):
        pipe: IO[bytes] = key.fileobj  # type: ignore[assignment]  # what was registered
        taker: Stdout | Tail | Status = key.data
        data = pipe.read(1 << 20)
        if data:
            taker.take(data)
        elif data is not None:
            selector.unregister(pipe)


def _has_ended(pid: int) -> bool:
    """Whether a child has ended, which stays a zombie, so that its number stays its own."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # reaped by the kernel, where SIGCHLD is ignored
        return True


def _continue(pid: int) -> None:
    """Have the supervisor go on, which a library may have stopped. It is not reaped yet."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _with_this_package(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` with the folder of this package in PYTHONPATH, unless it is installed.

    A folder of installed packages must not go there: it would come before the standard library.
    """
    folder = str(Path(__file__).resolve().parents[2])
    result = child_environment(environment)
    if folder not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        given = result.get("PYTHONPATH")
        result["PYTHONPATH"] = folder if not given else f"{folder}{os.pathsep}{given}"
    return result


def signal_name(number: int) -> str:
    """``SIGSEGV`` of 11."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
