"""A request that ends what serves it, again and again, and those that happened to be beside it.

``SIGSEGV`` from the test stands in for a worker that a request crashes.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import openai
import pytest
from support.cluster.agents import AgentProcess, Fleet, await_ready, no_end
from support.processes.waiting import eventually

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


def ask(agent: AgentProcess, prompt: str, max_tokens: int = 1500, n: int = 1) -> str:
    """The whole text, of ``n`` the first. A new seed each time, as clients that give none have."""
    with agent.client() as client:
        answer = client.completions.create(
            model="demo", prompt=prompt, max_tokens=max_tokens, n=n, logit_bias=no_end()
        )
    return answer.choices[0].text


def end_with(
    agents: list[AgentProcess], numbers: list[signal.Signals], *prompts: str, n: int = 1
) -> list[str | openai.APIStatusError]:
    """Have all prompts computed at once, and end the worker of each epoch by the next signal.

    Returns the texts, or what clients are told.
    """
    with ThreadPoolExecutor() as clients:
        futures = [clients.submit(ask, agents[1], prompt, n=n) for prompt in prompts]
        for number in numbers:
            before = await_ready(agents[1], "demo")["epoch"]["number"]
            eventually(
                lambda: agents[0].metric("potluck_sequences", model="demo", state="running") > 0,
                within=10,
                what="a sequence is computed",
            )
            (worker,) = agents[0].workers()
            os.kill(worker, number)
            eventually(
                lambda before=before: (  # type: ignore[misc]
                    await_ready(agents[1], "demo")["epoch"]["number"] > before
                ),
                within=20,
                what="the next epoch",
            )
        return [result_of(each) for each in futures]


def result_of(future: Future[str]) -> str | openai.APIStatusError:
    try:
        return future.result(60)
    except openai.APIStatusError as error:
        return error


def test_the_guilty_is_refused_after_its_second_time_and_the_innocent_is_served(
    agents: list[AgentProcess],
) -> None:
    # What ends a worker from outside accuses nobody.
    (survivor,) = end_with(agents, [signal.SIGKILL, signal.SIGKILL], GUILTY)
    assert isinstance(survivor, str)
    # After a defect each is computed alone, and both complete: they are cleared.
    for text in end_with(agents, [signal.SIGSEGV], INNOCENT, GUILTY):
        assert isinstance(text, str)
    # Several choices take turns, so that they are not through before the second time.
    (second,) = end_with(agents, [signal.SIGSEGV, signal.SIGSEGV], GUILTY, n=6)
    assert isinstance(second, openai.APIStatusError)
    assert second.status_code == 422
    assert "has twice crashed demo" in second.message
    epoch = await_ready(agents[0], "demo")["epoch"]
    for agent in agents:
        with pytest.raises(openai.UnprocessableEntityError, match="do not send it again"):
            ask(agent, GUILTY)
        assert ask(agent, INNOCENT, max_tokens=8)
    assert await_ready(agents[0], "demo")["epoch"] == epoch
    (line,) = [line for line in agents[0].log.splitlines() if "is refused from now on" in line]
    assert "demo: request cmpl-" in line
    assert "SIGSEGV" in line
