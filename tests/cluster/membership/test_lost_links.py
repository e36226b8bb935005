"""What one node that vanishes costs the others: nothing, whatever is being sent to it.

Node 0 answers 6 streams of node 1, which is cut off; 2 and 3 are healthy and notice nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.cluster.certificates import TestAuthority
from support.cluster.members import MemberProcess, make_config, node_id
from support.network.netns import Host, require_namespaces
from support.network.relay import CUT, PERFECT, Link, Relay, relayed_lan
from support.processes.waiting import eventually

from potluck.cluster.network.membership import parse_address

NOTICE_SECONDS = 2.5
"""The lease is 1 s, and cuts are noticed within 1.5 s as a rule; two busy cores take longer."""
ANSWER_SECONDS = 0.5
WATCH_SECONDS = 4
SERVER, VANISHING, HEALTHY = 0, 1, (2, 3)
NUM_STREAMS = 6

TOKENS = "pour [0.01,100]"
FLOOD = "pour [0.01,20000]"


@pytest.fixture(autouse=True)
def _namespaces() -> None:
    require_namespaces()


class Members:
    """Four members on the hosts of a relay, which join in the order given."""

    def __init__(self, stack: ExitStack, relay: Relay, directory: Path, order: list[int]) -> None:
        authority = TestAuthority(directory / "ca")
        self.relay = relay
        self._members: dict[int, MemberProcess] = {}
        addresses: list[str] = []
        for number in order:
            host = relay.hosts[number]
            config = make_config(
                number,
                *map(parse_address, addresses),
                host=host.ip,
                pem=authority.issue(f"node-{number}"),
            )
            member = stack.enter_context(MemberProcess(config, prefix=host.command()))
            address = member.expect("open", within=40)
            addresses = addresses or [address]
            self._members[number] = member
        for number in order:
            for other in set(order) - {number}:
                self[number].expect(f"join {node_id(other)}", within=40)

    def __getitem__(self, number: int) -> MemberProcess:
        return self._members[number]

    def host(self, number: int) -> Host:
        return self.relay.hosts[number]


def both_ways(relay: Relay, host: Host) -> None:
    relay.isolate(host)


def from_it(relay: Relay, host: Host) -> None:
    relay.isolate(host, receives=True)


def to_it(relay: Relay, host: Host) -> None:
    relay.isolate(host, sends=True)


@pytest.mark.timing
@pytest.mark.parametrize(
    ("cut", "request_line", "order"),
    [
        (both_ways, FLOOD, [0, 1, 2, 3]),
        (from_it, FLOOD, [1, 0, 2, 3]),
        (to_it, TOKENS, [1, 0, 2, 3]),
        (to_it, FLOOD, [0, 1, 2, 3]),
    ],
    ids=["both ways, called", "from it, calling", "to it, tokens", "to it, called"],
)
def test_a_caller_that_vanishes_holds_up_nobody(
    tmp_path: Path, cut: Callable[[Relay, Host], None], request_line: str, order: list[int]
) -> None:
    method, request = request_line.split()
    with relayed_lan(4) as relay, ExitStack() as stack:
        members = Members(stack, relay, tmp_path, order)
        for _ in range(NUM_STREAMS):
            members[VANISHING].say(f"stream {node_id(SERVER)} {method} {request}")
        time.sleep(0.5)
        for number, other in ((2, 0), (3, 0), (0, 2), (2, 3)):
            members[number].say(f"watch {node_id(other)} {WATCH_SECONDS}")
        time.sleep(0.5)
        start = time.monotonic()
        cut(relay, members.host(VANISHING))
        for number in (SERVER, *HEALTHY):
            left = max(0.0, start + NOTICE_SECONDS - time.monotonic())
            members[number].expect(f"leave {node_id(VANISHING)}", within=left)
        for _ in range(NUM_STREAMS):
            members[VANISHING].expect("cut NodeLostError", within=4)
        for number, other in ((2, 0), (3, 0), (0, 2), (2, 3)):
            watched = members[number].expect(f"watched {node_id(other)}", within=10)
            num_answered, num_failed, slowest = watched.split()
            assert int(num_answered) > 20
            assert num_failed == "0"
            assert float(slowest) < ANSWER_SECONDS
        for number in (SERVER, *HEALTHY):
            gone = {line for line in members[number].lines if line.startswith("leave")}
            assert gone == {f"leave {node_id(VANISHING)}"}, "the link to a healthy node was lost"
        relay.set_all(PERFECT)
        for number in (SERVER, *HEALTHY):
            back = f"join {node_id(VANISHING)}"
            eventually(
                lambda member=members[number], back=back: member.lines.count(back) == 2,  # type: ignore[misc]
                within=1.5,
                what="it comes back",
            )


def test_one_cut_link_parts_only_the_two(tmp_path: Path) -> None:
    with relayed_lan(3) as relay, ExitStack() as stack:
        members = Members(stack, relay, tmp_path, [0, 1, 2])
        members[1].say(f"stream {node_id(0)} pour [0.01,20000]")
        members[2].say(f"stream {node_id(0)} pour [0.01,20000]")
        time.sleep(0.5)
        relay.set_between(members.host(0), members.host(1), CUT)
        members[0].expect(f"leave {node_id(1)}", within=4 * NOTICE_SECONDS)
        members[1].expect(f"leave {node_id(0)}", within=4 * NOTICE_SECONDS)
        members[1].expect("cut NodeLostError", within=16)
        time.sleep(1.5)
        assert not [line for line in members[2].lines if line.startswith(("leave", "cut"))]


def test_members_stay_over_slow_lossy_links_and_streams_are_whole(tmp_path: Path) -> None:
    with relayed_lan(3) as relay, ExitStack() as stack:
        members = Members(stack, relay, tmp_path, [0, 1, 2])
        for link in (
            Link(delay_seconds=0.2),
            Link(loss=0.02, reordering=0.1, duplication=0.02),
            Link(delay_seconds=0.1, loss=0.02, reordering=0.1, reordering_seconds=0.02),
        ):
            relay.set_all(link)
            before = members[1].lines.count("complete")
            members[1].say(f"stream {node_id(0)} count [500,1000]")
            eventually(
                lambda before=before: members[1].lines.count("complete") > before,  # type: ignore[misc]
                within=30,
                what=f"the stream is complete over {link}",
            )
            time.sleep(2)
        for number in range(3):
            lines = members[number].lines
            assert not [line for line in lines if line.startswith(("leave", "cut"))], lines
