"""Several hosts on one machine: network namespaces on a bridge, which needs root and iproute2.

The bridge has a namespace of its own, so nothing is added to the machine's own network and no
packet can leave. Whatever happens, the namespaces and what still runs in them are gone at the end.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest
from support.network.namespaces import join_namespace

_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A namespace with one interface, ``eth0``, at ``ip``.

    ``port`` is the interface at its other end, in the namespace ``switch``; empty without a switch.
    """

    namespace: str
    ip: str
    switch: str = ""
    port: str = ""

    def command(self, *arguments: str) -> list[str]:
        """The command line that runs ``arguments`` on this host."""
        return ["ip", "netns", "exec", self.namespace, *arguments]


def require_namespaces() -> None:
    """Skip the test, saying why, where namespaces cannot be made; fail it on CI's machine."""
    try:
        with lan(1, passes_multicast=False):
            return
    except (OSError, subprocess.CalledProcessError) as error:
        output = getattr(error, "stderr", "") or str(error)
        reason = f"network namespaces cannot be made here: {output.strip()}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(f"not shown: {reason}")


@contextlib.contextmanager
def lan(num_hosts: int, *, passes_multicast: bool = True) -> Iterator[tuple[Host, ...]]:
    """Hosts 10.77.0.1, 10.77.0.2 … on one switch, which may isolate them from multicast.

    Raises ``OSError`` or ``CalledProcessError`` where that cannot be done.
    """
    with unwired_hosts(num_hosts) as hosts, contextlib.ExitStack() as cleanup:
        switch = f"{_prefix()}-switch"
        _ip("netns", "add", switch)
        cleanup.callback(_remove, switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge", "mcast_snooping", "0")
        _ip("-n", switch, "link", "set", "bridge", "up")
        wired = tuple(
            replace(host, switch=switch, port=f"port{number}") for number, host in enumerate(hosts)
        )
        for host in wired:
            _ip(
                *("link", "add", "eth0", "netns", host.namespace, "type", "veth"),
                *("peer", "name", host.port, "netns", switch),
            )
            _ip("-n", switch, "link", "set", host.port, "master", "bridge", "up")
            if not passes_multicast:
                _run("bridge", "-n", switch, "link", "set", "dev", host.port, "mcast_flood", "off")
            set_up(host)
        yield wired


def opened_on(host: Host, open_socket: Callable[[], socket.socket]) -> socket.socket:
    """Return the socket that ``open_socket`` makes on a host, which this process can use.

    A socket belongs to the namespace of the thread that makes it. Raises what ``open_socket`` does,
    and ``OSError`` where this process may not enter the namespace.
    """
    results: list[socket.socket | OSError] = []

    def enter_and_open() -> None:
        try:
            join_namespace(host.namespace)
            results.append(open_socket())
        except OSError as error:
            results.append(error)

    thread = threading.Thread(target=enter_and_open)  # its namespace ends with it
    thread.start()
    thread.join()
    (result,) = results
    if isinstance(result, OSError):
        raise result
    return result


def limit_rate(host: Host, bits_per_second: int) -> None:
    """Have a host send at most so much. Raises ``CalledProcessError``."""
    _limit(host.namespace, "eth0", bits_per_second)


def limit_received_rate(host: Host, bits_per_second: int) -> None:
    """Have the switch send a host at most so much. Raises ``CalledProcessError``."""
    _limit(host.switch, host.port, bits_per_second)


def use_cubic(host: Host) -> None:
    """Have new TCP connections of a host use CUBIC, as on most distributions, whatever this machine
    uses. Raises ``CalledProcessError``.
    """
    _run(*host.command("sysctl", "-qw", "net.ipv4.tcp_congestion_control=cubic"))


def _limit(namespace: str, device: str, bits_per_second: int) -> None:
    """See ``tc-tbf(8)``."""
    burst_bytes = max(32_000, bits_per_second // 8 // 100)  # that of 10 ms
    _run(
        *("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf"),
        *("rate", f"{bits_per_second}bit", "burst", str(burst_bytes), "latency", "100ms"),
    )


@contextlib.contextmanager
def unwired_hosts(num_hosts: int) -> Iterator[tuple[Host, ...]]:
    """Hosts 10.77.0.1, 10.77.0.2 … that have no ``eth0`` yet; see ``set_up``.

    Raises ``OSError`` or ``CalledProcessError`` where that cannot be done.
    """
    for command in ("ip", "bridge"):
        if shutil.which(command) is None:
            raise OSError(f"there is no {command} command (iproute2)")
    prefix = _prefix()
    hosts = tuple(
        Host(namespace=f"{prefix}-{number}", ip=f"10.77.0.{number}")
        for number in range(1, num_hosts + 1)
    )
    with contextlib.ExitStack() as cleanup:
        for host in hosts:
            _ip("netns", "add", host.namespace)
            cleanup.callback(_remove, host.namespace)
        yield hosts


def set_up(host: Host) -> None:
    """Give the host's ``eth0`` its address, and bring it up."""
    _ip("-n", host.namespace, "address", "add", f"{host.ip}/24", "dev", "eth0")
    _ip("-n", host.namespace, "link", "set", "lo", "up")
    _ip("-n", host.namespace, "link", "set", "eth0", "up")


def change_address(host: Host, ip: str) -> None:
    """Give the host's ``eth0`` another address in place of ``host.ip``, as a new lease does."""
    _ip("-n", host.namespace, "address", "del", f"{host.ip}/24", "dev", "eth0")
    _ip("-n", host.namespace, "address", "add", f"{ip}/24", "dev", "eth0")


def _prefix() -> str:
    return f"potluck-{os.getpid()}-{next(_numbers)}"


def _remove(namespace: str) -> None:
    for pid in _run("ip", "netns", "pids", namespace).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    _ip("netns", "del", namespace)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout
