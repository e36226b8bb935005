"""``potluck up``: this node's agent, in the foreground until Ctrl-C or ``potluck down``."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import psutil
import typer

from potluck.cli.options import StateOption, ThreadsOption, settings, state_directory
from potluck.cli.output import note
from potluck.errors import ParameterError, UsageError

if TYPE_CHECKING:
    from potluck.cluster.agent.service import Agent, AgentConfig
    from potluck.cluster.agent.state import StateDirectory
    from potluck.cluster.trust.secret import Secret

DEFAULT_LAN_PORT = 7333
DEFAULT_HTTP_PORT = 7334

_LOOPBACK = "127.0.0.1"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_UNIT_BYTES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Http:
    host: str
    port: int
    key_file: Path | None


def up(
    lan: Annotated[
        bool, typer.Option("--lan", help="Open the cluster to other machines of the network.")
    ] = False,
    join: Annotated[
        list[str] | None,
        typer.Option(
            "--join",
            metavar="HOST:PORT",
            help="Join the cluster of a member at this address. Can be repeated.",
            show_default=False,
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST[:PORT]",
            help="Address of this node for other nodes. Default: the first address of the network "
            f"with --lan, port {DEFAULT_LAN_PORT}; otherwise loopback.",
            show_default=False,
        ),
    ] = None,
    secret_file: Annotated[
        Path | None,
        typer.Option(
            "--secret-file",
            help="File with the cluster's secret. Default: POTLUCK_SECRET, or one of this node.",
            show_default=False,
        ),
    ] = None,
    http: Annotated[
        str,
        typer.Option("--http", metavar="HOST:PORT", help="Address for clients; port 0: any free."),
    ] = f"{_LOOPBACK}:{DEFAULT_HTTP_PORT}",
    no_http: Annotated[
        bool, typer.Option("--no-http", help="Serve no clients from this node.")
    ] = False,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            "--api-key-file",
            help="File with hashed API keys; made with a first key, which is shown, if missing. "
            "Needed off loopback.",
            show_default=False,
        ),
    ] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            "--memory-limit",
            metavar="SIZE",
            help="Most memory that stages may use here, such as 2G.",
            show_default=False,
        ),
    ] = None,
    threads: ThreadsOption = None,
    state: StateOption = None,
) -> None:
    """Start this node's agent; prints its HTTP address. Ctrl-C or potluck down ends it."""
    from potluck.cluster.agent.service import AgentConfig
    from potluck.cluster.membership import parse_address
    from potluck.engines.native import choose_isa

    chosen = settings()
    directory = state_directory(state)
    if lan and join:
        raise UsageError("--lan and --join exclude each other", hint="--join opens the node too")
    clients = None if no_http else _parse_http(http, api_key_file)
    connect = tuple(parse_address(text, name="join") for text in join or ())
    is_open = lan or any(not address.is_loopback for address in connect)
    with directory.locked():
        secret, is_own = _secret(secret_file, directory, is_joining=bool(connect))
        config = AgentConfig(
            secret=secret,
            listen=parse_address(_listen_address(listen, is_open=is_open), name="listen"),
            connect=connect,
            multicast=lan,
            memory_limit_bytes=None if memory_limit is None else _parse_size(memory_limit),
            num_threads=threads if threads is not None else chosen.threads,
            isa=choose_isa(chosen.isa),
        )
        invitation = secret.text if lan and is_own else None
        asyncio.run(_run(config, directory, clients, invitation))


async def _run(
    config: AgentConfig, directory: StateDirectory, http: _Http | None, invitation: str | None
) -> None:
    from potluck.cluster.agent.control import serve_control
    from potluck.cluster.agent.gateway import AgentGateway
    from potluck.cluster.agent.service import Agent

    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ending.set)
    async with AsyncExitStack() as opened:
        opening = asyncio.ensure_future(opened.enter_async_context(Agent.open(config, directory)))
        if not await _before(opening, ending):
            return
        agent = opening.result()
        gateway = AgentGateway(agent)
        await opened.enter_async_context(
            serve_control(agent, gateway, directory.control_socket, ending.set)
        )
        if http is not None:
            agent.http_address = await _serve_http(opened, gateway, http)
        print(agent.http_address or f"potluck://{agent.membership.address}", flush=True)
        note(f"node {agent.node_id} is up; other nodes reach it at {agent.membership.address}")
        if config.multicast or not config.listen.is_loopback:
            _invite(str(agent.membership.address), invitation)
        await ending.wait()
        note("leaving")


async def _before(opening: asyncio.Future[Agent], ending: asyncio.Event) -> bool:
    """Wait for the first of the two; whether it was ``opening``. Raises what that raised."""
    waiting = asyncio.ensure_future(ending.wait())
    both: set[asyncio.Future[Any]] = {opening, waiting}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if opening.done():
        opening.result()
        return True
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    return False


async def _serve_http(opened: AsyncExitStack, gateway: object, http: _Http) -> str:
    from potluck.api.config import ApiConfig
    from potluck.api.keys import ApiKeys, create_api_key
    from potluck.api.server import serve

    keys = None
    if http.key_file is not None:
        if not http.key_file.exists():
            key = create_api_key(http.key_file, "first")
            note(f"API key (kept only as a hash in {http.key_file}): {key}")
        keys = ApiKeys.load(http.key_file)
    config = ApiConfig(host=http.host, port=http.port, keys=keys)
    address: str = await opened.enter_async_context(serve(gateway, config))  # type: ignore[arg-type]
    return address


def _invite(address: str, secret: str | None) -> None:
    if secret is None:
        note(f"On the other machines, with the same secret: potluck up --join {address}")
        return
    note("On the other machines type:")
    note(f"  POTLUCK_SECRET={secret} potluck up --join {address}")
    note(f"or, where multicast passes: POTLUCK_SECRET={secret} potluck up --lan")


def _secret(
    path: Path | None, directory: StateDirectory, *, is_joining: bool
) -> tuple[Secret, bool]:
    """The cluster's secret, and whether it is this node's own."""
    from potluck.cluster.trust.secret import load_secret, own_secret

    given = load_secret(os.environ, path)
    if given is not None:
        return given, False
    if is_joining:
        raise UsageError(
            "joining a cluster needs its secret",
            hint="set POTLUCK_SECRET or --secret-file as the first node's potluck up --lan says",
        )
    return own_secret(directory.secret), True


def _listen_address(asked: str | None, *, is_open: bool) -> str:
    """``HOST:PORT``: what was asked for, the network's first address, or loopback."""
    default_port = DEFAULT_LAN_PORT if is_open else 0
    if asked is not None:
        has_port = re.search(r"(?:\]|^[^:]+):\d+$", asked)
        return asked if has_port else f"{asked}:{default_port}"
    return f"{_lan_address() if is_open else _LOOPBACK}:{default_port}"


def _lan_address() -> str:
    """The first IPv4 address of an interface that is up and is not loopback."""
    states = psutil.net_if_stats()
    for name, addresses in sorted(psutil.net_if_addrs().items()):
        if name in states and not states[name].isup:
            continue
        for address in addresses:
            is_ipv4 = address.family.name == "AF_INET"
            if is_ipv4 and not address.address.startswith(("127.", "169.254.")):
                return str(address.address)
    raise UsageError(
        "this machine has no address on a network", hint="name one with --listen HOST:PORT"
    )


def _parse_http(text: str, key_file: Path | None) -> _Http:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise ParameterError("http", f"--http {text} is not HOST:PORT", hint="as in 127.0.0.1:7334")
    return _Http(host=host.strip("[]"), port=int(port), key_file=key_file)


def _parse_size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ParameterError(
            "memory-limit", f"--memory-limit {text} is not a size", hint="as in 2G or 900M"
        )
    return int(float(match[1]) * _UNIT_BYTES[match[2].lower()])
