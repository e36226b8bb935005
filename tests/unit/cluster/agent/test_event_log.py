"""The log of events: numbered, bounded, and told at once."""

from __future__ import annotations

from potluck.cluster.agent.history import KEPT_EVENTS, MAX_MESSAGE_CHARACTERS, EventLog
from potluck.types.cluster_events import ClusterEvent, EventContent, EventKind


def happening(message: str = "It happened.") -> EventContent:
    return EventContent(kind=EventKind.JOINED, message=message)


def test_events_are_told_and_those_after_one_are_given_again() -> None:
    log = EventLog(lambda: 5.5)
    events: list[ClusterEvent] = []
    log.listeners.add(events.append)
    for _ in range(3):
        log.add(happening())
    ids = [each.event_id for each in events]
    assert ids == sorted(set(ids))
    assert {each.time for each in events} == {5.5}
    assert log.after(None) == tuple(events)
    assert log.after(ids[0]) == tuple(events[1:])
    assert log.after(ids[-1]) == ()
    assert log.after(ids[-1] + 1000) == tuple(events)


def test_ids_grow_from_one_start_to_the_next_and_a_browser_can_hold_them() -> None:
    first, second = EventLog(lambda: 1_800_000_000.0), EventLog(lambda: 1_800_000_060.0)
    for log in (first, second):
        log.add(happening())
    (earlier,), (later,) = first.after(None), second.after(None)
    assert earlier.event_id < later.event_id < 2**53
    assert second.after(earlier.event_id) == (later,)


def test_it_is_bounded() -> None:
    log = EventLog()
    for number in range(KEPT_EVENTS + 10):
        log.add(happening(f"{number} " + "x" * 5000))
    kept = log.after(None)
    assert len(kept) == KEPT_EVENTS
    assert kept[0].what.message.startswith("10 ")
    assert max(len(each.what.message) for each in kept) == MAX_MESSAGE_CHARACTERS
