"""One model on units of different backends, through real agents, workers and edges."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.cluster.agents import agents_here
from support.engines import reference_backend
from support.engines.parity import MIN_DECIDED_SHARE, decided_share, native_error_limit, rms
from support.engines.stages import Stages
from support.kernels.build import not_shown
from support.scheduling.updates import tokens_of

from potluck.catalog import describe_model, load_tokenizer, open_headers, read_profile
from potluck.cluster.agent.service import Agent
from potluck.engines.backends import BACKENDS, cost_of
from potluck.placement.costs import mixed_cost, model_cost
from potluck.placement.model_counting import counting_of
from potluck.types.backend import BackendSpec
from potluck.types.choices import Objective
from potluck.types.deployment import Deploy, DeploymentRecord
from potluck.types.sequence import CommittedToken, SequenceRequest
from potluck.types.stage import StageSize
from potluck.types.step import SamplingParams
from potluck.types.unit import NATIVE

ROOT = Path(__file__).parents[2]
CONTEXT = 256
NUM_NEW = 40
PROMPT = "A small light went on in the old house, and"
TINYGRAD = "tinygrad:CPU"
NATIVE_SPEC, TINYGRAD_SPEC = (
    next(spec for spec in BACKENDS if spec.name == name) for name in (NATIVE, TINYGRAD)
)
TABLE = (
    NATIVE_SPEC,
    # Its trial is tested elsewhere, and takes longer than all of this.
    dataclasses.replace(TINYGRAD_SPEC, module="support.engines.fake_backends.works_with_clang"),
    reference_backend.SPEC,
)


def limits_for(
    table: Sequence[BackendSpec], units: Sequence[str], shares: Sequence[float]
) -> list[int]:
    """What each agent may use, so that it has this share of the model or somewhat less."""
    profile = read_profile(describe_model("demo"))
    sizes = [
        StageSize(
            context_tokens=CONTEXT,
            num_blocks=CONTEXT // 16,
            max_step_tokens=CONTEXT,
            num_threads=1,
            backend=spec.name,
        )
        for spec in table
    ]
    counting = counting_of(profile, lambda backend: cost_of(backend, table))
    costs = [model_cost(counting, each) for each in sizes]
    mixed = mixed_cost(costs)
    held = sum(mixed.layer_bytes) + mixed.embedding_bytes + mixed.head_bytes
    own = {
        spec.name: cost.scratch_bytes + cost.process_bytes
        for spec, cost in zip(table, costs, strict=True)
    }
    return [
        own[unit.partition("/")[2]] + int(held * share)
        for unit, share in zip(units, shares, strict=True)
    ]


async def text_of(agent: Agent, record: DeploymentRecord, prompt: Sequence[int]) -> list[int]:
    request = SequenceRequest(
        prompt_tokens=tuple(prompt),
        sampling=SamplingParams(temperature=0.0, logprobs=True),
        max_new_tokens=NUM_NEW,
    )
    start = partial(agent.relaying.start, record, request)
    tokens: list[CommittedToken] = [token async for token in tokens_of(start)]
    assert len(tokens) == NUM_NEW
    return [token.token for token in tokens]


def assert_greedy(prompt: Sequence[int], tokens: Sequence[int]) -> None:
    """``tokens`` are what the reference would take, wherever its margin decides."""
    description = describe_model("demo")
    config = description.config
    with closing(open_headers(description)) as tensors, Stages(config, tensors) as stages:
        logits = stages.logits_at_all_positions([*prompt, *tokens[:-1]])[-len(tokens) :]
    limit = native_error_limit(num_layers=config.num_layers, is_quantized=False)
    tolerance = 3 * limit * rms(logits)  # six standard deviations, as in the tests of parity
    assert decided_share(logits, tolerance) >= MIN_DECIDED_SHARE
    for row, token in zip(logits, tokens, strict=True):
        assert token == int(np.argmax(row)) or decided_share(row[None], tolerance) == 0
    assert len(set(tokens)) >= 10, "a text that repeats itself decides little"


@pytest.mark.parametrize(
    ("units", "shares"),
    [
        (("cpu/reference", "cpu/native", "cpu/reference"), (0.45, 0.45, 0.45)),
        # It compiles for seconds, and for longer the more layers it has.
        (("cpu/native", f"cpu/{TINYGRAD}"), (0.85, 0.3)),
    ],
    ids=["reference+native+reference", "native+tinygrad"],
)
def test_stages_of_two_backends_are_one_model(
    tmp_path: Path,
    units: tuple[str, ...],
    shares: tuple[float, ...],
) -> None:
    if f"cpu/{TINYGRAD}" in units and shutil.which("clang") is None:
        not_shown("tinygrad's CPU backend needs clang")
    prompt = load_tokenizer(describe_model("demo").files).encode(PROMPT)

    async def run() -> tuple[DeploymentRecord, list[int]]:
        limits = limits_for(TABLE, units, shares)
        settings = [
            {"backend": unit, "memory_limit_bytes": limit, "backends": TABLE}
            for unit, limit in zip(units, limits, strict=True)
        ]
        async with agents_here(tmp_path, settings) as running:
            record = await running[0].coordination.deploy(
                Deploy(
                    model="demo",
                    context_tokens=CONTEXT,
                    cache_tokens=CONTEXT,
                    objective=Objective.MEMORY,
                )
            )
            return record, await text_of(running[-1], record, prompt)

    record, tokens = asyncio.run(run())
    assert sorted(stage.unit_id for stage in record.stages) == sorted(units)
    for stage in record.stages:
        formats = {label for label, _ in stage.memory.weights}
        assert stage.load_seconds is not None
        assert formats  # what its worker has planned with
    # The other backends of each node are idle, and the plan says why.
    idle = {
        each.unit_id for each in record.status.plan.rejections if "was requested" in each.reason
    }
    assert idle >= {"cpu/native", "cpu/reference"}
    assert_greedy(prompt, tokens)
