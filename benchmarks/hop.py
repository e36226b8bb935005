"""Measure the time of a frame from one stage's worker to the next: METHODOLOGY, "Hop".

    python benchmarks/hop.py [--rounds 3000] [--output benchmarks/results/hop.json]

Two processes on loopback throw frames back and forth over two edges, as a plan's edges lie: one
each way. The figures go to stdout, the JSON document with all samples to the file.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from circumstances import edge_circumstances, write_result
from command_line import documented_parser

from potluck.cluster.network.edges.address import EdgeAddress
from potluck.cluster.network.edges.connect import connect_end
from potluck.cluster.network.edges.edge import IncomingEdge, OutgoingEdge
from potluck.cluster.network.edges.frames import FrameKind, Hello, Scope
from potluck.cluster.network.edges.listener import EdgeListener
from potluck.cluster.network.edges.options import set_edge_options
from potluck.cluster.network.trust.credentials import Credentials
from potluck.errors import EdgeClosedError
from potluck.scheduling.frame_limits import EdgeLimits
from potluck.types.cluster import DeploymentId, Epoch, NodeId
from potluck.types.step import StepId

PAYLOAD_BYTES = (4096, 16_384, 65_536)
HEADER_BYTES = 64
"""The header of a decoding step of one sequence: its slice and a few cache blocks."""
WARM_UP_ROUNDS = 500

NEAR, FAR = NodeId("0" * 16), NodeId("f" * 16)
LIMITS = EdgeLimits(max_header_bytes=HEADER_BYTES, max_payload_bytes=max(PAYLOAD_BYTES))
SCOPE = Scope(deployment=DeploymentId("hop"), epoch=Epoch(number=1, coordinator=NEAR))
OUT, BACK = Hello(scope=SCOPE, index=0), Hello(scope=SCOPE, index=1)
DEADLINE_SECONDS = 20.0

Ends = tuple[OutgoingEdge, IncomingEdge]


def main() -> None:
    """Measure with TLS and without, print a table, write the document."""
    parser = documented_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3000)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--echo", nargs=2, metavar=("PORT", "CREDENTIALS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.echo:
        port, directory = arguments.echo
        _echo(int(port), Path(directory) if directory else None)
        return
    results = []
    with _edges(with_tls=True) as encrypted, _edges(with_tls=False) as plain:
        for payload_bytes in PAYLOAD_BYTES:
            for with_tls, ends in ((True, encrypted), (False, plain)):
                samples = _measure(*ends, payload_bytes, arguments.rounds)
                result = _summarize(samples, payload_bytes, with_tls)
                results.append(result)
                print(
                    f"{payload_bytes // 1024:3} KB {'TLS' if with_tls else 'plain':6}"
                    f"   median {result['median_microseconds']:6.1f} µs"
                    f"   p99 {result['p99_microseconds']:6.1f} µs",
                    flush=True,
                )
    found = {**edge_circumstances(WARM_UP_ROUNDS), "results": results}
    write_result(arguments.output, "potluck.benchmark.hop/1", found)


def _measure(
    outgoing: OutgoingEdge, incoming: IncomingEdge, payload_bytes: int, rounds: int
) -> list[float]:
    """Return half of each round trip, in microseconds."""
    header, payload = os.urandom(HEADER_BYTES), os.urandom(payload_bytes)
    samples = []
    for number in range(WARM_UP_ROUNDS + rounds):
        started = time.perf_counter_ns()
        outgoing.send(FrameKind.STEP, StepId(number), header, payload)
        frame = incoming.receive()
        elapsed = time.perf_counter_ns() - started
        if frame.step_id != number or frame.payload != payload:
            raise RuntimeError("another frame came back than was sent")
        samples.append(elapsed / 2000)
    return samples[WARM_UP_ROUNDS:]


def _summarize(samples: list[float], payload_bytes: int, with_tls: bool) -> dict[str, object]:
    return {
        "tls": with_tls,
        "payload_bytes": payload_bytes,
        "header_bytes": HEADER_BYTES,
        "median_microseconds": round(statistics.median(samples), 2),
        "p99_microseconds": round(statistics.quantiles(samples, n=100)[98], 2),
        "samples_microseconds": [round(sample, 1) for sample in samples],
    }


@contextlib.contextmanager
def _edges(*, with_tls: bool) -> Iterator[Ends]:
    """Open an edge to a process that echoes frames, and one back; yield the near ends of both."""
    with contextlib.ExitStack() as stack:
        directory: Path | None = None
        if with_tls:
            # Here alone: the process that echoes is as small as a worker.
            from potluck.cluster.network.trust.authority import derive_authority, issue_credentials
            from potluck.cluster.network.trust.secret import generate_secret, parse_secret

            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            authority = derive_authority(parse_secret(generate_secret()))
            for node_id in (NEAR, FAR):
                credentials = issue_credentials(authority, node_id)
                (directory / node_id).write_bytes(msgspec.msgpack.encode(credentials))
        listening = _listen(NEAR, directory)
        stack.callback(listening.close)
        port = _port(listening)
        child = stack.enter_context(
            subprocess.Popen(
                [sys.executable, __file__, "--echo", str(port), str(directory or "")],
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(child.kill)
        line = child.stdout.readline() if child.stdout else ""
        outgoing = _connect(int(line), NEAR, FAR, OUT, directory)
        incoming = _accept(listening, FAR, BACK)
        yield outgoing, incoming
        outgoing.close()
        incoming.close()
        child.wait(DEADLINE_SECONDS)


def _echo(port: int, directory: Path | None) -> None:
    """Send back whatever comes, until the edge is closed."""
    listening = _listen(FAR, directory)
    print(_port(listening), flush=True)
    incoming = _accept(listening, NEAR, OUT)
    outgoing = _connect(port, FAR, NEAR, BACK, directory)
    with contextlib.suppress(EdgeClosedError):
        while True:
            frame = incoming.receive()
            outgoing.send(frame.kind, frame.step_id, frame.header, frame.payload)


def _listen(node_id: NodeId, directory: Path | None) -> EdgeListener | socket.socket:
    """Listen as the receiver of an edge does; on a plain socket if there are no credentials."""
    if directory is None:
        return socket.create_server(("127.0.0.1", 0))
    return EdgeListener.at("127.0.0.1", _credentials(directory, node_id))


def _credentials(directory: Path, node_id: NodeId) -> Credentials:
    return msgspec.msgpack.decode((directory / node_id).read_bytes(), type=Credentials)


def _port(listening: EdgeListener | socket.socket) -> int:
    if isinstance(listening, EdgeListener):
        return listening.address.port
    return int(listening.getsockname()[1])


def _accept(listening: EdgeListener | socket.socket, peer: NodeId, expected: Hello) -> IncomingEdge:
    if isinstance(listening, EdgeListener):
        return listening.accept_both_ways(
            expected, peer=peer, limits=LIMITS, timeout_seconds=DEADLINE_SECONDS
        )[1]
    connection, _ = listening.accept()
    set_edge_options(connection)
    return IncomingEdge(connection, peer, SCOPE, LIMITS)


def _connect(
    port: int, node_id: NodeId, peer: NodeId, hello: Hello, directory: Path | None
) -> OutgoingEdge:
    address = EdgeAddress(host="127.0.0.1", port=port)
    if directory is None:
        connection = socket.create_connection(address.endpoint)
        set_edge_options(connection)
        return OutgoingEdge(connection, peer, SCOPE, LIMITS)
    end = connect_end(
        address,
        _credentials(directory, node_id),
        hello,
        peer=peer,
        limits=LIMITS,
        timeout_seconds=DEADLINE_SECONDS,
    )
    assert isinstance(end, OutgoingEdge)
    return end


if __name__ == "__main__":
    main()
