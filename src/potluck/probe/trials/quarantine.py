"""Quarantine devices on which a child crashed, hung or used too much memory.

They are not tried again until their fingerprint changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from potluck.host.child import ChildFailure, ChildOutcome, Failure
from potluck.probe.cache import ProbeCache

_log = logging.getLogger(__name__)

DANGEROUS = frozenset({Failure.CRASHED, Failure.HUNG, Failure.TOO_BIG})
"""Failures that must not be repeated. Refusals and exceptions are tried again: they are cheap, and
may be resolved at any time, for example by installing a library or joining a group.
"""

_IN_USE = "in use"

_MUCH_LONGER = 2.0
"""A child that hung is retried if it gets this many times as much time, since others may have used
most of the probe's time at the first attempt.
"""


def run_unless_quarantined(
    cache: ProbeCache,
    fingerprint: str,
    run: Callable[[], ChildOutcome],
    *,
    retry: bool,
    deadline_seconds: float,
) -> ChildOutcome:
    """Return the result of ``run``, which is not called if it failed dangerously with this
    fingerprint before, unless ``retry`` is set.

    Such a failure is recorded; any other outcome clears the record that was there before, except an
    unknown outcome on a machine that was too busy. A record that another process adds during
    ``run`` stays, unless ``retry`` is set. ``deadline_seconds`` is the time limit of the children
    of ``run``.
    """
    key = _key(fingerprint)
    earlier = None if retry else cache.get(key)
    if earlier is not None and not _had_little_time(earlier, deadline_seconds):
        reason = earlier.get("reason")
        return ChildFailure(
            failure=Failure.QUARANTINED,
            reason=f"not tried again: {reason} (retry with potluck probe --retry)",
            seconds=0.0,
        )
    outcome = run()
    if isinstance(outcome, ChildFailure) and outcome.failure is Failure.STARVED:
        return outcome
    if isinstance(outcome, ChildFailure) and outcome.failure in DANGEROUS:
        subject = fingerprint.rpartition("/")[0].rstrip("/")
        _log.warning("%s is not tried again: %s", subject, outcome.reason)
        cache.put(
            key,
            {
                "failure": outcome.failure.value,
                "reason": outcome.reason,
                "deadline_seconds": deadline_seconds,
            },
        )
    elif retry or earlier is not None:
        cache.remove(key)
    return outcome


def quarantine(cache: ProbeCache, fingerprint: str, reason: str) -> None:
    """Quarantine a unit that failed in use, outside a child process, until it is retried.

    ``fingerprint`` is that of its trial (``running.trial_key``).
    """
    cache.put(_key(fingerprint), {"failure": _IN_USE, "reason": reason})


def is_quarantined(cache: ProbeCache, fingerprint: str) -> bool:
    """Return whether ``fingerprint`` is in quarantine."""
    return cache.get(_key(fingerprint)) is not None


def _had_little_time(earlier: Mapping[str, object], deadline_seconds: float) -> bool:
    match earlier:
        case {"failure": Failure.HUNG.value, "deadline_seconds": int() | float() as given}:
            return deadline_seconds >= _MUCH_LONGER * given
    return False


def _key(fingerprint: str) -> str:
    return f"quarantine/{fingerprint}"
