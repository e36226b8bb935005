"""A request that ends what serves it, again and again, and those that happened to be beside it.

``SIGSEGV`` from the test stands in for a worker that a request crashes.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from support.agents import AgentProcess, Fleet, await_ready, eventually, no_end

INNOCENT = "Once upon a time"
GUILTY = "There was a stone"


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[AgentProcess]]:
    """The first coordinates and computes, the second is a gateway only."""
    with Fleet(tmp_path_factory.mktemp("poisonous")) as fleet:
        first = fleet.start(0, memory_limit="400M").await_up()
        second = fleet.start(1, memory_limit="1M", join=first).await_up()
        fleet.await_members()
        first.deploy(context=2048, cache=8192)
        await_ready(second, "demo")
        yield [first, second]


def ask(agent: AgentProcess, prompt: str, max_tokens: int = 1500) -> str:
    """The whole text. A new seed each time, as clients that give none have."""
    with agent.client() as client:
        answer = client.completions.create(
            model="demo", prompt=prompt, max_tokens=max_tokens, logit_bias=no_end()
        )
    return answer.choices[0].text


def end_with(
    agents: list[AgentProcess], number: signal.Signals, *prompts: str
) -> list[openai.APIStatusError]:
    """Have all prompts computed at once, then end the worker by a signal; what clients are told."""
    before = await_ready(agents[1], "demo")["epoch"]["number"]
    with ThreadPoolExecutor() as clients:
        asked = [clients.submit(ask, agents[1], prompt) for prompt in prompts]
        eventually(
            lambda: (
                agents[0].metric("potluck_sequences", model="demo", state="running") == len(prompts)
            ),
            within=10,
            what="all are computed",
        )
        (worker,) = agents[0].workers()
        os.kill(worker, number)
        errors = [each.exception(20) for each in asked]
    eventually(
        lambda: await_ready(agents[1], "demo")["epoch"]["number"] > before,
        within=20,
        what="the next epoch",
    )
    found = [error for error in errors if isinstance(error, openai.APIStatusError)]
    assert len(found) == len(prompts)
    return found


def test_the_guilty_is_refused_after_its_second_time_and_the_innocent_is_served(
    agents: list[AgentProcess],
) -> None:
    # What ends a worker from outside accuses nobody.
    (killed,) = end_with(agents, signal.SIGKILL, GUILTY)
    assert killed.status_code == 503
    first = end_with(agents, signal.SIGSEGV, INNOCENT, GUILTY)
    assert [error.status_code for error in first] == [503, 503]
    # A suspect that completes is cleared.
    assert ask(agents[1], INNOCENT, max_tokens=1500)
    (second,) = end_with(agents, signal.SIGSEGV, GUILTY)
    assert second.status_code == 422
    assert "has twice ended what serves demo" in second.message
    epoch = await_ready(agents[0], "demo")["epoch"]
    for agent in agents:
        with pytest.raises(openai.UnprocessableEntityError, match="do not send it again"):
            ask(agent, GUILTY)
        assert ask(agent, INNOCENT, max_tokens=8)
    assert await_ready(agents[0], "demo")["epoch"] == epoch
    (line,) = [line for line in agents[0].log.splitlines() if "is refused from now on" in line]
    assert "demo: the request cmpl-" in line
    assert "SIGSEGV" in line
