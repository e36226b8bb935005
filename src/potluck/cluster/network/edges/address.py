"""The address of an edge's listener."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeAddress:
    """A host and a port, and the ``name`` that TLS asks for there (SNI).

    Usually the port is the node's single port, and the name selects the process (see
    ``cluster.network.acceptor``). Without a name the port is the listener's own.
    """

    host: str
    port: int
    name: str = ""

    @property
    def endpoint(self) -> tuple[str, int]:
        """Return the address for ``socket.create_connection``."""
        return self.host, self.port

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"
