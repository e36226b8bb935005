"""Addresses and sizes as ``potluck up`` takes them, and the addresses that it chooses itself."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from potluck.errors import ParameterError, UsageError

if TYPE_CHECKING:
    from potluck.cluster.membership import Address

LOOPBACK = "127.0.0.1"
DEFAULT_LAN_PORT = 7333
DEFAULT_HTTP_PORT = 7334

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_UNIT_BYTES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAddress:
    """Where clients are served, and the file with their keys."""

    host: str
    port: int
    key_file: Path | None


def listen_address(asked: str | None, connect: Sequence[Address], *, is_open: bool) -> Address:
    """What was asked for; else this machine's address as members see it, or loopback."""
    from potluck.cluster.membership import Address, parse_address

    if asked is None:
        if not is_open:
            return Address(host=LOOPBACK, port=0)
        outside = next((each for each in connect if not each.is_loopback), None)
        host = lan_address() if outside is None else _address_towards(outside)
        return Address(host=host, port=DEFAULT_LAN_PORT)
    bare = asked.strip("[]")
    if _is_ip(bare):
        address = Address(host=bare, port=0)
        return address if address.is_loopback else replace(address, port=DEFAULT_LAN_PORT)
    address = parse_address(asked, name="--listen")
    if address.ip is None:
        raise ParameterError(
            "listen",
            f"--listen {asked}: {address.host} is not an IP address",
            hint="give the address that the other machines reach this one at",
        )
    return address


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def lan_address() -> str:
    """The address that this machine has towards the rest of the network."""
    # Of the networks set aside for documentation (RFC 5737): only the default route leads there.
    address = _source_address("192.0.2.1", 9)
    return address or _first_address()


def _address_towards(member: Address) -> str:
    """The address that this machine has towards ``member``."""
    address = _source_address(member.host, member.port)
    if address is None:
        raise UsageError(
            f"there is no way from this machine to {member}",
            hint="check the address and the network, or name an own address with --listen",
        )
    return address


def _source_address(host: str, port: int) -> str | None:
    """Where datagrams to ``host`` would come from; none is sent. None if there is no route."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except (OSError, UnicodeError):
        return None


def _first_address() -> str:
    """The first IPv4 address of an interface that is up and is not loopback."""
    import psutil

    states = psutil.net_if_stats()
    for name, addresses in sorted(psutil.net_if_addrs().items()):
        if name in states and not states[name].isup:
            continue
        for address in addresses:
            is_ipv4 = address.family is socket.AF_INET
            if is_ipv4 and not address.address.startswith(("127.", "169.254.")):
                return str(address.address)
    raise UsageError(
        "this machine has no address on a network", hint="name one with --listen HOST:PORT"
    )


def parse_http(text: str, key_file: Path | None) -> HttpAddress:
    """``HOST:PORT`` of ``--http``; ``ParameterError`` if it is anything else."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise ParameterError("http", f"--http {text} is not HOST:PORT", hint="as in 127.0.0.1:7334")
    return HttpAddress(host=host.strip("[]"), port=int(port), key_file=key_file)


def parse_size(text: str, option: str = "memory-limit") -> int:
    """Bytes of ``2G``, ``1.5 GiB``, ``900M`` or ``4096``; units are powers of 1024.

    Raise ``ParameterError``, which names ``option``, for what is no size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ParameterError(option, f"--{option} {text} is not a size", hint="as in 2G or 900M")
    return int(float(match[1]) * _UNIT_BYTES[match[2].lower()])
