"""Addresses of this machine on networks, those at which others probably reach it first."""

from __future__ import annotations

import enum
import socket
from dataclasses import dataclass
from pathlib import Path

_SYSTEM = Path("/sys/class/net")
"""See the kernel's Documentation/ABI/testing/sysfs-class-net."""

_MOST_LAYERS = 4
"""A bridge on a VLAN on a bond on a card."""


class Kind(enum.IntEnum):
    """What an interface leads to; the first is preferred."""

    CARD = 0
    """A network, by a card, or by a bridge, bond or VLAN on top of one."""
    OTHER = 1
    """Unknown; in a container, what leads out of it."""
    TUNNEL = 2
    """A virtual private network, or another point-to-point link."""
    INNER = 3
    """A bridge of this machine's own containers or virtual machines."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class NetworkAddress:
    """An IPv4 address of an interface that is up; not loopback and not link-local."""

    kind: Kind
    interface: str
    address: str


def network_addresses(system: Path = _SYSTEM) -> list[NetworkAddress]:
    """Return the addresses, the preferred ones first."""
    import psutil

    states = psutil.net_if_stats()
    return sorted(
        NetworkAddress(
            kind=kind_of(name, states[name].flags, system), interface=name, address=each.address
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
