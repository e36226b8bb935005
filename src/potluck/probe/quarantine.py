"""Devices that ended a child badly are left alone until something about them changes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from potluck.probe.cache import ProbeCache
from potluck.probe.child import ChildFailure, ChildOutcome, Failure

_log = logging.getLogger(__name__)

DANGEROUS = frozenset({Failure.CRASHED, Failure.HUNG, Failure.TOO_BIG})
"""What must not be met twice. A refusal is cheap and may be cured at any time, by a library that
is installed or a group that is joined, and so may an exception: those are tried again."""

_IN_USE = "in use"

_MUCH_LONGER = 2.0
"""A child that hung is tried again with this many times the time: it may only have been slow, where
others before it had used up most of the probe's."""


def run_unless_quarantined(
    cache: ProbeCache,
    fingerprint: str,
    run: Callable[[], ChildOutcome],
    *,
    retry: bool,
    deadline_seconds: float,
) -> ChildOutcome:
    """What ``run`` gives, which is not called if it ended badly under this fingerprint before.

    ``retry`` calls it nevertheless. A dangerous end is remembered, any other forgives, but for one
    that says nothing as the machine was too busy.
    ``deadline_seconds`` is the time that ``run`` gives its children.
    """
    key = _key(fingerprint)
    earlier = None if retry else cache.get(key)
    if earlier is not None and not _had_little_time(earlier, deadline_seconds):
        reason = earlier.get("reason")
        return ChildFailure(
            failure=Failure.QUARANTINED,
            reason=f"not tried again: {reason} (potluck probe --retry tries)",
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
    else:
        cache.remove(key)
    return outcome


def quarantine(cache: ProbeCache, fingerprint: str, reason: str) -> None:
    """Leave alone what failed outside of a child, in use, until it is retried."""
    cache.put(_key(fingerprint), {"failure": _IN_USE, "reason": reason})


def is_quarantined(cache: ProbeCache, fingerprint: str) -> bool:
    """Whether it is left alone."""
    return cache.get(_key(fingerprint)) is not None


def _had_little_time(earlier: Mapping[str, object], deadline_seconds: float) -> bool:
    match earlier:
        case {"failure": Failure.HUNG.value, "deadline_seconds": int() | float() as given}:
            return deadline_seconds >= _MUCH_LONGER * given
    return False


def _key(fingerprint: str) -> str:
    return f"quarantine/{fingerprint}"
