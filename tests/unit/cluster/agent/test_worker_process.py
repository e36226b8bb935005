"""The agent's side of a worker, against processes that do what no worker should."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from support.processes.waiting import done_within, eventually

from potluck.cluster.agent import worker_process as module
from potluck.cluster.agent.worker_process import WorkerProcess
from potluck.cluster.network.trust.credentials import Credentials
from potluck.cluster.wire.worker_messages import (
    Connect,
    Load,
    Loaded,
    Peer,
    Progress,
    StageSpec,
)
from potluck.engines.backends import native_unit
from potluck.errors import EngineError, PotluckError, StalledError, UnitFaultError
from potluck.host.child import has_ended
from potluck.host.python_child import ConnectedChild
from potluck.types.arithmetic import Arithmetic
from potluck.types.choices import Quantization
from potluck.types.cluster import DeploymentId, Epoch, NodeId, UnitId
from potluck.types.program import Shard
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
        shard=Shard.whole(1),
        context_tokens=64,
        num_blocks=4,
        max_step_tokens=64,
        max_step_sequences=8,
        quantization=Quantization.NONE,
        is_mapped=False,
        num_bytes=1,
        device_bytes=0,
        arithmetic=Arithmetic.EXACT,
    ),
    unit=native_unit(),
    device_free_bytes=None,
    identity=Credentials(node_id=NODE, certificate_pem=b"", private_key_pem=b"", authority_pem=b""),
    listen_host="127.0.0.1",
    num_threads=1,
    packed_cache_bytes=None,
)
EPOCH = Epoch(number=1, coordinator=NODE)
CONNECT = Connect(epoch=EPOCH, index=0, preceding=Peer(node_id=NODE), following=Peer(node_id=NODE))

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
    started = WorkerProcess(
        ConnectedChild(process, reader, writer),
        lambda _, error: ends.append(error),
        lambda *_: None,
    )
    try:
        yield started, ends
    finally:
        started.kill()
        async with asyncio.timeout(20):
            await started.wait()
        assert process.returncode is not None
        assert len(ends) == 1


async def load(process: WorkerProcess) -> Loaded:
    async for event in process.load(LOAD, stall_seconds=60.0):
        if isinstance(event, Loaded):
            return event
    raise AssertionError("the last event is Loaded")


def test_one_that_loads_for_ever_is_killed_at_once() -> None:
    async def run() -> None:
        async with worker("time.sleep(60)") as (process, _):
            loading = asyncio.create_task(load(process))
            await asyncio.sleep(0.3)
            with done_within(5):
                process.kill()
                await process.wait()
            with pytest.raises(EngineError, match="SIGKILL"):
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
        async with worker(script) as (process, ends), asyncio.timeout(20):
            with pytest.raises(EngineError, match="malformed message"):
                await load(process)
            await process.wait()
            assert "malformed message" in ends[0].message

    asyncio.run(run())


def test_nobody_waits_for_one_that_has_ended() -> None:
    async def run() -> None:
        async with worker(SAY_LOADED + "channel.recv(1); os._exit(3)") as (process, _):
            async with asyncio.timeout(20):
                assert await process.stats() is None  # it is not loaded
                assert (await load(process)).port == 1
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
        async with worker("channel.close(); time.sleep(60)") as (process, _), asyncio.timeout(20):
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
        async with worker(failed) as (process, ends), asyncio.timeout(20):
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
        async with worker(failed) as (process, ends), asyncio.timeout(20):
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
        async for _ in process.load(LOAD, stall_seconds=60.0):
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
    assert message == f"{path}, which is memory-mapped, could not be read"


def test_removing_a_mapped_file_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "weights.packed"
    path.write_bytes(bytes(4096))
    script = SAY_LOADED_AND_MAPPED.format(path=str(path))
    message = asyncio.run(end_of(script + READ_IT.format(change="os.unlink(path)")))
    assert message == "the worker ended"


def test_a_bus_error_without_a_mapped_file() -> None:
    script = SAY_LOADED + "import signal; os.kill(os.getpid(), signal.SIGBUS)"
    assert asyncio.run(end_of(script)) == "the worker was killed by SIGBUS"


FAILED = """
import msgspec
say(msgspec.msgpack.encode(
    {"type": "Failed", "message": "no memory", "hint": "", "fault": "out of memory"}
))
"""


async def fault_of(script: str) -> tuple[UnitFaultError, int | None, bool]:
    """What a worker that ends by itself tells of its unit, its status, and whether it was ended."""
    async with worker(script) as (process, ends), asyncio.timeout(30):
        async for _ in process.load(LOAD, stall_seconds=60.0):
            pass
        await process.wait()
        (error,) = ends
        assert isinstance(error, UnitFaultError)
        return error, process.status, process.was_killed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "fault", "message", "status"),
    [
        (
            "os._exit(3)",
            Fault.DRIVER,
            "the worker ended with exit code 3 without an error message",
            3,
        ),
        ("os.abort()", Fault.KILLED, "the worker was killed by SIGABRT", -6),
        ("os.kill(os.getpid(), 9)", Fault.KILLED, "the worker was killed by SIGKILL", -9),
        (FAILED + "os._exit(1)", Fault.OUT_OF_MEMORY, "no memory", 1),
    ],
)
def test_ends_that_tell_of_a_unit(script: str, fault: Fault, message: str, status: int) -> None:
    error, ended, was_killed = asyncio.run(fault_of(SAY_LOADED + script))
    assert (Fault(error.fault), error.message) == (fault, message)
    assert (ended, was_killed) == (status, False)


def test_one_that_says_why_it_failed_and_does_not_end_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one of whose threads hangs in a driver."""
    monkeypatch.setattr(module, "_EXIT_SECONDS", 0.2)
    error, _, was_killed = asyncio.run(fault_of(SAY_LOADED + FAILED + "time.sleep(60)"))
    assert (error.fault, error.message) == ("out of memory", "no memory")
    assert not was_killed


def test_one_that_died_before_it_was_killed_died_by_itself() -> None:
    async def run() -> None:
        async with worker("os.abort()") as (process, ends), asyncio.timeout(20):
            loading = asyncio.create_task(load(process))
            await asyncio.sleep(0)  # it is told to
            # The loop hears of the end only after this.
            eventually(lambda: has_ended(process.pid), what="its process has ended")
            process.kill()
            with pytest.raises(UnitFaultError):
                await loading
            await process.wait()
            assert not process.was_killed
            assert ends[0].message == "the worker was killed by SIGABRT"
        async with worker("time.sleep(60)") as (process, ends), asyncio.timeout(20):
            process.kill()
            await process.wait()
            assert process.was_killed

    asyncio.run(run())


def test_one_that_says_nothing_while_it_loads_is_ended_where_calls_have_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_SILENCE_SECONDS", 0.01)

    async def run() -> None:
        async with worker("time.sleep(60)") as (process, ends), asyncio.timeout(20):
            limited = msgspec.structs.replace(LOAD, step_seconds=0.01)
            with pytest.raises(UnitFaultError, match="its worker has said nothing for 210 ms"):
                async for _ in process.load(limited, stall_seconds=60.0):
                    pass
            await process.wait()
            assert isinstance(ends[0], UnitFaultError)
            assert (ends[0].fault, process.was_killed) == ("hung", False)

    asyncio.run(run())


def test_one_can_be_ended_for_a_reason_that_it_cannot_tell() -> None:
    async def run() -> None:
        async with worker("time.sleep(60)") as (process, ends), asyncio.timeout(20):
            process.fail(UnitFaultError(Fault.HUNG.value, "it does not answer"))
            await process.wait()
            assert ends[0].message == "it does not answer"
            assert not process.was_killed

    asyncio.run(run())


def test_one_that_the_kernel_does_not_let_go_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that waits in a driver is played by one that nobody kills."""
    monkeypatch.setattr(module, "_EXIT_SECONDS", 0.1)
    monkeypatch.setattr(module, "_KILL_SECONDS", 0.1)

    async def run() -> None:
        async with worker("time.sleep(60)") as (process, ends), asyncio.timeout(20):
            kill = os.kill
            monkeypatch.setattr(os, "kill", lambda *_: None)
            process.kill()
            await process.wait()
            assert process.status is None
            assert isinstance(ends[0], UnitFaultError)
            assert ends[0].message == "the worker cannot be killed: it hangs in the kernel"
            kill(process.pid, signal.SIGKILL)
            await process._process.wait()

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "has_crashed"),
    [
        ("os.kill(os.getpid(), 11)", True),  # SIGSEGV
        ("os.abort()", True),
        ("os.kill(os.getpid(), 4)", True),  # SIGILL
        ("os.kill(os.getpid(), 8)", True),  # SIGFPE
        ("os.kill(os.getpid(), 7)", True),  # SIGBUS, with nothing mapped
        ("raise RuntimeError", True),
        ("os.kill(os.getpid(), 9)", False),
        ("os.kill(os.getpid(), 15)", False),
        ("channel.close()", False),
        ("import msgspec; say(msgspec.msgpack.encode(FAILED))", False),
        ("import msgspec; say(msgspec.msgpack.encode({**FAILED, 'is_defect': True}))", True),
    ],
)
def test_what_a_worker_does_to_itself_is_a_crash_and_what_others_do_is_none(
    script: str, has_crashed: bool
) -> None:
    failed = "FAILED = {'type': 'Failed', 'message': 'no', 'hint': ''}\n"

    async def run() -> None:
        async with worker(failed + script) as (process, _), asyncio.timeout(40):
            with pytest.raises(PotluckError):
                await load(process)
            await process.wait()
            assert process.has_crashed is has_crashed

    asyncio.run(run())


def test_one_that_was_killed_here_has_not_crashed() -> None:
    async def run() -> None:
        async with worker("time.sleep(60)") as (process, _), asyncio.timeout(20):
            process.kill()
            await process.wait()
            assert not process.has_crashed

    asyncio.run(run())


@pytest.mark.slow
def test_one_that_is_stopped_while_it_loads_is_ended_and_the_stall_is_told() -> None:
    async def run() -> None:
        async with worker("time.sleep(60)") as (process, ends), asyncio.timeout(40):
            os.kill(process.pid, signal.SIGSTOP)
            with pytest.raises(
                StalledError, match=r"made no progress for 400 ms|was stopped by a signal"
            ):
                async for _ in process.load(LOAD, stall_seconds=0.4):
                    pass
            await process.wait()
            assert process.status == -signal.SIGKILL
            assert isinstance(ends[0], StalledError)
            assert not process.was_killed  # it failed, as its unit may have
            assert not process.has_crashed

    asyncio.run(run())


@pytest.mark.slow
def test_one_that_computes_or_speaks_may_take_as_long_as_it_likes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_REPORT_INTERVAL_SECONDS", 0.1)
    computing = """
end = time.monotonic() + 3
while time.monotonic() < end: pass
"""
    events: list[Progress | Loaded] = []

    async def run() -> None:
        async with worker(computing + SAY_LOADED + "time.sleep(60)") as (process, _):
            async with asyncio.timeout(40):
                async for event in process.load(LOAD, stall_seconds=2.0):
                    events.append(event)

    asyncio.run(run())
    assert isinstance(events[-1], Loaded)
    # Who listens is told now and then that somebody still watches.
    assert len(events) > 2


def test_a_defect_of_the_agent_itself_leaves_nobody_waiting_for_a_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("nobody expected this")

    monkeypatch.setattr(WorkerProcess, "_take", broken)

    async def run() -> None:
        async with worker(SAY_LOADED + "time.sleep(60)") as (process, ends), asyncio.timeout(40):
            with pytest.raises(
                EngineError, match="gave up on the worker: RuntimeError: nobody expected this"
            ):
                await load(process)
            await process.wait()
            assert len(ends) == 1

    asyncio.run(run())
