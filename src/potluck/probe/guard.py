"""Parts of the probe that fail cost one line, and threads that cannot be had cost one part."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from potluck.probe.child_output import one_line

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


def guarded(call: Callable[[], _T], otherwise: Callable[[str], _T]) -> _T:
    """What ``call`` gives, or ``otherwise`` with the reason why it failed: the node goes on."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - any layer, on any machine
        _log.debug("a part of the probe failed", exc_info=True)
        return otherwise(one_line(f"failed with {type(error).__name__}: {error}"))


def start_thread(name: str, call: Callable[[], None]) -> str:
    """Run ``call`` in a thread that the process does not wait for; why there is none, or nothing.

    A user or control group may have no more of them.
    """
    try:
        threading.Thread(target=call, name=name, daemon=True).start()
    except RuntimeError as error:
        return str(error)
    return ""


def run_at_once(calls: Sequence[Callable[[], _T]]) -> list[_T]:
    """What ``calls`` give, which must not raise: each in a thread of its own, if one can be had."""
    results: dict[int, _T] = {}

    def run(number: int) -> None:
        results[number] = calls[number]()

    started: list[threading.Thread] = []
    for number in range(len(calls)):
        thread = threading.Thread(target=run, args=(number,), name="probe-query", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            run(number)
        else:
            started.append(thread)
    for thread in started:
        thread.join()
    return [results[number] for number in range(len(calls))]
