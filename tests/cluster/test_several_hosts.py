"""Agents on several hosts: how they find one another, who is kept out, what can be overheard."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.cluster.agents import AgentProcess, Document, Fleet
from support.network.netns import Host, lan, require_namespaces
from support.processes.waiting import eventually

from potluck import Model

PROMPT = "The harbour at night was quiet"
MARKER = b"this was sent in the clear"

_CAPTURE = """
import socket, sys
packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
packets.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 23)
packets.bind(("eth0", 0))
with open(sys.argv[1], "wb", buffering=0) as file:
    print("ready", flush=True)
    while True:
        file.write(packets.recv(1 << 17))
"""
_POST = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], sys.argv[2].encode())
request.add_header("Content-Type", "application/json")
print(urllib.request.urlopen(request, timeout=30).read().decode())
"""
_SEND = """
import socket, sys
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(sys.argv[2].encode(), (sys.argv[1], 9))
"""


@pytest.fixture
def hosts() -> Iterator[tuple[Host, ...]]:
    require_namespaces()
    with lan(3) as hosts:
        yield hosts


@contextlib.contextmanager
def capturing(host: Host, path: Path) -> Iterator[Path]:
    """Everything on the host's wire, in a file."""
    command = host.command(sys.executable, "-c", _CAPTURE, str(path))
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield path
        finally:
            process.send_signal(signal.SIGKILL)


def run_on(host: Host, script: str, *arguments: str) -> str:
    return subprocess.run(
        host.command(sys.executable, "-c", script, *arguments),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout


def complete(host: Host, agent: AgentProcess, max_tokens: int) -> str:
    """A completion that a client on the agent's host asked for."""
    body = {"model": "demo", "prompt": PROMPT, "max_tokens": max_tokens, "temperature": 0}
    answer: Document = json.loads(
        run_on(host, _POST, f"{agent.url}/v1/completions", json.dumps(body))
    )
    text: str = answer["choices"][0]["text"]
    return text


def test_hosts_meet_as_the_first_says_and_nothing_can_be_overheard(
    hosts: tuple[Host, ...], fleet: Fleet, tmp_path: Path
) -> None:
    first = fleet.start(0, "--lan", host=hosts[0], environ={"POTLUCK_SECRET": ""}).await_up()
    assert first.address == "10.77.0.1:7333"
    assert re.search(r"^  potluck up --join 10\.77\.0\.1:7333$", first.log, re.MULTILINE), first.log
    kept = re.search(r"^the secret is in (\S+) \(--show-secret prints it here\)$", first.log, re.M)
    assert kept is not None, first.log
    fleet.secret = Path(kept[1]).read_text(encoding="ascii").strip()
    assert fleet.secret not in first.log  # which is a file, as a service's journal is
    second = fleet.start(1, "--lan", host=hosts[1]).await_up()
    third = fleet.start(2, join=first, host=hosts[2]).await_up()
    assert third.address == "10.77.0.3:7333"
    fleet.await_members()

    deployed = second.deploy(context=256, cache=256)
    assert len({stage["node_id"] for stage in deployed["stages"]}) == 3
    with contextlib.ExitStack() as stack:
        captures = [
            stack.enter_context(capturing(host, tmp_path / f"capture-{number}"))
            for number, host in enumerate(hosts)
        ]
        text = complete(hosts[2], third, 40)
        for host, following in zip(hosts, (*hosts[1:], hosts[0]), strict=True):
            run_on(host, _SEND, following.ip, MARKER.decode())
        for capture in captures:
            eventually(
                lambda capture=capture: MARKER in capture.read_bytes(),  # type: ignore[misc]
                within=5,
                what="what is sent in the clear is captured",
            )
        wires = [capture.read_bytes() for capture in captures]

    with Model.open("demo", context_tokens=256, num_threads=1) as alone:
        result = alone.generate(PROMPT, max_tokens=40, temperature=0).result()
    assert text == result.text
    tokens = [piece.token for piece in result.pieces]
    for wire in wires:
        assert len(wire) > 40 * 256 * 4, "no hidden states were captured"
        for words in (PROMPT, text):
            for start in range(0, len(words) - 8, 4):
                assert words[start : start + 8].encode() not in wire
        for numbers in (list(result.prompt_tokens), tokens):
            for run in (numbers[:4], numbers[-4:]):
                assert msgspec.msgpack.encode(run)[1:] not in wire
                assert np.array(run, dtype="<i4").tobytes() not in wire


def test_only_what_the_cluster_needs_listens_on_the_network(
    hosts: tuple[Host, ...], fleet: Fleet
) -> None:
    """Once stages are connected nobody waits for edges any more; the rest stays on loopback."""
    first = fleet.start(0, "--lan", host=hosts[0]).await_up()
    second = fleet.start(1, join=first, host=hosts[1]).await_up()
    fleet.await_members()
    assert len(first.deploy(context=256, cache=256)["stages"]) == 2
    for host, agent in ((hosts[0], first), (hosts[1], second)):
        listening = run_on(
            host,
            "import psutil\n"
            "for each in psutil.net_connections('tcp'):\n"
            "    if each.status == 'LISTEN':\n"
            "        print(f'{each.laddr.ip}:{each.laddr.port}')",
        ).split()
        on_loopback = [each for each in listening if each.startswith("127.0.0.1:")]
        assert sorted({*listening} - {*on_loopback}) == [agent.address]
        assert agent.url.removeprefix("http://") in on_loopback
        assert len(on_loopback) == 2  # and where the acceptor brings members to Zenoh
