"""Child processes that touch a driver: started, watched, ended, and their answer judged.

A driver's library may raise, hang, crash, take all memory or print what it likes; here that costs
one line of reason. The child prints lines ``{"progress": 0.3}`` if it likes, and then one JSON
object: its answer, or ``{"refused": "why"}``.
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from potluck.probe.child_output import Document, Refusal, Rubbish, Stdout, Tail, read_document
from potluck.quantities import format_bytes

_POLL_SECONDS = 0.02
"""How often memory is looked at: at 10 GB/s, which is fast for page faults, 200 MB are taken in
between."""

_MOST_QUEUED = 3.0
"""Of a deadline, by which the time that a child waits for a CPU may put it off."""

_KILL_SECONDS = 2.0
"""How long a killed process may take to be gone, such as to give back gigabytes of memory."""

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
    TOO_BIG = "too big"
    RUBBISH = "rubbish"
    NOT_STARTED = "not started"
    QUARANTINED = "quarantined"
    """It was not started: an earlier one crashed, hung or grew on the same device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildAnswer:
    """The JSON document that a child printed."""

    document: dict[str, object]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildFailure:
    """Why there is no document, in one line."""

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

    It is killed, with what it started, after ``deadline_seconds``, in which the time that it waited
    for a CPU to run on does not count (at most three times as much), or when it and its children
    hold more than ``max_resident_bytes`` of memory that is not a file's. ``environment`` is its
    whole environment, that of this process if None; what finds this package is added.
    ``on_progress`` gets fractions from 0 to 1; what it raises comes out of here, when the child
    has been ended. May be called from any thread that outlives the call.
    """
    started = time.monotonic()
    command = [sys.executable, "-P", "-m", "potluck.probe.child_start", str(os.getpid()), module]
    try:
        process = subprocess.Popen(
            [*command, *arguments],
            env=_with_this_package(os.environ if environment is None else environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # a ValueError: a NUL in an argument
        return ChildFailure(
            failure=Failure.NOT_STARTED,
            reason=f"could not be started: {error}",
            seconds=time.monotonic() - started,
        )
    stdout, stderr = Stdout(on_progress), Tail()
    try:
        killed = _watch(process, stdout, stderr, started, deadline_seconds, max_resident_bytes)
    finally:
        status = _end(process)
    seconds = time.monotonic() - started
    if killed is None:  # and so it has ended
        return _judge(process.returncode, stdout, stderr, seconds)
    reasons = {
        Failure.HUNG: f"gave no answer within {deadline_seconds:.3g} s",
        Failure.TOO_BIG: f"took more than {format_bytes(max_resident_bytes)} of memory",
        Failure.RUBBISH: "printed without end",
    }
    stuck = "" if status is not None else ", and cannot be killed: it hangs in the kernel"
    return ChildFailure(failure=killed, reason=reasons[killed] + stuck, seconds=seconds)


def _end(process: subprocess.Popen[bytes]) -> int | None:
    """Kill what is left of it and its group; its status, or None if the kernel keeps it.

    A process that waits within a driver may not be killed until the driver lets go. Python reaps
    it when it has ended and another process is started.
    """
    # Not reaped yet, so that the number of its group cannot be another's.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    try:
        return process.wait(_KILL_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def _judge(status: int, stdout: Stdout, stderr: Tail, seconds: float) -> ChildOutcome:
    """The outcome of a child that ended before anything had to be done about it."""
    last_words = f": {stderr.last_line}" if stderr.last_line else ""
    if status < 0:
        failure = Failure.EXITED if -status in SIGNALS_FROM_OUTSIDE else Failure.CRASHED
        reason = f"was killed by {signal_name(-status)}{last_words}"
        return ChildFailure(failure=failure, reason=reason, seconds=seconds)
    if status > 0:
        reason = f"ended with exit code {status}{last_words}"
        return ChildFailure(failure=Failure.EXITED, reason=reason, seconds=seconds)
    match read_document(stdout.data):
        case Document(value):
            return ChildAnswer(document=value, seconds=seconds)
        case Refusal(reason):
            return ChildFailure(failure=Failure.REFUSED, reason=reason, seconds=seconds)
        case Rubbish(reason):
            return ChildFailure(failure=Failure.RUBBISH, reason=reason, seconds=seconds)


def _watch(
    process: subprocess.Popen[bytes],
    stdout: Stdout,
    stderr: Tail,
    started: float,
    deadline_seconds: float,
    max_resident_bytes: int,
) -> Failure | None:
    """Take what the child prints until it ends (None) or must be ended (why). Does not reap it.

    The end is that of the process and not of its pipes: it may close them early, and leave them
    to processes of its own.
    """
    deadline = started + deadline_seconds
    with selectors.DefaultSelector() as selector:
        for pipe, taker in ((process.stdout, stdout), (process.stderr, stderr)):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, selectors.EVENT_READ, taker)
        next_look = 0.0
        while True:
            has_ended = _has_ended(process.pid)
            if has_ended:
                # Only what is in the pipes already: others may still write to them.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            _take(selector, 0.0 if has_ended else _POLL_SECONDS)
            if stdout.is_too_long:
                return Failure.RUBBISH
            if has_ended:
                return None
            now = time.monotonic()
            if now >= deadline:
                queued = min(_queued_seconds(process.pid), _MOST_QUEUED * deadline_seconds)
                if now >= deadline + queued:
                    return Failure.HUNG
            if now >= next_look:
                if _resident_bytes(process.pid) > max_resident_bytes:
                    return Failure.TOO_BIG
                next_look = now + _POLL_SECONDS


def _take(selector: selectors.BaseSelector, timeout_seconds: float) -> None:
    """Read once from each pipe that has something; a pipe holds 64 KiB, so once is all of it."""
    if not selector.get_map():
        time.sleep(min(timeout_seconds, _POLL_SECONDS / 10))
        return
    for key, _ in selector.select(timeout_seconds):
        pipe: IO[bytes] = key.fileobj  # type: ignore[assignment]  # what was registered
        taker: Stdout | Tail = key.data
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


def _resident_bytes(pid: int) -> int:
    """What a process and its children hold in memory, mapped files excepted.

    ``proc(5)``: ``RssAnon`` and ``RssShmem`` of ``/proc/PID/status``, since Linux 4.5; before,
    ``VmRSS``, which counts files too. Of the children those that main threads started, since that
    is one file each. A limit on the address space would be simpler, but CUDA reserves hundreds of
    gigabytes that it never uses.
    """
    num_bytes = 0
    waiting = [pid]
    while waiting:
        pid = waiting.pop()
        lines = _bytes(f"/proc/{pid}/status").splitlines()
        fields = dict(line.split(b":", 1) for line in lines if b":" in line)
        counted = (b"RssAnon", b"RssShmem") if b"RssAnon" in fields else (b"VmRSS",)
        num_bytes += sum(int(fields[name].split()[0]) * 1024 for name in counted if name in fields)
        waiting.extend(int(child) for child in _bytes(f"/proc/{pid}/task/{pid}/children").split())
    return num_bytes


def _queued_seconds(pid: int) -> float:
    """How long a process's main thread could have run and others ran instead; 0 if nobody counts.

    On a loaded machine a compiler takes several times as long, which is no fault of the device.
    ``Documentation/scheduler/sched-stats.rst``: time on the CPU, time in the queue, in nanoseconds.
    """
    fields = _bytes(f"/proc/{pid}/schedstat").split()
    return int(fields[1]) / 1e9 if len(fields) > 1 else 0.0


def _bytes(path: str) -> bytes:
    """A file of ``/proc``; nothing if the process ends right now or the kernel has no such file."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _with_this_package(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` with the folder of this package in PYTHONPATH, unless it is installed.

    A folder of installed packages must not go there: it would come before the standard library.
    """
    folder = str(Path(__file__).resolve().parents[2])
    result = dict(environment)
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
