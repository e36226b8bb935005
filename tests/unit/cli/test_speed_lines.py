"""Measured beside predicted speeds as ``potluck ps`` prints them."""

from __future__ import annotations

from typing import Any

import pytest

from potluck.cli.cluster import speed_lines

NOTHING: dict[str, Any] = {
    "decode_seconds": None,
    "loaded_seconds": None,
    "prefill_seconds_per_token": None,
}
IDLE = {
    "tokens_per_second": None,
    "total_tokens_per_second": None,
    "num_streams": None,
    "first_token_seconds": None,
    "num_first_tokens": None,
}
PREDICTION = {
    "token_seconds": 0.0222,
    "tokens_per_second": 45.0,
    "num_streams": 8,
    "total_tokens_per_second": 123.4,
    "steps_in_flight": 2,
    "bottleneck": 0,
    "first_token_seconds": 0.8,
    "prompt_tokens": 512,
    "entry_seconds": 0.0003,
    "margin": 0.15,
    "gap": 0.0,
}
PREDICTED = {
    "decode_seconds": 0.021,
    "loaded_seconds": 0.05,
    "prefill_seconds_per_token": 0.0015,
    "hop_seconds": 0.00025,
    "basis": "measured",
}
MEASURED = {
    "decode_seconds": 0.0198,
    "loaded_seconds": 0.0512,
    "prefill_seconds_per_token": 0.00149,
}
RATES = {
    **IDLE,
    "tokens_per_second": 44.44,
    "total_tokens_per_second": 117.0,
    "num_streams": 8,
}


def lines(
    stages: list[tuple[dict[str, Any] | None, dict[str, Any]]],
    prediction: dict[str, Any] | None = PREDICTION,
    measured: dict[str, Any] = RATES,
    *,
    parts: dict[int, dict[str, Any]] = {},  # noqa: B006 - it is not changed
) -> list[str]:
    return list(
        speed_lines(
            {
                "prediction": prediction,
                "measured": measured,
                "stages": [
                    {
                        "stage": index,
                        "part": parts.get(index),
                        "predicted": predicted,
                        "measured": measured,
                    }
                    for index, (predicted, measured) in enumerate(stages)
                ],
            }
        )
    )


def test_both_are_shown_by_stage_and_in_total() -> None:
    shown = lines([(PREDICTED, MEASURED), (PREDICTED, NOTHING)])
    assert shown == [
        "speed, measured (predicted):",
        "STAGE  STEP OF 1        STEP OF 4        PROMPT TOKEN      HOP",
        "0      19.8 ms (21 ms)  51.2 ms (50 ms)  1.49 ms (1.5 ms)  - (0.25 ms)",
        "1      - (21 ms)        - (50 ms)        - (1.5 ms)        - (0.25 ms)",
        "1 stream: 44.4 (45) tokens/s, ± 15%",
        "8 streams: 117 (123) tokens/s, ± 15%",
        "first token of a prompt of 512 tokens: (800 ms)",
    ]
    assert max(map(len, shown)) <= 80


def test_within_a_group_there_is_no_hop() -> None:
    led = {**PREDICTED, "hop_seconds": 0.0}
    parts = {member: {"member": member, "shares": [1, 1]} for member in (0, 1)}
    shown = lines([(PREDICTED, MEASURED), (led, MEASURED)], parts=parts)
    assert [line.split("  ")[-1].strip() for line in shown[2:4]] == ["- (0.25 ms)", "-"]


@pytest.mark.parametrize("stages", [[], [(None, NOTHING)]])
def test_nothing_is_shown_while_nothing_is_known(stages: list[Any]) -> None:
    assert lines(stages, None, IDLE) == []


def test_without_a_prediction_what_is_measured_is_shown_alone() -> None:
    assert lines([(None, MEASURED)], None, RATES) == [
        "speed, measured (predicted):",
        "STAGE  STEP OF 1  PROMPT TOKEN  HOP",
        "0      19.8 ms    1.49 ms       -",
        "1 stream: 44.4 tokens/s",
        "8 streams: 117 tokens/s",
    ]


@pytest.mark.parametrize(("number", "requests"), [(1, "1 request"), (37, "37 requests")])
def test_the_measured_time_to_the_first_token_stands_after_the_predicted_one(
    number: int, requests: str
) -> None:
    measured = dict(RATES, first_token_seconds=0.688, num_first_tokens=number)
    shown = lines([], measured=measured)
    assert shown[-2:] == [
        "first token of a prompt of 512 tokens: (800 ms)",
        f"first token, mean of {requests} of any length, with queueing: 688 ms",
    ]
    assert max(map(len, shown)) <= 80
    assert lines([], None, measured)[-1] == shown[-1]


def test_large_rates_have_no_exponent() -> None:
    fast = dict(RATES, tokens_per_second=12345.6)
    assert lines([], None, fast)[1] == "1 stream: 12346 tokens/s"


def test_other_numbers_of_streams_stand_in_lines_of_their_own() -> None:
    alone = dict(PREDICTION, num_streams=1, steps_in_flight=1)
    few = dict(RATES, num_streams=3)
    assert lines([], measured=few)[1:4] == [
        "1 stream: 44.4 (45) tokens/s, ± 15%",
        "3 streams: 117 tokens/s",
        "8 streams: - (123) tokens/s, ± 15%",
    ]
    assert lines([], alone, few)[1:] == [
        "1 stream: 44.4 (45) tokens/s, ± 15%",
        "3 streams: 117 tokens/s",
        "first token of a prompt of 512 tokens: (800 ms)",
    ]
