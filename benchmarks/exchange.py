"""Measure the time of an exchange within a group: ``benchmarks/METHODOLOGY.md``, "Exchange".

    python benchmarks/exchange.py [--rounds 3000] [--delay 0.2] [--output FILE]

Two and three processes on loopback exchange slices over a mesh of edges, as the members of a group
do. With ``--delay`` they are on hosts of their own, joined by a relay that holds every packet for
so many milliseconds each way. The figures go to stdout, the JSON document with all samples to the
file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from circumstances import edge_circumstances, write_result
from command_line import documented_parser

from potluck.cluster.network.edges.address import EdgeAddress
from potluck.cluster.network.edges.connect import connect_end
from potluck.cluster.network.edges.edge import IncomingEdge, OutgoingEdge
from potluck.cluster.network.edges.frames import Frame, FrameKind, Hello, Scope
from potluck.cluster.network.edges.listener import EdgeListener
from potluck.cluster.network.trust.credentials import Credentials
from potluck.cluster.worker.group import TURN_BYTES, ExchangeTotals, Group, mesh_limits
from potluck.scheduling.frame_limits import EdgeLimits
from potluck.types.cluster import DeploymentId, Epoch, NodeId
from potluck.types.groups import GroupPart
from potluck.types.step import StepId

SLICE_BYTES = (1024, 8192, 65_536, 1_048_576)
"""From each member to each other: half of a token's hidden state in int8 at 2048 columns, the same
in float32 at 4096, of several tokens, and of a chunk of a prompt."""
NUM_MEMBERS = (2, 3)
WARM_UP_ROUNDS = 300
EXCHANGES_PER_STEP = 64
"""A step of a model with 16 layers."""
LARGE_ROUNDS = 60

COORDINATOR = NodeId("c" * 16)
SCOPE = Scope(deployment=DeploymentId("exchange"), epoch=Epoch(number=1, coordinator=COORDINATOR))
LIMITS = mesh_limits(EdgeLimits(max_header_bytes=4096, max_payload_bytes=0))
DEADLINE_SECONDS = 30.0


def main() -> None:
    """Measure every number of members and size, print a table, write the document."""
    parser = documented_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3000)
    parser.add_argument("--delay", type=float, help="milliseconds each way, between hosts")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--member", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.member:
        number, size, directory = arguments.member
        _serve(int(number), int(size), Path(directory), arguments.rounds)
        return
    results = []
    for num_members in NUM_MEMBERS:
        for result in _measured(num_members, arguments.rounds, arguments.delay):
            results.append(result)
            print(
                f"{num_members} members {int(str(result['slice_bytes'])) / 1024:6.0f} KB"
                f"   p10 {result['tenth_microseconds']:8.1f} µs"
                f"   median {result['median_microseconds']:8.1f} µs"
                f"   p99 {result['p99_microseconds']:8.1f} µs"
                f"   {result['megabytes_per_second']:7.0f} MB/s received",
                flush=True,
            )
    found = {
        **edge_circumstances(WARM_UP_ROUNDS),
        "results": results,
        "delay_milliseconds": arguments.delay,
    }
    write_result(arguments.output, "potluck.benchmark.exchange/1", found)


def _node(member: int) -> NodeId:
    return NodeId(f"{member + 1:016x}")


def _measured(num_members: int, rounds: int, delay: float | None) -> Iterator[dict[str, object]]:
    """Start the members, have them find one another, and return what the leader has measured."""
    # Here alone: the members are as small as workers.
    from potluck.cluster.network.trust.authority import derive_authority, issue_credentials
    from potluck.cluster.network.trust.secret import generate_secret, parse_secret

    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        authority = derive_authority(parse_secret(generate_secret()))
        for member in range(num_members):
            credentials = issue_credentials(authority, _node(member))
            (directory / _node(member)).write_bytes(msgspec.msgpack.encode(credentials))
        prefixes = stack.enter_context(_hosts(num_members, delay))
        children = []
        for member, (prefix, host) in enumerate(prefixes):
            child = stack.enter_context(
                subprocess.Popen(
                    [
                        *prefix,
                        sys.executable,
                        __file__,
                        "--rounds",
                        str(rounds),
                        "--member",
                        str(member),
                        str(num_members),
                        str(directory),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**os.environ, "EXCHANGE_HOST": host},
                )
            )
            stack.callback(child.kill)
            children.append(child)
        addresses = [_line(child) for child in children]
        for child in children:
            if child.stdin is None:
                raise RuntimeError("a member has no input")
            child.stdin.write(json.dumps(addresses) + "\n")
            child.stdin.flush()
        for slice_bytes in SLICE_BYTES:
            samples = _line(children[0])
            yield _summarize(samples, num_members, slice_bytes)
        for child in children:
            child.wait(DEADLINE_SECONDS)


@contextlib.contextmanager
def _hosts(num_members: int, delay: float | None) -> Iterator[list[tuple[list[str], str]]]:
    """Yield, for each member, the command prefix that runs on its host, and the host's address."""
    if delay is None:
        yield [([], "127.0.0.1")] * num_members
        return
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from support.network.relay import Link, relayed_lan

    with relayed_lan(num_members, seed=1) as relay:
        relay.set_all(Link(delay_seconds=delay / 1000))
        yield [(host.command(), host.ip) for host in relay.hosts]


def _line(child: subprocess.Popen[str]) -> object:
    line = child.stdout.readline() if child.stdout else ""
    if not line:
        raise RuntimeError("a member ended early")
    return json.loads(line)


def _summarize(samples: object, num_members: int, slice_bytes: int) -> dict[str, object]:
    if not isinstance(samples, list):
        raise TypeError("a member has sent no samples")
    median = statistics.median(samples)
    return {
        "num_members": num_members,
        "slice_bytes": slice_bytes,
        "tenth_microseconds": round(statistics.quantiles(samples, n=10)[0], 2),
        "median_microseconds": round(median, 2),
        "p99_microseconds": round(statistics.quantiles(samples, n=100)[98], 2),
        "megabytes_per_second": round((num_members - 1) * slice_bytes / median, 1),
        "samples_microseconds": [round(sample, 1) for sample in samples],
    }


def _serve(member: int, size: int, directory: Path, rounds: int) -> None:
    """Join the mesh and exchange slices; the leader prints the microseconds of each exchange."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) >= size:
        os.sched_setaffinity(0, {cores[member]})
    host = os.environ["EXCHANGE_HOST"]
    document = (directory / _node(member)).read_bytes()
    credentials = msgspec.msgpack.decode(document, type=Credentials)
    listener = EdgeListener.at(host, credentials)
    print(json.dumps(listener.address.endpoint), flush=True)
    addresses = json.loads(sys.stdin.readline())
    others = [each for each in range(size) if each != member]
    outgoing: dict[int, OutgoingEdge] = {}
    with _accepting(listener, member, others) as accept:
        for each in others:
            end = connect_end(
                EdgeAddress(host=addresses[each][0], port=addresses[each][1]),
                credentials,
                Hello(scope=SCOPE, index=0, sender=member, receiver=each),
                peer=_node(each),
                limits=LIMITS,
                timeout_seconds=DEADLINE_SECONDS,
            )
            assert isinstance(end, OutgoingEdge)
            end.reserve(TURN_BYTES)
            outgoing[each] = end
        incoming = accept()
    part = GroupPart(member=member, shares=(1,) * size)
    group = Group(part, outgoing, incoming, ExchangeTotals())
    step_id = 0
    for slice_bytes in SLICE_BYTES:
        count = rounds if slice_bytes <= 65_536 else min(rounds, LARGE_ROUNDS)
        sent = [
            memoryview(os.urandom(0 if each == member else slice_bytes)) for each in range(size)
        ]
        received = [memoryview(bytearray(len(each))) for each in sent]
        samples: list[float] = []
        for number in range(WARM_UP_ROUNDS + count):
            if number % EXCHANGES_PER_STEP == 0:
                _begin(group, step_id)
                step_id += 1
            started = time.perf_counter_ns()
            group.exchange(sent, received)
            samples.append((time.perf_counter_ns() - started) / 1000)
        if group.is_leader:
            print(json.dumps(samples[WARM_UP_ROUNDS:]), flush=True)
    for edge in (*outgoing.values(), *incoming.values()):
        edge.close()


@contextlib.contextmanager
def _accepting(
    listener: EdgeListener, member: int, others: Sequence[int]
) -> Iterator[Callable[[], dict[int, IncomingEdge]]]:
    """Accept the edges of the others on a thread, while this one connects to them."""
    from concurrent.futures import ThreadPoolExecutor

    expected = {
        Hello(scope=SCOPE, index=0, sender=each, receiver=member): _node(each) for each in others
    }
    with ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(
            listener.accept_ends, expected, limits=LIMITS, timeout_seconds=DEADLINE_SECONDS
        )

        def accepted() -> dict[int, IncomingEdge]:
            edges = accepting.result()
            return {
                hello.sender or 0: edge
                for hello, edge in edges.items()
                if isinstance(edge, IncomingEdge)
            }

        yield accepted


def _begin(group: Group, step_id: int) -> None:
    if not group.is_leader:
        group.begin(group.receive())
        return
    group.begin(
        Frame(
            kind=FrameKind.STEP,
            step_id=StepId(step_id),
            header=memoryview(b""),
            payload=memoryview(b""),
        )
    )


if __name__ == "__main__":
    main()
