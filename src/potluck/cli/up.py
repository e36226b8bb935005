"""``potluck up``: this node's agent, in the foreground until Ctrl-C or ``potluck down``."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from potluck.child_environment import SECRET_VARIABLE
from potluck.cli.addresses import DEFAULT_LAN_PORT, listen_address, parse_size
from potluck.cli.clients import (
    DEFAULT_HTTP,
    ApiKeyFileOption,
    Clients,
    CorsOriginOption,
    DropSystemLineOption,
    HttpOption,
    NoHttpOption,
    TlsCertOption,
    TlsKeyOption,
    TlsOption,
    clients_of,
    serve_clients,
)
from potluck.cli.invitation import invitation, is_shown
from potluck.cli.options import (
    AllowSoftwareOption,
    BackendOption,
    MemoryLimitOption,
    StateOption,
    ThreadsOption,
    asked_backend,
    settings,
    state_directory,
)
from potluck.cli.output import log_events, note
from potluck.errors import UsageError

if TYPE_CHECKING:
    from potluck.cluster.agent.config import AgentConfig
    from potluck.cluster.agent.service import Agent
    from potluck.cluster.agent.state import StateDirectory
    from potluck.cluster.trust.secret import Secret


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
            help="IP address of this node for other nodes. Default: with --lan or --join its own "
            f"on the network, port {DEFAULT_LAN_PORT}; otherwise loopback, any free port.",
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
    show_secret: Annotated[
        bool,
        typer.Option(
            "--show-secret",
            help="Print the line with this node's secret even where stderr is no terminal, such as "
            "into a service's log.",
        ),
    ] = False,
    http: HttpOption = DEFAULT_HTTP,
    no_http: NoHttpOption = False,
    api_key_file: ApiKeyFileOption = None,
    tls: TlsOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    cors_origin: CorsOriginOption = None,
    drop_system_line: DropSystemLineOption = None,
    new_node_id: Annotated[
        bool,
        typer.Option(
            "--new-node-id",
            help="Give this node a new id first: for a state directory that is a copy of another "
            "node's.",
        ),
    ] = False,
    memory_limit: MemoryLimitOption = None,
    threads: ThreadsOption = None,
    backend: BackendOption = None,
    allow_software: AllowSoftwareOption = False,
    state: StateOption = None,
) -> None:
    """Start this node's agent; prints its HTTP address. Ctrl-C or potluck down ends it.

    After a second Ctrl-C it ends at once, without leaving in order.
    """
    run_agent(
        lan=lan,
        join=join,
        listen=listen,
        secret_file=secret_file,
        show_secret=show_secret,
        http=http,
        no_http=no_http,
        api_key_file=api_key_file,
        tls=tls,
        tls_cert=tls_cert,
        tls_key=tls_key,
        cors_origin=cors_origin,
        drop_system_line=drop_system_line,
        new_node_id=new_node_id,
        memory_limit=memory_limit,
        threads=threads,
        backend=backend,
        allow_software=allow_software,
        state=state,
    )


class Duty(Protocol):
    """What an agent does once it is up, until it ends."""

    async def begin(self, agent: Agent) -> None:
        """Return when the agent can be said to be ready. Cancelled if it ends before that."""
        ...

    async def end(self, agent: Agent) -> None:
        """Undo what was begun; clients are served no more, and the agent still runs."""
        ...


def run_agent(
    *,
    lan: bool,
    join: Sequence[str] | None,
    listen: str | None,
    secret_file: Path | None,
    show_secret: bool,
    http: str,
    no_http: bool,
    api_key_file: Path | None,
    tls: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    cors_origin: Sequence[str] | None,
    drop_system_line: Sequence[str] | None,
    new_node_id: bool,
    memory_limit: str | None,
    threads: int | None,
    backend: str | None,
    allow_software: bool,
    state: Path | None,
    duty: Duty | None = None,
) -> None:
    """Run this node's agent until it is to end; the other arguments are the options of ``up``."""
    from potluck.allocator import limit_arenas
    from potluck.cluster.agent.config import AgentConfig
    from potluck.cluster.agent.descriptors import raise_descriptor_limit
    from potluck.cluster.membership import parse_address

    chosen = settings()
    asked = asked_backend(backend)
    allow_software = allow_software or chosen.allow_software
    directory = state_directory(state)
    if lan and join:
        raise UsageError("--lan and --join exclude each other", hint="--join opens the node too")
    clients = clients_of(
        http=http,
        no_http=no_http,
        api_key_file=api_key_file,
        tls=tls,
        tls_cert=tls_cert,
        tls_key=tls_key,
        cors_origin=cors_origin,
        drop_system_line=drop_system_line,
    )
    connect = tuple(parse_address(text, name="join") for text in join or ())
    is_open = lan or any(not address.is_loopback for address in connect)
    address = listen_address(listen, connect, is_open=is_open)
    if asked is not None:
        _check_works(asked, allow_software=allow_software)
    log_events(is_debugging=logging.getLogger().level <= logging.DEBUG)
    with directory.locked():
        secret, is_own = _secret(secret_file, directory, is_joining=bool(connect))
        if new_node_id:
            directory.renew_node_id()
        # Not for this process's children, and for nothing else that runs in it.
        os.environ.pop(SECRET_VARIABLE, None)
        config = AgentConfig(
            secret=secret,
            listen=address,
            connect=connect,
            multicast=lan,
            memory_limit_bytes=None if memory_limit is None else parse_size(memory_limit),
            num_threads=threads if threads is not None else chosen.threads,
            isa=None if chosen.isa is None else _available_isa(chosen.isa),
            backend=asked,
            allow_software=allow_software,
            step_seconds=chosen.step_seconds,
            unit_step_seconds=chosen.unit_step_seconds,
            idle_test_seconds=chosen.idle_test_seconds,
            stall_seconds=chosen.stall_seconds,
            packed_cache_bytes=chosen.packed_cache_bytes,
        )
        invite = partial(
            invitation,
            secret=secret.text
            if is_own and is_shown(sys.stderr, is_asked_for=show_secret)
            else None,
            secret_file=directory.secret if is_own else None,
            multicast=lan,
        )
        raise_descriptor_limit()
        limit_arenas()
        asyncio.run(_run(config, directory, clients, invite, duty))


async def _run(
    config: AgentConfig,
    directory: StateDirectory,
    clients: Clients | None,
    invite: Callable[[str], Iterable[str]],
    duty: Duty | None,
) -> None:
    from potluck.cluster.agent.control import serve_control
    from potluck.cluster.agent.gateway import AgentGateway
    from potluck.cluster.agent.service import Agent

    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _end, ending, number)
    async with AsyncExitStack() as opened:
        opening = asyncio.ensure_future(opened.enter_async_context(Agent.open(config, directory)))
        if not await _before(opening, ending):
            return
        agent = opening.result()
        gateway = AgentGateway(agent)
        await opened.enter_async_context(serve_control(agent, gateway, directory, ending.set))
        if duty is not None:
            opened.push_async_callback(duty.end, agent)
        if clients is not None:
            url = await serve_clients(opened, gateway, clients, config.secret, directory)
            agent.node_calls.announce_http(url)
        address = agent.http_address or f"potluck://{agent.membership.address}"
        if duty is None:
            print(address, flush=True)
        note(f"node {agent.node_id} is up; other nodes reach it at {agent.membership.address}")
        if not config.listen.is_loopback:
            for line in invite(str(agent.membership.address)):
                note(line)
        if duty is None or await _before(_begun(duty, agent), ending):
            if duty is not None:
                print(address, flush=True)
            _freeze_heap()
            await _before(agent.failed, ending)
        note("leaving")


def _begun(duty: Duty, agent: Agent) -> asyncio.Future[None]:
    """Begin ``duty``; the agent's failure fails it."""

    async def begin() -> None:
        beginning = asyncio.ensure_future(duty.begin(agent))
        try:
            await asyncio.wait((beginning, agent.failed), return_when=asyncio.FIRST_COMPLETED)
            if agent.failed.done():
                agent.failed.result()
            await beginning
        finally:
            beginning.cancel()

    return asyncio.ensure_future(begin())


def _freeze_heap() -> None:
    """Keep the garbage collector from looking at what was made so far, most of which stays.

    Otherwise every full collection looks at all modules, and no thread computes the next step
    meanwhile: 33 ms on a server's core, and several times that on a board's.
    """
    from potluck.allocator import return_free_memory

    gc.collect()
    gc.freeze()
    return_free_memory()  # of the start, which is the most that an agent takes for long


def _end(ending: asyncio.Event, number: int) -> None:
    """Leave in order at the first signal; at the second end at once, and the workers with it."""
    if ending.is_set():
        note("ended at once")
        os._exit(128 + number)
    ending.set()


async def _before(opening: asyncio.Future[Any], ending: asyncio.Event) -> bool:
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


def _check_works(asked: str, *, allow_software: bool) -> None:
    """Raise ``UsageError`` where a backend that was asked for works on nothing here.

    What is found is kept, so that the agent does not try again what works.
    """
    from potluck.cli.probe import probed
    from potluck.probe.choose import check_asked, choose_units

    report = probed(asked=asked, allow_software=allow_software)
    check_asked(report, choose_units(report, asked=asked, allow_software=allow_software), asked)


def _available_isa(asked: str) -> str:
    """``asked``; ``ParameterError`` where this machine does not have it."""
    from potluck.engines.native import choose_isa  # loads the core, which may be what is broken

    return choose_isa(asked)


def _secret(
    path: Path | None, directory: StateDirectory, *, is_joining: bool
) -> tuple[Secret, bool]:
    """The cluster's secret, and whether it is this node's own."""
    from potluck.cluster.trust.secret import load_secret

    given = load_secret(os.environ, path)
    if given is not None:
        return given, False
    if is_joining:
        raise UsageError(
            "joining a cluster needs its secret",
            hint="set POTLUCK_SECRET or --secret-file as the first node's potluck up --lan says",
        )
    return directory.own_secret(), True
