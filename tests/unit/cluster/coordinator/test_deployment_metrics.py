"""What a coordinator makes of the step times that stages report, hostile ones included."""

from __future__ import annotations

import dataclasses
import logging
import math
from typing import Any, cast

import msgspec
import pytest
from support.cluster.calls import A, B, PlayedMembership, a_record, changed, stage_on
from support.placement.predictions import prediction
from support.virtual_time.run import run_in_virtual_time

from potluck.cluster.coordinator import metrics as module
from potluck.cluster.coordinator.metrics import (
    loaded_sequences,
    own_metrics,
    stage_times,
    with_stages,
)
from potluck.cluster.coordinator.pipeline import SentTotals
from potluck.cluster.wire.calls import StageStats, encode
from potluck.cluster.wire.worker_messages import Stats
from potluck.scheduling.limits import Load
from potluck.types.cluster import NodeId
from potluck.types.documents.cluster import StageTimes, TokenSpeed
from potluck.types.gateway import GenerationTotals, ModelMetrics
from potluck.types.speed import StepTime
from potluck.types.states import StateSlots

SPEED = TokenSpeed(tokens_per_second=40.0)
GENERATED = GenerationTotals(num_tokens=50, num_first_tokens=2, first_token_seconds=0.5)


def measured(seconds: float, *, sequences: int = 1, tokens: int = 0, **more: Any) -> StepTime:
    time = StepTime(
        num_layers=4,
        has_embedding=True,
        has_head=False,
        num_sequences=sequences,
        num_tokens=tokens or sequences,
        context_tokens=100,
        seconds=seconds,
        num_samples=9,
    )
    return dataclasses.replace(time, **more)


TIMES = (
    measured(0.03, age_seconds=50.0),
    measured(0.02, age_seconds=1.0, context_tokens=300),
    measured(0.05, sequences=4),
    measured(0.06, sequences=5),
    measured(0.4, tokens=64),
    measured(1.024, tokens=512, age_seconds=9.0),
    measured(0.5, sequences=3, tokens=300),
)


def stats(*times: StepTime) -> Stats:
    return Stats(
        num_steps=7,
        num_tokens=9,
        compute_seconds=1.5,
        send_seconds=0.1,
        num_sent_bytes=10,
        resident_bytes=4096,
        cpu_seconds=1.25,
        step_times=times,
    )


def test_the_latest_decode_and_the_longest_prefill_are_shown() -> None:
    assert stage_times(TIMES, 4) == StageTimes(
        decode_seconds=0.02, loaded_seconds=0.05, prefill_seconds_per_token=0.002
    )
    assert stage_times(TIMES, 7).loaded_seconds is None
    assert stage_times(TIMES, None).loaded_seconds is None
    assert stage_times((), 4) == StageTimes()


@pytest.mark.parametrize(
    ("num_streams", "in_flight", "expected"), [(8, 2, 4), (8, 3, 3), (1, 1, 1), (8, 0, None)]
)
def test_a_loaded_step_has_its_part_of_the_streams(
    num_streams: int, in_flight: int, expected: int | None
) -> None:
    made = dataclasses.replace(prediction(A), num_streams=num_streams, steps_in_flight=in_flight)
    assert loaded_sequences(made) == expected
    assert loaded_sequences(None) is None


def collect_metrics(answers: dict[NodeId, bytes]) -> ModelMetrics:
    record = changed(a_record(3, stages=(stage_on(A), stage_on(B))), prediction=prediction(A, B))
    own = own_metrics(
        record,
        Load(
            num_waiting=0,
            num_running=0,
            num_free_blocks=1,
            states=StateSlots(num_live=2, num_checkpoints=3, num_free=1),
        ),
        SPEED,
        num_blocks=1,
        num_spares=0,
        slot_bytes=7000,
        generated=GENERATED,
    )
    assert own.stages == ()
    membership = PlayedMembership(
        others={A, B}, answers={"stage.stats": lambda node, _: answers[node]}
    )
    return run_in_virtual_time(with_stages(cast(Any, membership), record, own, SentTotals()))


def test_predictions_and_measurements_go_to_whoever_asks() -> None:
    shown = collect_metrics(
        {
            A: encode(StageStats(stages={0: stats(*TIMES)})),
            B: encode(StageStats(stages={1: stats()})),
        }
    )
    assert shown.speed == SPEED
    assert shown.generated == GENERATED
    assert shown.prediction == prediction(A, B)
    assert shown.states == StateSlots(num_live=2, num_checkpoints=3, num_free=1, slot_bytes=7000)
    assert [each.times.loaded_seconds for each in shown.stages] == [0.05, None]
    assert [(each.compute_seconds, each.cpu_seconds) for each in shown.stages] == [(1.5, 1.25)] * 2
    # As the coordinator answers another node's gateway.
    assert msgspec.msgpack.decode(encode(shown), type=ModelMetrics | None) == shown


WRONG = [
    measured(-1.0),
    measured(math.nan),
    measured(math.inf, tokens=512),
    measured(1e-300, num_samples=-5),
    measured(1.0, sequences=0),
    measured(1.0, age_seconds=-math.inf),
]


def test_nonsense_of_a_node_is_left_out_and_costs_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=module.__name__)
    answers = {
        A: encode(StageStats(stages={0: stats(*WRONG, *TIMES)})),
        B: encode(StageStats(stages={1: stats(*WRONG)})),
    }
    for _ in range(5):
        shown = collect_metrics(answers)
        assert shown.stages[0].times == stage_times(TIMES, 4)
        assert shown.stages[1].times == StageTimes()
    lines = [each.message for each in caplog.records if "step times" in each.message]
    assert len(lines) == 1
    assert lines[0].endswith("reports implausible step times, which are ignored")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\xc1" * 100,
        b"\x81\xa6stages\x81\x01\xc0",
        b"\x82\xa6stages\x80\xa4more" + b"\x91" * 1_000_000,
        encode({"stages": {1: {"num_steps": "many"}}}),
        encode({"stages": {-1: {}, 2**63: {}}}),
    ],
    ids=range(6),
)
def test_an_answer_that_is_none_leaves_its_stage_out(answer: bytes) -> None:
    shown = collect_metrics({A: encode(StageStats(stages={0: stats(*TIMES)})), B: answer})
    assert [each.stage for each in shown.stages] == [0]


def test_a_node_tells_nothing_of_the_stages_of_others() -> None:
    liar = StageStats(stages={index: stats(measured(9.0)) for index in (-5, 0, 1, 99)})
    honest = encode(StageStats(stages={0: stats(*TIMES)}))
    shown = collect_metrics({A: honest, B: encode(liar)})
    assert [each.times.decode_seconds for each in shown.stages] == [0.02, 9.0]
    assert [each.stage for each in collect_metrics({A: encode(liar), B: honest}).stages] == [0]
