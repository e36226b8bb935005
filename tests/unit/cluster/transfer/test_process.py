"""Transfer processes as agents start them, over loopback with certificates of their own."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from support.cluster.certificates import TestAuthority
from support.cluster.store_files import content_of, digests_of
from support.cluster.transfers import JOB, file_bytes, from_peer, manifest_of
from support.processes.waiting import until

from potluck.cluster.network.trust.connection_sources import connection_channel, hand_over
from potluck.cluster.transfer.client import TransferClient
from potluck.cluster.transfer.messages import TransferSettings
from potluck.cluster.transfer.supervisor import TransferEvents, TransferProcess
from potluck.errors import ModelFileError, ModelNotFoundError, TransferError
from potluck.kernels import Sha256State
from potluck.types.cluster import NodeId
from potluck.types.content import CHUNK_BYTES, FileContent, Transfer

DATA = file_bytes(9 * CHUNK_BYTES + 77)
CONTENT = content_of(DATA)
MANIFEST = manifest_of({"model.gguf": DATA})


class Agent:
    def __init__(self, process: TransferProcess, node_id: NodeId, folder: Path) -> None:
        self.process = process
        self.node_id = node_id
        self.folder = folder

    async def read(self, content: FileContent) -> bytes:
        client = TransferClient(self.process.worker_socket())
        with contextlib.closing(client), ThreadPoolExecutor(1) as pool:
            file = client.open_file(content, label="model.gguf", job=JOB)
            data = bytearray(content.num_bytes)
            work = pool.submit(file.read_into, 0, memoryview(data))
            await asyncio.wrap_future(work)
            return bytes(data)


@asynccontextmanager
async def agents(
    folder: Path,
    count: int,
    events: TransferEvents | None = None,
    doors: Sequence[tuple[socket.socket, int]] = (),
) -> AsyncIterator[list[Agent]]:
    authority = TestAuthority(folder / "pem")
    async with contextlib.AsyncExitStack() as stack:
        made = []
        for number in range(count):
            paths = authority.issue(f"node{number}")
            pem = paths.certificate
            node_id = _node_id(pem)
            connections, port = doors[number] if doors else (None, 0)
            process = await TransferProcess.start(
                TransferSettings(
                    host="127.0.0.1",
                    port=port,
                    node_id=node_id,
                    **paths.texts(),
                    store_folder=str(folder / str(number)),
                    limit_bytes=2**30,
                ),
                events=events,
                connections=connections,
            )
            stack.push_async_callback(process.close)
            made.append(Agent(process, node_id, folder / str(number)))
        yield made


def _node_id(certificate: Path) -> NodeId:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    parsed = x509.load_pem_x509_certificate(certificate.read_bytes())
    return NodeId(str(parsed.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value))


@pytest.mark.slow
def test_a_file_goes_from_one_process_to_another(tmp_path: Path) -> None:
    async def scenario() -> None:
        progress: list[Transfer] = []
        events = TransferEvents(on_progress=lambda _, transfer: progress.append(transfer))
        async with agents(tmp_path, 2, events) as [a, b]:
            path = tmp_path / "model.gguf"
            path.write_bytes(DATA)
            hashed: list[tuple[int, int]] = []
            found = await a.process.identify(path, lambda *done: hashed.append(done))
            assert found == CONTENT
            assert hashed[-1] == (len(DATA), len(DATA))
            holdings = await a.process.holdings([CONTENT])
            assert holdings.held == {CONTENT.sha256: ((0, 10),)}
            assert holdings.verified == {CONTENT.sha256}
            digests = await a.process.digests(CONTENT.sha256)
            assert digests is not None
            await b.process.add_digests(CONTENT, digests, verified=True)
            b.process.set_sources(
                JOB, MANIFEST, [from_peer(CONTENT, a.node_id)], {a.node_id: a.process.address}
            )
            assert await b.read(CONTENT) == DATA
            assert (await b.process.holdings([CONTENT])).held == holdings.held
            await until(
                lambda: (
                    progress and progress[-1].done_bytes == progress[-1].total_bytes == len(DATA)
                )
            )
            assert progress[-1].by_source == {a.node_id: len(DATA)}

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_peer_that_a_process_cannot_connect_to_is_asked_to_connect(tmp_path: Path) -> None:
    async def scenario() -> None:
        both: list[Agent] = []
        dial_requests: list[NodeId] = []
        dialling: list[asyncio.Task[None]] = []

        async def dial() -> None:
            await both[0].process.serve_peer(both[1].node_id, both[1].process.address)

        def wanted(node: NodeId) -> None:
            dial_requests.append(node)
            dialling.append(asyncio.create_task(dial()))

        closed = ("127.0.0.1", 1)
        async with agents(tmp_path, 2, TransferEvents(on_dial_wanted=wanted)) as [a, b]:
            both += [a, b]
            path = tmp_path / "model.gguf"
            path.write_bytes(DATA)
            await a.process.identify(path)
            b.process.set_sources(
                JOB, MANIFEST, [from_peer(CONTENT, a.node_id)], {a.node_id: closed}
            )
            assert await b.read(CONTENT) == DATA
            assert dial_requests == [a.node_id]
            await asyncio.gather(*dialling)
            with pytest.raises(TransferError, match=f"cannot connect to node {b.node_id} either"):
                await a.process.serve_peer(b.node_id, closed)

    asyncio.run(scenario())


def test_a_file_that_is_not_there_cannot_be_identified(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with agents(tmp_path, 1) as [a]:
            with pytest.raises(ModelNotFoundError):
                await a.process.identify(tmp_path / "nowhere")

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_process_that_is_killed_is_started_again_and_told_its_jobs(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with agents(tmp_path, 2) as [a, b]:
            path = tmp_path / "model.gguf"
            path.write_bytes(DATA)
            await a.process.identify(path)
            b.process.set_sources(
                JOB, MANIFEST, [from_peer(CONTENT, a.node_id)], {a.node_id: a.process.address}
            )
            b.process._child.connected.process.kill()
            with pytest.raises(TransferError):
                await b.read(CONTENT)
            for _ in range(400):
                with contextlib.suppress(TransferError):
                    assert await b.read(CONTENT) == DATA
                    break
                await asyncio.sleep(0.1)
            else:
                pytest.fail("it was not started again")

    asyncio.run(scenario())


def test_an_idle_process_is_small(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with agents(tmp_path, 1) as [a]:
            await a.process.holdings([CONTENT])
            status = Path(f"/proc/{a.process.pid}/status").read_text()
            resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
            assert int(resident.split()[1]) < 40_000, resident

    asyncio.run(scenario())


@contextmanager
def one_port() -> Iterator[tuple[socket.socket, int]]:
    """Hand over what comes to a port, as the acceptor does."""
    receiving, sending = connection_channel()
    server = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, (host, port) = server.accept()
                with connection:
                    hand_over(sending, connection, host, port)

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield receiving, server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        sending.close()


@pytest.mark.slow
def test_peers_may_come_through_the_one_port_also_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        with one_port() as one, one_port() as other:
            async with agents(tmp_path, 2, doors=(one, other)) as [a, b]:
                assert a.process.address == ("127.0.0.1", one[1])
                path = tmp_path / "model.gguf"
                path.write_bytes(DATA)
                await a.process.identify(path)
                a.process._child.connected.process.kill()
                b.process.set_sources(
                    JOB, MANIFEST, [from_peer(CONTENT, a.node_id)], {a.node_id: a.process.address}
                )
                assert await b.read(CONTENT) == DATA

    asyncio.run(scenario())


@pytest.mark.slow
def test_the_hash_of_a_file_goes_from_node_to_node(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with agents(tmp_path, 2) as [a, b]:
            path = tmp_path / "model.gguf"
            path.write_bytes(DATA)
            await a.process.identify(path)
            b.process.set_sources(
                JOB, MANIFEST, [from_peer(CONTENT, a.node_id)], {a.node_id: a.process.address}
            )
            await b.read(CONTENT)
            state, first = await a.process.hash_chunks(CONTENT.sha256, 0, 4, b"")
            state, second = await b.process.hash_chunks(CONTENT.sha256, 4, 10, state)
            assert first + second == digests_of(DATA)
            assert Sha256State.restored(state).digest() == hashlib.sha256(DATA).digest()
            with pytest.raises(ModelFileError):
                await b.process.hash_chunks("00" * 32, 0, 1, b"")

    asyncio.run(scenario())
