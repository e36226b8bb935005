"""Agents of one cluster in this process."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.processes.waiting import until

from potluck.cluster.agent.config import AgentConfig
from potluck.cluster.agent.service import Agent
from potluck.cluster.agent.state import StateDirectory
from potluck.cluster.membership import Address
from potluck.cluster.trust.secret import generate_secret, parse_secret

_ROOT = Path(__file__).resolve().parents[3]


@asynccontextmanager
async def agents_here(
    directory: Path, settings: Sequence[dict[str, Any]]
) -> AsyncIterator[list[Agent]]:
    """Run an agent with each of these settings, once all see each other and their units are tried.

    Their workers can import the backends of tests.
    """
    secret = parse_secret(generate_secret())
    running: list[Agent] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", os.pathsep.join((f"{_ROOT}/src", f"{_ROOT}/tests")))
        async with AsyncExitStack() as opened:
            for number, own in enumerate(settings):
                state = StateDirectory(directory / str(number))
                opened.enter_context(state.locked())
                config = AgentConfig(
                    secret=secret,
                    listen=Address(host="127.0.0.1", port=0),
                    connect=tuple(each.membership.address for each in running[:1]),
                    num_threads=1,
                    detectors=(),
                    **own,
                )
                running.append(await opened.enter_async_context(Agent.open(config, state)))
            await until(
                lambda: all(
                    each.hardware.report.is_complete
                    and len(each.membership.nodes()) == len(running) - 1
                    for each in running
                ),
                within=30,
                what="all agents see each other, and their units are tried",
            )
            yield running
