"""The relay does to frames what it is told: other tests rely on it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.network.netns import Host, require_namespaces
from support.network.relay import CUT, PERFECT, Link, Relay, relayed_lan
from support.network.relay_process import FramePath

_ECHO = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as echo:
    echo.bind((sys.argv[1], 7))
    print("ready", flush=True)
    while True:
        data, sender = echo.recvfrom(2048)
        echo.sendto(data, sender)
"""
_ASK = """
import json, socket, sys, time
target, count, interval, patience = sys.argv[1], *map(float, sys.argv[2:])
answers = []
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
    client.connect((target, 7))
    client.setblocking(False)
    sent = {}
    def take():
        while True:
            try:
                number = int(client.recv(2048))
            except OSError:
                return
            answers.append((number, time.monotonic() - sent[number]))
    for number in range(int(count)):
        sent[number] = time.monotonic()
        try:
            client.send(str(number).encode())
        except OSError:
            pass
        time.sleep(interval)
        take()
    end = time.monotonic() + patience
    while time.monotonic() < end:
        time.sleep(0.001)
        take()
print(json.dumps(answers))
"""
_RECEIVE = """
import socket, sys
with socket.create_server((sys.argv[1], 9)) as server:
    print("ready", flush=True)
    connection, _ = server.accept()
    number = 0
    while data := connection.recv(1 << 20):
        number += len(data)
print(number)
"""
_SEND = """
import socket, sys, time
start = time.monotonic()
with socket.create_connection((sys.argv[1], 9)) as connection:
    connection.sendall(bytes(int(sys.argv[2])))
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
print(time.monotonic() - start)
"""

NUM = 200


@pytest.fixture(scope="module")
def relay() -> Iterator[Relay]:
    require_namespaces()
    with relayed_lan(3, seed=7) as relay:
        echoes = [
            subprocess.Popen(
                host.command(sys.executable, "-c", _ECHO, host.ip), stdout=subprocess.PIPE
            )
            for host in relay.hosts
        ]
        try:
            for echo in echoes:
                assert echo.stdout is not None
                assert echo.stdout.readline() == b"ready\n"
            for host in relay.hosts:  # so that nobody has to be looked for by ARP afterwards
                for other in relay.hosts:
                    assert ask(host, other, count=1), "a perfect link loses frames"
            yield relay
        finally:
            for echo in echoes:
                echo.kill()
                echo.wait()
                assert echo.stdout is not None
                echo.stdout.close()


@pytest.fixture(autouse=True)
def _perfect(relay: Relay) -> Iterator[None]:
    yield
    relay.set_all(PERFECT)


def run(host: Host, script: str, *arguments: object) -> str:
    return subprocess.run(
        host.command(sys.executable, "-c", script, *map(str, arguments)),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout


def ask(
    host: Host, other: Host, *, count: int = NUM, interval: float = 0.001, patience: float = 1.0
) -> list[tuple[int, float]]:
    """The answers of ``other``'s echo as they came: their numbers, and the round trips."""
    answers: list[tuple[int, float]] = json.loads(
        run(host, _ASK, other.ip, count, interval, patience)
    )
    return answers


def test_perfect_links_lose_and_delay_nothing(relay: Relay) -> None:
    one, other, _ = relay.hosts
    answers = ask(one, other)
    assert [number for number, _ in answers] == list(range(NUM))
    assert min(seconds for _, seconds in answers) < 0.01


def test_a_delay_is_of_one_direction_and_of_one_pair(relay: Relay) -> None:
    one, other, third = relay.hosts
    relay.set_one_way(one, other, Link(delay_seconds=0.15))
    answers = ask(one, other)
    assert [number for number, _ in answers] == list(range(NUM))
    assert 0.15 <= min(seconds for _, seconds in answers) < 0.2
    assert min(seconds for _, seconds in ask(one, third, count=20)) < 0.05
    relay.set_between(one, other, Link(delay_seconds=0.1))
    assert 0.2 <= min(seconds for _, seconds in ask(other, one, count=20)) < 0.3


def test_frames_are_lost_doubled_and_reordered_as_often_as_was_asked(relay: Relay) -> None:
    one, other, _ = relay.hosts
    before = relay.counts(one, other)
    relay.set_one_way(one, other, Link(loss=0.3))
    assert 0.55 * NUM < len(ask(one, other)) < 0.85 * NUM
    lost = relay.counts(one, other).lost - before.lost
    assert 0.15 * NUM < lost < 0.45 * NUM
    relay.set_one_way(one, other, Link(duplication=0.3))
    numbers = [number for number, _ in ask(one, other)]
    assert set(numbers) == set(range(NUM))
    assert 1.15 * NUM < len(numbers) < 1.45 * NUM
    relay.set_one_way(one, other, Link(reordering=0.2, reordering_seconds=0.02))
    numbers = [number for number, _ in ask(one, other)]
    assert sorted(numbers) == list(range(NUM))
    assert numbers != sorted(numbers)


def test_cuts_are_of_one_way_or_both_and_heal(relay: Relay) -> None:
    one, other, third = relay.hosts
    relay.set_one_way(one, other, CUT)
    before = relay.counts(other, one).forwarded
    assert ask(one, other, count=20) == []
    assert ask(other, one, count=20) == []  # the answers are lost
    assert relay.counts(other, one).forwarded - before >= 20
    assert relay.counts(one, other).cut >= 40
    assert len(ask(one, third, count=20)) == 20
    relay.isolate(other)
    assert ask(third, other, count=20) == []
    relay.set_all(PERFECT)
    for host in (one, third):
        assert len(ask(host, other, count=20)) == 20
    relay.isolate(other, sends=True)
    before = relay.counts(other, third).forwarded
    assert ask(other, third, count=20) == []
    assert relay.counts(other, third).forwarded - before >= 20


def test_a_seed_gives_the_same_losses_again() -> None:
    def fates(seed: int, rules: Link) -> list[list[float]]:
        path = FramePath(0, random.Random(seed))
        path.link = rules
        return [path.delays() for _ in range(NUM)]

    bad = Link(loss=0.3, duplication=0.2, reordering=0.2, reordering_seconds=0.01)
    assert fates(1, bad) == fates(1, bad) != fates(2, bad)
    lost = [not each for each in fates(1, bad)]
    assert lost == [not each for each in fates(1, Link(loss=0.3))]  # the same frames


def test_it_keeps_up_with_thousands_of_frames_a_second(relay: Relay) -> None:
    one, other, _ = relay.hosts
    num_bytes = 20_000_000
    command = other.command(sys.executable, "-c", _RECEIVE, other.ip)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "ready\n"
        before = relay.counts(one, other).forwarded
        seconds = float(run(one, _SEND, other.ip, num_bytes))
        assert int(receiver.stdout.read()) == num_bytes
    num_frames = relay.counts(one, other).forwarded - before
    assert num_frames > num_bytes / 1500
    assert num_frames / seconds > 3000
    assert relay.counts(one, other).overflowed == 0
