"""Who asks to take part and is refused: other versions, bad certificates, no TLS at all."""

from __future__ import annotations

import asyncio
import datetime
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster.agents import OTHER_VERSION, OTHER_WIRE_VERSION, AgentProcess, Fleet
from support.cluster.imposters import named
from support.cluster.members import opened

from potluck.cluster.network.membership import MembershipConfig, parse_address
from potluck.cluster.network.trust.authority import Authority, cluster_id, derive_authority
from potluck.cluster.network.trust.credentials import Credentials
from potluck.cluster.network.trust.pem_files import write_pem_files
from potluck.cluster.network.trust.secret import generate_secret, parse_secret
from potluck.errors import JoinError
from potluck.types.cluster import WIRE_VERSION, NodeId

STRANGER = NodeId("00000000000000ff")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp("refused")) as fleet:
        fleet.start_all(range(2))
        yield fleet


@pytest.fixture
def agent(fleet: Fleet) -> Iterator[AgentProcess]:
    """One of two; afterwards it sees the two, and both still work together."""
    agent = fleet.agents[0]
    yield agent
    assert agent.members() == {agent.node_id, fleet.agents[1].node_id}
    assert len(agent.deploy(context=64, cache=64)["stages"]) == 2
    agent.ask("undeploy", name="demo")


def test_another_wire_version_is_refused_with_a_sentence_on_both_sides(
    fleet: Fleet, agent: AgentProcess
) -> None:
    other = fleet.start(9, join=agent, command=OTHER_VERSION)
    assert other.process.wait(20) == 1
    address = agent.address
    assert (
        f"could not join at {address}: the nodes there speak wire version {WIRE_VERSION}, "
        f"and this node {OTHER_WIRE_VERSION}\n"
        "hint: install the same version of Potluck on every node"
    ) in other.log
    for member in fleet.live():
        assert (
            f"node {other.node_id} cannot join: it speaks wire version {OTHER_WIRE_VERSION}, "
            f"and this node {WIRE_VERSION}"
        ) in member.log
    shown = agent.command_line("ps").stdout
    assert f"refused: {other.node_id} speaks wire version {OTHER_WIRE_VERSION}" in shown
    del fleet.agents[9]


def test_another_secret_or_none_is_refused_with_a_hint(fleet: Fleet, agent: AgentProcess) -> None:
    without = fleet.start(8, join=agent, environ={"POTLUCK_SECRET": ""})
    wrong = fleet.start(9, join=agent, environ={"POTLUCK_SECRET": generate_secret()})
    assert without.process.wait(20) == 2
    assert without.log.startswith(
        "potluck: joining a cluster requires its secret or an invitation\nhint: "
    )
    assert wrong.process.wait(30) == 1
    assert f"could not join at {agent.address}: the agent there has a different secret" in wrong.log
    assert "hint: check the address, and that every node was given the same secret" in wrong.log
    del fleet.agents[8], fleet.agents[9]


def refusal(fleet: Fleet, directory: Path, credentials: Credentials | None) -> str:
    """What a node is told that joins with all a member has but sound credentials."""
    pem = None
    if credentials is not None:
        pem = write_pem_files(credentials, directory / "tls")
    address = parse_address(fleet.agents[0].address)
    config = MembershipConfig(
        node_id=STRANGER,
        cluster_id=cluster_id(parse_secret(fleet.secret)),
        listen=parse_address("127.0.0.1:0"),
        connect=(address,),
        pem=pem,
        join_timeout_seconds=1.0,
    )
    with pytest.raises(JoinError) as refused:
        asyncio.run(_join(config))
    assert refused.value.hint
    return refused.value.message.removeprefix(f"could not join at {address}: ")


async def _join(config: MembershipConfig) -> None:
    async with opened(config):
        pass


def authority_of(secret: str) -> Authority:
    return derive_authority(parse_secret(secret))


def test_an_expired_certificate(fleet: Fleet, agent: AgentProcess, tmp_path: Path) -> None:
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    expired = named(STRANGER, authority_of(fleet.secret), not_after=yesterday)
    assert (
        refusal(fleet, tmp_path, expired)
        == "it rejects this node's certificate as expired; its clock may be wrong"
    )


def test_a_plain_tcp_client(agent: AgentProcess) -> None:
    """It is told nothing, and others go on meanwhile (see the fixture)."""
    address = parse_address(agent.address)
    with socket.create_connection((address.host, address.port), 5) as silent:
        silent.settimeout(0.2)
        with socket.create_connection((address.host, address.port), 5) as client:
            client.settimeout(10)
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            received = b""
            try:
                while part := client.recv(4096):
                    received += part
            except ConnectionResetError:
                pass
            assert len(received) <= 7, "more than one TLS alert"
        with pytest.raises(TimeoutError):
            silent.recv(1)
