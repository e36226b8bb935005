"""Which requests were being computed when the pipeline crashed, and which crash it every time.

A request that was in a step when an exception or a crashed worker ended an epoch is a *suspect*:
most suspects only shared that step with the culprit. So a suspect that comes again is computed in
steps of its own. If it completes it is cleared; if it is present when an epoch ends this way a
second time, it was there alone, and it is refused from then on.

Clients repeat requests with new ids, and with new seeds if they gave none: a request is identified
by its prompt, limits and sampling parameters without the seed. Pure: callers have the clock.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from potluck.types.sequence import SequenceRequest

MAX_REMEMBERED = 1024
"""Per deployment: several epochs' worth of steps, in some 200 KiB."""

FORGET_SECONDS = 3600.0
"""After this a request has its two chances again: the bug may be fixed by then, and two epochs an
hour are not an outage."""

_ENDS_TO_REFUSE = 2

_Key = bytes


class SuspectState(enum.Enum):
    """How a request may be computed, depending on the crashes that it took part in."""

    FREE = "free"
    SUSPECT = "suspect"
    """In steps of its own."""
    REFUSED = "refused"
    """Not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    num_ends: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspects:
    """The suspects, bounded in number and in time. Times are in seconds."""

    records: Mapping[_Key, _Record] = field(default_factory=dict)

    def state(self, request: SequenceRequest, now: float) -> SuspectState:
        """Return how ``request`` may be computed now."""
        if not self.records:
            return SuspectState.FREE
        record = self.records.get(_key(request))
        if record is None or now - record.at >= FORGET_SECONDS:
            return SuspectState.FREE
        return SuspectState.REFUSED if record.num_ends >= _ENDS_TO_REFUSE else SuspectState.SUSPECT

    def accused(
        self, requests: Iterable[SequenceRequest], now: float
    ) -> tuple[Suspects, tuple[SequenceRequest, ...]]:
        """Return the state after a crash with these requests in its steps, and those refused from
        now on.

        A request that was there several times (as the choices of one call are) counts once.
        """
        records = {
            key: each for key, each in self.records.items() if now - each.at < FORGET_SECONDS
        }
        refused = []
        for key, request in {_key(each): each for each in requests}.items():
            before = records.pop(key, None)  # re-inserted at the end: the oldest are removed first
            num_ends = 1 if before is None else before.num_ends + 1
            records[key] = _Record(num_ends=num_ends, at=now)
            if num_ends == _ENDS_TO_REFUSE:
                refused.append(request)
        kept = list(records.items())[-MAX_REMEMBERED:]
        return dataclasses.replace(self, records=dict(kept)), tuple(refused)

    def completed(self, request: SequenceRequest) -> Suspects:
        """Return the state after ``request`` was computed to its end: it is no longer a suspect."""
        key = _key(request)
        if key not in self.records:
            return self
        rest = {other: each for other, each in self.records.items() if other != key}
        return dataclasses.replace(self, records=rest)


def _key(request: SequenceRequest) -> _Key:
    content = (
        request.prompt_tokens,
        dataclasses.replace(request.sampling, seed=0),
        request.max_new_tokens,
        sorted(request.stop_tokens),
        request.score_prompt,
        request.grammar,
    )
    # Not the wire encoding: requests that cannot be encoded may have to be remembered here.
    return hashlib.blake2b(repr(content).encode(), digest_size=16).digest()
