"""The numbered log of the last events in the cluster, as noticed by this node."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from potluck.types.cluster_events import ClusterEvent, EventContent

KEPT_EVENTS = 500
MAX_MESSAGE_CHARACTERS = 1000
"""The longest message; reasons come from other nodes, and the log holds ``KEPT_EVENTS`` of them."""

_IDS_PER_SECOND = 1000
"""More event ids per second than an agent uses on average, so that ids increase across restarts."""


class EventLog:
    """The log. For use in the agent's event loop. ``clock`` returns seconds since 1970.

    Every event is passed to ``listeners``, which must not raise.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.listeners: set[Callable[[ClusterEvent], None]] = set()
        self._clock = clock
        self._next_id = int(clock()) * _IDS_PER_SECOND
        self._events: deque[ClusterEvent] = deque(maxlen=KEPT_EVENTS)

    def add(self, what: EventContent) -> None:
        """Log an event that happened now."""
        if len(what.message) > MAX_MESSAGE_CHARACTERS:
            what = replace(what, message=what.message[: MAX_MESSAGE_CHARACTERS - 1] + "…")
        event = ClusterEvent(event_id=self._next_id, time=self._clock(), what=what)
        self._next_id += 1
        self._events.append(event)
        for listener in list(self.listeners):
            listener(event)

    def after(self, event_id: int | None) -> tuple[ClusterEvent, ...]:
        """Return the events after the given one, or all that are kept; oldest first.

        Also returns all if the given id is in the future, because this node's clock was set back.
        """
        if event_id is None or event_id >= self._next_id:
            return tuple(self._events)
        return tuple(each for each in self._events if each.event_id > event_id)
