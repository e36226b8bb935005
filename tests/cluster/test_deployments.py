"""What deploying leaves out and why, what does not fit, what undeploying frees, draining."""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psutil
import pytest
from support.cluster.agents import AgentProcess, Fleet, await_ready, measured_cache, no_end
from support.models.hub_models import hub_environment
from support.network.fake_hub import serve_hub
from support.processes.command import assert_refused
from support.processes.waiting import eventually

from potluck.catalog.locate import DEMO_DIRECTORY
from potluck.cluster.agent.asking import RemoteError

HUB_ID = "table/demo"


def long_stream(agent: AgentProcess, begun: threading.Event, model: str = "demo") -> int:
    """Read a stream to its end; the number of its tokens."""
    with (
        agent.client() as client,
        client.completions.create(
            model=model,
            prompt="Once upon a time",
            max_tokens=1500,
            temperature=0,
            logit_bias=no_end(),
            stream=True,
            stream_options={"include_usage": True},
        ) as stream,
    ):
        num_tokens = 0
        for chunk in stream:
            begun.set()
            if chunk.usage is not None:
                num_tokens = chunk.usage.completion_tokens
        return num_tokens


def begin_stream(pool: ThreadPoolExecutor, agent: AgentProcess) -> Future[int]:
    begun = threading.Event()
    stream = pool.submit(long_stream, agent, begun)
    assert begun.wait(20)
    assert not stream.done()
    return stream


def test_nodes_whose_hub_lacks_the_commit_get_it_from_the_others(fleet: Fleet) -> None:
    files = {path.name: path.read_bytes() for path in DEMO_DIRECTORY.iterdir()}
    config = json.loads(files["config.json"])
    another = {**files, "config.json": json.dumps({**config, "rms_norm_eps": 1e-6}).encode()}
    with (
        serve_hub({HUB_ID: files}) as full,
        serve_hub({}) as empty,
        serve_hub({HUB_ID: another}) as different,
    ):
        for number, hub in enumerate((full, full, empty, different)):
            home = fleet.directory / f"hub-{number}"
            environ = hub_environment(
                home, hub.endpoint, XDG_CACHE_HOME=measured_cache(home / "cache")
            )
            fleet.start(number, join=fleet.agents.get(0), environ=environ).await_up()
        fleet.await_members()
        agents = fleet.agents
        completed = agents[1].command_line(
            "deploy", HUB_ID, "--context", "64", "--for", "memory", "--json"
        )
    assert completed.returncode == 0, completed.stderr
    deployed = json.loads(completed.stdout)
    nodes = {stage["node_id"] for stage in deployed["stages"]}
    assert nodes == {agent.node_id for agent in agents.values()}
    assert deployed["rejections"] == []
    assert full.sent_bytes["model.safetensors"] == len(files["model.safetensors"])
    for hub in (empty, different):
        assert hub.sent_bytes["model.safetensors"] == 0


def test_what_does_not_fit_is_said_and_leaves_nothing(fleet: Fleet) -> None:
    agents = fleet.start_all(range(2), memory_limit="75M")
    completed = agents[0].command_line("deploy", "demo", "--context", "2048", "--for", "memory")
    assert completed.returncode == 1
    assert completed.stdout == ""
    message, hint = completed.stderr.splitlines()
    assert message.startswith("potluck: the model needs ")
    assert message.endswith(" MiB, but only 150 MiB are usable on 2 units")
    assert re.fullmatch(
        r"hint: --context 512 would fit; or add \d+ more nodes with as much memory as the largest",
        hint,
    )
    planned = agents[0].command_line("plan", "demo", "--context", "2048")
    assert (planned.returncode, planned.stdout) == (1, "")
    assert planned.stderr == completed.stderr
    for agent in agents:
        assert agent.cluster()["deployments"] == []
        assert agent.workers() == set()


def is_measuring(agent: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):  # it has just ended
        return any("potluck.host.supervisor" in each.cmdline() for each in agent.children())
    return True


def test_deployments_stand_beside_each_other_and_give_back_what_they_took(fleet: Fleet) -> None:
    agents = fleet.start_all(range(2))
    processes = [psutil.Process(agent.pid) for agent in agents]
    agents[0].deploy(context=256)
    agents[0].ask("undeploy", name="demo")  # what is made once and kept is made now
    # Where the machine was too busy to be measured before, agents measure it when they start.
    eventually(lambda: not any(map(is_measuring, processes)), within=20)

    def held() -> list[tuple[int, int]]:
        return [
            (len(process.children()), len(process.net_connections("tcp"))) for process in processes
        ]

    before = held()
    first = agents[0].deploy(context=256)
    second = agents[1].deploy(context=512)
    named = agents[1].deploy(name="mine", context=256)
    assert [each["model_id"] for each in (first, second, named)] == ["demo", "demo-2", "mine"]
    with agents[0].client() as client:
        models = client.models.list().data
        assert sorted(model.id for model in models) == ["demo", "demo-2", "mine"]
        # What the model's generation_config.json recommends.
        recommended = {"temperature": 0.8, "top_p": 0.95, "top_k": None}
        for model in models:
            shown: Any = model.to_dict()["default_sampling"]
            assert recommended.items() <= shown.items()
        texts = {
            client.completions.create(
                model=model, prompt="The old boat", max_tokens=20, temperature=0
            )
            .choices[0]
            .text
            for model in ("demo", "demo-2", "mine")
        }
    assert len(texts) == 1
    assert [len(agent.workers()) for agent in agents] == [3, 3]

    agents[0].ask("undeploy", name="demo-2")
    assert [len(agent.workers()) for agent in agents] == [2, 2]
    for name in ("demo", "mine"):
        assert await_ready(agents[0], name)["epoch"]["number"] == 1
        agents[1].ask("undeploy", name=name)
    assert agents[0].cluster()["deployments"] == []
    eventually(lambda: held() == before, within=3, what=f"all is given back: {before}, {held()}")
    with pytest.raises(RemoteError, match="nothing is deployed as demo"):
        agents[0].ask("undeploy", name="demo")


@pytest.mark.parametrize("leaving", ["gateway"])
def test_a_node_that_goes_down_lets_streams_finish(fleet: Fleet, leaving: str) -> None:
    """Agent 0 coordinates, agent 1 only computes, agent 2 is a gateway without memory."""
    fleet.start(0).await_up()
    fleet.start(1, join=fleet.agents[0]).await_up()
    fleet.start(2, join=fleet.agents[0], memory_limit="1M").await_up()
    fleet.await_members()
    agents = fleet.agents
    assert len(agents[0].deploy()["stages"]) == 2
    leaver = agents[{"coordinator": 0, "stage": 1, "gateway": 2}[leaving]]
    workers = leaver.workers()
    with ThreadPoolExecutor(2) as pool:
        streams = [begin_stream(pool, agents[2])]
        if leaving != "gateway":
            streams.append(begin_stream(pool, agents[0]))
        completed = leaver.command_line("down")
        assert completed.returncode == 0, completed.stderr
        assert completed.stderr.endswith("this node has left the cluster\n")
        assert [stream.result(30) for stream in streams] == [1500] * len(streams)
    assert leaver.process.wait(10) == 0
    assert not any(psutil.pid_exists(pid) for pid in workers)
    assert not (leaver.state / "control.sock").exists()
    fleet.await_members()
    remaining = fleet.live()[0]
    eventually(
        lambda: (
            leaver.node_id
            not in {stage["node_id"] for stage in await_ready(remaining, "demo")["stages"]}
        ),
        within=10,
        what="what is left serves",
    )
    with remaining.client() as client:
        client.completions.create(model="demo", prompt="The old boat", max_tokens=5)


def test_a_model_is_replaced_under_its_name_and_no_request_is_refused(fleet: Fleet) -> None:
    first, second = fleet.start_all([0, 1])
    names = ("--name", "tales", "--cache", "2048")
    deployed = second.command_line("deploy", "demo", *names, "--context", "2048")
    assert deployed.returncode == 0, deployed.stderr
    before = await_ready(first, "tales")
    refused = first.command_line("deploy", "demo", *names, "--context", "512")
    assert_refused(refused, 2, "already deployed as tales", "--replace")
    begun = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(long_stream, first, begun, "tales")
        assert begun.wait(20)
        replaced = first.command_line("deploy", "demo", *names, "--context", "512", "--replace")
        assert replaced.returncode == 0, replaced.stderr
        assert stream.result(60) == 1500
    for agent in (first, second):
        (after,) = agent.cluster()["deployments"]
        assert (after["model_id"], after["context_tokens"]) == ("tales", 512)
        assert after["deployment"] != before["deployment"]
    answer = second.client().completions.create(model="tales", prompt="Once", max_tokens=4)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4
