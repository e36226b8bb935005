"""A model hub on loopback: what huggingface_hub asks for, and how hubs and networks misbehave.

Files in large-file storage (safetensors and GGUF) are served as the hub serves them: ``resolve``
redirects to another host, which has no use for the token. Others have git's id as their ETag.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

from potluck.types.content import joined

_LARGE = (".safetensors", ".gguf")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """What one repository holds. ``listed`` differs from ``files`` where the hub is at fault."""

    files: Mapping[str, bytes]
    listed: Mapping[str, bytes] = field(default_factory=dict)
    is_gated: bool = False

    @property
    def commit(self) -> str:
        """Stands for all contents, as a commit does."""
        texts = (f"{name} {git_id(self.as_listed(name))}\n" for name in sorted(self.files))
        return hashlib.sha1("".join(texts).encode()).hexdigest()

    def as_listed(self, name: str) -> bytes:
        """The content that the listing and the ETag speak of."""
        return self.listed.get(name, self.files[name])


@dataclass(slots=True, kw_only=True)
class FakeHub:
    """``endpoint`` is for HF_ENDPOINT.

    ``fetched`` lists the files that were asked for whole, or to their end, in order; headers are
    asked for by a range with an end. ``sent_bytes`` counts what was sent of each, headers too.

    ``sent_ranges`` are the half-open byte ranges that were sent of each file, in order.

    What can go wrong, until it is used up: ``breaks`` says of a file at which of its bytes
    connections end, the first at the first of them and so on, with a reset if ``resets``; ``busy``
    answers to paths that end in ``busy_for`` are ``busy_status`` with ``retry_after``;
    ``refused_ranges`` answers to ranges are 416, and so are ``refused_rests`` to those without an
    end. Without ``has_ranges`` the server sends whole files. Bytes from ``held_after`` on wait
    until ``released`` is set.
    """

    endpoint: str = ""
    large_host: str = "localhost"
    repositories: dict[str, Repository]
    fetched: list[str] = field(default_factory=list)
    header_reads: list[str] = field(default_factory=list)
    sent_bytes: Counter[str] = field(default_factory=Counter)
    sent_ranges: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)  # of ``fetched``: from which byte on
    foreign_tokens: list[str] = field(default_factory=list)
    breaks: dict[str, list[int]] = field(default_factory=dict)
    resets: bool = False
    busy: int = 0
    busy_status: int = 429
    busy_for: str = ""
    refused_ranges: int = 0
    refused_rests: int = 0
    retry_after: str | None = "0"
    has_ranges: bool = True
    held_after: int | None = None
    released: threading.Event = field(default_factory=threading.Event)

    def distinct_bytes(self, name: str) -> int:
        """Return how many bytes of a file were sent at least once."""
        return sum(end - begin for begin, end in joined(tuple(self.sent_ranges.get(name, ()))))

    def repeated_bytes(self, name: str) -> int:
        """Return how many bytes of a file were sent beyond the first time."""
        return self.sent_bytes[name] - self.distinct_bytes(name)


@contextmanager
def serve_hub(
    repositories: Mapping[str, Mapping[str, bytes] | Repository],
    *,
    listener: socket.socket | None = None,
) -> Iterator[FakeHub]:
    """Serve ``repositories`` (id → file name → content) until the block ends.

    ``listener`` is a socket that listens already, for a hub on another host (see ``netns``).
    Contents may also be memory maps.
    """
    hub = FakeHub(
        repositories={
            repo_id: each if isinstance(each, Repository) else Repository(files=each)
            for repo_id, each in repositories.items()
        }
    )

    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler, bind_and_activate=False)
    if listener is None:
        server.server_bind()
        server.server_activate()
    else:
        server.socket.close()
        server.socket = listener
        server.server_address = listener.getsockname()
        hub.large_host = str(server.server_address[0])
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    hub.endpoint = "http://{}:{}".format(*server.server_address[:2])
    try:
        yield hub
    finally:
        hub.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, *, with_body: bool) -> None:
        hub = self.hub
        path = unquote(self.path.partition("?")[0])
        is_known = any(repo_id in path for repo_id in hub.repositories)
        if hub.busy > 0 and is_known and path.endswith(hub.busy_for):
            hub.busy -= 1
            after = {} if hub.retry_after is None else {"Retry-After": hub.retry_after}
            self._send(hub.busy_status, after, b"")
            return
        for repo_id, repository in hub.repositories.items():
            if path == f"/api/models/{repo_id}" or path.startswith(f"/api/models/{repo_id}/"):
                self._list(repo_id, repository, path)
                return
            for prefix in (f"/{repo_id}/resolve/", f"/large/{repo_id}/"):
                if path.startswith(prefix):
                    is_large = prefix.startswith("/large/")
                    name = path.removeprefix(prefix)
                    if not is_large:
                        revision, _, name = name.partition("/")
                        if revision not in ("main", repository.commit):
                            self._send(404, {"X-Error-Code": "RevisionNotFound"}, b"")
                            return
                    self._file(repository, repo_id, name, is_redirected=is_large, body=with_body)
                    return
        self._send(404, {"X-Error-Code": "RepoNotFound"}, b"")

    def _list(self, repo_id: str, repository: Repository, path: str) -> None:
        revision = path.partition("/revision/")[2] or "main"
        if revision not in ("main", repository.commit):
            self._send(404, {"X-Error-Code": "RevisionNotFound"}, b"")
            return
        body = json.dumps(_model_info(repo_id, repository)).encode()
        self._send(200, {"Content-Type": "application/json"}, body)

    def _file(
        self, repository: Repository, repo_id: str, name: str, *, is_redirected: bool, body: bool
    ) -> None:
        if repository.is_gated:
            self._send(403, {"X-Error-Code": "GatedRepo"}, b"")
            return
        if name not in repository.files:
            self._send(404, {"X-Error-Code": "EntryNotFound"}, b"")
            return
        listed = repository.as_listed(name)
        headers = {"X-Repo-Commit": repository.commit, "Accept-Ranges": "bytes"}
        if name.endswith(_LARGE) and not is_redirected:
            headers["X-Linked-Etag"] = f'"{_sha256(listed)}"'
            headers["X-Linked-Size"] = str(len(listed))
            host, port = self.hub.large_host, self.hub.endpoint.rpartition(":")[2]
            headers["Location"] = f"http://{host}:{port}/large/{repo_id}/{name}"
            self._send(302, headers, b"")
            return
        if is_redirected and "Authorization" in self.headers:
            self.hub.foreign_tokens.append(name)
        headers["ETag"] = f'"{_etag(name, listed)}"'
        if not body:
            self._send(200, headers, repository.files[name], with_body=False)
            return
        self._send_range(name, repository.files[name], headers)

    def _send_range(self, name: str, content: bytes, headers: dict[str, str]) -> None:
        hub = self.hub
        requested_range = _RANGE.fullmatch(self.headers.get("Range", ""))
        begin, end, status = 0, len(content), 200
        if requested_range is not None and hub.has_ranges:
            begin, status = int(requested_range[1]), 206
            end = min(end, int(requested_range[2]) + 1) if requested_range[2] else end
            is_refused_rest = hub.refused_rests > 0 and not requested_range[2]
            hub.refused_rests -= is_refused_rest
            if begin >= len(content) or hub.refused_ranges > 0 or is_refused_rest:
                hub.refused_ranges -= begin < len(content) and not is_refused_rest
                self._send(416, {"Content-Range": f"bytes */{len(content)}"}, b"")
                return
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
        if requested_range is not None and requested_range[2]:
            hub.header_reads.append(name)
        else:
            hub.fetched.append(name)
            hub.starts.append(begin)
        breaks = hub.breaks.get(name)
        stop = breaks.pop(0) if breaks and not (requested_range and requested_range[2]) else end
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        sent = begin
        for start in range(begin, min(stop, end), 2**14):
            if hub.held_after is not None and start >= hub.held_after:
                hub.released.wait()
            piece = content[start : min(start + 2**14, stop, end)]
            try:
                self.wfile.write(piece)
            except OSError:  # whoever asked has gone
                break
            hub.sent_bytes[name] += len(piece)
            sent += len(piece)
        hub.sent_ranges.setdefault(name, []).append((begin, sent))
        if stop < end:
            self._break_off()

    def _break_off(self) -> None:
        self.wfile.flush()
        if self.hub.resets:  # RST in place of FIN, which drops what is not read by then
            time.sleep(0.2)
            linger = b"\1\0\0\0\0\0\0\0"
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()
        else:
            self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def _send(
        self, status: int, headers: Mapping[str, str], body: bytes, *, with_body: bool = True
    ) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body and self.command != "HEAD":
            self.wfile.write(body)


def _etag(name: str, content: bytes) -> str:
    if name.endswith(_LARGE):
        return _sha256(content)
    return git_id(content)


@lru_cache
def git_id(content: bytes) -> str:
    """As ``git hash-object`` prints it."""
    digest = hashlib.sha1(b"blob %d\0" % len(content))
    digest.update(content)
    return digest.hexdigest()


@lru_cache
def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _model_info(repo_id: str, repository: Repository) -> dict[str, object]:
    siblings: list[dict[str, object]] = []
    for name in repository.files:
        content = repository.as_listed(name)
        sibling: dict[str, object] = {"rfilename": name, "size": len(content)}
        if name.endswith(_LARGE):
            # Of a large file, git has a pointer.
            digest = _sha256(content)
            sibling["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 134}
            sibling["blobId"] = git_id(f"oid sha256:{digest}".encode())
        else:
            sibling["blobId"] = git_id(content)
        siblings.append(sibling)
    return {
        "id": repo_id,
        "sha": repository.commit,
        "private": False,
        "siblings": siblings,
        "tags": [],
        "downloads": 0,
        "likes": 0,
    }
