"""A model whose files change while it is loaded is not served, and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from support.process_facts import num_descriptors

from potluck.catalog import describe_model
from potluck.catalog.locate import DEMO_DIRECTORY
from potluck.cluster.network.trust.credentials import Credentials
from potluck.cluster.wire.worker_messages import Failed, Load, Progress, StageSpec
from potluck.cluster.worker import process
from potluck.engines.backends import native_unit
from potluck.engines.loading import PackedCache
from potluck.engines.loading.prepare import prepare_stages
from potluck.engines.native.engine import NativeEngine
from potluck.errors import ModelFileError
from potluck.local.loading import find_unit, plan_load, room_on
from potluck.types.arithmetic import Arithmetic
from potluck.types.choices import Quantization
from potluck.types.cluster import DeploymentId, Epoch, NodeId, UnitId
from potluck.types.program import Shard

NODE = NodeId("a" * 16)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the demo model, not touched for longer than the file system's clock ticks."""
    directory = tmp_path / "model"
    shutil.copytree(DEMO_DIRECTORY, directory)
    time.sleep(0.02)
    return directory


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[NativeEngine]:
    """Those that were made and not closed."""
    alive: list[NativeEngine] = []
    begin, end = NativeEngine.__init__, NativeEngine.close

    def made(self: NativeEngine, *arguments: object, **options: object) -> None:
        begin(self, *arguments, **options)  # type: ignore[arg-type]
        alive.append(self)

    def closed(self: NativeEngine) -> None:
        end(self)
        if self in alive:
            alive.remove(self)

    monkeypatch.setattr(NativeEngine, "__init__", made)
    monkeypatch.setattr(NativeEngine, "close", closed)
    return alive


def shrink(path: Path) -> None:
    os.truncate(path, 5_000_000)


def write_in_place(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(14_000_000)
        file.write(b"x")


def replace(path: Path) -> None:
    shutil.copy(path, path.with_name("other"))
    path.with_name("other").replace(path)


CHANGES = pytest.mark.parametrize(
    ("change", "message"),
    [
        (shrink, r"tensor '[a-z_.0-9]+': it shrank from 15229104 to 5000000 bytes while"),
        (write_in_place, "the file changed while it was read"),
        (replace, "the file changed while it was read"),
    ],
)


def load(model: Path, on_progress: Callable[[int, int], None], num_stages: int) -> None:
    description = describe_model(str(model))
    unit = find_unit(None, isa=None)
    plan = plan_load(
        description,
        num_stages=num_stages,
        context_tokens=64,
        cache_tokens=64,
        num_threads=1,
        unit=unit,
    )
    loaded = prepare_stages(
        description,
        plan,
        room=partial(room_on, unit),
        cache=PackedCache(None),
        on_progress=on_progress,
    )
    for stage in loaded.stages:
        stage.engine.close()


@pytest.mark.parametrize("num_stages", [1, 2])
@CHANGES
def test_in_one_process(
    model: Path,
    engines: list[NativeEngine],
    change: Callable[[Path], None],
    message: str,
    num_stages: int,
) -> None:
    weights = model / "model.safetensors"
    changes = [change]

    def on_progress(done: int, total: int) -> None:
        if done > total / 3 and changes:
            changes.pop()(weights)

    before = num_descriptors()
    with pytest.raises(ModelFileError, match=message) as caught:
        load(model, on_progress, num_stages)
    assert caught.value.message.startswith(f"{weights}: ")
    assert "\n" not in caught.value.message
    assert engines == []
    assert num_descriptors() == before


def test_one_that_stays_as_it_is(model: Path, engines: list[NativeEngine]) -> None:
    made: list[int] = []
    load(model, lambda done, total: made.append(len(engines)), 2)
    assert max(made) == 2
    assert engines == []


class Channel:
    """The worker's end of its control channel, without a socket: one ``Load`` and then the end."""

    def __init__(self, model: Path, change: Callable[[Path], None]) -> None:
        self.sent: list[object] = []
        self._weights = model / "model.safetensors"
        self._changes = [change]
        spec = StageSpec(
            deployment=DeploymentId("d"),
            epoch=Epoch(number=1, coordinator=NODE),
            index=0,
            num_stages=1,
            unit_id=UnitId("cpu/native"),
            model=str(model),
            shard=Shard.whole(12),
            context_tokens=64,
            num_blocks=4,
            max_step_tokens=64,
            max_step_sequences=8,
            quantization=Quantization.NONE,
            is_mapped=False,
            num_bytes=1,
            device_bytes=0,
            arithmetic=Arithmetic.EXACT,
        )
        identity = Credentials(
            node_id=NODE, certificate_pem=b"", private_key_pem=b"", authority_pem=b""
        )
        self._load = Load(
            spec=spec,
            unit=native_unit(),
            device_free_bytes=None,
            identity=identity,
            listen_host="127.0.0.1",
            num_threads=1,
            packed_cache_bytes=None,
        )

    def receive(self) -> Load:
        return self._load

    def send(self, message: object) -> None:
        self.sent.append(message)
        if isinstance(message, Progress) and message.done_bytes and self._changes:
            self._changes.pop()(self._weights)


@CHANGES
def test_in_a_worker(
    model: Path,
    engines: list[NativeEngine],
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], None],
    message: str,
) -> None:
    channel = Channel(model, change)
    monkeypatch.setattr(process, "ControlChannel", lambda _: channel)
    monkeypatch.setattr(socket, "socket", lambda fileno: None)
    monkeypatch.setattr(process, "_die_with_agent", lambda pid: None)
    assert process.run_worker(-1, os.getpid()) == 1
    failed = channel.sent[-1]
    assert isinstance(failed, Failed)
    assert failed.message.startswith(f"{model / 'model.safetensors'}: ")
    assert "while it was read" in failed.message
    assert "nothing writes to the model's files" in failed.hint
    assert engines == []
