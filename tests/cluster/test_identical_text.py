"""The same texts, token for token, and the same vectors on whatever number of agents."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from support.cluster.agents import POTLUCK, AgentProcess, Fleet

import potluck

LIMIT = "82M"
"""Of each agent: a process with its scratch, and a good half of ``demo``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    prompt: str
    max_tokens: int
    temperature: float
    seed: int


STORY = (
    "The harbour at night was quiet. A small light went on in the old house, and the cat looked up "
    "from the window. Nobody had lived there for years, or so the people of the town said. When "
    "the door opened, the cat saw a little bat with a red scarf. The bat said:"
)
LONG = STORY * 4
EMBEDDED = [STORY, LONG, "A cat", *(f"{number} bats" for number in range(100))]
CASES = (
    Case(prompt="Once upon a time", max_tokens=60, temperature=0.0, seed=1),
    Case(prompt="The old boat", max_tokens=60, temperature=1.0, seed=42),
    Case(prompt=STORY, max_tokens=50, temperature=0.8, seed=2**40 + 3),
)


def alone(fleet: Fleet, case: Case) -> str:
    """The text of ``potluck run``: one process, no cluster."""
    completed = subprocess.run(
        [
            *(*POTLUCK, "run", "demo", "--json", "--context", "512", "--threads", "1"),
            *("-p", case.prompt, "-n", str(case.max_tokens), "--seed", str(case.seed)),
            *("--temperature", str(case.temperature)),
        ],
        capture_output=True,
        text=True,
        env=fleet.environ(),
        timeout=60,
        check=True,
    )
    text: str = json.loads(completed.stdout)["text"]
    return text


def text_through(agent: AgentProcess, case: Case) -> str:
    with agent.client() as client:
        answer = client.completions.create(
            model="demo",
            prompt=case.prompt,
            max_tokens=case.max_tokens,
            temperature=case.temperature,
            seed=case.seed,
        )
    return answer.choices[0].text


def scores_through(agent: AgentProcess) -> list[float | None]:
    """Of a prompt, as evaluation harnesses ask for them."""
    with agent.client() as client:
        answer = client.completions.create(
            model="demo", prompt=LONG, max_tokens=0, temperature=0, logprobs=1, echo=True
        )
    (choice,) = answer.choices
    assert choice.text == LONG
    assert choice.logprobs is not None
    return list(choice.logprobs.token_logprobs or ())


def embeddings_through(agent: AgentProcess) -> list[list[float]]:
    with agent.client() as client:
        answer = client.embeddings.create(model="demo", input=EMBEDDED)
    return [each.embedding for each in answer.data]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp("identical")) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def expected(fleet: Fleet) -> tuple[str, ...]:
    texts = tuple(alone(fleet, case) for case in CASES)
    assert all(len(text) > 20 for text in texts)
    assert len(set(texts)) == len(texts)
    return texts


@pytest.fixture(scope="module")
def expected_scores() -> list[float | None]:
    with potluck.Model.open("demo", context_tokens=512, num_threads=1) as model:
        return [each.logprob for each in model.score(LONG).tokens]


@pytest.fixture(scope="module")
def expected_embeddings() -> list[list[float]]:
    with potluck.Model.open("demo", context_tokens=512, num_threads=1) as model:
        vectors: list[list[float]] = model.embed(EMBEDDED).vectors.tolist()
    return vectors


@pytest.mark.parametrize("num_agents", [1, 3])
def test_the_text_does_not_depend_on_how_many_agents_compute_it(
    fleet: Fleet,
    expected: tuple[str, ...],
    expected_scores: list[float | None],
    expected_embeddings: list[list[float]],
    num_agents: int,
) -> None:
    """One cluster that grows: what an earlier round deployed is undeployed first."""
    memory_limit = None if num_agents == 1 else LIMIT
    if fleet.agents:
        fleet.agents[0].end()
        fleet.start(0, memory_limit=LIMIT).await_up()
    fleet.start_all(range(len(fleet.agents), num_agents), memory_limit=memory_limit)
    agents = fleet.live()
    coordinator = agents[num_agents // 2]
    deployed = coordinator.deploy(context=512, cache=512)
    assert len(deployed["stages"]) == num_agents
    assert deployed["epoch"]["number"] == 1
    gateways = sorted({agents[0], coordinator, agents[-1]}, key=lambda agent: agent.number)
    with ThreadPoolExecutor(4) as pool:
        for case, text in zip(CASES, expected, strict=True):
            texts = list(pool.map(lambda agent, case=case: text_through(agent, case), gateways))
            assert texts == [text] * len(gateways)
    assert scores_through(agents[0]) == expected_scores
    assert embeddings_through(agents[0]) == expected_embeddings
    agents[0].ask("undeploy", name="demo")
