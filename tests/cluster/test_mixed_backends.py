"""One model on units of different backends, through real agents, workers and edges."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.engines import reference_backend
from support.engines.parity import MIN_DECIDED_SHARE, decided_share, native_error_limit, rms
from support.engines.stages import Stages
from support.kernels.build import not_shown
from support.processes.waiting import until
from support.scheduling.updates import tokens_of

from potluck.catalog import describe_model, load_tokenizer, open_headers, read_profile
from potluck.cluster.agent.config import AgentConfig
from potluck.cluster.agent.service import Agent
from potluck.cluster.agent.state import StateDirectory
from potluck.cluster.membership import Address
from potluck.cluster.trust.secret import Secret, generate_secret, parse_secret
from potluck.engines.backends import BACKENDS, cost_of
from potluck.loading import StageSize
from potluck.placement.costs import mixed_cost, model_cost
from potluck.placement.model_counting import counting_of
from potluck.types.backend import BackendSpec
from potluck.types.choices import Objective
from potluck.types.deployment import Deploy, DeploymentRecord
from potluck.types.sequence import CommittedToken, SequenceRequest
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


@pytest.fixture(autouse=True)
def _other_backends_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT / 'tests'}")


@asynccontextmanager
async def agents(
    directory: Path, units: Sequence[str], *, limits: Sequence[int], table: Sequence[BackendSpec]
) -> AsyncIterator[list[Agent]]:
    """One agent for each of ``units``, which alone serves there, in one cluster."""
    secret = parse_secret(generate_secret())
    async with AsyncExitStack() as opened:
        running: list[Agent] = []
        for number, (unit, limit) in enumerate(zip(units, limits, strict=True)):
            state = StateDirectory(directory / str(number))
            opened.enter_context(state.locked())
            config = a_config(secret, unit, limit, table, running)
            running.append(await opened.enter_async_context(Agent.open(config, state)))
        await until(
            lambda: all(len(each.membership.nodes()) == len(running) - 1 for each in running),
            within=15,
            what="all agents see each other",
        )
        await until(
            lambda: all(each.hardware.report.is_complete for each in running),
            within=30,
            what="all units are tried",
        )
        yield running


def a_config(
    secret: Secret, unit: str, limit: int, table: Sequence[BackendSpec], running: Sequence[Agent]
) -> AgentConfig:
    return AgentConfig(
        secret=secret,
        listen=Address(host="127.0.0.1", port=0),
        connect=tuple(each.membership.address for each in running[:1]),
        memory_limit_bytes=limit,
        num_threads=1,
        backends=tuple(table),
        backend=unit,
        detectors=(),
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
    held = sum(mixed.cost.layer_bytes) + mixed.cost.embedding_bytes + mixed.cost.head_bytes
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
        async with agents(tmp_path, units, limits=limits, table=TABLE) as running:
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
