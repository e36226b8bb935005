"""The process of ``support.network.relay``: forwards frames between TAP devices, as told on stdin.

A process of its own, so that a busy test does not hold frames up. It ends with its stdin. Commands
are JSON, one a line, and each is answered by a line:

    {"set": [[source, target], …], "link": {…}}    null, once it is in force
    {"counts": [source, target]}                   {"forwarded": …, …}
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import os
import random
import selectors
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

_MOST_FRAME_BYTES = 65_536
_MOST_HELD_FRAMES = 20_000
"""Of frames that are delayed: 30 MB, and a second of delay at 20,000 frames a second."""

_MOST_READ_AT_ONCE = 64
"""Frames of one host, before the others' and those that are due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What becomes of frames on their way from one host to another.

    ``loss``, ``duplication`` and ``reordering`` are probabilities for each frame. A frame that is
    reordered arrives ``reordering_seconds`` later than it would, so that others overtake it.
    ``bytes_per_second`` is what the link carries of Ethernet frames, one after another; 0 stands
    for as much as the relay can. TCP connections can be opened to ``open_port`` alone, to none if
    that is 0, as behind a firewall or address translation; those that are open work both ways.
    """

    delay_seconds: float = 0.0
    bytes_per_second: float = 0.0
    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    reordering_seconds: float = 0.01
    is_cut: bool = False
    open_port: int | None = None


@dataclass(slots=True)
class FrameCounts:
    """Frames from one host to another since the relay began.

    ``forwarded`` counts both copies of a duplicated frame; ``lost`` are those that were drawn,
    ``cut`` those sent while the link was cut, ``overflowed`` those beyond what the relay holds.
    """

    forwarded: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    cut: int = 0
    overflowed: int = 0


class FramePath:
    """From one host to another."""

    def __init__(self, tap: int, draws: random.Random) -> None:
        self.tap = tap
        self.link = Link()
        self.counts = FrameCounts()
        self._draws = draws
        self._free_at = 0.0

    def wait(self, num_bytes: int, now: float) -> float:
        """Seconds until a frame has passed behind those before it, at the link's rate."""
        rate = self.link.bytes_per_second
        if not rate:
            return 0.0
        self._free_at = max(self._free_at, now) + num_bytes / rate
        return self._free_at - now

    def delays(self) -> list[float]:
        """Seconds after which the next frame arrives: none, one or two times."""
        link, counts = self.link, self.counts
        if link.is_cut:
            counts.cut += 1
            return []
        draws = self._draws
        # Always three draws a frame, so that one figure does not change what others draw.
        is_lost, is_doubled, is_late = (
            draws.random() < link.loss,
            draws.random() < link.duplication,
            draws.random() < link.reordering,
        )
        if is_lost:
            counts.lost += 1
            return []
        delay = link.delay_seconds
        if is_late:
            counts.reordered += 1
            delay += link.reordering_seconds
        if is_doubled:
            counts.duplicated += 1
        return [delay] * (2 if is_doubled else 1)


class _Switch:
    def __init__(self, taps: list[int], seed: int) -> None:
        self._taps = taps
        self._paths = {
            (source, target): FramePath(taps[target], random.Random(f"{seed} {source} {target}"))
            for source, target in itertools.permutations(range(len(taps)), 2)
        }
        self._held: list[tuple[float, int, FramePath, bytes]] = []
        self._order = itertools.count()
        self._commands = b""

    def run(self) -> None:
        """Forward frames until stdin ends."""
        selector = selectors.SelectSelector()  # epoll would round up to whole milliseconds
        for number, tap in enumerate(self._taps):
            selector.register(tap, selectors.EVENT_READ, number)
        selector.register(sys.stdin.fileno(), selectors.EVENT_READ, None)
        while True:
            wait = max(0.0, self._held[0][0] - time.monotonic()) if self._held else None
            for key, _ in selector.select(wait):
                if key.data is not None:
                    self._read(key.data)
                elif not self._take_commands():
                    return
            now = time.monotonic()
            while self._held and self._held[0][0] <= now:
                _, _, path, frame = heapq.heappop(self._held)
                _send(path, frame)

    def _read(self, source: int) -> None:
        for _ in range(_MOST_READ_AT_ONCE):
            try:
                frame = os.read(self._taps[source], _MOST_FRAME_BYTES)
            except BlockingIOError:
                return
            target = frame[5] if frame[:5] == b"\x02\0\0\0\0" else None
            if target is not None:
                if (source, target) in self._paths:
                    self._forward(self._paths[source, target], frame)
                continue
            for other in range(len(self._taps)):
                if other != source:
                    self._forward(self._paths[source, other], frame)

    def _forward(self, path: FramePath, frame: bytes) -> None:
        if path.link.open_port is not None:
            port = _opened_port(frame)
            if port not in (None, path.link.open_port):
                path.counts.cut += 1
                return
        for own_delay in path.delays():
            delay = own_delay + path.wait(len(frame), time.monotonic())
            if delay <= 0:
                _send(path, frame)
            elif len(self._held) >= _MOST_HELD_FRAMES:
                path.counts.overflowed += 1
            else:
                due = time.monotonic() + delay
                heapq.heappush(self._held, (due, next(self._order), path, frame))

    def _take_commands(self) -> bool:
        """Do what stdin says; False at its end."""
        data = os.read(sys.stdin.fileno(), 65_536)
        *lines, self._commands = (self._commands + data).split(b"\n")
        for line in lines:
            print(json.dumps(self._do(json.loads(line))), flush=True)
        return bool(data)

    def _do(self, command: dict[str, Any]) -> Any:
        if "counts" in command:
            source, target = command["counts"]
            return asdict(self._paths[source, target].counts)
        for source, target in command["set"]:
            self._paths[source, target].link = Link(**command["link"])
        return None


def _opened_port(frame: bytes) -> int | None:
    """The port to which a frame opens a TCP connection over IPv4; None if it does not."""
    if frame[12:14] != b"\x08\x00" or frame[23] != 6:
        return None
    segment = frame[14 + 4 * (frame[14] & 0x0F) :]
    is_opening = segment[13] & 0x12 == 0x02  # SYN without ACK
    return int.from_bytes(segment[2:4], "big") if is_opening else None


def _send(path: FramePath, frame: bytes) -> None:
    path.counts.forwarded += 1
    with contextlib.suppress(OSError):  # the host's interface is down: nobody is there
        os.write(path.tap, frame)


if __name__ == "__main__":
    _settings = json.loads(sys.argv[1])
    _Switch(_settings["taps"], _settings["seed"]).run()
