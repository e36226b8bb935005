"""Start, monitor and end child processes that use a driver, and validate their answers.

A driver's library may raise, hang, crash, use all memory, signal its parent or print anything; any
of these becomes a one-line reason. The child may print lines ``{"progress": 0.3}``, and then prints
one JSON object: its answer, or ``{"refused": "why"}``. A supervisor between it and this process
protects this process from the library (``potluck.host.supervisor``).
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from potluck.host.child_environment import child_environment
from potluck.host.child_output import Status, Stdout, Tail, one_line, read_document
from potluck.types.quantities import format_bytes

_POLL_SECONDS = 0.02
"""The interval of memory checks. Even at 10 GB/s, which is fast for page faults, a child allocates
only 200 MB in between.
"""

_MOST_QUEUED: Final = 9
"""The most by which waiting for a CPU may extend a deadline, as a multiple of it: a child that
competes with ten others for one core gets about a tenth of it."""

_END_SECONDS = 3.0
"""Time for the supervisor to end its child; the supervisor itself gives up after 2 s
(``host.supervisor``).
"""

_MARK = "_POTLUCK_CHILD"
"""An environment variable that marks a child and all its descendants. It is not a setting."""

SIGNALS_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals that drivers do not cause. They were sent, for example by the kernel when memory ran out.
"""


_MOST_THREADS = 64
"""The threads examined per process: a pool has one per core, and all of them wait equally long."""

_MOST_SWEEPS = 10
"""Each round kills all processes that exist; the next round those that were started meanwhile."""


class Processes:
    """The process ``pid`` and its descendants. Not thread-safe.

    On a busy machine a compiler takes several times as long, which is not the device's fault.
    ``queued_seconds`` is the time in which these processes were ready to run but had no CPU
    (``Documentation/scheduler/sched-stats.rst``: time on the CPU and time in the queue, in
    nanoseconds). Each call of ``look`` adds the wait of the thread that waited longest since the
    last one, because threads wait at the same time, and a process that waits for another is not in
    the queue. It stays 0 if the kernel does not measure it.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._queued: dict[tuple[int, str], int] = {}
        self.queued_seconds = 0.0
        self.resident_bytes = 0

    def look(self) -> None:
        """Update both figures."""
        queued: dict[tuple[int, str], int] = {}
        num_bytes, waiting = 0, [self._pid]
        while waiting:
            pid = waiting.pop()
            num_bytes += _resident_bytes(pid)
            for task in _tasks(pid):
                queued[pid, task.name] = _queued_nanoseconds(task)
                waiting.extend(int(child) for child in _bytes(task / "children").split())
        waits = (now - self._queued.get(task, 0) for task, now in queued.items())
        self.queued_seconds += max(waits, default=0) / 1e9
        self._queued = queued
        self.resident_bytes = num_bytes


def kill_marked(mark: str) -> None:
    """Kill every process of this user whose environment has ``mark``, such as ``NAME=value``.

    A killed process has no environment, so this ends when no such process is left.
    """
    for _ in range(_MOST_SWEEPS):
        found = [
            path.parent.name for path in Path("/proc").glob("[0-9]*/environ") if _has(path, mark)
        ]
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(pid), signal.SIGKILL)
        if not found:
            return


def _has(environment: Path, mark: str) -> bool:
    return mark.encode() in _bytes(environment).split(b"\0")


def _tasks(pid: int) -> Iterator[Path]:
    """Yield the directories of a process's threads; none if it is just ending."""
    try:
        for number, task in enumerate(Path(f"/proc/{pid}/task").iterdir()):
            if number == _MOST_THREADS:
                return
            yield task
    except OSError:
        return


def _queued_nanoseconds(task: Path) -> int:
    fields = _bytes(task / "schedstat").split()
    return int(fields[1]) if len(fields) > 1 else 0


def _resident_bytes(pid: int) -> int:
    """Return the memory of a process, not counting mapped files.

    ``proc(5)``: ``RssAnon`` and ``RssShmem`` of ``/proc/PID/status``, since Linux 4.5; before,
    ``VmRSS``, which counts files too. A limit on the address space would be simpler, but CUDA
    reserves hundreds of gigabytes that it never uses.
    """
    lines = _bytes(Path(f"/proc/{pid}/status")).splitlines()
    fields = dict(line.split(b":", 1) for line in lines if b":" in line)
    counted = (b"RssAnon", b"RssShmem") if b"RssAnon" in fields else (b"VmRSS",)
    return sum(int(fields[name].split()[0]) * 1024 for name in counted if name in fields)


def _bytes(path: Path) -> bytes:
    """Read a file of ``/proc``; empty if the process is ending or the kernel lacks the file."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


class Failure(enum.Enum):
    """How a child failed."""

    REFUSED = "refused"
    """It reported that it cannot work: a missing library, a driver's error."""
    EXITED = "exited"
    """It exited with an error code (an uncaught exception), or was killed from outside, which says
    nothing about the device.
    """
    CRASHED = "crashed"
    """It was killed by a signal that it caused."""
    HUNG = "hung"
    STARVED = "starved"
    """It waited too long for a CPU to finish, which says nothing about the device."""
    TOO_BIG = "too big"
    MALFORMED = "malformed output"
    NOT_STARTED = "not started"
    QUARANTINED = "quarantined"
    """It was not started, because an earlier one crashed, hung or used too much memory on the same
    device.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildAnswer:
    """The JSON document that a child printed, and how long it took, without waits for a CPU."""

    document: dict[str, object]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildFailure:
    """The one-line reason why there is no document; ``seconds`` is as in ``ChildAnswer``."""

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
    """Run ``python -m module`` in its own session, and wait until it has ended.

    The child and its descendants are killed after ``deadline_seconds``, or when they hold more than
    ``max_resident_bytes`` of memory, not counting mapped files. Time in which they wait for a CPU
    extends the deadline, by at most nine times as much. ``environment`` is the child's whole
    environment, by default that of this process; PYTHONPATH is set so that it finds this package.
    ``on_progress`` is called with fractions from 0 to 1; if it raises, the child is ended and the
    exception is propagated. May be called from any thread. The child ends with this process.
    """
    started = time.monotonic()
    try:
        read_end, write_end = os.pipe()
    except OSError as error:  # this process has too many open files
        return _not_started(error, started)
    mark = f"{_MARK}={os.getpid()}-{write_end}-{time.monotonic_ns()}"
    program = "potluck.host.supervisor"
    command = [sys.executable, "-P", "-m", program, str(write_end), module]
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
    except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
        os.close(read_end)
        return _not_started(error, started)
    finally:
        os.close(write_end)
    stdout, stderr, status = Stdout(on_progress), Tail(), Status()
    with os.fdopen(read_end, "rb", buffering=0) as messages:
        takers = ((messages, status), (supervisor.stdout, stdout), (supervisor.stderr, stderr))
        try:
            killed, queued_seconds = _watch(
                supervisor, takers, stdout, status, deadline_seconds, max_resident_bytes
            )
        finally:
            _end(supervisor, messages, status, mark)
    seconds = max(0.0, time.monotonic() - started - queued_seconds)
    if killed is None:
        return _judge(status, supervisor.returncode or 0, stdout, stderr, seconds)
    reasons = {
        Failure.HUNG: f"did not respond within {deadline_seconds:.3g} s",
        Failure.STARVED: f"waited {queued_seconds:.3g} s for a CPU: this machine is too busy",
        Failure.TOO_BIG: f"used more than {format_bytes(max_resident_bytes)} of memory",
        Failure.MALFORMED: "printed too much output",
    }
    stuck = ", and cannot be killed because it hangs in the kernel" if status.is_stuck else ""
    return ChildFailure(failure=killed, reason=reasons[killed] + stuck, seconds=seconds)


def _not_started(error: Exception, started: float) -> ChildFailure:
    return ChildFailure(
        failure=Failure.NOT_STARTED,
        reason=f"cannot be started: {error}",
        seconds=time.monotonic() - started,
    )


def _end(
    supervisor: subprocess.Popen[bytes], messages: IO[bytes], status: Status, mark: str
) -> None:
    """Make the supervisor kill the remaining processes, and end it, by force if it was stopped or
    killed.

    Processes that a killed supervisor left behind are recognized by ``mark`` in their environment.
    A process that is blocked in a driver only ends when the driver call returns.
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
    os.set_blocking(messages.fileno(), False)
    status.take(messages.read(1 << 16) or b"")
    if not status.has_ended:
        kill_marked(mark)


def _judge(
    status: Status, supervisor_status: int, stdout: Stdout, stderr: Tail, seconds: float
) -> ChildOutcome:
    """Return the outcome of a child that ended by itself."""
    last_words = f": {stderr.last_line}" if stderr.last_line else ""
    returncode = status.returncode
    if returncode is None and supervisor_status < 0:
        reason = f"killed its supervisor with {signal_name(-supervisor_status)}{last_words}"
        return ChildFailure(failure=Failure.EXITED, reason=reason, seconds=seconds)
    if returncode is None:  # no process could be forked, or the child cannot be killed
        returncode = supervisor_status or 1
    if returncode < 0:
        failure = Failure.EXITED if -returncode in SIGNALS_FROM_OUTSIDE else Failure.CRASHED
        reason = f"was killed by {signal_name(-returncode)}{last_words}"
        return ChildFailure(failure=failure, reason=reason, seconds=seconds)
    if returncode > 0:
        reason = f"exited with code {returncode}{last_words}"
        return ChildFailure(failure=Failure.EXITED, reason=reason, seconds=seconds)
    document = read_document(stdout.data)
    if isinstance(document, str):
        return ChildFailure(failure=Failure.MALFORMED, reason=document, seconds=seconds)
    if "refused" in document:
        reason = one_line(str(document["refused"])) or "refused without a reason"
        return ChildFailure(failure=Failure.REFUSED, reason=reason, seconds=seconds)
    return ChildAnswer(document=document, seconds=seconds)


def _watch(
    supervisor: subprocess.Popen[bytes],
    takers: Sequence[tuple[IO[bytes] | None, Stdout | Tail | Status]],
    stdout: Stdout,
    status: Status,
    deadline_seconds: float,
    max_resident_bytes: int,
) -> tuple[Failure | None, float]:
    """Read the child's output until it ends or must be ended. Return the reason for ending it, or
    None, and how long it waited for a CPU.

    The end of the process counts, not that of its pipes: it may close them early, or leave them to
    its own child processes.
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
            is_over = status.has_ended or has_ended(supervisor.pid)
            # After the end, read only what is already in the pipes: others may still write to them.
            _take(selector, 0.0 if is_over else _POLL_SECONDS)
            if stdout.is_too_long:
                return Failure.MALFORMED, queued_seconds
            if is_over:
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
    """Read once from each pipe that has data, which is all of it since a pipe holds 64 KiB."""
    for key, _ in selector.select(timeout_seconds):
        pipe: IO[bytes] = key.fileobj  # type: ignore[assignment]  # as registered
        taker: Stdout | Tail | Status = key.data
        data = pipe.read(1 << 20)
        if data:
            taker.take(data)
        elif data is not None:
            selector.unregister(pipe)


def has_ended(pid: int) -> bool:
    """Return whether a child has ended, or was already reaped.

    It is not reaped here, so that its process id is not reused.
    """
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # reaped, by the kernel if SIGCHLD is ignored
        return True


def _continue(pid: int) -> None:
    """Continue the supervisor, which a library may have stopped. It is not reaped yet."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _with_this_package(environment: Mapping[str, str]) -> dict[str, str]:
    """Return ``environment`` with the folder of this package in PYTHONPATH, unless it is installed.

    A folder of installed packages must not be added, as it would precede the standard library.
    """
    folder = str(Path(__file__).resolve().parents[2])
    result = child_environment(environment)
    if folder not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        given = result.get("PYTHONPATH")
        result["PYTHONPATH"] = folder if not given else f"{folder}{os.pathsep}{given}"
    return result


def signal_name(number: int) -> str:
    """Return the name of a signal, such as ``SIGSEGV`` for 11."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
