"""Network addresses in the form users type: ``10.0.0.7:7450``, ``[fd00::7]:7450``, ``box:7450``."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from potluck.errors import ParameterError

_MAX_PORT = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A host (a name or an IP address, IPv6 without brackets) and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        """Return the IP address; None if the host is a name."""
        return ip_of(self.host)

    @property
    def is_loopback(self) -> bool:
        """Whether traffic to the address certainly stays on this machine."""
        ip = self.ip
        return self.host == "localhost" if ip is None else ip.is_loopback


def ip_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address that ``host`` is; None if it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def parse_address(text: str, *, name: str = "address", default_port: int | None = None) -> Address:
    """Parse ``HOST:PORT``, or ``HOST`` if there is a default port.

    Raises ``ParameterError`` about the parameter ``name``.
    """
    host, separator, port = text.strip().rpartition(":")
    if default_port is not None and (not separator or text.strip().endswith("]")):
        host, separator, port = text.strip(), ":", str(default_port)
    is_bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if is_bracketed else host
    is_sound = (
        separator == ":"
        and host != ""
        and is_bracketed == (":" in host)
        and not any(character in "/#?;, \t" for character in host)
        and port.isascii()
        and port.isdigit()
        and len(port) <= len(str(_MAX_PORT))
        and int(port) <= _MAX_PORT
    )
    if not is_sound:
        raise ParameterError(
            name,
            f"{name}: {text!r} is not of the form HOST:PORT",
            hint=f"for example 192.168.1.20:{7450 if default_port is None else default_port}",
        )
    return Address(host=host, port=int(port))
