"""Requests while no machine can hold the model: how long they wait, and what clients hear."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from support.cluster.agents import AgentProcess, Fleet, await_ready
from support.processes.waiting import done_within, eventually

import potluck

WAIT_SECONDS = 7.0
"""Longer than a stream may be silent."""

LONG_WAIT_SECONDS = 60.0
"""Longer than an agent takes to start on a busy machine."""

PROMPT = "The old boat"
NUM_TOKENS = 20
BODY: dict[str, Any] = {
    "model": "demo",
    "prompt": PROMPT,
    "max_tokens": NUM_TOKENS,
    "temperature": 0,
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Fleet, AgentProcess]]:
    """An agent too small for any stage, and one that holds the whole model."""
    with Fleet(tmp_path_factory.mktemp("waiting")) as fleet:
        gateway = fleet.start(0, memory_limit="1M").await_up()
        fleet.start(1, memory_limit="400M", join=gateway, has_http=False).await_up()
        fleet.await_members()
        deploy(gateway, WAIT_SECONDS)
        yield fleet, gateway


def deploy(gateway: AgentProcess, wait_seconds: float) -> None:
    gateway.ask(
        "deploy",
        model="demo",
        context_tokens=256,
        recovery_wait_seconds=wait_seconds,
        objective="memory",
    )


def post(gateway: AgentProcess, **fields: Any) -> httpx2.Response:
    return httpx2.post(f"{gateway.url}/v1/completions", json={**BODY, **fields}, timeout=60)


def restart(fleet: Fleet, gateway: AgentProcess) -> None:
    fleet.start(1, memory_limit="400M", join=gateway, has_http=False)


def is_ready(gateway: AgentProcess) -> bool:
    return httpx2.get(f"{gateway.url}/health/ready").status_code == 200


def test_they_fail_after_the_wait_and_say_what_is_missing(
    gateway: tuple[Fleet, AgentProcess],
) -> None:
    fleet, agent = gateway
    lost = fleet.agents[1].node_id
    started = time.monotonic()
    fleet.agents[1].kill()
    eventually(lambda: not is_ready(agent), within=5, what="the loss is noticed")
    with done_within(10), ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(post, agent, stream=is_stream) for is_stream in (False, True)]
        whole, streamed = (each.result() for each in answers)
        assert time.monotonic() - started > WAIT_SECONDS - 1
    error = whole.json()["error"]
    assert (whole.status_code, error["code"]) == (503, "model_not_ready")
    assert "MiB" in error["message"]
    assert f"without node {lost}" in error["message"]
    assert int(whole.headers["retry-after"]) > 0
    comment, last = (line for line in streamed.text.splitlines() if line)
    assert (streamed.status_code, comment) == (200, ": waiting")
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "model_not_ready"
    with done_within(WAIT_SECONDS / 4):
        again = post(agent)  # the wait counts from the loss
    assert (again.status_code, again.json()["error"]) == (503, error)
    restart(fleet, agent)
    await_ready(agent, "demo")


def test_they_are_answered_when_a_machine_comes_in_time(
    gateway: tuple[Fleet, AgentProcess],
) -> None:
    fleet, agent = gateway
    await_ready(agent, "demo")
    agent.ask("undeploy", name="demo")
    deploy(agent, LONG_WAIT_SECONDS)
    await_ready(agent, "demo")
    before = agent.deployment("demo")
    assert before is not None
    fleet.agents[1].kill()
    eventually(lambda: not is_ready(agent), within=5, what="the loss is noticed")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(post, agent)
        restart(fleet, agent)
        response = answer.result()
    assert response.status_code == 200, response.text
    with potluck.Model.open("demo") as model:
        alone = "".join(
            piece.text for piece in model.generate(PROMPT, max_tokens=NUM_TOKENS, temperature=0)
        )
    assert response.json()["choices"][0]["text"] == alone
    after = await_ready(agent, "demo")
    assert after["epoch"]["number"] > before["epoch"]["number"]
    assert after["num_recoveries"] > before["num_recoveries"]
    assert after["recovery_seconds"] > 0
    assert agent.metric("potluck_model_recoveries_total", model="demo") == after["num_recoveries"]
