"""Isolate failures of parts of the probe.

An exception becomes a one-line reason, and a thread that cannot be started affects only one part.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from potluck.host.child_output import one_line

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

_STACK_BYTES = 1 << 20
"""The stack size of a probe's threads, which read files and wait for children. The default is 8 MiB
of address space, and a dozen of those may exceed a user's limit (``ulimit -v``)."""

_stack_size = threading.Lock()
"""Held while the stack size is changed, which is global in Python."""


def guarded(call: Callable[[], _T], otherwise: Callable[[str], _T]) -> _T:
    """Return the result of ``call``, or ``otherwise`` with the reason why it failed."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - any detector, on any machine
        _log.debug("a part of the probe failed", exc_info=True)
        return otherwise(one_line(f"failed with {type(error).__name__}: {error}"))


def start_thread(name: str, call: Callable[[], None]) -> str:
    """Run ``call`` in a daemon thread; return why it cannot be started, or empty.

    The limit of a user or control group may be reached.
    """
    try:
        _start(threading.Thread(target=call, name=name, daemon=True))
    except RuntimeError as error:
        return str(error)
    return ""


def run_at_once(calls: Sequence[Callable[[], _T]]) -> list[_T]:
    """Run each of ``calls``, which must not raise, in its own thread if one can be started, and
    return their results.
    """
    results: dict[int, _T] = {}

    def run(number: int) -> None:
        results[number] = calls[number]()

    started: list[threading.Thread] = []
    for number in range(len(calls)):
        thread = threading.Thread(target=run, args=(number,), name="probe-query", daemon=True)
        try:
            _start(thread)
        except RuntimeError:
            run(number)
        else:
            started.append(thread)
    for thread in started:
        thread.join()
    return [results[number] for number in range(len(calls))]


def _start(thread: threading.Thread) -> None:
    with _stack_size:
        before = threading.stack_size(_STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
