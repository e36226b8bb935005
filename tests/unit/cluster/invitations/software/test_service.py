"""What is answered to invited machines, by request."""

from __future__ import annotations

import dataclasses
import json
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import pytest

from potluck.cluster.invitations.software import selection, service
from potluck.cluster.invitations.software.endpoint import Endpoint
from potluck.cluster.invitations.software.local_wheels import LocalWheels
from potluck.cluster.invitations.software.selection import ChosenWheel, Software
from potluck.cluster.invitations.software.service import SoftwareService
from potluck.errors import WheelDownloadError
from potluck.portability.hosts.host import Host
from potluck.portability.hosts.shipped import load_shipped_host
from potluck.portability.hosts.writing import host_document

ENDPOINT = Endpoint(
    host="10.0.0.7",
    port=7333,
    token="K7QW2M9C4T8RZ0XB6DHN3VJ5PYFA1GES",
    certificate_sha256="0f" * 32,
    public_key_sha256="A" * 43 + "=",
    invitation="10.0.0.7:7333/token/pin",
)
BOARD = load_shipped_host("debian-12-aarch64")


@dataclasses.dataclass
class Choices:
    """Stands for ``choose_software``."""

    path: Path
    hosts: list[str] = dataclasses.field(default_factory=list)
    waits: threading.Event = dataclasses.field(default_factory=threading.Event)
    error: Exception | None = None

    def __call__(
        self, local: LocalWheels, *_: object, note: selection.Note, **__: object
    ) -> Software:
        self.hosts.append(local.host.name)
        note("looking")
        assert self.waits.wait(20)
        if self.error is not None:
            raise self.error
        num_bytes = self.path.stat().st_size
        wheel = ChosenWheel(
            project="potluck", version="1", path=self.path, sha256="ab" * 32, num_bytes=num_bytes
        )
        return Software(version="1", wheels=(wheel,))


@pytest.fixture
def choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Choices:
    path = tmp_path / "potluck-1-py3-none-any.whl"
    path.write_bytes(bytes(range(256)) * 3000)
    made = Choices(path)
    made.waits.set()
    monkeypatch.setattr(service, "choose_software", made)
    return made


@pytest.fixture
def served(choices: Choices, tmp_path: Path) -> SoftwareService:
    @contextmanager
    def no_index() -> Iterator[None]:
        raise AssertionError
        yield

    return SoftwareService([], {"XDG_CACHE_HOME": str(tmp_path)}, open_index=no_index)  # type: ignore[arg-type]


def get(served: SoftwareService, path: str) -> bytes | None:
    answer = served.respond(ENDPOINT, "GET", path, b"")
    if answer is None:
        return None
    data = b"".join(answer.chunks)
    assert answer.length == len(data)
    return data


def post(served: SoftwareService, body: bytes) -> list[dict[str, object]]:
    answer = served.respond(ENDPOINT, "POST", "software", body)
    assert answer is not None
    return [json.loads(line) for chunk in answer.chunks for line in chunk.splitlines()]


def body_of(host: Host) -> bytes:
    return json.dumps(host_document(host)).encode()


def test_machines_of_a_kind_are_chosen_for_once(served: SoftwareService, choices: Choices) -> None:
    boards = [dataclasses.replace(BOARD, name=f"board{number}") for number in range(14)]
    choices.waits.clear()
    found: list[dict[str, object]] = []
    asking = [
        threading.Thread(target=lambda each=each: found.append(post(served, body_of(each))[-1]))
        for each in boards
    ]
    for thread in asking:
        thread.start()
    choices.waits.set()
    for thread in asking:
        thread.join()
    assert len(choices.hosts) == 1
    assert len(found) == 14
    assert all(each == found[0] for each in found)
    assert found[0]["version"] == "1"
    post(served, body_of(dataclasses.replace(BOARD, libc_version=(2, 31))))
    assert len(choices.hosts) == 2


def test_it_is_chosen_again_when_a_wheel_is_gone(
    served: SoftwareService, choices: Choices, tmp_path: Path
) -> None:
    post(served, body_of(BOARD))
    choices.path = choices.path.rename(tmp_path / "another.whl")
    post(served, body_of(BOARD))
    assert len(choices.hosts) == 2


def test_only_what_was_chosen_is_served_from_any_byte_on(
    served: SoftwareService, choices: Choices
) -> None:
    name = f"wheels/{'ab' * 32}/0/potluck-1-py3-none-any.whl"
    assert get(served, name) is None
    (*_, last) = post(served, body_of(BOARD))
    assert last["wheels"] == [
        {
            "project": "potluck",
            "name": "potluck-1-py3-none-any.whl",
            "sha256": "ab" * 32,
            "bytes": 768_000,
        }
    ]
    data = choices.path.read_bytes()
    assert get(served, name) == data
    assert get(served, name.replace("/0/", "/700001/")) == data[700_001:]
    assert get(served, name.replace("/0/", "/900000/")) == b""
    for path in (
        f"wheels/{'cd' * 32}/0/x.whl",
        f"wheels/{'ab' * 32}/-1/x.whl",
        f"wheels/{'ab' * 32}",
        "wheels/../../etc/passwd",
        "describe",
    ):
        assert get(served, path) is None


def test_silence_is_broken_while_it_takes_long(
    served: SoftwareService, choices: Choices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_HEARTBEAT_SECONDS", 0.05)
    choices.waits.clear()
    answer = served.respond(ENDPOINT, "POST", "software", body_of(BOARD))
    assert answer is not None
    lines = [json.loads(next(answer.chunks)) for _ in range(4)]
    assert lines == [
        {"note": f"choosing the software for {BOARD.name}"},
        {"note": "looking"},
        {},
        {},
    ]
    choices.waits.set()
    assert "wheels" in [json.loads(each) for each in answer.chunks][-1]


def test_errors_end_the_answer(served: SoftwareService, choices: Choices) -> None:
    choices.error = WheelDownloadError("nothing fits", hint="another machine")
    assert post(served, body_of(BOARD))[-1] == {"error": "nothing fits", "hint": "another machine"}
    choices.error = RuntimeError("a defect")
    (*_, last) = post(served, body_of(BOARD))
    assert "a defect" in str(last["error"])
    for body in (b"", b"{}", b"[1]", b"\xff", b"x" * 70_000):
        (last,) = post(served, body)
        assert last["error"]
    assert len(choices.hosts) == 2


def test_the_installer_and_the_program_that_describes_are_served(served: SoftwareService) -> None:
    assert b"def main(" in (get(served, "install.py") or b"")
    assert (get(served, "install.sh") or b"").startswith(b"#!/bin/sh")
    program = get(served, "describe.pyz") or b""
    assert "__main__.py" in zipfile.ZipFile(BytesIO(program)).namelist()
    assert served.respond(ENDPOINT, "POST", "install.py", b"") is None
