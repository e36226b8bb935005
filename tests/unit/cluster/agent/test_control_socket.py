"""The socket of the command line: whatever is sent there, the agent goes on and says so."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.processes.waiting import until

from potluck.cluster.agent.control import serve_control
from potluck.cluster.agent.state import StateDirectory
from potluck.errors import EngineError
from potluck.types.deployment import Deploy
from potluck.types.node_names import NodeNames


class SlowCoordination:
    """Deploys for ever."""

    num_calls = 0
    records = SimpleNamespace(registry=SimpleNamespace(records={}), live=tuple)

    async def deploy(self, request: Deploy) -> None:
        self.num_calls += 1
        await asyncio.sleep(60)


async def answers(path: Path, line: bytes) -> list[dict[str, Any]]:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(line)
    data = await reader.read()
    writer.close()
    return [json.loads(each) for each in data.splitlines()]


AGENT = cast(
    Any,
    SimpleNamespace(
        coordination=SlowCoordination(), known_nodes=SimpleNamespace(names=NodeNames({}))
    ),
)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"no json\n", "malformed request"),
        (b"[1, 2]\n", "malformed request"),
        (b"{}\n", "malformed request"),
        (b'{"method": "explode"}\n', "has no method"),
        (b'{"method": "deploy", "params": {"model": 7}}\n', "malformed request"),
        (b'{"method": "deploy", "params": []}\n', "malformed request"),
        (b'{"method": "undeploy"}\n', "malformed request"),
    ],
)
def test_nonsense_is_answered_as_a_wrong_use(tmp_path: Path, line: bytes, words: str) -> None:
    async def run() -> None:
        state = StateDirectory(tmp_path)
        path = state.control_socket
        async with serve_control(AGENT, cast(Any, None), cast(Any, None), state, lambda: None):
            (answer,) = await answers(path, line)
            assert words in answer["error"]["message"]
            assert answer["error"]["exit_code"] == 2

    asyncio.run(run())


def test_an_error_calls_nodes_by_their_names(tmp_path: Path) -> None:
    class Failing:
        async def undeploy(self, name: str) -> None:
            raise EngineError(f"stage 1 on node {'b' * 16}: lost")

    async def run() -> None:
        state = StateDirectory(tmp_path)
        known = SimpleNamespace(names=NodeNames({"b" * 16: "attic"}))
        agent = SimpleNamespace(coordination=Failing(), known_nodes=known)
        control = serve_control(
            cast(Any, agent), cast(Any, None), cast(Any, None), state, lambda: None
        )
        async with control:
            line = b'{"method": "undeploy", "params": {"name": "demo"}}\n'
            (answer,) = await answers(state.control_socket, line)
            assert answer["error"]["message"] == "stage 1 on node attic: lost"

    asyncio.run(run())


@pytest.mark.parametrize("others", [frozenset(), frozenset({"b" * 16})])
def test_who_leaves_is_told_whether_there_are_other_nodes(
    tmp_path: Path, others: frozenset[str]
) -> None:
    async def drain() -> None:
        stopped.append("drained")

    async def run() -> None:
        state = StateDirectory(tmp_path)
        membership = SimpleNamespace(nodes=lambda: others)
        agent = cast(
            Any,
            SimpleNamespace(
                coordination=None, membership=membership, leaving=SimpleNamespace(drain=drain)
            ),
        )
        control = serve_control(
            agent, cast(Any, None), cast(Any, None), state, lambda: stopped.append("stopped")
        )
        async with control:
            event, _ = await answers(state.control_socket, b'{"method": "down"}\n')
        assert event == {"event": {"is_draining": True, "is_alone": not others}}

    stopped: list[str] = []
    asyncio.run(run())
    assert stopped == ["drained", "stopped"]


def test_a_line_without_end_is_hung_up_on(tmp_path: Path) -> None:
    async def run() -> None:
        state = StateDirectory(tmp_path)
        path = state.control_socket
        async with serve_control(AGENT, cast(Any, None), cast(Any, None), state, lambda: None):
            assert await asyncio.wait_for(answers(path, b"x" * 200_000), 20) == []

    asyncio.run(run())


def test_what_is_being_answered_ends_with_the_agent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        state = StateDirectory(tmp_path)
        path = state.control_socket
        async with serve_control(AGENT, cast(Any, None), cast(Any, None), state, lambda: None):
            line = b'{"method": "deploy", "params": {"model": "demo"}}\n'
            asking = asyncio.create_task(answers(path, line))
            await until(lambda: AGENT.coordination.num_calls == 1)
        assert await asyncio.wait_for(asking, 20) == []

    asyncio.run(run())
    assert caplog.text == ""  # no "exception in callback" either
