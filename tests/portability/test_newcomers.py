"""From the line typed on a machine with nothing but a Python to a node that serves: in namespaces
that no packet leaves, so that all software comes from the node that invites.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster.agents import AgentProcess, Fleet
from support.network.netns import Host, lan, require_namespaces
from support.portability.roots import require_root
from support.portability.wheel_build import BUILD_SECONDS, built_wheels
from support.processes.waiting import eventually

from potluck.cluster.invitations.software.service import SoftwareService, description_program

pytestmark = pytest.mark.timeout(BUILD_SECONDS)

INSTALL_SECONDS = 240.0
DEFAULT_URL = "http://127.0.0.1:7334"
PROMPT = "The fox"

_POST = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1] + "/v1/completions", sys.argv[2].encode())
request.add_header("Content-Type", "application/json")
print(urllib.request.urlopen(request, timeout=60).read().decode())
"""


@pytest.fixture
def hosts() -> Iterator[tuple[Host, ...]]:
    require_namespaces()
    with lan(3) as hosts:
        yield hosts


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path / "fleet") as fleet:
        yield fleet


class Newcomer:
    """A machine: a root in a namespace, with a home of its own."""

    def __init__(self, name: str, host: Host, folder: Path) -> None:
        self.host = host
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self.root = dataclasses.replace(require_root(name), shared={"home": self.home})
        self._log = folder / "log"

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def description(self) -> bytes:
        """What the installer would send."""
        program = self.home / "describe.pyz"
        program.write_bytes(description_program())
        done = self.root.run("/usr/bin/python3", "-I", "/mnt/home/describe.pyz")
        assert done.returncode == 0, done.stderr
        return done.stdout.encode()

    @contextlib.contextmanager
    def typed(self, line: str) -> Iterator[subprocess.Popen[bytes]]:
        """The line runs, until it is interrupted at the end."""
        with (
            self._log.open("wb") as log,
            subprocess.Popen(
                self.command("/bin/sh", "-c", line),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
                start_new_session=True,
            ) as process,
        ):
            try:
                yield process
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(30)
                finally:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)

    def potluck(self, *arguments: str) -> str:
        """What the installed program says, asked by the name that a shell finds it by."""
        done = subprocess.run(
            self.command("/mnt/home/.local/bin/potluck", *arguments),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=environment(),
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def command(self, *command: str) -> list[str]:
        return self.host.command(*self.root.command_line(*command))


def environment() -> dict[str, str]:
    return {"HOME": "/mnt/home", "PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C.UTF-8"}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def inviting(fleet: Fleet, host: Host, cache: Path) -> AgentProcess:
    environ = {"POTLUCK_SECRET": "", "XDG_CACHE_HOME": str(cache)}
    return fleet.start(0, "--lan", prefix=host.command(), environ=environ).await_up()


def fetch_before(newcomer: Newcomer, wheels: Path, cache: Path) -> None:
    """Have the store hold what fits the newcomer, as after an earlier one of its kind."""
    environ = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    SoftwareService([wheels], environ).choose(newcomer.description(), lambda message: None)


def test_two_lines_make_two_machines_nodes_that_serve(
    hosts: tuple[Host, ...], fleet: Fleet, tmp_path: Path, cache: Path
) -> None:
    """Debian 12 by the line for a shell, with wget; Ubuntu 24.04 by that for Python."""
    debian = Newcomer("bookworm-amd64-newcomer", hosts[1], tmp_path / "debian")
    ubuntu = Newcomer("noble-amd64-newcomer", hosts[2], tmp_path / "ubuntu")
    wheels = built_wheels()[0].parent
    for newcomer in (debian, ubuntu):
        fetch_before(newcomer, wheels, cache)
    first = inviting(fleet, hosts[0], cache)
    made = first.command_line("invite", "--json", "--uses", "2", "--wheels", str(wheels))
    assert made.returncode == 0, made.stderr
    invitation = json.loads(made.stdout)
    lines = invitation["lines"]
    with debian.typed(lines["shell"]) as one, ubuntu.typed(lines["python"]) as other:

        def are_members() -> bool:
            assert one.poll() is None, debian.log
            assert other.poll() is None, ubuntu.log
            return len(first.members()) == 3

        eventually(are_members, within=INSTALL_SECONDS, what="the newcomers are members")
        for newcomer in (debian, ubuntu):
            shown = json.loads(newcomer.potluck("ps", "--json"))
            assert {each["node_id"] for each in shown["nodes"]} == first.members()
            assert invitation["token"] not in newcomer.log
        deployed = first.deploy(context=64, cache=64)
        assert len({stage["node_id"] for stage in deployed["stages"]}) == 3
        urls = (first.url, DEFAULT_URL, DEFAULT_URL)
        texts = {complete(host, url) for host, url in zip(hosts, urls, strict=True)}
    assert len(texts) == 1
    assert texts.pop().strip()


def complete(host: Host, url: str) -> str:
    """What the node of a host answers to a client there."""
    body = {"model": "demo", "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    done = subprocess.run(
        host.command(sys.executable, "-c", _POST, url, json.dumps(body)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    text: str = answer["choices"][0]["text"]
    return text
