"""A model with state through real agents, workers and edges: more sequences than state slots."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.cluster.agents import agents_here
from support.engines import reference_backend
from support.engines.stages import Stages
from support.models.small_lfm2 import KINDS, SLOT_BYTES, VOCABULARY, write_small_lfm2
from support.scheduling.updates import tokens_of

from potluck.catalog import describe_model, open_headers
from potluck.cluster.agent.service import Agent
from potluck.errors import ParameterError
from potluck.types.cluster import UnitId
from potluck.types.deployment import Deploy, DeploymentRecord
from potluck.types.groups import LayoutStage
from potluck.types.sequence import CommittedToken, SequenceRequest
from potluck.types.step import SamplingParams

ROOT = Path(__file__).parents[2]
UNIT = UnitId("cpu/reference")
SETTINGS = {"backend": UNIT, "backends": (reference_backend.SPEC,)}
NUM_NEW = 12
NUM_STATES = 4
"""Of which three are for live sequences."""


async def text_of(agent: Agent, record: DeploymentRecord, prompt: Sequence[int]) -> list[int]:
    request = SequenceRequest(
        prompt_tokens=tuple(prompt),
        sampling=SamplingParams(temperature=0.0),
        max_new_tokens=NUM_NEW,
    )
    start = partial(agent.relaying.start, record, request)
    tokens: list[CommittedToken] = [token async for token in tokens_of(start)]
    return [token.token for token in tokens]


def greedy(model: str, prompt: Sequence[int]) -> list[int]:
    """What the reference takes, which computes every sequence alone."""
    description = describe_model(model)
    tokens = list(prompt)
    with closing(open_headers(description)) as tensors:
        for _ in range(NUM_NEW):
            with Stages(description.config, tensors) as stages:
                tokens.append(int(np.argmax(stages.logits_at_all_positions(tokens)[-1])))
    return tokens[len(prompt) :]


def test_sequences_wait_for_slots_and_share_beginnings(tmp_path: Path) -> None:
    model = write_small_lfm2(tmp_path / "model")
    drawn = np.random.default_rng(4)
    shared = drawn.integers(3, VOCABULARY, 70).tolist()
    prompts = [[*shared, *drawn.integers(3, VOCABULARY, 5 + each).tolist()] for each in range(6)]

    async def run() -> tuple[DeploymentRecord, list[list[int]], list[int]]:
        async with agents_here(tmp_path, 2 * [SETTINGS]) as running:
            nodes = [each.membership.node_id for each in running]
            layout = tuple(
                LayoutStage(node_id=node, unit_id=UNIT, num_layers=count)
                for node, count in zip(nodes, (3, 2), strict=True)
            )
            deploy = Deploy(
                model=model,
                context_tokens=128,
                cache_tokens=1024,
                num_states=NUM_STATES,
                layout=layout,
            )
            record = await running[0].coordination.deploy(deploy)
            texts = await asyncio.gather(
                *(
                    text_of(running[number % 2], record, prompt)
                    for number, prompt in enumerate(prompts)
                )
            )
            again = await text_of(running[1], record, prompts[0])
            return record, list(texts), again

    record, texts, again = asyncio.run(run())
    assert record.status.num_states == NUM_STATES
    in_first = KINDS[:3].count("conv")
    assert [stage.memory.state_bytes for stage in record.stages] == [
        NUM_STATES * SLOT_BYTES * in_first // 3,
        NUM_STATES * SLOT_BYTES * (3 - in_first) // 3,
    ]
    assert texts == [greedy(model, prompt) for prompt in prompts]
    assert again == texts[0]


def test_states_that_do_not_fit_the_model_are_refused(tmp_path: Path) -> None:
    model = write_small_lfm2(tmp_path / "model")

    async def run() -> None:
        async with agents_here(tmp_path, 2 * [SETTINGS]) as running:
            deploy = partial(running[0].coordination.deploy)
            with pytest.raises(ParameterError, match="22 are needed for 16 streams"):
                await deploy(Deploy(model=model, num_states=NUM_STATES, num_streams=16))
            with pytest.raises(ParameterError, match="have no state slots"):
                await deploy(Deploy(model="demo", num_states=NUM_STATES))

    asyncio.run(run())
