"""Whatever nodes report, every time and every hop is positive and finite."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.placement.units import candidate, llama_config, with_times, work_of

from potluck.placement.candidates import PlaceRequest
from potluck.placement.cuts import Cut
from potluck.placement.links import link_table
from potluck.placement.place import problem_of
from potluck.placement.prediction import predict
from potluck.placement.speed import unit_speed
from potluck.placement.times import UnitTimes
from potluck.types.arithmetic import Arithmetic
from potluck.types.cluster import NodeId
from potluck.types.hardware import Figure, Figures, Origin, Rates
from potluck.types.placement import Preferences
from potluck.types.speed import LinkSpeed, NodeSpeeds, StepTime

WORK = work_of(llama_config(3))
A, B = NodeId("a"), NodeId("b")
ANYTHING = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from(
    [0.0, -1.0, 1e-3, 1.0, 1e3, 1e9, 1e14, 1e300]
)
FIGURES = st.builds(
    Figure,
    value=st.none() | ANYTHING,
    origin=st.sampled_from(Origin),
    source=st.just("another node"),
)
COUNTS = st.integers(min_value=-(2**63), max_value=2**63 - 1) | st.integers(0, 100)
STEP_TIMES = st.builds(
    StepTime,
    num_layers=COUNTS,
    has_embedding=st.booleans(),
    has_head=st.booleans(),
    num_sequences=COUNTS,
    num_tokens=COUNTS,
    context_tokens=COUNTS,
    seconds=ANYTHING,
    num_samples=COUNTS,
)
LINKS = st.builds(
    LinkSpeed,
    node_id=st.sampled_from([A, B]),
    latency_seconds=ANYTHING,
    bytes_per_second=ANYTHING,
    num_samples=COUNTS,
    age_seconds=ANYTHING,
)
UNITS = st.builds(
    unit_speed,
    st.builds(Rates, decode_tokens_per_second=FIGURES, prefill_tokens_per_second=FIGURES),
    st.builds(
        Figures,
        read_bytes_per_second=FIGURES,
        f32_operations_per_second=FIGURES,
        int8_operations_per_second=FIGURES,
        fast_bf16_operations_per_second=FIGURES,
    ),
    is_shared=st.booleans(),
    usable_share=ANYTHING,
    arithmetic=st.sampled_from([Arithmetic.EXACT, Arithmetic.AMX]),
)


@pytest.mark.slow
@given(
    speed=UNITS,
    step_times=st.lists(STEP_TIMES, max_size=6),
    links=st.lists(LINKS, max_size=4),
    num_sequences=st.integers(1, 64),
    context_tokens=st.integers(1, 1 << 20),
)
def test_nothing_is_zero_infinite_or_no_number(
    speed: object,
    step_times: list[StepTime],
    links: list[LinkSpeed],
    num_sequences: int,
    context_tokens: int,
) -> None:
    times = UnitTimes(work=WORK, speed=speed).corrected(step_times)  # type: ignore[arg-type]
    table = link_table([NodeSpeeds(node_id=A, links=tuple(links))], {A: "x", B: "y"})
    units = (candidate("a", WORK), with_times(candidate("b", WORK), times))
    preferences = Preferences(num_streams=num_sequences, context_tokens=context_tokens)
    request = PlaceRequest(
        candidates=units, links=table, coordinator=A, preferences=preferences, max_step_tokens=512
    )
    problem = problem_of(request, num_sequences)
    for array in (
        problem.item_seconds,
        problem.stage_seconds,
        problem.hop_seconds,
        problem.busy_seconds,
    ):
        assert np.isfinite(array).all()
        assert (array > 0).all()
    found = predict(request, (Cut(unit=0, start=0, end=2), Cut(unit=1, start=2, end=5)))
    numbers = [
        found.token_seconds,
        found.tokens_per_second,
        found.first_token_seconds,
        found.total_tokens_per_second,
        *(stage.decode_seconds for stage in found.stages),
        *(stage.prefill_seconds_per_token for stage in found.stages),
    ]
    assert all(math.isfinite(number) and number > 0 for number in numbers)
