"""Addresses and sizes in the options of ``potluck up``, and its default addresses."""

from __future__ import annotations

import enum
import math
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from potluck.errors import ParameterError, UsageError
from potluck.types.ranges import MAX_WHOLE

if TYPE_CHECKING:
    from potluck.cluster.agent.own_address import FindHost
    from potluck.cluster.network.membership import Address


LOOPBACK = "127.0.0.1"
DEFAULT_LAN_PORT = 7333
DEFAULT_HTTP_PORT = 7334

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_UNIT_BYTES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}

_SYSTEM = Path("/sys/class/net")
"""See the kernel's Documentation/ABI/testing/sysfs-class-net."""

_MOST_LAYERS = 4
"""A bridge on a VLAN on a bond on a card."""


def listen_address(listen: str | None, connect: Sequence[Address], *, is_open: bool) -> Address:
    """Return the requested address, or else this machine's address as members see it, or
    loopback.
    """
    from potluck.cluster.network.membership import Address, parse_address

    if listen is None:
        if not is_open:
            return Address(host=LOOPBACK, port=0)
        outside = next((each for each in connect if not each.is_loopback), None)
        host = lan_address() if outside is None else _address_towards(outside)
        return Address(host=host, port=DEFAULT_LAN_PORT)
    address = Address(host=listen.strip("[]"), port=0)
    if address.ip is not None:
        require_ipv4(address, "listen")
        return address if address.is_loopback else replace(address, port=DEFAULT_LAN_PORT)
    address = parse_address(listen, name="--listen")
    require_ipv4(address, "listen")
    if address.ip is None:
        raise ParameterError(
            "listen",
            f"--listen {listen}: {address.host} is not an IP address",
            hint="give the address at which the other machines reach this one",
        )
    return address


def host_finder(address: Address, connect: Sequence[Address], *, is_chosen: bool) -> FindHost:
    """Return a function that finds where to listen once this machine no longer has ``address``.

    It returns an address of the same interface. If the user has not chosen the address, one of
    another interface will do, too.
    """
    own = () if address.is_loopback else _network_addresses()
    interface = next((each.interface for each in own if each.address == address.host), None)

    def find() -> str | None:
        for each in _network_addresses():
            if each.interface == interface:
                return each.address
        if is_chosen:
            return None
        try:
            return listen_address(None, connect, is_open=True).host
        except UsageError:
            return None

    return find


def require_ipv4(address: Address, option: str) -> None:
    """Raise ``ParameterError`` for an IPv6 address: Zenoh makes no TLS session with one."""
    if address.ip is not None and address.ip.version != 4:
        raise ParameterError(
            option,
            f"--{option} {address}: nodes cannot reach each other by IPv6 yet",
            hint="give an IPv4 address; clients can use IPv6: --http [ADDRESS]:PORT",
        )


def lan_address() -> str:
    """Return this machine's address on the route to the rest of the network.

    If that is a tunnel, or there is no such route, an address on a network is preferred. Raise
    ``UsageError`` if the machine has none.
    """
    addresses = _network_addresses()
    # This network is reserved for documentation (RFC 5737): only the default route leads there.
    routed = _source_address("192.0.2.1", 9)
    kinds = {each.address: each.kind for each in addresses}
    if routed is not None and kinds.get(routed, Kind.OTHER) <= Kind.OTHER:
        return routed
    if addresses and addresses[0].kind <= Kind.OTHER:
        return addresses[0].address
    if routed is not None:
        return routed
    if not addresses:
        raise UsageError(
            "this machine has no IPv4 address on a network", hint="set one with --listen HOST:PORT"
        )
    return addresses[0].address


def other_addresses(chosen: str) -> str:
    """Return a line on the addresses that might have been chosen instead; empty without any."""
    others = [
        f"{each.address} ({each.interface})"
        for each in _network_addresses()
        if each.address != chosen and each.kind is not Kind.INNER
    ]
    if not others:
        return ""
    return f"other addresses of this machine, to choose with --listen: {', '.join(others)}"


def _address_towards(member: Address) -> str:
    """Return this machine's address on the route to ``member``."""
    address = _source_address(member.host, member.port)
    if address is None and member.ip is None and not _is_known(member.host):
        raise UsageError(
            f"there is no host with the name {member.host}",
            hint="check the name, or give the IP address",
        )
    if address is None:
        raise UsageError(
            f"there is no route from this machine to {member}",
            hint="check the address and the network, or set this machine's address with --listen",
        )
    return address


def _is_known(host: str) -> bool:
    """Return whether a name has an address."""
    try:
        return bool(socket.getaddrinfo(host, None))
    except (OSError, UnicodeError):
        return False


def _source_address(host: str, port: int) -> str | None:
    """Return the source address of datagrams to ``host``, without sending one. None if there is no
    route.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except (OSError, UnicodeError):
        return None


def parse_http(text: str) -> tuple[str, int]:
    """Return the host and the port of ``--http``. Raise ``ParameterError`` if it is malformed."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()):
        raise ParameterError(
            "http", f"--http {text} is not of the form HOST:PORT", hint="for example 127.0.0.1:7334"
        )
    return host.strip("[]"), int(port)


def parse_size(text: str, option: str = "memory-limit") -> int:
    """Return the bytes of ``2G``, ``1.5 GiB``, ``900M`` or ``4096``; units are powers of 1024.

    Raise ``ParameterError``, which names ``option``, if it is malformed or above ``MAX_WHOLE``.
    """
    match = _SIZE.fullmatch(text.strip())
    size = math.inf if match is None else float(match[1]) * _UNIT_BYTES[match[2].lower()]
    if size > MAX_WHOLE:
        raise ParameterError(
            option, f"--{option} {text} is not a valid size", hint="for example 2G or 900M"
        )
    return int(size)


class Kind(enum.IntEnum):
    """The kind of network that an interface belongs to; the first is preferred."""

    CARD = 0
    """A network, by a card, or by a bridge, bond or VLAN on top of one."""
    OTHER = 1
    """Unknown; in a container, what leads out of it."""
    TUNNEL = 2
    """A virtual private network, or another point-to-point link."""
    INNER = 3
    """A bridge of this machine's own containers or virtual machines."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class _NetworkAddress:
    """An IPv4 address of an interface that is up; not loopback and not link-local."""

    kind: Kind
    interface: str
    address: str


def _network_addresses() -> list[_NetworkAddress]:
    """Return the addresses, the preferred ones first."""
    import psutil

    states = psutil.net_if_stats()
    return sorted(
        _NetworkAddress(
            kind=kind_of(name, states[name].flags), interface=name, address=each.address
        )
        for name, addresses in psutil.net_if_addrs().items()
        if name in states and states[name].isup
        for each in addresses
        if each.family is socket.AF_INET and not each.address.startswith(("127.", "169.254."))
    )


def kind_of(name: str, flags: str, system: Path = _SYSTEM) -> Kind:
    """Return the kind of an interface with the ``flags`` that psutil reports."""
    folder = system / name
    if _is_on_card(folder, _MOST_LAYERS):
        return Kind.CARD
    if "pointopoint" in flags or (folder / "tun_flags").exists():
        return Kind.TUNNEL
    if (folder / "bridge").is_dir():
        return Kind.INNER
    return Kind.OTHER


def _is_on_card(folder: Path, num_layers: int) -> bool:
    """Return whether an interface is that of a device, or one of those below it is."""
    if (folder / "device").exists():
        return True
    below = [each.name.removeprefix("lower_") for each in folder.glob("lower_*")]
    return num_layers > 1 and any(
        _is_on_card(folder.with_name(each), num_layers - 1) for each in below
    )
