"""Which requests were being computed when what serves them broke, and which break it every time.

A request that was in a step when an exception or a crashed worker ended an epoch is a *suspect*:
most suspects only shared that step with the guilty one. So a suspect that comes again is computed
in steps of its own. If it completes it is cleared; if it is there when an epoch ends this way a
second time, it was there alone, and it is refused from then on.

Clients repeat requests under new ids, and with new seeds where they gave none: a request is known
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
"""Of a deployment: several epochs' worth of steps, in some 200 KiB."""

FORGET_SECONDS = 3600.0
"""After that a request has its two chances again: the defect may be fixed by then, and two epochs
an hour are no outage."""

_ENDS_TO_REFUSE = 2

_Key = bytes


class Standing(enum.Enum):
    """How a request may be computed."""

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
    """What is remembered, bounded in number and in time. Times are in seconds."""

    records: Mapping[_Key, _Record] = field(default_factory=dict)

    def standing(self, request: SequenceRequest, now: float) -> Standing:
        """How ``request`` may be computed now."""
        if not self.records:
            return Standing.FREE
        record = self.records.get(_key(request))
        if record is None or now - record.at >= FORGET_SECONDS:
            return Standing.FREE
        return Standing.REFUSED if record.num_ends >= _ENDS_TO_REFUSE else Standing.SUSPECT

    def accused(
        self, requests: Iterable[SequenceRequest], now: float
    ) -> tuple[Suspects, tuple[SequenceRequest, ...]]:
        """After an end with these requests in its steps; and those that are refused from now on.

        A request that was there several times (as the choices of one call are) counts once.
        """
        records = {
            key: each for key, each in self.records.items() if now - each.at < FORGET_SECONDS
        }
        refused = []
        for key, request in {_key(each): each for each in requests}.items():
            before = records.pop(key, None)  # and to the end: the oldest are forgotten first
            num_ends = 1 if before is None else before.num_ends + 1
            records[key] = _Record(num_ends=num_ends, at=now)
            if num_ends == _ENDS_TO_REFUSE:
                refused.append(request)
        kept = list(records.items())[-MAX_REMEMBERED:]
        return dataclasses.replace(self, records=dict(kept)), tuple(refused)

    def completed(self, request: SequenceRequest) -> Suspects:
        """After ``request`` was computed to its end: it is no suspect any more."""
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
    # Not encoded as for the wire: what cannot be is what this may have to remember.
    return hashlib.blake2b(repr(content).encode(), digest_size=16).digest()
