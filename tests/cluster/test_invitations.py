"""Real agents: joining by an invitation, starting again without the secret, and being removed."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import ssl
from dataclasses import replace

import pytest
from support.cluster.agents import AgentProcess, Fleet, await_ready
from support.cluster.members import opened
from support.processes.waiting import eventually, until

from potluck.cluster.invitations.joined import read_joined
from potluck.cluster.network.membership import Membership, MembershipConfig, parse_address
from potluck.cluster.network.trust.pem_files import pem_paths
from potluck.errors import RemovedFromClusterError
from potluck.types.cluster import NodeId

NO_SECRET = {"POTLUCK_SECRET": ""}


def invite(agent: AgentProcess, *arguments: str) -> str:
    """What is printed for the new machine."""
    made = agent.command_line("invite", "--json", *arguments)
    assert made.returncode == 0, made.stderr
    invitation: str = json.loads(made.stdout)["invitation"]
    return invitation


def start_invited(fleet: Fleet, number: int, *arguments: str) -> AgentProcess:
    """An agent without the secret; its node id is what the inviting node chose."""
    return known(fleet.start(number, *arguments, environ=NO_SECRET).await_up())


def known(agent: AgentProcess) -> AgentProcess:
    joined = read_joined(agent.state / "membership.json")
    assert joined is not None
    agent.node_id = joined.node_id
    return agent


def replied(agent: AgentProcess) -> str:
    with agent.client() as client:
        answer = client.completions.create(model="demo", prompt="a b", max_tokens=4, temperature=0)
    return answer.choices[0].text


def test_a_machine_without_the_secret_joins_serves_and_starts_again(fleet: Fleet) -> None:
    first = fleet.start(0).await_up()
    newcomer = start_invited(fleet, 1, "--join", invite(first))
    fleet.await_members()
    assert not (newcomer.state / "secret").exists()
    secret = fleet.secret.encode()
    files = [path for path in newcomer.state.rglob("*") if path.is_file()]
    assert files
    assert all(secret not in path.read_bytes() for path in files)
    assert (newcomer.state / "membership.json").stat().st_mode & 0o777 == 0o600
    deployed = first.deploy(context=64, cache=64)
    assert {stage["node_id"] for stage in deployed["stages"]} == {first.node_id, newcomer.node_id}
    text = replied(first)
    await_ready(newcomer, "demo")
    assert replied(newcomer) == text
    first.ask("undeploy", name="demo")

    assert newcomer.end() == 0
    again = start_invited(fleet, 1)  # neither secret, nor invitation, nor address
    assert again.node_id == newcomer.node_id
    fleet.await_members()
    assert len(first.deploy(context=64, cache=64)["stages"]) == 2

    shown = {node["node_id"]: node for node in first.ask("nodes")["nodes"]}
    assert shown[first.node_id]["membership"] == "secret"
    eventually(
        lambda: (
            {n["node_id"]: n for n in first.ask("nodes")["nodes"]}[again.node_id]["membership"]
            == "invitation"
        ),
        within=5,
        what="the newcomer says by what it is a member",
    )
    for refused in (again.command_line("invite"), again.command_line("nodes", "remove", "0000")):
        assert refused.returncode != 0
    assert "only a node that has the cluster's secret" in again.command_line("invite").stderr


def test_an_invitation_is_used_up_and_expires_and_is_withdrawn_also_over_a_restart(
    fleet: Fleet,
) -> None:
    first = fleet.start(0).await_up()
    once = invite(first)
    twice = invite(first, "--uses", "2")
    late = invite(first, "--expires", "1s")
    withdrawn = invite(first)
    listed = first.ask("invitations")["invitations"]
    assert len(listed) == 4
    closing = first.command_line("invite", "--withdraw", listed[3]["invitation_id"])
    assert closing.returncode == 0
    start_invited(fleet, 1, "--join", once)
    start_invited(fleet, 2, "--join", twice)
    fleet.await_members()
    address = first.address
    first.end(signal.SIGKILL)
    first = fleet.start(0, "--listen", address).await_up()
    fleet.await_members(within=30)
    for number, invitation, reason in (
        (11, once, "it has been used up"),
        (12, late, "it has expired"),
        (13, withdrawn, "it was withdrawn"),
    ):
        refused = fleet.start(number, "--join", invitation, environ=NO_SECRET)
        assert refused.process.wait(20) == 1, refused.log
        assert reason in refused.log
        assert invitation.split("/")[1] not in refused.log
    start_invited(fleet, 3, "--join", twice)
    refused = fleet.start(14, "--join", twice, environ=NO_SECRET)
    assert refused.process.wait(20) == 1
    fleet.await_members()
    kept = (first.state / "invitations.json").read_text()
    assert all(each.split("/")[1] not in kept for each in (once, twice, late, withdrawn))


def test_a_server_with_another_key_is_told_nothing(fleet: Fleet) -> None:
    first = fleet.start(0).await_up()
    address, token, _ = invite(first).split("/")
    refused = fleet.start(1, "--join", f"{address}/{token}/{'A' * 43}", environ=NO_SECRET)
    assert refused.process.wait(20) == 1
    assert "is not the node that made the invitation" in refused.log
    start_invited(fleet, 2, "--join", invite(first))


def test_clients_of_an_invited_node_are_served_with_tls(fleet: Fleet) -> None:
    first = fleet.start(0).await_up()
    newcomer = start_invited(fleet, 1, "--join", invite(first), "--tls", "auto")
    host, port = newcomer.url.removeprefix("https://").split(":")
    context = ssl.create_default_context(cafile=str(newcomer.state / "tls" / "authority.pem"))
    with (
        socket.create_connection((host, int(port)), timeout=10) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as connection,
    ):
        assert connection.version() is not None


def test_a_removed_node_is_refused_by_all_for_good(fleet: Fleet) -> None:
    first, second = fleet.start_all(range(2))
    invitation = invite(first, "--uses", "2")
    third = start_invited(fleet, 2, "--join", invitation)
    fourth = start_invited(fleet, 3, "--join", invitation)
    fleet.await_members()
    deployed = first.deploy(context=64, cache=64)
    assert third.node_id in {stage["node_id"] for stage in deployed["stages"]}
    text = replied(first)

    assert fourth.end() == 0  # away when it happens
    removal = first.command_line("nodes", "remove", third.node_id[:8])
    assert removal.returncode == 0, removal.stderr + first.log
    assert third.process.wait(20) == 1
    assert f"node {third.node_id} was removed from the cluster" in third.log
    fleet.await_members()

    def moved() -> bool:
        deployment = first.deployment("demo")
        if deployment is None or deployment["state"] != "ready":
            return False
        return third.node_id not in {stage["node_id"] for stage in deployment["stages"]}

    eventually(moved, within=30, what="the deployment moved")
    assert replied(first) == text

    # It does not start again by what it has, nor once it has forgotten that it was removed.
    again = fleet.start(2, environ=NO_SECRET)
    assert again.process.wait(20) == 1
    assert "was removed from the cluster" in again.log
    (third.state / "tls" / "removed").unlink()
    again = fleet.start(2, environ=NO_SECRET)
    assert again.process.wait(20) == 1, again.log
    assert "was removed from the cluster" in again.log

    # The others still know after restarts, and one that was away learns of it.
    second.end(signal.SIGKILL)
    fleet.start(1, join=first).await_up()
    fourth = start_invited(fleet, 3)
    fleet.await_members(within=30)
    eventually(
        lambda: third.node_id in (fourth.state / "tls" / "removed").read_text(),
        within=10,
        what="the node that was away learns of it",
    )
    for member in fleet.live():
        again = fleet.start(2, "--join", member.address, environ=NO_SECRET)
        assert again.process.wait(20) == 1, again.log
        assert "was removed from the cluster" in again.log
        (third.state / "tls" / "removed").unlink(missing_ok=True)
    # As another node it may.
    again = start_invited(fleet, 2, "--join", invite(first))
    assert again.node_id != third.node_id
    fleet.await_members()
    states = {node["node_id"]: node["state"] for node in first.ask("nodes")["nodes"]}
    assert states[third.node_id] == "removed"


def test_a_removed_node_that_does_not_obey_is_cut_off_in_both_directions(fleet: Fleet) -> None:
    first, second = fleet.start_all(range(2))
    third = start_invited(fleet, 2, "--join", invite(first))
    fleet.await_members()
    node = third.node_id
    joined = read_joined(third.state / "membership.json")
    assert joined is not None
    assert third.end() == 0
    tls = third.state / "tls"
    pem = replace(pem_paths(tls), removed=tls / "not-heard-of")

    def config(*connect: AgentProcess) -> MembershipConfig:
        """That of a node which knows nothing of removals, and will not hear of them."""
        return MembershipConfig(
            node_id=NodeId(node),
            cluster_id=joined.cluster_id,
            listen=parse_address("127.0.0.1:0"),
            connect=tuple(parse_address(agent.address) for agent in connect),
            pem=pem,
        )

    async def disobey() -> None:
        async with opened(config(first)) as deaf:
            await seen(deaf, {first.node_id, second.node_id})
            removal = await asyncio.to_thread(first.command_line, "nodes", "remove", node)
            assert removal.returncode == 0, removal.stderr + first.log
            await seen(deaf, set())
            for agent in (first, second):
                assert node not in await asyncio.to_thread(agent.members)
        with pytest.raises(RemovedFromClusterError):
            await Membership.open(config(first))
        with pytest.raises(RemovedFromClusterError):
            await Membership.open(config(second))
        # And where a member that knows of it connects to it.
        async with opened(config()) as deaf:
            address = str(deaf.address)
            second.end()
            arguments = ("--join", address, "--join", first.address)
            await asyncio.to_thread(lambda: fleet.start(1, *arguments).await_up())
            for _ in range(30):
                await asyncio.sleep(0.1)
                assert second.node_id not in deaf.nodes()
                for agent in fleet.live():
                    assert node not in await asyncio.to_thread(agent.members)

    asyncio.run(disobey())
    fleet.await_members()


async def seen(membership: Membership, nodes: set[str]) -> None:
    await until(lambda: membership.nodes() == nodes)


def test_an_invited_node_starts_alone_and_finds_the_others_when_they_come(fleet: Fleet) -> None:
    first = fleet.start(0).await_up()
    address = first.address
    newcomer = start_invited(fleet, 1, "--join", invite(first))
    fleet.await_members()
    assert newcomer.end() == 0
    assert first.end() == 0
    newcomer = start_invited(fleet, 1)
    assert newcomer.members() == {newcomer.node_id}
    assert "this node keeps trying" in newcomer.log
    fleet.start(0, "--listen", address).await_up()
    fleet.await_members()
    shown = newcomer.command_line("nodes")
    assert shown.returncode == 0, shown.stderr
    assert [line.split()[0] for line in shown.stdout.splitlines()] == [
        "NODE",
        *sorted((first.node_id, newcomer.node_id)),
    ]
