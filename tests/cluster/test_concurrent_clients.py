"""Clients that come, go and change their minds, at several agents and all at once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

import openai
import pytest
from support.cluster.agents import AgentProcess, Fleet, no_end
from support.processes.waiting import eventually

from potluck import Model

NUM_CLIENTS = 8
NUM_REQUESTS = 4
"""Of each client."""
CONTEXT_TOKENS = 2048
CACHE_TOKENS = 2048
"""One context for eight clients: sequences wait and are preempted."""

ENDLESS_TOKENS = 1500
"""What clients ask for that leave early: seconds of work, should anybody go on with it."""
PROMPTS = (
    "Once upon a time",
    "The old boat",
    "The harbour at night was quiet. A small light went on in the old house. " * 16,
    '"Who is there?" asked the cat. ' * 3,
)


class End(Enum):
    """How a client ends a request."""

    READ = auto()
    STREAM = auto()
    LEAVE_STREAM = auto()
    TIME_OUT = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    prompt: str
    max_tokens: int
    temperature: float
    seed: int
    end: End
    num_chunks: int

    @property
    def leaves(self) -> bool:
        """Whether the client goes away before the text is whole."""
        return self.end in (End.LEAVE_STREAM, End.TIME_OUT)


def make_requests(client: int) -> list[Request]:
    chance = random.Random(client)
    return [
        Request(
            prompt=chance.choice(PROMPTS),
            max_tokens=chance.choice((1, 7, 40, 120)),
            temperature=chance.choice((0.0, 0.7, 1.0)),
            seed=chance.randrange(2**32),
            end=list(End)[(client + number) % len(End)],
            num_chunks=chance.randrange(1, 20),
        )
        for number in range(NUM_REQUESTS)
    ]


def send(agent: AgentProcess, request: Request) -> str | None:
    """The text, or as much of it as the client waited for; None if it waited for nothing."""
    timeout = 0.2 if request.end is End.TIME_OUT else 60
    options = {
        "model": "demo",
        "prompt": request.prompt,
        "max_tokens": ENDLESS_TOKENS if request.leaves else request.max_tokens,
        "logit_bias": no_end() if request.leaves else {},
        "temperature": request.temperature,
        "seed": request.seed,
    }
    with agent.client(timeout) as client:
        if request.end in (End.READ, End.TIME_OUT):
            try:
                return client.completions.create(**options).choices[0].text  # type: ignore[call-overload,no-any-return]
            except openai.APITimeoutError:
                assert request.end is End.TIME_OUT
                return None
        text = ""
        with client.completions.create(**options, stream=True) as stream:  # type: ignore[call-overload]
            for number, chunk in enumerate(stream):
                text += chunk.choices[0].text
                if request.end is End.LEAVE_STREAM and number == request.num_chunks:
                    break
        return text


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[list[AgentProcess]]:
    with Fleet(tmp_path) as fleet:
        yield fleet.start_all(range(3))


def test_every_text_is_the_one_computed_alone_and_no_block_is_kept(
    agents: list[AgentProcess],
) -> None:
    coordinator = agents[1]
    deployed = coordinator.deploy(context=CONTEXT_TOKENS, cache=CACHE_TOKENS)
    assert len(deployed["stages"]) == len(agents)
    num_blocks = coordinator.metric("potluck_kv_blocks", model="demo", state="free")
    assert num_blocks == CACHE_TOKENS // 16

    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        answers = list(
            pool.map(
                lambda client: [
                    (request, send(agents[(client + number) % len(agents)], request))
                    for number, request in enumerate(make_requests(client))
                ],
                range(NUM_CLIENTS),
            )
        )

    def is_idle() -> bool:
        return coordinator.metric("potluck_kv_blocks", model="demo", state="free") == num_blocks

    eventually(is_idle, within=1, what="all blocks are free")
    for state in ("running", "waiting"):
        assert coordinator.metric("potluck_sequences", model="demo", state=state) == 0
    for agent in agents:
        eventually(
            lambda agent=agent: agent.metric("potluck_http_requests_running") == 0,  # type: ignore[misc]
            within=1,
            what="no request is left",
        )

    bias = {int(token): float(value) for token, value in no_end().items()}
    num_ended = Counter(request.end for each in answers for request, _ in each)
    assert set(num_ended.values()) == {NUM_CLIENTS * NUM_REQUESTS // len(End)}
    with Model.open("demo", context_tokens=CONTEXT_TOKENS, num_threads=1) as alone:
        for request, text in (answer for each in answers for answer in each):
            if text is None:
                continue
            generation = alone.generate(
                request.prompt,
                max_tokens=200 if request.leaves else request.max_tokens,
                temperature=request.temperature,
                seed=request.seed,
                logit_bias=bias if request.leaves else {},
            )
            expected = generation.result().text
            assert text == (expected[: len(text)] if request.leaves else expected)
            assert text or not request.leaves
