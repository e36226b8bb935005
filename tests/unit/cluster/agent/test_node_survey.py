"""A node's answer to a survey."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.cluster.node_reports import node_report
from support.virtual_time.run import run_in_virtual_time

from potluck.cluster.agent.node_calls import NodeCalls
from potluck.cluster.agent.weights import NodeWeights
from potluck.cluster.wire.calls import CheckModel, ModelCheck, NodeSurvey, SurveyNode
from potluck.types.cluster import NodeId
from potluck.types.deployment import ModelFingerprint
from potluck.types.node import NodeReport

NODE = NodeId("a" * 16)
REPORT = node_report(NODE)
CHECK = ModelCheck(fingerprint=ModelFingerprint(digest="d"))


@pytest.mark.parametrize(
    ("seconds", "error", "expected"),
    [(0.0, None, CHECK), (60.0, None, None), (0.0, RuntimeError("a defect"), None)],
)
def test_a_check_that_takes_long_or_fails_holds_up_no_survey(
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    error: Exception | None,
    expected: ModelCheck | None,
) -> None:
    async def run() -> NodeSurvey:
        async def check(request: CheckModel) -> ModelCheck:
            assert request.model == "m"
            await asyncio.sleep(seconds)
            if error is not None:
                raise error
            return CHECK

        async def report(*_: object) -> NodeReport:
            return REPORT

        unused = cast(Any, SimpleNamespace(node_id=NODE, of=lambda shape: {}, paths_in_use=list))
        links = cast(Any, SimpleNamespace(speeds=tuple, unreachable=tuple))  # not ``settled``
        calls = NodeCalls(
            *(unused, unused, unused, unused, unused, unused, unused, unused),
            links,
            check,
            memory_limit_bytes=None,
        )
        monkeypatch.setattr(calls, "_on_report", report)
        started = asyncio.get_running_loop().time()
        found = await calls._on_survey(SurveyNode(model="m", model_shapes=("x",)))
        assert asyncio.get_running_loop().time() - started < 5
        return found

    survey = run_in_virtual_time(run())
    assert survey.report == REPORT
    assert survey.speeds.node_id == NODE
    assert survey.check == expected


def test_concurrent_checks_of_a_model_share_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        asked: list[str] = []

        async def checked(model: str) -> ModelCheck:
            asked.append(model)
            await asyncio.sleep(1)
            return CHECK

        nothing = cast(Any, None)
        weights = NodeWeights(nothing, nothing, None, link_speeds=tuple)
        monkeypatch.setattr(weights, "_checked", checked)
        request = CheckModel(model="m")
        impatient = asyncio.ensure_future(weights.check(request))
        await asyncio.sleep(0.5)
        impatient.cancel()
        answers = await asyncio.gather(*(weights.check(request) for _ in range(3)))
        assert answers == [CHECK] * 3
        assert asked == ["m"]
        await weights.check(request)
        assert asked == ["m", "m"]

    run_in_virtual_time(run())
