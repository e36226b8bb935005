from __future__ import annotations

import logging

from potluck.host.log_rate import LogRate, LogRateFilter


def test_lines_beyond_the_rate_are_counted_and_reported_once() -> None:
    now = 0.0
    rate = LogRate(lines=2, seconds=10, clock=lambda: now)
    assert [rate.allows() for _ in range(5)] == [True, True, False, False, False]
    assert rate.num_suppressed == 3
    assert rate.ends_at == 10
    assert rate.take() == 0  # its period goes on
    now = 11.0
    assert rate.take() == 3
    assert rate.take() == 0
    assert rate.ends_at is None
    assert [rate.allows() for _ in range(3)] == [True, True, False]
    assert rate.ends_at == 21


def test_a_few_lines_all_get_through() -> None:
    now = 0.0
    rate = LogRate(lines=2, seconds=10, clock=lambda: now)
    for _ in range(20):
        assert rate.allows()
        now += 6.0
    assert rate.ends_at is None


def test_what_was_suppressed_is_not_forgotten_when_the_next_period_begins_late() -> None:
    now = 0.0
    rate = LogRate(lines=1, seconds=10, clock=lambda: now)
    assert [rate.allows() for _ in range(3)] == [True, False, False]
    now = 50.0
    assert not rate.allows()  # reported first
    assert rate.take() == 3
    assert rate.allows()


def test_a_message_passes_once_in_a_while_and_says_how_many_did_not() -> None:
    now = 0.0
    rate = LogRateFilter(10, clock=lambda: now)

    def passed(message: str, *arguments: object) -> str | None:
        record = logging.LogRecord("x", logging.WARNING, "", 0, message, arguments, None)
        return record.getMessage() if rate.filter(record) else None

    assert passed("no %s", "room") == "no room"
    assert [passed("no %s", number) for number in range(5)] == [None] * 5
    assert passed("other") == "other"
    now = 9.9
    assert passed("no %s", "room") is None
    now = 10.0
    assert passed("no %s", "air") == "no air (6 similar messages suppressed)"
    now = 20.0
    assert passed("no %s", "air") == "no air"
