"""The event stream over real connections: what is sent, and clients that misbehave."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx2
import pytest
from support.http.api_server import RunningApi, running_api
from support.page.played_console import PlayedConsole
from support.processes.waiting import eventually

from potluck.api.app import Page
from potluck.api.config import ApiConfig, ApiLimits
from potluck.cluster.agent.observation import MAX_WATCHERS
from potluck.types.console import Notice

FIRST = (
    Notice(kind="cluster", data=b'{"nodes":[]}'),
    Notice(kind="event", data=b'{"id":7}', event_id=7),
)
LIMITS = ApiLimits(silence_seconds=0.2, send_seconds=1.0, shutdown_seconds=0.5)


@contextmanager
def serving(console: PlayedConsole) -> Iterator[RunningApi]:
    with running_api(ApiConfig(limits=LIMITS), page=Page(console=console, assets={})) as api:
        yield api


@contextmanager
def watching(
    api: RunningApi, headers: dict[str, str] | None = None
) -> Iterator[tuple[httpx2.Response, Iterator[str]]]:
    with httpx2.stream(
        "GET", f"{api.url}/cluster/events", headers=headers or {}, timeout=20
    ) as answer:
        yield answer, answer.iter_lines()


def taken(lines: Iterator[str], count: int) -> list[str]:
    """The next lines that are neither comments nor empty."""
    found: list[str] = []
    while len(found) < count:
        line = next(lines)
        if line and not line.startswith(":"):
            found.append(line)
    return found


def test_what_was_before_comes_first_and_news_at_once() -> None:
    console = PlayedConsole(FIRST)
    with serving(console) as api, watching(api, {"Last-Event-ID": "6"}) as (answer, lines):
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        assert taken(lines, 5) == [
            "event: cluster",
            'data: {"nodes":[]}',
            "event: event",
            "id: 7",
            'data: {"id":7}',
        ]
        console.tell(Notice(kind="sample", data=b"{}"))
        assert taken(lines, 2) == ["event: sample", "data: {}"]
        assert next(line for line in lines if line) == ": alive"
    assert console.requests == [("watch", 6)]


def test_a_client_that_goes_is_forgotten() -> None:
    console = PlayedConsole(FIRST)
    with serving(console) as api:
        with watching(api) as (_, lines):
            taken(lines, 2)
            assert len(console.watchers) == 1
        eventually(lambda: len(console.watchers) == 0, within=5, what="nobody watches")


def test_watchers_are_bounded_and_told_when_to_come_again() -> None:
    console = PlayedConsole(FIRST)
    with serving(console) as api, ExitStack() as opened:
        for _ in range(MAX_WATCHERS):
            opened.enter_context(watching(api))
        with watching(api) as (answer, _):
            assert answer.status_code == 429
            assert int(answer.headers["retry-after"]) > 0
        assert httpx2.get(f"{api.url}/health").status_code == 200


def test_a_client_that_does_not_read_is_cut_off_and_delays_nobody() -> None:
    console = PlayedConsole()
    with serving(console) as api, socket.create_connection(("127.0.0.1", api.port)) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(b"GET /cluster/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        with watching(api) as (_, lines):
            eventually(lambda: len(console.watchers) == 2, within=5, what="two watch")
            large = Notice(kind="sample", data=b'"' + b"x" * 100_000 + b'"')
            deadline = time.monotonic() + 20
            while len(console.watchers) == 2:
                assert time.monotonic() < deadline, "the one that does not read is still there"
                console.tell(large)
                assert taken(lines, 2)[0] == "event: sample"
            console.tell(Notice(kind="sample", data=b"{}"))
            assert taken(lines, 2) == ["event: sample", "data: {}"]


def test_streams_end_when_the_server_does() -> None:
    console = PlayedConsole(FIRST)
    with ExitStack() as opened:
        with serving(console) as api:
            _, lines = opened.enter_context(watching(api))
            taken(lines, 2)
        for line in lines:  # to the end, and no error
            assert not line.startswith("event: sample")
    assert len(console.watchers) == 0


@pytest.mark.parametrize(
    "head",
    [
        b"GET /cluster/events HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"GET /cluster/events HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: null\r\n\r\n",
        b"GET /cluster/events HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://a.example\r\n\r\n",
    ],
)
def test_pages_of_others_watch_nothing(head: bytes) -> None:
    console = PlayedConsole(FIRST)
    with serving(console) as api, socket.create_connection(("127.0.0.1", api.port), 20) as client:
        client.sendall(head)
        assert client.recv(100).startswith(b"HTTP/1.1 403 ")
    assert console.requests == []
