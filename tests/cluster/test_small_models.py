"""A small model that drafts for another one, on real agents."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from support.cluster.agents import AgentProcess, Fleet, no_end
from support.processes.waiting import eventually

NUM_TOKENS = 60
SAMPLED: dict[str, Any] = {"temperature": 0.9, "seed": 7, "logit_bias": no_end()}
SMALL = "demo-draft"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp("small")) as fleet:
        fleet.start_all(range(2))
        yield fleet


def models(agent: AgentProcess) -> set[str]:
    return {each["model_id"] for each in agent.cluster()["deployments"]}


def answer(agent: AgentProcess) -> str:
    with agent.client() as client:
        completion = client.completions.create(
            model="demo", prompt="The harbour at night", max_tokens=NUM_TOKENS, **SAMPLED
        )
    text: str = completion.choices[0].text
    return text


def test_a_small_model_is_deployed_with_the_other_and_drafts_for_it(fleet: Fleet) -> None:
    first, last = fleet.live()
    first.deploy(context=512, draft="off")
    expected = answer(last)
    first.ask("undeploy", name="demo")
    first.deploy(context=512, draft="demo")
    assert models(last) == {"demo", SMALL}
    assert answer(first) == answer(last) == expected
    accepted = 0.0

    def drafts_more() -> bool:
        assert answer(first) == expected
        return first.metric("potluck_draft_accepted_tokens_total", model="demo") > accepted

    eventually(drafts_more, within=60, what="the small model drafts")

    # Without its worker it is loaded anew, and drafts again; nobody waits for it meanwhile.
    for agent in fleet.live():
        for worker in agent.workers():
            os.kill(worker, signal.SIGKILL)
    assert answer(last) == expected
    accepted = first.metric("potluck_draft_accepted_tokens_total", model="demo")
    eventually(drafts_more, within=60, what="the small model drafts again")

    first.ask("undeploy", name="demo")
    eventually(lambda: not models(first), within=20, what="both are undeployed")


def test_a_plan_leaves_the_memory_of_the_small_model_to_it(fleet: Fleet) -> None:
    first, _ = fleet.live()
    options: dict[str, Any] = {"model": "demo", "context_tokens": 512, "objective": "memory"}
    planned = first.ask("plan", **options, draft="demo")
    assert not models(first)
    first.deploy(context=512, draft="demo")
    deployed = first.deployment(SMALL)
    assert deployed is not None
    assert planned["draft"]["model"] == deployed["model"]
    assert planned["draft"]["is_deployed"] is False
    fields = ("unit_id", "start_layer", "end_layer", "num_bytes")
    for stage, placed in zip(planned["draft"]["stages"], deployed["stages"], strict=True):
        assert [stage[name] for name in fields] == [placed[name] for name in fields]
    again = first.ask("plan", **options, draft=SMALL)
    assert again["draft"]["is_deployed"] is True
    assert first.ask("plan", **options)["draft"] is None
    first.ask("undeploy", name="demo")
    eventually(lambda: not models(first), within=20, what="both are undeployed")


def test_a_model_that_is_deployed_already_drafts_and_stays(fleet: Fleet) -> None:
    first, _ = fleet.live()
    first.ask("deploy", model="demo", model_id="helper", context_tokens=512, draft="off")
    first.deploy(context=512, draft="helper")
    assert models(first) == {"demo", "helper"}
    first.ask("undeploy", name="demo")
    eventually(lambda: models(first) == {"helper"}, within=20, what="the other one stays")
    first.ask("undeploy", name="helper")


def test_what_cannot_draft_is_refused_and_nothing_is_left(fleet: Fleet) -> None:
    first, _ = fleet.live()
    with pytest.raises(Exception, match="nowhere"):
        first.ask("deploy", model="demo", context_tokens=512, draft="/nowhere/small.gguf")
    assert models(first) == set()
