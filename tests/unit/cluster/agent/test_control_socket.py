"""The socket of the command line: whatever is sent there, the agent goes on and says so."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from potluck.cluster.agent.control import serve_control
from potluck.cluster.agent.state import StateDirectory
from potluck.cluster.calls import Deploy


class SlowCoordination:
    """Deploys for ever."""

    registry = SimpleNamespace(records={}, live=tuple)

    async def deploy(self, request: Deploy) -> None:
        await asyncio.sleep(60)


async def answers(path: Path, line: bytes) -> list[dict[str, Any]]:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(line)
    data = await reader.read()
    writer.close()
    return [json.loads(each) for each in data.splitlines()]


AGENT = cast(Any, SimpleNamespace(coordination=SlowCoordination()))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"no json\n", "makes no sense"),
        (b"[1, 2]\n", "makes no sense"),
        (b"{}\n", "makes no sense"),
        (b'{"method": "explode"}\n', "does not know"),
        (b'{"method": "deploy", "params": {"model": 7}}\n', "makes no sense"),
        (b'{"method": "deploy", "params": []}\n', "makes no sense"),
        (b'{"method": "undeploy"}\n', "makes no sense"),
    ],
)
def test_nonsense_is_answered_as_a_wrong_use(tmp_path: Path, line: bytes, words: str) -> None:
    async def run() -> None:
        state = StateDirectory(tmp_path)
        path = state.control_socket
        async with serve_control(AGENT, cast(Any, None), state, lambda: None):
            (answer,) = await answers(path, line)
            assert words in answer["error"]["message"]
            assert answer["error"]["exit_code"] == 2

    asyncio.run(run())


def test_a_line_without_end_is_hung_up_on(tmp_path: Path) -> None:
    async def run() -> None:
        state = StateDirectory(tmp_path)
        path = state.control_socket
        async with serve_control(AGENT, cast(Any, None), state, lambda: None):
            assert await asyncio.wait_for(answers(path, b"x" * 200_000), 5) == []

    asyncio.run(run())


def test_what_is_being_answered_ends_with_the_agent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        state = StateDirectory(tmp_path)
        path = state.control_socket
        async with serve_control(AGENT, cast(Any, None), state, lambda: None):
            line = b'{"method": "deploy", "params": {"model": "demo"}}\n'
            asking = asyncio.create_task(answers(path, line))
            await asyncio.sleep(0.1)
        assert await asyncio.wait_for(asking, 2) == []

    asyncio.run(run())
    assert caplog.text == ""  # no "exception in callback" either
