"""Speeds that agents measure while they serve: where they are shown, and that they are kept."""

from __future__ import annotations

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.cluster.agents import AgentProcess, Fleet, no_end
from support.processes.waiting import eventually
from support.schemas import validate_document

NUM_STREAMS = 4
NUM_TOKENS = 400


NUMBERS = itertools.count()


def generate(agent: AgentProcess, num_tokens: int = NUM_TOKENS) -> None:
    """Have a prompt computed of which no cache has the beginning."""
    prompt = f"{next(NUMBERS)} old boats. " + "The old boat. " * 20
    with agent.client() as client:
        client.completions.create(
            model="demo", prompt=prompt, max_tokens=num_tokens, logit_bias=no_end()
        )


def shown(agent: AgentProcess) -> dict[str, Any]:
    cluster = agent.cluster()
    validate_document({key: value for key, value in cluster.items() if key != "ok"})
    (deployment,) = cluster["deployments"]
    return dict(deployment)


@pytest.mark.timing
def test_measured_speeds_are_shown_everywhere_and_kept(tmp_path: Path) -> None:
    with Fleet(tmp_path) as fleet:
        agents = fleet.start_all(range(2))
        agents[0].deploy(context=1024, cache=4096)
        assert set(shown(agents[1])["measured"].values()) == {None}
        for _ in range(4):
            generate(agents[1], 10)
        generate(agents[1])
        eventually(
            lambda: shown(agents[1])["measured"]["tokens_per_second"], within=10, what="its speed"
        )
        alone = shown(agents[1])
        with ThreadPoolExecutor(NUM_STREAMS) as pool:
            list(pool.map(generate, [agents[1]] * NUM_STREAMS))
        together = shown(agents[1])
        assert together["measured"]["num_streams"] == NUM_STREAMS
        rates = alone["measured"]["tokens_per_second"], together["measured"]
        assert rates[1]["tokens_per_second"] == pytest.approx(rates[0], rel=0.9)
        assert rates[1]["total_tokens_per_second"] > 0.1 * rates[0]
        token_seconds = 1 / rates[0]
        assert len(together["stages"]) == 2
        for stage in together["stages"]:
            assert 0 < stage["measured"]["decode_seconds"] < 10 * token_seconds
            assert 0 < stage["measured"]["prefill_seconds_per_token"] < 10 * token_seconds
        for index, stage in enumerate(together["stages"]):
            exported_seconds = agents[0].metric(
                "potluck_stage_decode_seconds",
                model="demo",
                stage=str(index),
                node=stage["node_id"],
                figure="measured",
            )
            assert exported_seconds == pytest.approx(stage["measured"]["decode_seconds"], rel=0.5)
        ps = agents[0].command_line("ps").stdout
        assert "speed, measured (predicted):" in ps
        assert f"\n{NUM_STREAMS} streams: " in ps
        agents[0].command_line("undeploy", "demo")
        planned = agents[0].deploy(context=1024, cache=4096)
        assert planned["prediction"] is not None
        # The next plan goes by what was measured, wherever it puts the layers.
        decode_seconds = [
            sum(stage[figure]["decode_seconds"] for stage in deployment["stages"])
            for deployment, figure in ((together, "measured"), (planned, "predicted"))
        ]
        assert 0.4 < decode_seconds[0] / decode_seconds[1] < 2.5
        agents[0].command_line("undeploy", "demo")
        for agent in agents:
            agent.end()
        for agent in agents:
            kept = json.loads((agent.state / "step-times.json").read_text("utf-8"))
            (record,) = kept["records"]
            assert record["unit_id"] == "cpu/native"
            assert {each["time"]["num_sequences"] for each in record["times"]} >= {1}


def test_a_broken_file_of_step_times_keeps_no_agent_from_serving(tmp_path: Path) -> None:
    with Fleet(tmp_path) as fleet:
        agent = fleet.start(0)
        agent.await_up().end()
        assert not (agent.state / "step-times.json").exists()
        (agent.state / "step-times.json").write_bytes(b"\xff{" * 1000)
        again = fleet.start(0).await_up()
        assert again.state == agent.state
        assert again.log.count("step-times.json: JSON is malformed") == 1
        again.deploy(context=256, cache=256)
        generate(again, 20)
