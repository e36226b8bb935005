"""A package index on this machine, which pip asks: PEP 691 pages over the wheels in a folder."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass(frozen=True)
class LocalIndex:
    """A server of PEP 691 pages over the wheels in a folder; ``requests`` are their lines."""

    folder: Path
    url: str
    requests: list[str] = field(default_factory=list)

    def environment(self, home: Path) -> dict[str, str]:
        return {
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_INDEX_URL": f"{self.url}/simple",
            "PIP_EXTRA_INDEX_URL": "",
            "PIP_FIND_LINKS": "",
            "PIP_NO_CACHE_DIR": "1",
            "XDG_CACHE_HOME": str(home),
        }


class IndexHandler(SimpleHTTPRequestHandler):
    """Pages, wheels with ranges, and metadata beside those that have it."""

    index: LocalIndex

    def log_message(self, *arguments: object) -> None:
        self.index.requests.append(f"{self.command} {self.path} {self.headers.get('Range', '')}")

    def do_GET(self) -> None:
        if self.path.startswith("/simple/"):
            self._answer(200, self.page(self.path.split("/")[2]), json=True)
            return
        path = self.index.folder / Path(self.path).name
        if not path.is_file():
            self._answer(404, b"")
            return
        data = path.read_bytes()
        range_header = self.headers.get("Range")
        if range_header is None:
            self._answer(200, data)
            return
        first, _, last = range_header.removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last) + 1]
        self._answer(206, part, span=f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")

    def page(self, project: str) -> bytes:
        files = []
        folder = self.index.folder
        paths = (*folder.glob(f"{project}-*.whl"), *folder.glob(f"{project}-*-variants.json"))
        for path in sorted(paths):
            metadata = path.with_name(f"{path.name}.metadata")
            files.append(
                {
                    "filename": path.name,
                    "url": f"{self.index.url}/files/{path.name}",
                    "hashes": {"sha256": hash_of(path)},
                    "core-metadata": {"sha256": hash_of(metadata)} if metadata.exists() else False,
                }
            )
        page = {"meta": {"api-version": "1.0"}, "name": project, "files": files}
        return json.dumps(page).encode()

    def _answer(self, status: int, data: bytes, *, json: bool = False, span: str = "") -> None:
        self.send_response(status)
        kind = "application/vnd.pypi.simple.v1+json" if json else "application/octet-stream"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if span:
            self.send_header("Content-Range", span)
        self.end_headers()
        self.wfile.write(data)


def hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextmanager
def local_index(folder: Path) -> Iterator[LocalIndex]:
    """Serve the wheels in ``folder``, which is made, until the block ends."""
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)
    found = LocalIndex(folder=folder, url=f"http://127.0.0.1:{server.server_port}")
    server.RequestHandlerClass = type("Handler", (IndexHandler,), {"index": found})
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
