"""The process behind open invitations: HTTPS for newcomers, questions to the agent.

Strangers only talk to this process. It has a key that proves only that it is the server named by an
invitation, and digests of tokens, but neither the secret, nor the authority's key, nor the node's
own key. It ends with its agent.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import logging
import os
import queue
import selectors
import socket
import ssl
import threading
from pathlib import Path

import msgspec

from potluck.cluster.invitations.answers import (
    Answer,
    NewcomerRequest,
    Responder,
    answer_of,
    error_answer,
)
from potluck.cluster.invitations.channel import (
    MAX_LINE_BYTES,
    CurrentInvitations,
    LogLine,
    Question,
    Reply,
    Settings,
    decode_from_agent,
    encoded,
)
from potluck.cluster.invitations.front import Front
from potluck.cluster.invitations.invitation import Invitation
from potluck.cluster.invitations.software.endpoint import Endpoint
from potluck.cluster.invitations.software.service import SoftwareService
from potluck.cluster.network.membership.address import Address, parse_address
from potluck.cluster.network.trust.connection_sources import (
    ConnectionSource,
    HandedConnections,
    SourceEndedError,
)
from potluck.cluster.network.trust.credentials import load_pem_chain
from potluck.cluster.network.trust.requests import pem_key_digest
from potluck.host.child_start import ignore_stop_signals

_AGENT_SECONDS = 30.0
"""The time for the agent's answer, which takes milliseconds."""


class AgentLine(logging.Handler):
    """The connection to the agent: questions and log lines from any thread, answers in one."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        self._connection = connection
        self._sending = threading.Lock()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, queue.SimpleQueue[Reply]] = {}
        self._received = bytearray()

    def fileno(self) -> int:
        """Return a descriptor that is readable when the agent has sent something."""
        return self._connection.fileno()

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a log line on."""
        self._say(LogLine(text=" ".join(record.getMessage().splitlines())[:1000]))

    def respond(self, request: NewcomerRequest) -> Answer | None:
        """Let the agent answer what only it can; return None for any other request."""
        if request.method != "POST" or request.name != "certificate":
            return None
        number = next(self._numbers)
        replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self._waiting[number] = replies
        try:
            self._say(
                Question(
                    number=number,
                    invitation_id=request.invitation_id,
                    newcomer=request.newcomer,
                    name=request.name,
                    body=request.body,
                )
            )
            reply = replies.get(timeout=_AGENT_SECONDS)
        except (queue.Empty, OSError):
            return error_answer(503, "the inviting node is too busy to answer", "try again")
        finally:
            del self._waiting[number]
        return answer_of(reply.status, reply.content_type, reply.body)

    def receive(self) -> list[bytes] | None:
        """Wait for the agent; return the complete lines it sent, or None if it has ended."""
        data = self._connection.recv(65_536)
        self._received += data
        if not data or len(self._received) > MAX_LINE_BYTES:
            return None
        *lines, rest = bytes(self._received).split(b"\n")
        self._received = bytearray(rest)
        return lines

    def take(self, reply: Reply) -> None:
        """Pass an answer to the thread that waits for it."""
        replies = self._waiting.get(reply.number)
        if replies is not None:
            replies.put(reply)

    def _say(self, message: LogLine | Question) -> None:
        with self._sending:
            self._connection.sendall(encoded(message))


def server_context(settings: Settings) -> ssl.SSLContext:
    """Return a context for TLS 1.2 or later with the invitations' own key, without client
    certificates.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.num_tickets = 0
    context.set_alpn_protocols(["http/1.1"])
    pem = settings.certificate_pem + settings.private_key_pem
    load_pem_chain(context, pem.encode("ascii"))
    return context


def run_invitation_server(channel: int, source: int) -> None:
    """Answer newcomers until the agent ends. Both arguments are inherited descriptors."""
    ignore_stop_signals()
    line = AgentLine(socket.socket(fileno=channel))
    logging.basicConfig(level=logging.WARNING, handlers=[line])
    lines: list[bytes] | None = []
    while lines == []:
        lines = line.receive()
    if lines is not None:
        settings = msgspec.json.decode(lines[0], type=Settings)
        front = Front(
            connection_source(source),
            server_context(settings),
            _responder(line, settings),
        )
        _run(front, line, lines[1:])
    os._exit(0)  # threads may still serve newcomers, which cannot continue without the agent


def connection_source(descriptor: int) -> ConnectionSource:
    """Return the source of connections at an inherited descriptor: a listening socket, or a
    channel.
    """
    source = socket.socket(fileno=descriptor)
    if source.type == socket.SOCK_SEQPACKET:
        return HandedConnections(source)
    source.setblocking(False)
    return source


def _run(front: Front, line: AgentLine, lines: list[bytes]) -> None:
    with selectors.DefaultSelector() as selector:
        front.accept_from(selector)
        selector.register(line.fileno(), selectors.EVENT_READ, line)
        while True:
            for text in lines:
                match decode_from_agent(text):
                    case CurrentInvitations(invitations=invitations):
                        front.know(invitations)
                    case Reply() as reply:
                        line.take(reply)
            lines = []
            for key, _ in selector.select():
                if key.data is front:
                    try:
                        front.accept()
                    except SourceEndedError:  # the agent will end as well
                        selector.unregister(key.fileobj)
                elif (received := line.receive()) is None:
                    return
                else:
                    lines = received


def _responder(line: AgentLine, settings: Settings) -> Responder:
    """Return the responder, which asks the agent what this process cannot answer."""
    folders = tuple(map(Path, settings.wheel_folders))
    service = SoftwareService(folders, os.environ)
    certificate = ssl.PEM_cert_to_DER_cert(settings.certificate_pem)
    key_sha256 = pem_key_digest(settings.certificate_pem.encode("ascii"))

    def respond(request: NewcomerRequest) -> Answer | None:
        if (answer := line.respond(request)) is not None:
            return answer
        reached = Address(host=request.host, port=request.port)
        others = (parse_address(each) for each in settings.addresses)
        invitation = Invitation(
            addresses=tuple(dict.fromkeys((reached, *others))),
            token=request.token,
            key_sha256=key_sha256,
        )
        endpoint = Endpoint(
            host=request.host,
            port=request.port,
            token=request.token,
            certificate_sha256=hashlib.sha256(certificate).hexdigest(),
            public_key_sha256=base64.b64encode(key_sha256).decode("ascii"),
            invitation=str(invitation),
        )
        return service.respond(endpoint, request.method, request.name, request.body)

    return respond
