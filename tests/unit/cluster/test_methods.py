"""Methods encode and decode what nodes ask of one another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import NoneType
from typing import Any, cast

import pytest

from potluck.cluster.network.membership import Membership, MethodTable
from potluck.cluster.wire import methods
from potluck.cluster.wire.calls import Clock, DeploymentReference, NamedFile
from potluck.cluster.wire.methods import CLOCK, DIGESTS, Method, StreamMethod
from potluck.errors import CallError
from potluck.types.cluster import DeploymentId, NodeId

A, B, C = (NodeId(letter * 16) for letter in "abc")
REFERENCE = DeploymentReference(deployment=DeploymentId("1"))
COUNT: StreamMethod[DeploymentReference, Clock] = StreamMethod(
    "test.count", DeploymentReference, Clock, 3.0
)


class Nodes:
    """Nodes with a table each. Calls arrive in ``calls``, with their time limits."""

    def __init__(self) -> None:
        self.tables = {node: MethodTable() for node in (A, B, C)}
        self.calls: list[tuple[NodeId, str, bytes, float | None]] = []

    @property
    def membership(self) -> Membership:
        return cast(Membership, self)

    async def call(
        self, node: NodeId, method: str, payload: bytes, *, timeout_seconds: float
    ) -> bytes:
        self.calls.append((node, method, payload, timeout_seconds))
        handler = await self.tables[node].find(method)
        async with aclosing(handler(A, payload)) as parts:
            async for part in parts:
                return part
        raise AssertionError("there is no answer")

    async def call_stream(
        self, node: NodeId, method: str, payload: bytes, *, silence_seconds: float | None
    ) -> AsyncGenerator[bytes, None]:
        self.calls.append((node, method, payload, silence_seconds))
        handler = await self.tables[node].find(method)
        async with aclosing(handler(A, payload)) as parts:
            async for part in parts:
                yield part


def table() -> dict[str, Any]:
    kinds = (Method, StreamMethod)
    return {name: each for name, each in vars(methods).items() if isinstance(each, kinds)}


def test_every_method_has_a_name_of_its_own() -> None:
    names = [each.name for each in table().values()]
    assert len(names) == len({*names}) > 30


def test_a_request_and_its_answer_arrive_as_they_were() -> None:
    async def main() -> None:
        nodes, asked = Nodes(), []

        async def when(request: DeploymentReference) -> Clock:
            asked.append(request)
            return Clock(seconds=1.5)

        method = Method("test.when", DeploymentReference, Clock, 2.0)
        method.serve(nodes.tables[B], when)
        assert await method.call(nodes.membership, B, REFERENCE) == Clock(seconds=1.5)
        await method.call(nodes.membership, B, REFERENCE, timeout_seconds=7.0)
        assert asked == [REFERENCE, REFERENCE]
        assert [call[3] for call in nodes.calls] == [2.0, 7.0]

    asyncio.run(main())


def test_nothing_and_bytes_are_sent_as_they_are() -> None:
    async def main() -> None:
        nodes, callers = Nodes(), []

        async def digests(request: NamedFile) -> bytes:
            return b"\xc1" + request.sha256.encode()

        async def greet(caller: NodeId, _: None) -> None:
            callers.append(caller)

        greeting = Method("test.greet", NoneType, NoneType, 1.0)
        DIGESTS.serve(nodes.tables[B], digests)
        greeting.serve_for_caller(nodes.tables[B], greet)
        assert await DIGESTS.call(nodes.membership, B, NamedFile(sha256="ab")) == b"\xc1ab"
        await greeting.call(nodes.membership, B, None)
        assert callers == [A]
        assert nodes.calls[-1] == (B, "test.greet", b"", 1.0)

    asyncio.run(main())


def test_of_several_nodes_those_count_that_answer(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        nodes = Nodes()

        async def late(_: None) -> Clock:
            await asyncio.sleep(0)
            return Clock(seconds=1.0)

        async def early(_: None) -> Clock:
            return Clock(seconds=2.0)

        CLOCK.serve(nodes.tables[A], late)
        CLOCK.serve(nodes.tables[B], early)
        with caplog.at_level(logging.INFO):
            answers = await CLOCK.call_all(
                nodes.membership, dict.fromkeys((A, C, B)), level=logging.INFO
            )
        assert list(answers.items()) == [(A, Clock(seconds=1.0)), (B, Clock(seconds=2.0))]
        assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
            f"node.clock of node {C} failed"
        ]

    asyncio.run(main())


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x80", b"\xa0"])
def test_a_malformed_message_fails_its_call_at_both_ends(payload: bytes) -> None:
    async def main() -> None:
        nodes = Nodes()

        async def malformed(_: bytes) -> bytes:
            return payload

        async def unused(_: DeploymentReference) -> None:
            raise AssertionError("it was not called well")

        nodes.tables[B].register(CLOCK.name, malformed)
        with pytest.raises(CallError, match="malformed"):
            await CLOCK.call(nodes.membership, B, None)
        method = Method("test.refer", DeploymentReference, NoneType, 1.0)
        method.serve(nodes.tables[B], unused)
        with pytest.raises(CallError, match="malformed"):
            await nodes.call(B, method.name, payload, timeout_seconds=1)

    asyncio.run(main())


def test_a_stream_is_closed_where_it_is_made_if_its_reader_stops() -> None:
    async def main() -> None:
        nodes, ended = Nodes(), []

        async def count(request: DeploymentReference) -> AsyncGenerator[Clock, None]:
            try:
                for number in range(9):
                    yield Clock(seconds=number)
            finally:
                ended.append(request)

        COUNT.serve(nodes.tables[B], count)
        async with aclosing(COUNT.call(nodes.membership, B, REFERENCE)) as events:
            async for event in events:
                if event.seconds == 2:
                    break
        assert ended == [REFERENCE]
        assert nodes.calls[0][3] == 3.0

    asyncio.run(main())
