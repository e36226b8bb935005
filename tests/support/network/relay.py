"""Hosts whose links a test makes slow, lossy or dead while it runs.

Each host is a network namespace whose ``eth0`` is a TAP device; its other end is read by a process
(``support.network.relay_process``) that forwards Ethernet frames between the hosts. Every ordered
pair of hosts has a :class:`Link` that says what becomes of the frames from the first to the second,
and draws of its own from a seed. Needs root and iproute2, as ``support.network.netns`` does.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import json
import os
import random
import struct
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from support.network.netns import Host, set_up, unwired_hosts
from support.network.relay_process import FrameCounts
from support.network.relay_process import Link as Link

from potluck.host.child_environment import child_environment

_TESTS = Path(__file__).resolve().parents[2]
_NAMESPACES = Path("/run/netns")

# linux/if_tun.h, sched.h and linux/if.h
_TUNSETIFF = 0x400454CA
_IFF_TAP = 0x0002
_IFF_NO_PI = 0x1000
_CLONE_NEWNET = 0x40000000
_IFREQ = "16sH22x"

_END_SECONDS = 5.0


PERFECT = Link()
CUT = Link(is_cut=True)


class Relay:
    """Made by :func:`relayed_lan`. A change is in force when the method returns."""

    def __init__(self, hosts: tuple[Host, ...], process: subprocess.Popen[str], seed: int) -> None:
        self.hosts = hosts
        self.seed = seed
        self._process = process

    def set_one_way(self, source: Host, target: Host, link: Link) -> None:
        """Have frames from ``source`` to ``target`` fare as ``link`` says."""
        self._set([(source, target)], link)

    def set_between(self, one: Host, other: Host, link: Link) -> None:
        """Have frames in both directions between two hosts fare as ``link`` says."""
        self._set([(one, other), (other, one)], link)

    def set_all(self, link: Link) -> None:
        """Have frames between all hosts fare as ``link`` says."""
        self._set(itertools.permutations(self.hosts, 2), link)

    def isolate(self, host: Host, *, sends: bool = False, receives: bool = False) -> None:
        """Cut a host off from all others, but for what it still ``sends`` or ``receives``."""
        others = [other for other in self.hosts if other != host]
        if not sends:
            self._set([(host, other) for other in others], CUT)
        if not receives:
            self._set([(other, host) for other in others], CUT)

    def counts(self, source: Host, target: Host) -> FrameCounts:
        """Return what became of the frames from ``source`` to ``target`` so far."""
        pair = [self.hosts.index(source), self.hosts.index(target)]
        return FrameCounts(**self._ask({"counts": pair}))

    def _set(self, pairs: Iterable[tuple[Host, Host]], link: Link) -> None:
        numbers = [(self.hosts.index(one), self.hosts.index(other)) for one, other in pairs]
        self._ask({"set": numbers, "link": asdict(link)})

    def _ask(self, command: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the relay ended with status {self._process.wait(_END_SECONDS)}"
        return json.loads(answer)


@contextlib.contextmanager
def relayed_lan(num_hosts: int, *, seed: int | None = None) -> Iterator[Relay]:
    """Hosts 10.77.0.1, 10.77.0.2 … with perfect links, until the test changes them.

    The seed is printed, so that a failed test shows it. Raises ``OSError`` or
    ``CalledProcessError`` where such hosts cannot be made.
    """
    chosen = random.SystemRandom().getrandbits(32) if seed is None else seed
    print(f"seed of the relay: {chosen}")
    with unwired_hosts(num_hosts) as hosts, contextlib.ExitStack() as cleanup:
        taps = []
        for number, host in enumerate(hosts):
            tap = _open_tap(host)
            cleanup.callback(os.close, tap)
            taps.append(tap)
            mac = f"02:00:00:00:00:{number:02x}"  # the relay finds a frame's target by it
            subprocess.run(
                ["ip", "-n", host.namespace, "link", "set", "eth0", "address", mac],
                check=True,
                capture_output=True,
            )
            set_up(host)
        settings = json.dumps({"taps": taps, "seed": chosen})
        process = subprocess.Popen(
            [sys.executable, "-m", "support.network.relay_process", settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=taps,
            env=child_environment({**os.environ, "PYTHONPATH": str(_TESTS)}),
        )
        cleanup.callback(_end, process)
        yield Relay(hosts, process, chosen)


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.stdout.close()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _open_tap(host: Host) -> int:
    """Make ``eth0`` of a host; a descriptor of its other end."""
    opened: list[int | OSError] = []

    def work() -> None:
        try:
            opened.append(_open_tap_here(host))
        except OSError as error:
            opened.append(error)

    # A namespace is a thread's own, so this one enters it and ends there.
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    (result,) = opened
    if isinstance(result, OSError):
        raise result
    return result


def _open_tap_here(host: Host) -> int:
    namespace = os.open(_NAMESPACES / host.namespace, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(namespace)
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.ioctl(tap, _TUNSETIFF, struct.pack(_IFREQ, b"eth0", _IFF_TAP | _IFF_NO_PI))
    except OSError:
        os.close(tap)
        raise
    return tap
