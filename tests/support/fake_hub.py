"""A model hub on loopback: just what huggingface_hub asks for to list and fetch files."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeHub:
    """``endpoint`` is for HF_ENDPOINT; ``fetched`` lists the files that were sent, in order."""

    endpoint: str
    fetched: list[str] = field(default_factory=list)


@contextmanager
def serve_hub(repositories: Mapping[str, Mapping[str, bytes]]) -> Iterator[FakeHub]:
    """Serve ``repositories`` (id → file name → content) until the block ends."""
    fetched: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def log_message(self, format: str, *args: object) -> None:
            pass

        def _answer(self, *, with_body: bool) -> None:
            path = self.path.partition("?")[0]
            for repo_id, files in repositories.items():
                if path.startswith(f"/api/models/{repo_id}"):
                    self._send(with_body, json.dumps(_model_info(repo_id, files)).encode())
                    return
                prefix = f"/{repo_id}/resolve/"
                if path.startswith(prefix):
                    name = path.removeprefix(prefix).partition("/")[2]
                    if name not in files:
                        self._fail(with_body, "EntryNotFound")
                        return
                    if with_body:
                        fetched.append(name)
                    self._send(with_body, files[name])
                    return
            self._fail(with_body, "RepoNotFound")

        def _send(self, with_body: bool, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
            self.send_header("X-Repo-Commit", _COMMIT)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def _fail(self, with_body: bool, code: str) -> None:
            body = b"{}" if with_body else b""
            self.send_response(404)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield FakeHub(endpoint=f"http://127.0.0.1:{server.server_address[1]}", fetched=fetched)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _model_info(repo_id: str, files: Mapping[str, bytes]) -> dict[str, object]:
    return {
        "id": repo_id,
        "sha": _COMMIT,
        "private": False,
        "siblings": [{"rfilename": name} for name in files],
        "tags": [],
        "downloads": 0,
        "likes": 0,
    }
