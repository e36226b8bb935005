"""What ``potluck rebalance`` shows of a better plan."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.cluster.calls import A, B, stage_on
from support.placement.predictions import prediction
from support.schemas import validate_document

from potluck.cli.rebalance import rebalance_lines
from potluck.placement.views import rebalance_view
from potluck.types.deployment import MoveOutcome, RebalanceReport
from potluck.types.documents.plan import RebalanceDocument

REPORT = RebalanceReport(
    model_id="tales",
    outcome=MoveOutcome.POSSIBLE,
    reason="it moves automatically",
    stages=(stage_on(A),),
    in_force=prediction(A),
    new_stages=(stage_on(B),),
    predicted=prediction(B),
    gain=0.5,
    net_gain=0.31,
    load_bytes=3 << 30,
    load_seconds=31.0,
    pause_seconds=1.5,
)


def shown(**changes: Any) -> dict[str, Any]:
    """The view, checked against the schema."""
    move = rebalance_view(msgspec.structs.replace(REPORT, **changes))
    document = RebalanceDocument(is_dry_run=True, deployments=(move,))
    found: dict[str, Any] = validate_document(document)["deployments"][0]
    return found


def test_both_plans_the_gain_and_the_cost_are_shown() -> None:
    lines = list(rebalance_lines(shown()))
    assert lines[0] == "tales could move: it moves automatically"
    assert lines[1] == (
        "before: 45 tokens/s with 1 stream, 120 with 8 streams, predicted within 15%"
    )
    assert lines[3].split() == ["0", A, "cpu/native", "[0,", "4)", "21", "ms"]
    assert lines[6].split()[1] == B
    assert lines[-2:] == [
        "gain: +50%, +31% after the cost of the move",
        "cost: 3 GiB to load in about 31 s, while serving continues; a pause of about 1.5 s",
    ]


def test_a_cost_without_room_says_that_nothing_answers() -> None:
    assert "the model is unavailable meanwhile" in list(rebalance_lines(shown(needs_room=True)))[-1]


def test_a_plan_that_does_not_last_has_no_net_gain() -> None:
    assert list(rebalance_lines(shown(net_gain=-1.0)))[-2] == "gain: +50%"


@pytest.mark.parametrize(
    ("gain", "net_gain", "line"),
    [
        (-0.28, -0.31, "slower: 28%"),
        (-0.28, -1.0, "slower: 28%"),
        (0.02, -0.1, "gain: +2%, less than the cost of the move"),
        (0.0, -0.1, "gain: +0%, less than the cost of the move"),
    ],
)
def test_nothing_negative_is_called_a_gain(gain: float, net_gain: float, line: str) -> None:
    """By memory, a plan may well be slower."""
    assert list(rebalance_lines(shown(gain=gain, net_gain=net_gain)))[-2] == line


@pytest.mark.parametrize("in_force", [None, prediction(A)])
def test_one_that_stays_shows_what_serves(in_force: object) -> None:
    view = shown(outcome=MoveOutcome.STAYS, reason="it is the best", in_force=in_force)
    assert view["better"] is None
    lines = list(rebalance_lines(view))
    assert lines[0] == "tales stays as it is: it is the best"
    assert lines[1].startswith("now:")
    assert len(lines) == 4
