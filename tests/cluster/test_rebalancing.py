"""Deployments that move to faster nodes by themselves or when they are told to."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster.agents import AgentProcess, Fleet, await_ready, no_end
from support.processes.confinement import control_group, inside
from support.processes.waiting import eventually
from support.schemas import validate_document

PROMPT = "The old boat. " * 10
NUM_TOKENS = 600


@pytest.fixture
def group() -> Iterator[Path]:
    path = Path("/sys/fs/cgroup/cpu") / f"potluck-rebalancing-{os.getpid()}"
    with control_group(path, {"cpu.cfs_period_us": "100000"}) as made:
        yield made


def text_of(agent: AgentProcess) -> str:
    with agent.client(timeout=120) as client:
        completion = client.completions.create(
            model="demo", prompt=PROMPT, max_tokens=NUM_TOKENS, temperature=0, logit_bias=no_end()
        )
    return completion.choices[0].text


def nodes_of(agent: AgentProcess) -> list[str]:
    deployment = agent.deployment("demo")
    assert deployment is not None
    return [stage["node_id"] for stage in deployment["stages"]]


def test_a_model_moves_from_a_node_that_became_slow_to_one_that_joins(
    tmp_path: Path, group: Path
) -> None:
    with Fleet(tmp_path) as fleet:
        slow = fleet.start(1, prefix=inside(group)).await_up()
        slow.ask("deploy", model="demo", context_tokens=1024, cache_tokens=4096)
        expected = text_of(slow)
        (group / "cpu.cfs_quota_us").write_text("20000")
        fast = fleet.start(2, join=slow).await_up()
        fleet.await_members()
        texts: list[str] = []
        streaming = threading.Thread(target=lambda: texts.append(text_of(fast)))
        streaming.start()
        eventually(lambda: nodes_of(fast) == [fast.node_id], within=60, what="it moves")
        deployment = await_ready(fast, "demo")
        assert "faster" in deployment["rebalance_note"]
        assert deployment["num_recoveries"] == 0
        assert slow.metric("potluck_model_moves_total", model="demo") == 1
        assert slow.metric("potluck_model_move_gain_ratio", model="demo") > 0.2
        streaming.join(60)
        assert texts == [expected]
        (group / "cpu.cfs_quota_us").write_text("-1")


def test_a_user_sees_what_a_move_gains_and_has_it_done(tmp_path: Path, group: Path) -> None:
    with Fleet(tmp_path) as fleet:
        slow = fleet.start(1, prefix=inside(group)).await_up()
        slow.ask("deploy", model="demo", context_tokens=1024, rebalance="never")
        (group / "cpu.cfs_quota_us").write_text("20000")
        fast = fleet.start(2, join=slow).await_up()
        fleet.await_members()
        shown = fast.command_line("rebalance", "demo", "--dry-run", "--json")
        document = json.loads(shown.stdout)
        validate_document(document)
        (deployment,) = document["deployments"]
        assert deployment["outcome"] == "possible"
        assert deployment["better"]["gain"] > 0.2
        assert [each["node_id"] for each in deployment["better"]["stages"]] == [fast.node_id]
        assert nodes_of(fast) == [slow.node_id]
        done = fast.command_line("rebalance")
        assert done.returncode == 0
        assert "demo has moved" in done.stdout
        assert nodes_of(fast) == [fast.node_id]
        again = fast.command_line("rebalance", "demo").stdout
        assert "stays as it is: the plan in force is the best one" in again
        unknown = fast.command_line("rebalance", "other")
        assert unknown.returncode == 2
        assert "nothing is deployed as other" in unknown.stderr
        (group / "cpu.cfs_quota_us").write_text("-1")


def test_a_slow_node_that_joins_is_not_used(tmp_path: Path, group: Path) -> None:
    with Fleet(tmp_path) as fleet:
        fast = fleet.start(1).await_up()
        fast.ask("deploy", model="demo", context_tokens=1024)
        slow = fleet.start(2, join=fast, prefix=inside(group)).await_up()
        (group / "cpu.cfs_quota_us").write_text("10000")
        fleet.await_members()

        def better() -> object:
            shown = json.loads(fast.command_line("rebalance", "--dry-run", "--json").stdout)
            (deployment,) = shown["deployments"]
            assert (deployment["better"] is None) == (deployment["outcome"] == "stays")
            return deployment["better"]

        eventually(lambda: better() is None, what="it notices its quota")
        assert nodes_of(slow) == [fast.node_id]
        (group / "cpu.cfs_quota_us").write_text("-1")
