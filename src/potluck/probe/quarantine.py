"""Devices that ended a child badly are left alone until something about them changes."""

from __future__ import annotations

import logging
from collections.abc import Callable

from potluck.probe.cache import ProbeCache
from potluck.probe.child import ChildFailure, ChildOutcome, Failure

_log = logging.getLogger(__name__)

DANGEROUS = frozenset({Failure.CRASHED, Failure.HUNG, Failure.TOO_BIG})
"""What must not be met twice. A refusal is cheap and may be cured at any time, by a library that
is installed or a group that is joined, and so may an exception: those are tried again."""


def run_unless_quarantined(
    cache: ProbeCache, fingerprint: str, run: Callable[[], ChildOutcome], *, retry: bool
) -> ChildOutcome:
    """What ``run`` gives, which is not called if it ended badly under this fingerprint before.

    ``retry`` calls it nevertheless. A dangerous end is remembered, any other forgives.
    """
    key = _key(fingerprint)
    if not retry and (earlier := cache.get(key)) is not None:
        reason = earlier.get("reason")
        return ChildFailure(
            failure=Failure.QUARANTINED,
            reason=f"not tried again: {reason} (potluck probe --retry tries)",
            seconds=0.0,
        )
    outcome = run()
    if isinstance(outcome, ChildFailure) and outcome.failure in DANGEROUS:
        _log.warning("%s is not tried again: %s", fingerprint, outcome.reason)
        cache.put(key, {"failure": outcome.failure.value, "reason": outcome.reason})
    else:
        cache.remove(key)
    return outcome


def _key(fingerprint: str) -> str:
    return f"quarantine/{fingerprint}"
