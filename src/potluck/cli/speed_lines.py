"""Measured and predicted speeds of a deployment, from a document of ``potluck.cluster/1``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from potluck.cli.tables import is_led, table
from potluck.quantities import format_count, format_number, format_seconds

_NOTHING: Mapping[str, Any] = {}


def speed_lines(deployment: Mapping[str, Any]) -> Iterator[str]:
    """What was measured, and in parentheses what was predicted; nothing while nothing is known."""
    prediction = deployment["prediction"]
    measured = deployment["measured"]
    stages = deployment["stages"]
    times = [value for stage in stages for value in stage["measured"].values()]
    if prediction is None and not any(each is not None for each in (*measured.values(), *times)):
        return
    yield "speed, measured (predicted):"
    if stages:
        yield from table([_header(prediction), *(_row(stage, prediction) for stage in stages)])
    yield from _total_lines(prediction or _NOTHING, measured)


def _header(prediction: Mapping[str, Any] | None) -> list[str]:
    loaded = _loaded_sequences(prediction)
    return ["STAGE", "STEP OF 1", *([f"STEP OF {loaded}"] if loaded else []), "PROMPT TOKEN", "HOP"]


def _row(stage: Mapping[str, Any], prediction: Mapping[str, Any] | None) -> list[str]:
    names = ["decode_seconds", "loaded_seconds", "prefill_seconds_per_token"]
    if not _loaded_sequences(prediction):
        names.remove("loaded_seconds")
    measured, predicted = stage["measured"], stage["predicted"] or _NOTHING
    times = [_times(measured[name], predicted.get(name)) for name in names]
    # Members of a group exchange what they compute during a step; only their leader sends it on.
    hop = None if is_led(stage) else predicted.get("hop_seconds")
    return [str(stage["stage"]), *times, _times(None, hop)]


def _loaded_sequences(prediction: Mapping[str, Any] | None) -> int | None:
    """Return how many sequences a step has when all streams decode; None if that is one."""
    if prediction is None:
        return None
    count = math.ceil(prediction["num_streams"] / prediction["steps_in_flight"])
    return count if count > 1 else None


def _times(measured: float | None, predicted: float | None) -> str:
    return _beside(
        None if measured is None else format_seconds(measured),
        None if predicted is None else format_seconds(predicted),
    )


def _beside(measured: str | None, predicted: str | None) -> str:
    return f"{measured or '-'} ({predicted})" if predicted else measured or "-"


def _total_lines(prediction: Mapping[str, Any], measured: Mapping[str, Any]) -> Iterator[str]:
    alone = (measured["tokens_per_second"], prediction.get("tokens_per_second"))
    margin = f", ± {prediction['margin']:.0%}" if prediction else ""
    if alone != (None, None):
        yield f"1 stream: {_rates(*alone)} tokens/s{margin}"
    num_measured, num_predicted = measured["num_streams"], prediction.get("num_streams")
    total, expected = measured["total_tokens_per_second"], prediction.get("total_tokens_per_second")
    if total is not None and num_measured != num_predicted:
        yield f"{num_measured} streams: {_rates(total, None)} tokens/s"
        total = None
    if num_predicted is not None and num_predicted > 1:
        yield f"{num_predicted} streams: {_rates(total, expected)} tokens/s{margin}"
    if prediction:
        seconds = format_seconds(prediction["first_token_seconds"])
        yield f"first token of a prompt of {prediction['prompt_tokens']} tokens: ({seconds})"
    if number := measured["num_first_tokens"]:
        # Not beside the prediction: these prompts had other lengths, and some requests waited.
        seconds = format_seconds(measured["first_token_seconds"])
        requests = format_count(number, "request")
        yield f"first token, mean of {requests} of any length, with queueing: {seconds}"


def _rates(measured: float | None, predicted: float | None) -> str:
    return _beside(
        None if measured is None else format_number(measured),
        None if predicted is None else format_number(predicted),
    )
