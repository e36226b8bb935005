"""Methods encode and decode what nodes ask of one another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import NoneType
from typing import Any

import pytest
from support.cluster.calls import MethodNetwork

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


def nodes_abc() -> tuple[MethodNetwork, Membership]:
    """Return nodes without methods, and the network as the first of them sees it."""
    network = MethodNetwork({node: MethodTable() for node in (A, B, C)})
    return network, network.member(A)


def table() -> dict[str, Any]:
    kinds = (Method, StreamMethod)
    return {name: each for name, each in vars(methods).items() if isinstance(each, kinds)}


def test_every_method_has_a_name_of_its_own() -> None:
    names = [each.name for each in table().values()]
    assert len(names) == len({*names}) > 30


def test_a_request_and_its_answer_arrive_as_they_were() -> None:
    async def main() -> None:
        (nodes, own), asked = nodes_abc(), []

        async def when(request: DeploymentReference) -> Clock:
            asked.append(request)
            return Clock(seconds=1.5)

        method = Method("test.when", DeploymentReference, Clock, 2.0)
        method.serve(nodes.tables[B], when)
        assert await method.call(own, B, REFERENCE) == Clock(seconds=1.5)
        await method.call(own, B, REFERENCE, timeout_seconds=7.0)
        assert asked == [REFERENCE, REFERENCE]
        assert [call.limit_seconds for call in nodes.calls] == [2.0, 7.0]

    asyncio.run(main())


def test_nothing_and_bytes_are_sent_as_they_are() -> None:
    async def main() -> None:
        (nodes, own), callers = nodes_abc(), []

        async def digests(request: NamedFile) -> bytes:
            return b"\xc1" + request.sha256.encode()

        async def greet(caller: NodeId, _: None) -> None:
            callers.append(caller)

        greeting = Method("test.greet", NoneType, NoneType, 1.0)
        DIGESTS.serve(nodes.tables[B], digests)
        greeting.serve_for_caller(nodes.tables[B], greet)
        assert await DIGESTS.call(own, B, NamedFile(sha256="ab")) == b"\xc1ab"
        await greeting.call(own, B, None)
        assert callers == [A]
        assert nodes.calls[-1] == (A, B, "test.greet", b"", 1.0)

    asyncio.run(main())


def test_of_several_nodes_those_count_that_answer(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        nodes, own = nodes_abc()

        async def late(_: None) -> Clock:
            await asyncio.sleep(0)
            return Clock(seconds=1.0)

        async def early(_: None) -> Clock:
            return Clock(seconds=2.0)

        CLOCK.serve(nodes.tables[A], late)
        CLOCK.serve(nodes.tables[B], early)
        with caplog.at_level(logging.INFO):
            answers = await CLOCK.call_all(own, dict.fromkeys((A, C, B)), level=logging.INFO)
        assert list(answers.items()) == [(A, Clock(seconds=1.0)), (B, Clock(seconds=2.0))]
        assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
            f"node.clock of node {C} failed"
        ]

    asyncio.run(main())


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x80", b"\xa0"])
def test_a_malformed_message_fails_its_call_at_both_ends(payload: bytes) -> None:
    async def main() -> None:
        nodes, own = nodes_abc()

        async def malformed(_: bytes) -> bytes:
            return payload

        async def unused(_: DeploymentReference) -> None:
            raise AssertionError("it was not called well")

        nodes.tables[B].register(CLOCK.name, malformed)
        with pytest.raises(CallError, match="malformed"):
            await CLOCK.call(own, B, None)
        method = Method("test.refer", DeploymentReference, NoneType, 1.0)
        method.serve(nodes.tables[B], unused)
        with pytest.raises(CallError, match="malformed"):
            await own.call(B, method.name, payload, timeout_seconds=1)

    asyncio.run(main())


def test_a_stream_is_closed_where_it_is_made_if_its_reader_stops() -> None:
    async def main() -> None:
        (nodes, own), ended = nodes_abc(), []

        async def count(request: DeploymentReference) -> AsyncGenerator[Clock, None]:
            try:
                for number in range(9):
                    yield Clock(seconds=number)
            finally:
                ended.append(request)

        COUNT.serve(nodes.tables[B], count)
        async with aclosing(COUNT.call(own, B, REFERENCE)) as events:
            async for event in events:
                if event.seconds == 2:
                    break
        assert ended == [REFERENCE]
        assert nodes.calls[0].limit_seconds == 3.0

    asyncio.run(main())
