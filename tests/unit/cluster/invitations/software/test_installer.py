"""The installer by the lines that are typed: what it verifies, and what it says."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cluster.software_server import SoftwareServer, software_server

from potluck.cluster.invitations.answers import Answer, answer_of
from potluck.cluster.invitations.software.endpoint import Endpoint, python_line, shell_line
from potluck.cluster.invitations.software.service import SoftwareService, installer
from potluck.host.child_environment import child_environment

PIP = """\
import os, sys
from pathlib import Path
required = Path(sys.argv[sys.argv.index("-r") + 1]).read_text().splitlines()
assert {"--isolated", "--no-index", "--no-deps", "--require-hashes"} <= set(sys.argv)
assert all("--hash=sha256:" in each for each in required) and len(required) == 2
program = Path(sys.prefix, "bin", "potluck")
program.write_text("#!/bin/sh\\necho started \\"$@\\" $POTLUCK_INVITATION\\n")
program.chmod(0o755)
"""
"""Installs a ``potluck`` that says how it was started. The real one is run by
``tests/portability/test_newcomers.py``."""


class PlayedService(SoftwareService):
    """Gives every machine the same two wheels, and may send something else than it says."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.wheels = {each.name: each.read_bytes() for each in folder.glob("*.whl")}
        self.announced_wheels = dict(self.wheels)
        self.lines: list[dict[str, Any]] | None = None

    def respond(self, endpoint: Endpoint, method: str, path: str, body: bytes) -> Answer | None:
        match path.split("/"):
            case ["software"]:
                json.loads(body)
                lines = self.lines if self.lines is not None else [{}, self._choice_document()]
                data = "".join(json.dumps(each) + "\n" for each in lines).encode()
                return answer_of(200, "application/jsonl", data)
            case ["wheels", _, offset, name]:
                return answer_of(200, "application/zip", self.wheels[name][int(offset) :])
            case _:
                return super().respond(endpoint, method, path, body)

    def _choice_document(self) -> dict[str, Any]:
        wheels = [
            {
                "project": name.partition("-")[0],
                "name": name,
                "sha256": hashlib.sha256(data).hexdigest(),
                "bytes": len(data),
            }
            for name, data in self.announced_wheels.items()
        ]
        return {"version": "0.1.0", "wheels": wheels}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What stands for Potluck, and for pip."""
    folder = tmp_path_factory.mktemp("wheels")
    with zipfile.ZipFile(folder / "pip-26.0-py3-none-any.whl", "w") as archive:
        archive.writestr("pip/__main__.py", PIP)
        archive.writestr("pip/filling", os.urandom(200_000))
    (folder / "potluck-0.1.0-py3-none-any.whl").write_bytes(os.urandom(1000))
    return folder


@pytest.fixture
def service(wheels: Path) -> PlayedService:
    return PlayedService(wheels)


@pytest.fixture
def server(service: PlayedService, tmp_path: Path) -> Iterator[SoftwareServer]:
    folder = tmp_path / "server"
    folder.mkdir()
    with software_server(service, folder) as server:
        yield server


def typed(line: str, home: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    home.mkdir(exist_ok=True)
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    known = {"HOME": str(home), "PATH": path, **environ}
    return subprocess.run(
        ["/bin/sh", "-c", line],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env=child_environment(known),
    )


def line_of(server: SoftwareServer) -> str:
    return python_line(server.endpoint, python=shlex.quote(sys.executable))


@pytest.mark.slow
def test_it_installs_and_starts_with_the_options_that_follow(
    server: SoftwareServer, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    done = typed(f"{line_of(server)} --no-http", home)
    invitation = server.endpoint.invitation
    assert done.stdout.splitlines()[-1] == f"started up --no-http {invitation}", done.stderr
    assert invitation.split("/")[1] not in done.stderr
    current = home / ".local/share/potluck/current"
    assert (home / ".local/bin/potluck").readlink() == current / "bin/potluck"
    # A second time nothing is fetched, or installed.
    place = current.resolve()
    (place / "kept").touch()
    server.requests.clear()
    again = typed(f"{line_of(server)} --service --no-http", home)
    assert again.stdout.splitlines()[-1].startswith("started service install -- --no-http ")
    assert (current / "kept").exists()
    assert server.requests == ["install.py", "describe.pyz", "software"]


@pytest.mark.slow
@pytest.mark.parametrize("program", ["curl", "wget"])
def test_a_shell_needs_curl_or_wget_alone(
    program: str, server: SoftwareServer, tmp_path: Path
) -> None:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"not shown: there is no {program}")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, target in ((program, found), ("sh", "/bin/sh"), ("python3", sys.executable)):
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.quote(target)} "$@"\n')
        (programs / name).chmod(0o755)
    line = f"{shell_line(server.endpoint)} -s -- --no-start"
    done = typed(line, tmp_path / "home", PATH=str(programs))
    assert done.returncode == 0, done.stderr
    assert "installed: " in done.stderr


@pytest.mark.slow
def test_what_is_not_as_it_was_said_is_not_installed(
    server: SoftwareServer, service: PlayedService, tmp_path: Path
) -> None:
    name = "potluck-0.1.0-py3-none-any.whl"
    data = service.wheels[name]
    service.wheels[name] = data[:-1] + bytes([data[-1] ^ 1])
    done = typed(line_of(server), tmp_path / "home")
    assert done.returncode == 1
    assert f"error: {name} is damaged" in done.stderr
    assert not list((tmp_path / "home").rglob("bin"))
    assert not list((tmp_path / "home").rglob(f"{name}*"))


@pytest.mark.slow
def test_a_download_goes_on_where_it_broke_off(
    server: SoftwareServer, service: PlayedService, tmp_path: Path
) -> None:
    store = tmp_path / "home/.cache/potluck/wheels"
    store.mkdir(parents=True)
    name = next(each for each in service.wheels if each.startswith("pip-"))
    (store / f"{name}.part").write_bytes(service.wheels[name][:100_000])
    done = typed(f"{line_of(server)} --no-start", tmp_path / "home")
    assert done.returncode == 0, done.stderr
    (request,) = (each for each in server.requests if each.endswith(name))
    assert request.split("/")[2] == "100000"


@pytest.mark.slow
def test_the_installation_before_the_last_is_removed(
    server: SoftwareServer, service: PlayedService, tmp_path: Path
) -> None:
    folder = tmp_path / "home/.local/share/potluck"
    places = []
    for _ in range(3):
        name = "potluck-0.1.0-py3-none-any.whl"
        service.wheels[name] = service.announced_wheels[name] = os.urandom(1000)
        done = typed(f"{line_of(server)} --no-start", tmp_path / "home")
        assert done.returncode == 0, done.stderr
        places.append((folder / "current").resolve())
    assert {each for each in folder.iterdir() if not each.is_symlink()} == set(places[1:])


@pytest.mark.slow
def test_another_server_is_told_nothing(
    server: SoftwareServer, service: PlayedService, tmp_path: Path
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    with software_server(service, folder) as other:
        for line in (line_of(server), shell_line(server.endpoint)):
            port, mitm = server.endpoint.port, other.endpoint.port
            done = typed(re.sub(rf"\b{port}\b", str(mitm), line), tmp_path / "home")
            assert not done.stdout
        assert other.requests == []


@pytest.mark.slow
def test_the_installer_knows_its_server_by_itself(
    server: SoftwareServer, service: PlayedService, tmp_path: Path
) -> None:
    """Its own connections are checked as that of the line is."""
    folder = tmp_path / "other"
    folder.mkdir()
    with software_server(service, folder) as other:
        endpoint = dataclasses.replace(server.endpoint, port=other.endpoint.port)
        program = tmp_path / "install.py"
        program.write_text(installer(endpoint))
        done = typed(f"{shlex.quote(sys.executable)} {program}", tmp_path / "home")
        assert done.returncode == 1
        assert "the server is not the one that made the invitation" in done.stderr
        assert other.requests == []


@pytest.mark.slow
def test_errors_of_the_node_are_said(
    server: SoftwareServer, service: PlayedService, tmp_path: Path
) -> None:
    service.lines = [{"note": "looking"}, {"error": "nothing fits", "hint": "buy another"}]
    done = typed(line_of(server), tmp_path / "home")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-3:] == ["looking", "error: nothing fits", "hint: buy another"]
    service.lines = [{"note": "looking"}]
    assert "stopped while" in typed(line_of(server), tmp_path / "home").stderr


def older_python() -> str:
    """A Python 3 before 3.11; the test is skipped where there is none."""
    named = (shutil.which(f"python3.{minor}") for minor in range(10, 5, -1))
    kept = Path.home().glob(".pyenv/versions/3.[6-9].*/bin/python")
    for found in (*filter(None, named), *map(str, kept)):
        done = subprocess.run(
            [found, "-c", "import ssl, sys; print(sys.executable)"],
            capture_output=True,
            text=True,
            check=False,
            env=child_environment(),
        )
        if done.returncode == 0:
            return done.stdout.strip()
    pytest.skip("not shown: there is no Python before 3.11")


@pytest.mark.slow
def test_an_older_python_says_what_is_needed(server: SoftwareServer, tmp_path: Path) -> None:
    line = python_line(server.endpoint, python=older_python())
    done = typed(line, tmp_path / "home", PATH="/nowhere")
    assert done.returncode == 1
    first, second = done.stderr.splitlines()
    assert re.fullmatch(r"error: Potluck needs Python 3\.11 or newer, and this is 3\.\d+", first)
    assert second.startswith("hint: install it (")


@pytest.mark.slow
def test_an_older_python_finds_a_newer_one(server: SoftwareServer, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python3.12").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    (programs / "python3.12").chmod(0o755)
    line = f"{python_line(server.endpoint, python=older_python())} --no-start"
    done = typed(line, tmp_path / "home", PATH=str(programs))
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_without_any_python_the_shell_says_how_to_get_one(
    server: SoftwareServer, tmp_path: Path
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    found = shutil.which("curl") or shutil.which("wget")
    if found is None:
        pytest.skip("not shown: there is neither curl nor wget")
    (programs / Path(found).name).symlink_to(found)
    (programs / "sh").symlink_to("/bin/sh")
    done = typed(shell_line(server.endpoint), tmp_path / "home", PATH=str(programs))
    assert done.returncode == 1
    assert "error: there is no Python here" in done.stderr
    assert "hint: " in done.stderr
