"""The agent's side of a worker, against processes that do what no worker should."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from potluck.cluster.agent.worker_process import WorkerProcess
from potluck.cluster.worker.messages import (
    Connect,
    Identity,
    Load,
    Loaded,
    Peer,
    StageSpec,
)
from potluck.engines.backends import native_unit
from potluck.errors import EngineError, PotluckError, UnitFaultError
from potluck.types.cluster import DeploymentId, Epoch, NodeId, UnitId
from potluck.types.quantization import Quantization
from potluck.types.unit import Fault

NODE = NodeId("a" * 16)
LOAD = Load(
    spec=StageSpec(
        deployment=DeploymentId("d"),
        epoch=Epoch(number=1, coordinator=NODE),
        index=0,
        num_stages=1,
        unit_id=UnitId("cpu/native"),
        model="demo",
        start_layer=0,
        end_layer=1,
        context_tokens=64,
        num_blocks=4,
        max_step_tokens=64,
        max_step_sequences=8,
        quantization=Quantization.NONE,
        is_mapped=False,
        num_bytes=1,
    ),
    unit=native_unit(),
    device_free_bytes=None,
    identity=Identity(node_id=NODE, certificate_pem=b"", private_key_pem=b"", authority_pem=b""),
    listen_host="127.0.0.1",
    num_threads=1,
    packed_cache_bytes=None,
)
CONNECT = Connect(preceding=Peer(node_id=NODE), following=Peer(node_id=NODE))

PRELUDE = """
import os, socket, struct, sys, time
channel = socket.socket(fileno=int(sys.argv[1]))
def say(document): channel.sendall(struct.pack("<I", len(document)) + document)
def say_loaded(mapped):
    import msgspec
    parts = ("cache_bytes", "rope_bytes", "scratch_bytes", "staging_bytes")
    memory = {"weights": [], **dict.fromkeys(parts, 0)}
    loaded = {"host": "h", "port": 1, "memory": memory, "read_bytes": 1, "seconds": 0.5}
    say(msgspec.msgpack.encode({"type": "Loaded", **loaded, "mapped_file": mapped}))
channel.recv(100_000)
"""
SAY_LOADED = """
say_loaded(None)
"""


@asynccontextmanager
async def worker(script: str) -> AsyncGenerator[tuple[WorkerProcess, list[PotluckError]], None]:
    """A worker that runs ``script`` once it was spoken to, and why it ended."""
    ends: list[PotluckError] = []
    ours, theirs = socket.socketpair()
    with theirs:
        reader, writer = await asyncio.open_connection(sock=ours)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            PRELUDE + script,
            str(theirs.fileno()),
            pass_fds=[theirs.fileno()],
        )
    started = WorkerProcess(process, reader, writer, lambda _, error: ends.append(error))
    try:
        yield started, ends
    finally:
        started.kill()
        async with asyncio.timeout(5):
            await started.wait()
        assert process.returncode is not None
        assert len(ends) == 1


async def load(process: WorkerProcess) -> Loaded:
    async for event in process.load(LOAD):
        if isinstance(event, Loaded):
            return event
    raise AssertionError("the last event is Loaded")


def test_one_that_loads_for_ever_is_killed_at_once() -> None:
    async def run() -> None:
        async with worker("time.sleep(60)") as (process, _):
            loading = asyncio.create_task(load(process))
            await asyncio.sleep(0.3)
            started = time.monotonic()
            process.kill()
            await process.wait()
            assert time.monotonic() - started < 1
            with pytest.raises(EngineError, match="signal 9"):
                await loading

    asyncio.run(run())


@pytest.mark.parametrize(
    "script",
    [
        'say(b"\\xc1 no msgpack"); time.sleep(60)',
        'say(b"\\x81\\xa4type\\xa3Bad"); time.sleep(60)',
        'channel.sendall(struct.pack("<I", 2**30)); time.sleep(60)',
    ],
)
def test_one_that_talks_nonsense_is_ended(script: str) -> None:
    async def run() -> None:
        async with worker(script) as (process, ends), asyncio.timeout(5):
            with pytest.raises(EngineError, match="makes no sense"):
                await load(process)
            await process.wait()
            assert "makes no sense" in ends[0].message

    asyncio.run(run())


def test_nobody_waits_for_one_that_has_ended() -> None:
    async def run() -> None:
        async with worker(SAY_LOADED + "channel.recv(1); os._exit(3)") as (process, _):
            async with asyncio.timeout(5):
                assert (await load(process)).port == 1
                assert await process.stats() is None  # it is not connected
                with pytest.raises(EngineError, match="the worker ended"):
                    await process.connect(CONNECT)
                with pytest.raises(EngineError, match="the worker ended"):
                    await process.connect(CONNECT)
                with pytest.raises(EngineError, match="the worker ended"):
                    await process.stats()

    asyncio.run(run())


def test_one_that_closes_its_socket_and_stays_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("potluck.cluster.agent.worker_process._EXIT_SECONDS", 0.2)

    async def run() -> None:
        async with worker("channel.close(); time.sleep(60)") as (process, _), asyncio.timeout(5):
            with pytest.raises(EngineError):
                await load(process)
            await process.wait()

    asyncio.run(run())


def test_what_it_says_before_its_end_is_the_reason() -> None:
    failed = """
import msgspec
say(msgspec.msgpack.encode({"type": "Failed", "message": "no such file", "hint": "look"}))
"""

    async def run() -> None:
        async with worker(failed) as (process, ends), asyncio.timeout(5):
            with pytest.raises(EngineError, match="no such file") as raised:
                await load(process)
            assert raised.value.hint == "look"
            await process.wait()
            assert ends[0].message == "no such file"

    asyncio.run(run())


def test_a_unit_that_failed_is_told_from_a_stage_that_did() -> None:
    failed = """
import msgspec
say(msgspec.msgpack.encode({"type": "Failed", "message": "m", "hint": "h", "fault": "hung"}))
"""

    async def run() -> None:
        async with worker(failed) as (process, ends), asyncio.timeout(5):
            with pytest.raises(UnitFaultError) as raised:
                await load(process)
            assert (raised.value.fault, raised.value.message, raised.value.hint) == (
                Fault.HUNG.value,
                "m",
                "h",
            )
            await process.wait()
            assert isinstance(ends[0], UnitFaultError)

    asyncio.run(run())


SAY_LOADED_AND_MAPPED = """
import signal
path = {path!r}
mapped = {{"path": path, "num_bytes": 4096}}
say_loaded(mapped)
"""
READ_IT = """
import mmap
with open(path, "rb") as file:
    data = mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ)
{change}
print(data[0])
"""
FAIL_TO_READ = "os.kill(os.getpid(), signal.SIGBUS)"


async def end_of(script: str) -> str:
    async with worker(script) as (process, ends):
        async for _ in process.load(LOAD):
            pass
        await process.wait()
    (error,) = ends
    return error.message


def test_a_mapped_file_that_shrank_is_named(tmp_path: Path) -> None:
    path = tmp_path / "weights.packed"
    path.write_bytes(bytes(4096))
    script = SAY_LOADED_AND_MAPPED.format(path=str(path))
    shrink = READ_IT.format(change="os.truncate(path, 0)")
    message = asyncio.run(end_of(script + shrink))
    assert message == f"{path} has shrunk from 4096 to 0 bytes while it was mapped"


@pytest.mark.parametrize("is_there", [True, False])
def test_a_mapped_file_that_cannot_be_read_is_named(tmp_path: Path, is_there: bool) -> None:
    path = tmp_path / "weights.packed"
    if is_there:
        path.write_bytes(bytes(4096))
    message = asyncio.run(end_of(SAY_LOADED_AND_MAPPED.format(path=str(path)) + FAIL_TO_READ))
    assert message == f"{path}, which was mapped, could not be read"


def test_removing_a_mapped_file_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "weights.packed"
    path.write_bytes(bytes(4096))
    script = SAY_LOADED_AND_MAPPED.format(path=str(path))
    message = asyncio.run(end_of(script + READ_IT.format(change="os.unlink(path)")))
    assert message == "the worker ended"


def test_a_bus_error_without_a_mapped_file() -> None:
    script = SAY_LOADED + "import signal; os.kill(os.getpid(), signal.SIGBUS)"
    assert asyncio.run(end_of(script)) == "the worker was ended by signal 7"
