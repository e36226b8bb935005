"""How ``up`` and ``serve`` serve the HTTP API: their common options, and what follows from them."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from potluck.cli.addresses import DEFAULT_HTTP_PORT, LOOPBACK, parse_http
from potluck.cli.output import note
from potluck.errors import UsageError
from potluck.host.uname import host_name

if TYPE_CHECKING:
    from potluck.api.config import ApiConfig
    from potluck.cli.settings import NodeSettings
    from potluck.cluster.agent.console import AgentConsole
    from potluck.cluster.agent.gateway import AgentGateway
    from potluck.cluster.agent.state import StateDirectory
    from potluck.cluster.invitations.identity import Identity

_AUTO = "auto"

HttpOption = Annotated[
    str,
    typer.Option(
        "--http", metavar="HOST:PORT", help="Address of the HTTP API; port 0 chooses a free port."
    ),
]
DEFAULT_HTTP = f"{LOOPBACK}:{DEFAULT_HTTP_PORT}"
NoHttpOption = Annotated[
    bool, typer.Option("--no-http", help="Do not serve the HTTP API on this node.")
]
ApiKeyFileOption = Annotated[
    Path | None,
    typer.Option(
        "--api-key-file",
        help="File with hashed API keys. If it does not exist, it is created with one key, which "
        "is printed once. Required for addresses other than loopback.",
        show_default=False,
    ),
]
TlsOption = Annotated[
    str | None,
    typer.Option(
        "--tls",
        metavar=_AUTO,
        help="auto: serve HTTPS with a certificate issued by the cluster's own authority.",
        show_default=False,
    ),
]
TlsCertOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-cert",
        metavar="FILE",
        help="Serve HTTPS with this certificate and its chain (PEM).",
        show_default=False,
    ),
]
TlsKeyOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-key",
        metavar="FILE",
        help="Private key of --tls-cert (PEM, not encrypted).",
        show_default=False,
    ),
]
CorsOriginOption = Annotated[
    list[str] | None,
    typer.Option(
        "--cors-origin",
        metavar="ORIGIN",
        help="Allow web pages of this origin to use the HTTP API, for example "
        "http://localhost:3000. Can be repeated.",
        show_default=False,
    ),
]
DropSystemLineOption = Annotated[
    list[str] | None,
    typer.Option(
        "--drop-system-line",
        metavar="PREFIX",
        help="Remove lines that begin with PREFIX from system messages, because they change with "
        "every request and defeat the prefix cache. Can be repeated; '' removes none. "
        "Default: x-anthropic-billing-header:",
        show_default=False,
    ),
]
StrictToolsOption = Annotated[
    bool,
    typer.Option(
        "--strict-tools",
        help="Refuse requests with tools that only OpenAI's servers execute, such as web_search. "
        "Default: ignore these tools, with a warning in the response.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """How clients are served: ``config`` lacks the keys in ``key_file``, and automatic TLS."""

    config: ApiConfig
    key_file: Path | None
    is_tls_auto: bool


def clients_of(
    chosen: NodeSettings,
    *,
    http: str,
    no_http: bool,
    api_key_file: Path | None,
    tls: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    cors_origin: Sequence[str] | None,
    drop_system_line: Sequence[str] | None,
    strict_tools: bool,
) -> Clients | None:
    """Return what the options, else the settings, ask for; None for no clients.

    Raises ``UsageError``.
    """
    if no_http:
        given = {
            "--api-key-file": api_key_file,
            "--tls": tls,
            "--tls-cert": tls_cert,
            "--tls-key": tls_key,
            "--cors-origin": cors_origin,
            "--drop-system-line": drop_system_line,
            "--strict-tools": strict_tools,
        }
        useless = next((name for name, value in given.items() if value), None)
        if useless is not None:
            raise UsageError(f"{useless} has no effect with --no-http", hint="omit one of them")
        return None

    # Imported here: only a node that serves clients needs the web framework.
    from potluck.api.config import ApiConfig
    from potluck.api.cors import checked_origin

    if tls not in (None, _AUTO):
        raise UsageError(
            f"--tls {tls}: the only valid value is auto",
            hint="to use your own certificate, set --tls-cert and --tls-key",
        )
    if tls is not None and (tls_cert or tls_key):
        raise UsageError(
            "--tls auto and --tls-cert cannot be used together", hint="omit one of them"
        )
    if (tls_cert is None) is not (tls_key is None):
        raise UsageError("--tls-cert and --tls-key must be used together", hint="set both")
    host, port = parse_http(http)
    config = ApiConfig(
        host=host,
        port=port,
        cors_origins=frozenset(map(checked_origin, cors_origin or ())),
        dropped_system_lines=_dropped(drop_system_line, chosen),
        strict_tools=strict_tools or chosen.strict_tools,
        tls=None if tls_cert is None or tls_key is None else _tls_of_files(tls_cert, tls_key),
    )
    return Clients(config=config, key_file=api_key_file, is_tls_auto=tls is not None)


async def serve_clients(
    opened: AsyncExitStack,
    gateway: AgentGateway,
    console: AgentConsole,
    clients: Clients,
    identity: Identity,
    state: StateDirectory,
) -> str:
    """Serve clients until ``opened`` is closed; return the address."""
    from potluck.api.app import Page
    from potluck.api.keys import ApiKeys, create_api_key
    from potluck.api.server import serve
    from potluck.dashboard.assets import assets

    config, key_file = clients.config, clients.key_file
    if key_file is not None:
        if not key_file.exists():
            key = create_api_key(key_file, "first")
            note(f"API key (only its hash is stored, in {key_file}): {key}")
        config = replace(config, keys=ApiKeys.load(key_file))
    if clients.is_tls_auto:
        config = replace(config, tls=_automatic_tls(identity, config.host, state))
    await opened.enter_async_context(console.running())
    page = Page(console=console, assets=assets())
    url: str = await opened.enter_async_context(serve(gateway, config, page))
    return url


def _dropped(option: Sequence[str] | None, chosen: NodeSettings) -> tuple[str, ...]:
    from potluck.api.system_lines import KNOWN_CHANGING_LINES

    prefixes = chosen.drop_system_line if option is None else option
    if prefixes is None:
        return KNOWN_CHANGING_LINES
    if isinstance(prefixes, str):
        prefixes = (prefixes,)
    return tuple(each for each in prefixes if each)


def _tls_of_files(certificate: Path, key: Path) -> ssl.SSLContext:
    """Raise ``UsageError`` for files that cannot be used."""
    from potluck.cluster.network.trust.authority import client_tls_context

    context = client_tls_context()
    for path in (certificate, key):
        try:
            path.read_bytes()
        except OSError as error:
            raise UsageError(
                f"cannot read {path}: {error.strerror}", hint="give a PEM file"
            ) from error
    try:
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(
            f"{certificate} and {key} are not a certificate and its private key: {error}",
            hint="give PEM files that belong together, and an unencrypted key",
        ) from error
    return context


def _automatic_tls(identity: Identity, host: str, state: StateDirectory) -> ssl.SSLContext:
    """Return a context with a new certificate, and say how clients check it.

    A node that was invited has the one that it got when it joined.
    """
    from potluck.cluster.network.trust.authority import (
        automatic_context,
        context_of,
        fingerprint_of,
    )

    if identity.authority is not None:
        context = automatic_context(identity.authority, names=own_names(host))
    else:
        context = context_of(identity.client_chain_pem)
    note(f"TLS authority: SHA-256 {fingerprint_of(identity.credentials.authority_pem)}")
    note(f"clients that trust {state.authority_file} can verify it")
    return context


def own_names(host: str) -> Iterator[str]:
    """Yield the names and addresses under which clients may reach this machine."""
    import psutil

    yield from ("localhost", "127.0.0.1", "::1", host.strip("[]"))
    name = host_name()
    yield from (name, f"{name}.local" if "." not in name else name)
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family in (socket.AF_INET, socket.AF_INET6):
                yield str(address.address).partition("%")[0]
