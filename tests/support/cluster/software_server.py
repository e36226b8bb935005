"""An HTTPS server that serves the software of one invitation, and nothing else."""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import http.server
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from potluck.cluster.invitations.answers import Answer
from potluck.cluster.invitations.software.endpoint import Endpoint
from potluck.cluster.invitations.software.service import SoftwareService

TOKEN = "K7QW2M9C4T8RZ0XB6DHN3VJ5PYFA1GES"


class SoftwareServer:
    """Made by :func:`software_server`. ``requests`` are the paths that were asked for, after the
    token.
    """

    def __init__(self, service: SoftwareService, endpoint: Endpoint) -> None:
        self.service = service
        self.endpoint = endpoint
        self.requests: list[str] = []

    def respond(self, method: str, path: str, body: bytes) -> Answer | None:
        """What is at a path; None if it is not below the token."""
        prefix, _, name = path.removeprefix("/join/").partition("/")
        if prefix != self.endpoint.token:
            return None
        self.requests.append(name)
        return self.service.respond(self.endpoint, method, name, body)


@contextlib.contextmanager
def software_server(
    service: SoftwareService, folder: Path, *, host: str = "127.0.0.1", invitation: str = ""
) -> Iterator[SoftwareServer]:
    """Serve on a free port of ``host`` until the end; the server's key is kept in ``folder``."""
    certificate = _make_certificate(folder)
    der = certificate.public_bytes(serialization.Encoding.DER)
    key = certificate.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    served: list[SoftwareServer] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers["Content-Length"])))

        def _answer(self, body: bytes) -> None:
            answer = served[0].respond(self.command, self.path, body)
            if answer is None:
                self.send_error(404)
                return
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content_type)
            if answer.length is not None:
                self.send_header("Content-Length", str(answer.length))
            self.end_headers()
            for chunk in answer.chunks:
                self.wfile.write(chunk)

        def log_message(self, format: str, *args: object) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    with http.server.ThreadingHTTPServer((host, 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        endpoint = Endpoint(
            host=host,
            port=server.server_address[1],
            token=TOKEN,
            certificate_sha256=hashlib.sha256(der).hexdigest(),
            public_key_sha256=base64.b64encode(hashlib.sha256(key).digest()).decode(),
            invitation=invitation or f"{host}:{server.server_address[1]}/{TOKEN}/pin",
        )
        served.append(SoftwareServer(service, endpoint))
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield served[0]
        finally:
            server.shutdown()
            thread.join()


def _make_certificate(folder: Path) -> x509.Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC))
        .not_valid_after(datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC))
        .sign(key, hashes.SHA256())
    )
    (folder / "server.pem").write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return certificate
