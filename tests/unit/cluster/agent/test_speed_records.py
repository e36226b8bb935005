"""What is kept of the step times of units, for how long, and how much of it."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest

from potluck.cluster.agent.measured_speeds import (
    AGREEING_SECONDS,
    KEPT_SECONDS,
    MAX_FILE_BYTES,
    MAX_RECORDS,
    SETTLED_SAMPLES,
    SpeedRecords,
)
from potluck.errors import ParameterError
from potluck.types.cluster import UnitId
from potluck.types.speed import StepTime

CPU, GPU = UnitId("cpu/native"), UnitId("gpu/tinygrad:CL")
NOW = 1_800_000_000.0
DAY = 86_400.0


def measured(seconds: float = 0.01, **changes: Any) -> StepTime:
    time = StepTime(
        num_layers=4,
        has_embedding=False,
        has_head=False,
        num_sequences=1,
        num_tokens=1,
        context_tokens=100,
        seconds=seconds,
        num_samples=33,
    )
    return dataclasses.replace(time, **changes)


def records(*times: StepTime, at: float = NOW) -> SpeedRecords:
    made = SpeedRecords("1")
    assert made.take(CPU, "fast", "shape", times, at) == 0
    return made


def seconds_of(known: SpeedRecords, now: float = NOW, conditions: str = "fast") -> list[float]:
    found = known.of("shape", {CPU: conditions}, now)
    return [each.seconds for each in found.get(CPU, ())]


def test_times_are_told_by_unit_shape_and_conditions_with_their_age() -> None:
    known = records(measured(0.01, age_seconds=5.0), measured(0.02, num_layers=8))
    known.take(GPU, "fast", "shape", [measured(0.001)], NOW)
    assert seconds_of(known, NOW + 10) == [0.02, 0.01]
    found = known.of("shape", {CPU: "fast", GPU: "fast"}, NOW + 10)
    assert [each.age_seconds for each in found[CPU]] == [10.0, 15.0]
    assert len(found[GPU]) == 1
    assert seconds_of(known, conditions="0.1 cores") == []
    assert known.of("another", {CPU: "fast"}, NOW) == {}


def test_the_latest_median_of_enough_samples_counts() -> None:
    known = records(measured(0.01))
    known.take(CPU, "fast", "shape", [measured(0.04, num_samples=SETTLED_SAMPLES)], NOW + 5)
    assert seconds_of(known) == [0.04]
    known.take(CPU, "fast", "shape", [measured(9.0, num_samples=3)], NOW + 6)
    assert seconds_of(known) == [0.04]
    known.take(CPU, "fast", "shape", [measured(0.03, num_samples=3)], NOW + 2 * DAY)
    assert seconds_of(known, NOW + 2 * DAY) == [0.03]


def test_what_is_old_beside_the_latest_does_not_count_and_is_forgotten_in_the_end() -> None:
    known = records(measured(0.01))
    known.take(CPU, "fast", "shape", [measured(0.05, num_layers=8)], NOW + 2 * DAY)
    assert seconds_of(known, NOW + 2 * DAY) == [0.05]
    assert seconds_of(records(measured()), NOW + KEPT_SECONDS - 1) == [0.01]
    assert seconds_of(records(measured()), NOW + KEPT_SECONDS + 1) == []
    assert b"cpu/native" not in records(measured()).encode(NOW + KEPT_SECONDS + 1)


def test_a_unit_is_as_fast_as_it_was_lately_by_whatever_cut_of_a_model() -> None:
    prompt = measured(0.7, num_tokens=512)
    known = records(measured(0.01), measured(0.02, num_layers=8), prompt)
    slow = [measured(0.09, num_layers=6), measured(0.1, num_layers=6, context_tokens=900)]
    known.take(CPU, "fast", "shape", slow[:1], NOW + AGREEING_SECONDS + 60)
    known.take(CPU, "fast", "shape", slow[1:], NOW + AGREEING_SECONDS + 120)
    # Of prompts nothing later is known.
    assert seconds_of(known, NOW + 1000) == [0.1, 0.09, 0.7]


def test_they_survive_a_file_of_the_same_version_and_no_other() -> None:
    known = records(measured(0.01), measured(0.3, num_tokens=512), measured(0.02, num_layers=8))
    document = known.encode(NOW)
    again = SpeedRecords.decode("1", document, NOW + 60)
    everything = known.of("shape", {CPU: "fast"}, NOW + 60)
    assert again.of("shape", {CPU: "fast"}, NOW + 60) == everything
    assert len(everything[CPU]) == 3
    assert SpeedRecords.decode("2", document, NOW).of("shape", {CPU: "fast"}, NOW) == {}


def test_a_clock_that_was_ahead_makes_nothing_younger_than_it_is() -> None:
    document = records(measured(), at=NOW + 400 * DAY).encode(NOW)
    again = SpeedRecords.decode("1", document, NOW)
    assert [each.age_seconds for each in again.of("shape", {CPU: "fast"}, NOW)[CPU]] == [0.0]
    assert seconds_of(again, NOW + KEPT_SECONDS + 1) == []


def _with(document: bytes, **changes: object) -> bytes:
    """The document with the first step time changed."""
    decoded = json.loads(document)
    decoded["records"][0]["times"][0]["time"].update(changes)
    return json.dumps(decoded).encode()


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"\0" * 4096,
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"schema": "potluck.step-times/1", "version": "1", "records": [{}]}',
        b'{"schema": "potluck.step-times/2", "version": "1", "records": []}',
        b"[" * 100_000,
        records(measured()).encode(NOW)[:-20],
        _with(records(measured()).encode(NOW), seconds="fast"),
        _with(records(measured()).encode(NOW), seconds=10**400),
        b'{"schema": "potluck.step-times/1", "version": "1", "more": ' + b"[" * 1_000_000,
    ],
)
def test_a_document_that_is_none_is_refused_in_a_line(document: bytes) -> None:
    with pytest.raises(ParameterError) as raised:
        SpeedRecords.decode("1", document, NOW)
    assert len(raised.value.message.splitlines()) == 1
    assert len(raised.value.message) < 200


@pytest.mark.parametrize(
    "changes", [{"seconds": -1.0}, {"num_tokens": 10**40}, {"num_sequences": 0}]
)
def test_what_no_stage_can_have_measured_is_left_out(changes: dict[str, Any]) -> None:
    document = records(measured(), measured(0.02, num_layers=8)).encode(NOW)
    assert seconds_of(SpeedRecords.decode("1", _with(document, **changes), NOW)) == [0.02]
    known = SpeedRecords("1")
    wrong = measured(**changes)
    assert known.take(CPU, "fast", "shape", [wrong, measured(seconds=math.nan)], NOW) == 2
    assert known.take(CPU, "fast", "x" * 100_000, [measured()], NOW) == 0
    assert known.encode(NOW) == SpeedRecords("1").encode(NOW)


@pytest.mark.slow
def test_the_file_is_bounded_and_the_latest_is_kept() -> None:
    known = SpeedRecords("1")
    for shape in range(2 * MAX_RECORDS):
        times = [
            measured(0.123456789, num_layers=layers, num_sequences=count, num_tokens=count)
            for layers in range(1, 30)
            for count in range(1, 10)
        ]
        known.take(CPU, "fast" * 20, f"shape {shape} " + "x" * 300, times, NOW + shape)
    document = known.encode(NOW + 100)
    assert len(document) < MAX_FILE_BYTES
    shapes = [each["model_shape"].split()[1] for each in json.loads(document)["records"]]
    assert sorted(map(int, shapes)) == list(range(MAX_RECORDS, 2 * MAX_RECORDS))


def test_what_was_measured_while_the_clock_was_ahead_is_replaced() -> None:
    known = records(measured(0.01), measured(0.02, num_layers=8), at=NOW + 300 * DAY)
    assert seconds_of(known) == [0.01, 0.02]
    known.take(CPU, "fast", "shape", [measured(0.03)], NOW + 10)
    assert seconds_of(known, NOW + 10) == [0.03, 0.02]
    assert seconds_of(known, NOW + 30 * DAY) == []
