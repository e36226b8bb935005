"""Prompts that begin alike are computed once, whichever agent they come through."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cluster.agents import AgentProcess, Fleet

STORY = (
    "The harbour at night was quiet. A small light went on in the old house, and the cat looked up "
    "from the window. Nobody had lived there for years, or so the people of the town said."
)
CONTINUED = f"{STORY} When the door opened, the cat saw a little bat with a red scarf."


def complete(agent: AgentProcess, prompt: str, count: int = 1) -> list[str]:
    with agent.client() as client:
        answer = client.completions.create(
            model="demo", prompt=prompt, max_tokens=20, temperature=0.7, seed=5, n=count
        )
    return [choice.text for choice in answer.choices]


def saved(coordinator: AgentProcess) -> float:
    return coordinator.metric("potluck_prefix_cache_saved_tokens_total", model="demo")


def texts(agents: list[AgentProcess]) -> list[list[str]]:
    first, second = agents
    return [complete(first, STORY), complete(second, CONTINUED), complete(first, STORY, 3)]


@pytest.mark.parametrize("num_stages", [1, 2])
def test_a_prefix_is_computed_once_for_clients_of_all_agents(
    tmp_path: Path, num_stages: int
) -> None:
    with Fleet(tmp_path) as fleet:
        agents = fleet.start_all(range(2))
        objective = "memory" if num_stages == 2 else "latency"
        deployed = agents[0].deploy(context=256, prefix_cache=False, objective=objective)
        assert len(deployed["stages"]) == num_stages
        without = texts(agents)
        assert saved(agents[0]) == 0
        agents[0].ask("undeploy", name="demo")

        agents[0].deploy(context=256, objective=objective)
        assert complete(agents[0], STORY) == without[0]
        assert saved(agents[0]) == 0
        assert complete(agents[1], CONTINUED) == without[1]
        after_continued = saved(agents[0])
        assert after_continued > 30
        assert complete(agents[0], STORY, 3) == without[2]
        assert saved(agents[0]) > after_continued + 3 * 30
