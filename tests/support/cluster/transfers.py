"""Transfer services in threads of the test: nodes on loopback with a folder each."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
from support.cluster.edges import credentials
from support.cluster.store_files import content_of
from support.processes.waiting import eventually

from potluck.cluster.transfer.client import TransferClient
from potluck.cluster.transfer.messages import (
    DialWanted,
    ProcessMessage,
    Progress,
    TransferSettings,
)
from potluck.cluster.transfer.process import TransferService, start_thread
from potluck.cluster.transfer.shared_file import Routes
from potluck.types.cluster import NodeId
from potluck.types.content import (
    ChunkSource,
    FileContent,
    HubOrigin,
    Manifest,
    ManifestFile,
    ReadingOrder,
    SourceKind,
    Transfer,
)

GIB = 2**30
JOB = "demo"


def file_bytes(num_bytes: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(num_bytes)


def manifest_of(files: Mapping[str, bytes], *, hub: HubOrigin | None = None) -> Manifest:
    return Manifest(
        "gguf",
        tuple(ManifestFile(name, content_of(data)) for name, data in files.items()),
        main=next(iter(files)),
        hub=hub,
    )


def from_peer(
    content: FileContent, node: TransferNode | NodeId, first: int = 0, end: int = -1
) -> ChunkSource:
    node_id = node if isinstance(node, str) else node.node_id
    end = content.num_chunks if end < 0 else end
    return ChunkSource(content.sha256, first, end, SourceKind.PEER, node_id)


def from_hub(content: FileContent, first: int = 0, end: int = -1) -> ChunkSource:
    end = content.num_chunks if end < 0 else end
    return ChunkSource(content.sha256, first, end, SourceKind.HUB)


class TransferNode:
    """One node; ``reports`` are what its agent would be told.

    ``ask_to_dial`` asks a peer to connect to this node; without it, none does.
    """

    def __init__(self, folder: Path, number: int, *, limit_bytes: int = GIB) -> None:
        self.node_id = NodeId(f"{number:016x}")
        self.folder = folder
        self.removed = folder / "removed"
        self.reports: list[ProcessMessage] = []
        self.ask_to_dial: Callable[[NodeId], None] | None = None
        settings = TransferSettings(
            host="127.0.0.1",
            node_id=self.node_id,
            authority="",
            certificate="",
            key="",
            store_folder=str(folder / "weights"),
            limit_bytes=limit_bytes,
        )
        given = replace(credentials(self.node_id), removed_path=str(self.removed))
        self.service = TransferService(settings, given, self._handle_message)
        self.board = self.service.board
        self._server = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._server.setblocking(False)
        self.address: tuple[str, int] = self._server.getsockname()
        start_thread("listen", lambda: self.service.listen(self._server))
        start_thread("tick", self.service.tick)
        self._clients: list[TransferClient] = []

    def _handle_message(self, message: ProcessMessage) -> None:
        self.reports.append(message)
        if isinstance(message, DialWanted):
            ask = self.ask_to_dial
            if ask is None:
                self.service.dial_backs.answer(message.node, "it was not asked")
            else:
                start_thread("dial", lambda: ask(message.node))

    def give(self, name: str, data: bytes) -> FileContent:
        """Put a file on this node's disk, known by its content."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        content, _ = self.service.store.known.identify(path)
        return content

    def client(self, *, on_wait: Callable[[int], None] | None = None) -> TransferClient:
        ours, theirs = socket.socketpair()
        start_thread("reader", lambda: self.service.serve_reader(theirs))
        client = TransferClient(ours, on_wait=on_wait)
        self._clients.append(client)
        return client

    def set_sources(
        self,
        manifest: Manifest,
        sources: Sequence[ChunkSource],
        peers: Sequence[TransferNode] = (),
        *,
        job: str = JOB,
        addresses: Mapping[NodeId, tuple[str, int]] | None = None,
        ahead: ReadingOrder = (),
    ) -> None:
        known = {peer.node_id: peer.address for peer in peers} | dict(addresses or {})
        self.board.set_sources(job, Routes(manifest, sources, known), ahead=ahead)

    def read(self, content: FileContent, start: int = 0, end: int | None = None) -> bytes:
        """Read a range through a client of its own, for the job."""
        client = self.client()
        try:
            file = client.open_file(content, label="model", job=JOB)
            data = bytearray((content.num_bytes if end is None else end) - start)
            file.read_into(start, memoryview(data))
            file.close()
            return bytes(data)
        finally:
            client.close()

    def progress(self) -> Transfer:
        """The latest; the first comes soon after the first bytes."""
        eventually(lambda: any(isinstance(each, Progress) for each in self.reports))
        return next(each for each in reversed(self.reports) if isinstance(each, Progress)).transfer

    def held_chunks(self, content: FileContent) -> int:
        held, _ = self.board.files.held([content])
        return sum(end - first for first, end in held.get(content.sha256, ()))

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.service._refused = _Everybody()
        self.board.assignments.set_refused(_Everybody())
        self._server.close()


class _Everybody(frozenset[NodeId]):
    """Whoever asks: sessions end."""

    def __contains__(self, node: object) -> bool:
        return True

    def __or__(self, others: object) -> Self:
        return self


@contextmanager
def nodes(folder: Path, count: int, *, limit_bytes: int = GIB) -> Iterator[list[TransferNode]]:
    made = [
        TransferNode(folder / str(number), number, limit_bytes=limit_bytes)
        for number in range(1, count + 1)
    ]
    try:
        yield made
    finally:
        for node in made:
            node.close()
