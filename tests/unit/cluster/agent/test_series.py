"""The last hour, second by second."""

from __future__ import annotations

from typing import Any

import msgspec

from potluck.cluster.agent.series import MAX_MODELS, Series
from potluck.types.cluster_events import ModelSample


def sample(rate: float, *stages: float | None) -> ModelSample:
    return ModelSample(tokens_per_second=rate, stage_seconds=stages, stage_busy=stages)


def shown(series: Series, second: int, seconds: int, step_seconds: int = 1) -> Any:
    """The document as clients read it."""
    document = series.window(second, seconds, 1000.4).document(step_seconds)
    return msgspec.json.decode(msgspec.json.encode(document))


def test_seconds_that_nobody_noted_are_null() -> None:
    series = Series()
    series.put("m", sample(1.0, 0.5), 10)
    series.put("m", sample(3.0, 0.25, 0.125), 12)
    document = shown(series, 13, 5)
    assert document["schema"] == "potluck.series/1"
    assert document["step_seconds"] == 1
    assert document["times"] == [996, 997, 998, 999, 1000]
    model = document["models"]["m"]
    assert model["tokens_per_second"] == [None, 1.0, None, 3.0, None]
    assert model["stage_seconds"] == [
        [None, 0.5, None, 0.25, None],
        [None, None, None, 0.125, None],
    ]
    assert model["num_running"] == [None, 0, None, 0, None]


def test_a_sample_of_several_seconds_is_noted_for_each() -> None:
    series = Series()
    series.put("m", sample(1.0), 10)
    series.put("m", sample(2.0), 14, after=11)
    rates = shown(series, 14, 5)["models"]["m"]["tokens_per_second"]
    assert rates == [1.0, None, 2.0, 2.0, 2.0]


def test_old_seconds_are_forgotten_and_none_is_noted_twice() -> None:
    series = Series(num_seconds=4)
    for second in range(20):
        series.put("m", sample(float(second)), second)
    series.put("m", sample(99.0), 19)
    assert shown(series, 20, 100)["models"]["m"]["tokens_per_second"] == [17, 18, 19, None]
    series.put("m", sample(5.0), 1000, after=0)
    assert shown(series, 1000, 4)["models"]["m"]["tokens_per_second"] == [5, 5, 5, 5]
    assert shown(series, 1004, 4)["models"] == {}


def test_steps_are_means_of_what_is_known_and_end_with_the_last_second() -> None:
    series = Series()
    for second in (11, 12, 13, 17):
        series.put("m", sample(float(second), 0.5), second)
    document = shown(series, 17, 7, step_seconds=3)
    assert document["step_seconds"] == 3
    assert document["times"] == [994, 997, 1000]
    assert document["models"]["m"]["tokens_per_second"] == [11.0, 12.5, 17.0]
    assert document["models"]["m"]["stage_seconds"] == [[0.5, 0.5, 0.5]]
    assert shown(series, 18, 1, step_seconds=3)["models"]["m"]["tokens_per_second"] == [None]


def test_an_hour_of_a_model_of_fourteen_stages_is_small() -> None:
    """As the page asks for it: 2 MB with one value per second."""
    series = Series()
    for second in range(3600):
        series.put("m", sample(second / 7, *(second / 7e5 + each for each in range(14))), second)
    document = series.window(3599, 3600, 1e9).document(5)
    assert len(msgspec.json.encode(document)) < 300_000


def test_models_are_bounded() -> None:
    series = Series()
    for second in range(MAX_MODELS + 3):
        series.put(f"m{second}", sample(1.0), second)
    kept = shown(series, MAX_MODELS + 3, 3600)["models"]
    assert sorted(kept) == sorted(f"m{number}" for number in range(3, MAX_MODELS + 3))


def test_numbers_have_the_digits_that_are_worth_sending() -> None:
    series = Series()
    series.put("m", sample(1 / 3), 1)
    assert shown(series, 1, 1)["models"]["m"]["tokens_per_second"] == [0.3333]
