from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from support.cluster.certificates import TestAuthority
from support.cluster.members import MemberProcess, make_config, node_id
from support.network.netns import Host, lan, require_namespaces

from potluck.cluster.network.membership import parse_address


@pytest.fixture(autouse=True)
def _namespaces() -> None:
    require_namespaces()


class Fleet:
    """Members on hosts, each with a certificate of one authority."""

    def __init__(self, stack: ExitStack, authority: TestAuthority) -> None:
        self._stack = stack
        self._authority = authority

    def start(
        self, number: int, host: Host, *connect: str, multicast: bool = True
    ) -> MemberProcess:
        config = make_config(
            number,
            *map(parse_address, connect),
            host=host.ip,
            multicast=multicast,
            pem=self._authority.issue(f"node-{number}"),
        )
        return self._stack.enter_context(MemberProcess(config, prefix=host.command()))


def test_members_on_three_hosts_find_each_other_by_multicast(tmp_path: Path) -> None:
    with lan(3) as hosts, ExitStack() as stack:
        fleet = Fleet(stack, TestAuthority(tmp_path / "ca"))
        members = [fleet.start(number, host) for number, host in enumerate(hosts)]
        stranger = Fleet(stack, TestAuthority(tmp_path / "other")).start(9, hosts[0])
        for number, member in enumerate(members):
            for other in {0, 1, 2} - {number}:
                member.expect(f"join {node_id(other)}", within=40)
        members[1].process.kill()
        members[0].expect(f"leave {node_id(1)}", within=8)
        stranger.expect("open", within=20)
        assert not any(line.startswith("join") for line in stranger.lines)
        for member in (members[0], members[2]):
            assert f"join {node_id(9)}" not in member.lines


def test_where_multicast_is_off_members_join_by_address_and_meet_by_gossip(tmp_path: Path) -> None:
    with lan(3, passes_multicast=False) as hosts, ExitStack() as stack:
        fleet = Fleet(stack, TestAuthority(tmp_path / "ca"))
        first = fleet.start(0, hosts[0])
        address = first.expect("open", within=40)
        alone = fleet.start(1, hosts[1])
        alone.expect("open", within=40)
        third = fleet.start(2, hosts[2], address, multicast=False)
        third.expect(f"join {node_id(0)}", within=40)
        assert not [line for line in alone.lines if line.startswith("join")], "multicast works"
        assert alone.leave() == 0
        second = fleet.start(1, hosts[1], address)
        for other in (0, 2):
            second.expect(f"join {node_id(other)}", within=40)
        third.expect(f"join {node_id(1)}", within=40)


def test_an_address_that_answers_nothing_ends_in_a_sentence(tmp_path: Path) -> None:
    with lan(1) as (host,), ExitStack() as stack:
        fleet = Fleet(stack, TestAuthority(tmp_path / "ca"))
        member = fleet.start(0, host, "10.77.0.99:7450")
        message = member.expect("error", within=40)
        assert message.startswith("could not join at 10.77.0.99:7450: n")
        assert member.process.wait(20) == 1
