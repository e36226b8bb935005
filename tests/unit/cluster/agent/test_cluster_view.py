"""What ``ps`` and ``/cluster`` show of recovery: what is held, what is spare, what is slow."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from support.cluster.calls import a_record, changed
from support.cluster.node_reports import node_report
from support.placement.predictions import prediction, stage_prediction
from support.schemas import validate_document
from support.virtual_time.run import run_in_virtual_time

from potluck.cluster.agent import gateway as gateway_module
from potluck.cluster.agent.gateway import AgentGateway
from potluck.cluster.agent.model_files import Fingerprints
from potluck.cluster.agent.view import as_seen, cluster_view, deployment_view
from potluck.errors import EngineError, ModelNotFoundError, PotluckError
from potluck.types.arithmetic import Arithmetic
from potluck.types.choices import Quantization
from potluck.types.cluster import DeploymentId, Epoch, NodeId, UnitId
from potluck.types.deployment import DeploymentRecord, DeploymentState, StageRecord
from potluck.types.documents.cluster import StageTimes, TokenSpeed
from potluck.types.gateway import GenerationTotals, ModelMetrics, StageMetrics
from potluck.types.held_stage import HeldStage
from potluck.types.memory import MemoryPlan
from potluck.types.node import NodeReport
from potluck.types.node_names import NodeNames
from potluck.types.placement import Prediction
from potluck.types.program import Shard
from potluck.types.speed import LinkSpeed

A, B, C = (NodeId(letter * 16) for letter in "abc")
UNIT = UnitId("cpu/native")
TALES = DeploymentId("00000001")
EPOCH = Epoch(number=3, coordinator=A)


def memory() -> MemoryPlan:
    return MemoryPlan(
        weights=(("bf16", 100),),
        cache_bytes=1,
        rope_bytes=2,
        scratch_bytes=3,
        staging_bytes=4,
        process_bytes=5,
        is_on_device=False,
    )


def placed(node_id: NodeId, start: int, end: int) -> StageRecord:
    return StageRecord(
        node_id=node_id, unit_id=UNIT, start_layer=start, end_layer=end, memory=memory()
    )


def record(**changes: Any) -> DeploymentRecord:
    made = changed(
        a_record(stages=(placed(A, 0, 5), placed(B, 5, 9))),
        deployment=TALES,
        epoch=EPOCH,
        revision=1,
        model_id="tales",
        created=1_700_000_000,
        num_layers=9,
    )
    return changed(made, **changes)


def held(start: int, end: int, *, deployment: DeploymentId = TALES, epoch: int = 3) -> HeldStage:
    return HeldStage(
        deployment=deployment,
        epoch=Epoch(number=epoch, coordinator=A),
        unit_id=UNIT,
        shard=Shard(start_layer=start, end_layer=end, num_layers=32, has_embedding=start == 0),
        context_tokens=64,
        num_blocks=16,
        quantization=Quantization.NONE,
        arithmetic=Arithmetic.EXACT,
        is_mapped=False,
        num_bytes=115,
        device_bytes=0,
    )


def node(node_id: NodeId, *stages: HeldStage) -> NodeReport:
    return node_report(
        node_id,
        usable_bytes=1,
        name="board",
        host_id="h",
        version="1",
        address="127.0.0.1:1",
        held=stages,
    )


def metrics(epoch: int, *slowdowns: float | None) -> ModelMetrics:
    return ModelMetrics(
        model_id="tales",
        num_waiting=0,
        num_running=0,
        num_blocks=1,
        num_free_blocks=1,
        epoch=epoch,
        stages=tuple(
            StageMetrics(
                stage=index,
                node_id=B,
                num_steps=1,
                compute_seconds=1.0,
                memory_bytes=1,
                slowdown=slowdown,
            )
            for index, slowdown in enumerate(slowdowns)
        ),
    )


def view(
    *reports: NodeReport, of: DeploymentRecord | None = None, metrics: tuple[ModelMetrics, ...] = ()
) -> dict[str, Any]:
    return validate_document(cluster_view(A, reports, [], {}, [of or record()], metrics))


def places(stages: list[Mapping[str, Any]]) -> list[tuple[object, ...]]:
    return [(each["node_id"], each["start_layer"], each["end_layer"]) for each in stages]


def test_links_are_those_that_can_have_been_measured() -> None:
    good = LinkSpeed(
        node_id=B, latency_seconds=0.001, bytes_per_second=1e8, num_samples=3, age_seconds=2.0
    )
    odd = dataclasses.replace(good, node_id=C, latency_seconds=math.nan)
    report = msgspec.structs.replace(node(A), links=(good, odd))
    document = msgspec.to_builtins(cluster_view(A, [report], [], {}, []))
    assert [*document["links"]] == [
        {
            "from": A,
            "to": B,
            "latency_seconds": 0.001,
            "bytes_per_second": 1e8,
            "num_samples": 3,
            "age_seconds": 2.0,
        }
    ]


def test_what_is_held_and_not_used_is_spare() -> None:
    other = DeploymentId("00000002")
    document = view(
        node(A, held(0, 5), held(5, 9)),
        node(B, held(5, 9, epoch=2), held(5, 9), held(0, 9, deployment=other)),
        node(C, held(0, 5)),
    )
    (shown,) = document["deployments"]
    assert places(shown["spares"]) == [(A, 5, 9), (B, 5, 9), (C, 0, 5)]
    assert [len(each["held"]) for each in document["nodes"]] == [2, 3, 1]
    assert document["nodes"][1]["held"][2] == {
        "deployment": other,
        "unit_id": UNIT,
        "start_layer": 0,
        "end_layer": 9,
        "part": None,
        "epoch": {"number": 3, "coordinator": A},
        "num_bytes": 115,
        "device_bytes": 0,
        "is_mapped": False,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("known", "shown"),
    [
        ((), []),
        ((metrics(3, 1.9, None),), []),
        ((metrics(3, 1.0, 4.5),), [{"stage": 1, "node_id": B, "slowdown": 4.5}]),
        ((metrics(2, 9.0, 9.0),), []),
    ],
    ids=["unknown", "as usual", "slow", "of an earlier epoch"],
)
def test_slow_stages_are_those_of_the_epoch_in_force(
    known: tuple[ModelMetrics, ...], shown: list[Mapping[str, Any]]
) -> None:
    (deployment,) = view(metrics=known)["deployments"]
    assert deployment["slow_stages"] == shown


def test_a_deployment_tells_how_it_recovers() -> None:
    recovering = record(
        recovery_wait_seconds=7.5,
        num_spares=1,
        num_recoveries=2,
        recovery_seconds=1.25,
        has_quorum=False,
        prefix_cache=False,
        target_step_ms=50.0,
        draft="off",
    )
    (shown,) = view(of=recovering)["deployments"]
    assert (shown["prefix_cache"], shown["target_step_ms"]) == (False, 50.0)
    assert shown["draft"] == "off"
    assert shown["recovery_wait_seconds"] == 7.5
    assert (shown["num_recoveries"], shown["recovery_seconds"]) == (2, 1.25)
    assert (shown["num_spares"], shown["has_quorum"]) == (1, False)
    validate_document(deployment_view(recovering), "deploy")


def served(epoch: int) -> ModelMetrics:
    """What was measured of both stages, the second without prompts."""
    both = metrics(epoch, None, None)
    first, second = both.stages
    return dataclasses.replace(
        both,
        speed=TokenSpeed(tokens_per_second=40.0, total_tokens_per_second=90.0, num_streams=5),
        generated=GenerationTotals(num_tokens=80, num_first_tokens=4, first_token_seconds=3.0),
        stages=(
            dataclasses.replace(
                first, times=StageTimes(decode_seconds=0.02, prefill_seconds_per_token=0.001)
            ),
            dataclasses.replace(second, times=StageTimes(decode_seconds=0.03)),
        ),
    )


def test_what_was_measured_is_shown_beside_what_was_predicted() -> None:
    planned = record(prediction=prediction(A, B))
    (shown,) = view(of=planned, metrics=(served(3),))["deployments"]
    assert shown["prediction"]["total_tokens_per_second"] == 120
    assert shown["prediction"]["steps_in_flight"] == 2
    assert shown["measured"] == {
        "tokens_per_second": 40.0,
        "total_tokens_per_second": 90.0,
        "num_streams": 5,
        "first_token_seconds": 0.75,
        "num_first_tokens": 4,
    }
    first, second = shown["stages"]
    assert first["predicted"] == {
        "decode_seconds": 0.021,
        "exchange_seconds": 0.0,
        "loaded_seconds": 0.05,
        "prefill_seconds_per_token": 0.0015,
        "hop_seconds": 0.0002,
        "basis": "measured",
    }
    assert first["measured"] == {
        "decode_seconds": 0.02,
        "loaded_seconds": None,
        "prefill_seconds_per_token": 0.001,
    }
    assert second["measured"]["decode_seconds"] == 0.03
    validate_document(deployment_view(planned), "deploy")


@pytest.mark.parametrize("known", [(), (served(2),)], ids=["unknown", "of an earlier epoch"])
def test_nothing_is_measured_of_an_epoch_that_has_not_served(
    known: tuple[ModelMetrics, ...],
) -> None:
    (shown,) = view(metrics=known)["deployments"]
    assert shown["prediction"] is None
    assert set(shown["measured"].values()) == {None}
    for stage in shown["stages"]:
        assert stage["predicted"] is None
        assert set(stage["measured"].values()) == {None}


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong",
    [
        dataclasses.replace(prediction(A, B), margin=math.inf),
        dataclasses.replace(
            prediction(),
            stages=tuple(
                dataclasses.replace(stage_prediction(each), hop_seconds=math.nan) for each in (A, B)
            ),
        ),
    ],
)
def test_a_prediction_that_json_cannot_tell_is_none(wrong: Prediction) -> None:
    (shown,) = view(of=record(prediction=wrong))["deployments"]
    assert shown["prediction"] is None
    assert [each["predicted"] for each in shown["stages"]] == [None, None]


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [(), (A,), (B, A), (A, B, C)])
def test_a_prediction_of_other_stages_is_not_shown_by_stage(nodes: tuple[NodeId, ...]) -> None:
    (shown,) = view(of=record(prediction=prediction(*nodes)))["deployments"]
    assert [each["predicted"] for each in shown["stages"]] == [None, None]


def agent_with(records: list[DeploymentRecord]) -> Any:
    live = SimpleNamespace(live=lambda: tuple(records), registry=SimpleNamespace())
    membership = SimpleNamespace(reachable_nodes=lambda: frozenset({A}))
    return SimpleNamespace(
        coordination=SimpleNamespace(records=live, is_draining=False),
        membership=membership,
        history=SimpleNamespace(reported=lambda report: None),
        known_nodes=SimpleNamespace(names=NodeNames({})),
        node_id=A,
        events=SimpleNamespace(incompatible={}),
    )


def test_when_a_model_will_be_ready_counts_from_when_it_was_heard() -> None:
    async def main() -> None:
        records = [record(state=DeploymentState.LOADING, ready_in_seconds=5.0)]
        gateway = AgentGateway(agent_with(records))
        loop = asyncio.get_running_loop()
        now = loop.time()
        loop.time = lambda: now  # type: ignore[method-assign]

        def expected() -> float | None:
            (status,) = gateway.models()
            return status.ready_in_seconds

        assert expected() == pytest.approx(5.0)
        now += 3
        assert expected() == pytest.approx(2.0)
        now += 3
        assert expected() == 0
        records[0] = msgspec.structs.replace(records[0], revision=2)
        assert expected() == pytest.approx(5.0)
        records[0] = record(state=DeploymentState.DEGRADED, revision=3, recovery_seconds=4.0)
        assert expected() == pytest.approx(4.0)
        records[0] = record(state=DeploymentState.DEGRADED, revision=4)
        assert expected() is None
        records[0] = record(revision=5, ready_in_seconds=5.0)
        assert expected() is None

    run_in_virtual_time(main())


@pytest.mark.parametrize(
    ("cannot", "error"), [("", EngineError), ("it has no cache folder", ModelNotFoundError)]
)
def test_a_node_without_files_answers_later_if_it_can_get_them(
    cannot: str, error: type[PotluckError]
) -> None:
    """Clients try again after a 503, and not after a 404."""
    known = record(model="/mnt/absent.gguf", manifest=None)
    agent = agent_with([known])
    agent.coordination.records.registry.find = lambda _: known
    agent.fingerprints = Fingerprints()
    agent.weights = SimpleNamespace(cannot=cannot)
    with pytest.raises(error):
        asyncio.run(AgentGateway(agent).served_model(known.model_id))


def test_a_model_is_not_ready_without_its_coordinator_nor_at_a_node_that_leaves() -> None:
    async def main() -> None:
        agent = agent_with([record()])
        gateway = AgentGateway(agent)

        def seen() -> list[tuple[DeploymentState, str]]:
            (status,) = gateway.models()
            (shown,) = gateway.cluster_state().deployments
            return [
                (status.state, status.reason),
                (shown.state, shown.reason),
            ]

        assert seen() == [(DeploymentState.READY, "")] * 2
        agent.membership.reachable_nodes = lambda: frozenset({B})
        agent.node_id = B
        (state, reason), shown = seen()
        assert (state, reason) == shown
        assert state is DeploymentState.DEGRADED
        assert f"node {A}, its coordinator, is lost" in reason
        agent.membership.reachable_nodes = lambda: frozenset({A, B})
        agent.coordination.is_draining = True
        leaving = (DeploymentState.DEGRADED, "this node is leaving the cluster")
        assert seen() == [leaving, (DeploymentState.READY, "")]

    run_in_virtual_time(main())


def test_a_stage_that_is_stuck_does_not_hold_up_what_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway_module, "_SLOW_STAGES_SECONDS", 0.05)

    async def report(*_: object) -> NodeReport:
        return node(A, held(0, 5))

    monkeypatch.setattr(gateway_module, "ask_report", report)

    async def main() -> None:
        agent = agent_with([record()])
        answers = asyncio.Event()

        async def slow_metrics() -> dict[DeploymentId, ModelMetrics]:
            await answers.wait()
            return {record().deployment: metrics(3, 3.0)}

        agent.metrics_by_deployment = slow_metrics
        gateway = AgentGateway(agent)
        await asyncio.wait_for(gateway.refresh_cluster(), 5)
        (shown,) = gateway.cluster_state().deployments
        assert not shown.slow_stages
        answers.set()
        await gateway.refresh_cluster()
        (shown,) = gateway.cluster_state().deployments
        assert [each.slowdown for each in shown.slow_stages] == [3.0]

    run_in_virtual_time(main())


@pytest.mark.parametrize(
    ("alive", "state", "reason"),
    [
        ({A, B}, DeploymentState.READY, ""),
        ({B, C}, DeploymentState.DEGRADED, "is lost; another node takes over"),
        ({C}, DeploymentState.DEGRADED, "partitioned: most nodes"),
    ],
)
def test_a_node_without_the_coordinator_knows_whether_it_is_cut_off(
    alive: set[NodeId], state: DeploymentState, reason: str
) -> None:
    seen = as_seen(record(voters=(A, B, C)), alive)
    assert seen.status.state is state
    assert reason in seen.status.reason
