"""A server of invitations in its own process, with the test in the place of the agent."""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from cryptography import x509

from potluck.cluster.invitations.channel import KnownInvitation, Question, Reply, Settings
from potluck.cluster.invitations.invitation import generate_token, token_digest
from potluck.cluster.invitations.supervisor import InvitationServer
from potluck.cluster.network.trust.authority import derive_authority, issue_server_credentials
from potluck.cluster.network.trust.secret import generate_secret, parse_secret

_SECONDS = 60.0
"""However busy the cores are, its process has started by then."""


def _made_of_it(question: Question) -> Reply:
    return Reply(number=question.number, status=200, content_type="text/plain", body=b"made of it")


class RunningServer:
    """A running server, and what the agent was asked."""

    def __init__(self, answer: Callable[[Question], Reply] = _made_of_it) -> None:
        self.authority = derive_authority(parse_secret(generate_secret()))
        pem, key = issue_server_credentials(self.authority, ["127.0.0.1"])
        self.certificate_pem = pem
        self.certificate = x509.load_pem_x509_certificate(pem)
        self._reply = answer
        self.settings = Settings(
            certificate_pem=pem.decode(),
            private_key_pem=key.decode(),
            addresses=("127.0.0.1:1",),
        )
        self.questions: list[Question] = []
        self.token = generate_token()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.port: int = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.process = self.run(InvitationServer.start(self._listener, self.settings, self._answer))
        self.know(self.invitation())

    def run(self, work: Any) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(_SECONDS)

    def know(self, *invitations: KnownInvitation) -> None:
        async def know() -> None:
            self.process.know(invitations)

        self.run(know())

    def invitation(self, **others: Any) -> KnownInvitation:
        values = {
            "invitation_id": "abcd",
            "token_sha256": token_digest(self.token),
            "expires": time.time() + 60,
            **others,
        }
        return KnownInvitation(**values)

    def close(self) -> None:
        self.run(self.process.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _answer(self, question: Question) -> Reply:
        self.questions.append(question)
        return self._reply(question)

    def connect(self) -> ssl.SSLSocket:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=_SECONDS)
        return context.wrap_socket(raw)

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Any = None
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_SECONDS)
        connection.sock = self.connect()
        connection.request(method, path, body=body, headers=headers or {})
        response = connection.getresponse()
        answer = response.status, response.read()
        connection.close()
        return answer

    def say(self, data: bytes) -> bytes:
        """Everything that is answered to some bytes."""
        with self.connect() as connection:
            connection.sendall(data)
            answer = b""
            while piece := connection.recv(65_536):
                answer += piece
            return answer
