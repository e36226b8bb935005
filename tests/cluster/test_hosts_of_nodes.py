"""What a cluster's nodes are to builds: each describes itself, and who cannot is named."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster.agents import AgentProcess, Fleet
from support.kernels.build import require_tool
from support.portability.local_index import local_index
from support.portability.wheel_bytes import write_wheel
from support.processes.waiting import eventually
from support.schemas import validate_document

from potluck.cluster.agent.asking import ask
from potluck.portability.hosts.document import read_host
from potluck.portability.hosts.installed import describe_host
from potluck.portability.hosts.writing import MAX_DOCUMENT_BYTES

CANNOT = (
    sys.executable,
    "-c",
    "import potluck.probe.node_host as node_host; "
    "node_host._MODULE = 'potluck.probe.children.nowhere'; "
    "from potluck.cli.main import main; main()",
)
"""Potluck where the child that describes the machine fails."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[AgentProcess, AgentProcess]]:
    """Two nodes; the second cannot describe itself."""
    with Fleet(tmp_path_factory.mktemp("hosts")) as fleet:
        sound = fleet.start(0, has_http=False).await_up()
        broken = fleet.start(1, join=sound, has_http=False, command=CANNOT).await_up()
        fleet.await_members()
        yield sound, broken


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A shared library that loads here."""
    path = tmp_path / "plain.so"
    command = [require_tool("gcc"), "-shared", "-nostdlib", "-xc", "/dev/null", "-o", str(path)]
    subprocess.run(command, check=True)
    return path


def test_every_node_describes_itself_or_says_why_not(
    pair: tuple[AgentProcess, AgentProcess],
) -> None:
    sound, broken = pair
    *events, end = ask(broken.state / "control.sock", "hosts", {})
    assert end == {"result": None}
    answers = {each["event"]["node_id"]: each["event"] for each in events}
    assert set(answers) == {sound.node_id, broken.node_id}
    description = answers[sound.node_id]["description"]
    assert len(description.encode()) <= MAX_DOCUMENT_BYTES
    document = json.loads(description)
    validate_document(document)
    host, here = read_host(document), describe_host()
    assert (host.machine, host.libc_version) == (here.machine, here.libc_version)
    names = [(each.soname, each.versions, each.needed) for each in here.libraries]
    assert [(each.soname, each.versions, each.needed) for each in host.libraries] == names
    assert host.libraries[1].symbols == here.libraries[1].symbols  # the C library's
    assert answers[broken.node_id]["description"] == ""
    assert "No module named" in answers[broken.node_id]["problem"]


def test_packages_are_planned_for_every_node(
    pair: tuple[AgentProcess, AgentProcess], tmp_path: Path
) -> None:
    sound, broken = pair
    with local_index(tmp_path / "files") as index:
        for version in ("1.0", "2.0"):
            write_wheel(
                index.folder,
                name="app",
                version=version,
                tag="py3-none-any",
                metadata="Requires-Dist: lib\n",
            )
        write_wheel(index.folder, name="lib", tag="py3-none-any")
        completed = sound.command_line(
            *("wheel", "plan", "app", "--cluster", "--json"), environ=index.environment(tmp_path)
        )
        assert completed.returncode == 1, "a node did not answer"
        document = json.loads(completed.stdout)
        validate_document(document)
        (host,) = document["hosts"]
        assert host["machine"] == describe_host().machine
        (own,) = document["own"]
        assert own["host"] == host["name"]
        assert [(each["name"], each["version"]) for each in own["wheels"]] == [
            ("app", "2.0"),
            ("lib", "1.0"),
        ]
        assert document["problems"] == []
        (silent,) = document["silent"]
        assert silent["node_id"] == broken.node_id
        assert silent["problem"].startswith("cannot describe this machine: ")
        completed = sound.command_line(
            *("wheel", "plan", "app", "--cluster"), environ=index.environment(tmp_path)
        )
        assert completed.returncode == 1
        assert f"node {broken.node_id} did not describe its host: " in completed.stdout


def test_a_wheel_is_checked_on_every_node(
    pair: tuple[AgentProcess, AgentProcess], library: Path
) -> None:
    sound, broken = pair
    completed = sound.command_line("wheel", "check", str(library), "--cluster", "--json")
    assert completed.returncode == 1, completed.stderr
    document = json.loads(completed.stdout)
    validate_document(document)
    (report,) = document["wheels"]
    assert [each["verdict"] for each in report["hosts"]] == ["loads"]
    (silent,) = document["silent"]
    assert silent["node_id"] == broken.node_id
    assert silent["problem"].startswith("cannot describe this machine: ")
    broken.end()
    alone = {sound.node_id}
    eventually(lambda: sound.members() == alone, within=20, what="the other node has left")
    completed = sound.command_line("wheel", "check", str(library), "--cluster")
    assert completed.returncode == 0, completed.stderr
