"""Clients that come, go and change their minds, at several agents and all at once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

import openai
import pytest
from support.agents import AgentProcess, Fleet, eventually

from potluck import Model

NUM_CLIENTS = 8
NUM_REQUESTS = 6
"""Of each client."""
CONTEXT_TOKENS = 512
CACHE_TOKENS = 1024
"""Two contexts for eight clients: sequences wait and are preempted."""
PROMPTS = (
    "Once upon a time",
    "The old boat",
    "The harbour at night was quiet. A small light went on in the old house. " * 6,
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
    timeout = 0.03 if request.end is End.TIME_OUT else 60
    options = {
        "model": "demo",
        "prompt": request.prompt,
        "max_tokens": request.max_tokens,
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

    ended = dict.fromkeys(End, 0)
    with Model.open("demo", context_tokens=CONTEXT_TOKENS, num_threads=1) as alone:
        for request, text in (answer for each in answers for answer in each):
            if text is None:
                ended[End.TIME_OUT] += 1
                continue
            expected = (
                alone.generate(
                    request.prompt,
                    max_tokens=request.max_tokens,
                    temperature=request.temperature,
                    seed=request.seed,
                )
                .result()
                .text
            )
            if request.end is End.LEAVE_STREAM:
                assert expected.startswith(text)
                ended[End.LEAVE_STREAM] += text != expected
            else:
                assert text == expected
                ended[request.end] += 1
    assert min(ended.values()) >= 3, f"too few of a kind to show anything: {ended}"
