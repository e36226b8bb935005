"""What ``potluck doctor`` prints, and its exit code."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from support.machines.doctor_cases import NATIVE, a_case, a_gpu, a_report, a_system
from support.schemas import validate_document

from potluck.cli import doctor
from potluck.cli.doctor import gather, report
from potluck.cluster.agent.state import StateDirectory
from potluck.probe.doctor.case import Case, Cluster, Peer
from potluck.types.hardware import ProbeReport
from potluck.types.node_names import NodeNames

NO_AGENT = "no agent runs here: checks that involve other nodes need potluck up\n"


def a_machine_without_a_driver(root: Path, *, is_used: bool) -> Case:
    gpu = a_gpu("Intel", "Arc A770", "")
    others = {} if is_used else {"backends": (NATIVE,)}
    return a_case(a_system(root), a_report(gpu, container="docker"), **others)


def test_nothing_stands_in_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster(node_id="a" * 16, address="127.0.0.1:1", peers=())
    assert report(a_case(a_system(tmp_path), cluster=cluster), as_json=False) == 0
    assert capsys.readouterr() == ("no problems found\n", "")
    assert report(a_case(a_system(tmp_path)), as_json=False) == 0
    assert capsys.readouterr() == ("no problems found\n", NO_AGENT)


def test_nodes_are_called_by_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kitchen, other = "b" * 16, "c" * 16
    peers = (Peer(node_id=kitchen, problem="timeout"), Peer(node_id=other, is_heard=False))
    case = a_case(
        a_system(tmp_path),
        cluster=Cluster(
            node_id="a" * 16,
            address="127.0.0.1:1",
            peers=peers,
            silent_pairs=((kitchen, other),),
        ),
    )
    names = NodeNames({kitchen: "pi5-kitchen", other: ""})
    assert report(case, names, as_json=False) == 1
    out, _ = capsys.readouterr()
    assert "node pi5-kitchen does not respond: timeout\n" in out
    assert f"pi5-kitchen and {other}. Plans" in out
    assert f"multicast of node {other} does" in out
    assert kitchen not in out


@pytest.mark.parametrize(("is_used", "status", "word"), [(True, 1, "prevents"), (False, 0, "note")])
def test_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_used: bool, status: int, word: str
) -> None:
    assert report(a_machine_without_a_driver(tmp_path, is_used=is_used), as_json=False) == status
    out, _ = capsys.readouterr()
    assert out.splitlines() == [
        f"{word}: Intel Arc A770 is present, but no driver is bound to it",
        "  fix: sudo modprobe -a xe i915",
        "       (on the host: a container uses the host's drivers)",
    ]


def test_the_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(a_machine_without_a_driver(tmp_path, is_used=True), as_json=True) == 1
    out, err = capsys.readouterr()
    document = json.loads(out)
    validate_document(document)
    assert err == ""
    assert document == {
        "schema": "potluck.doctor/1",
        "is_cluster_checked": False,
        "findings": [
            {
                "check": "driver",
                "severity": "prevents",
                "message": "Intel Arc A770 is present, but no driver is bound to it",
                "command": "sudo modprobe -a xe i915",
                "details": "on the host: a container uses the host's drivers",
                "device_id": "pci-0000:01:00.0",
            }
        ],
    }


def test_an_agent_that_this_user_may_not_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "is_socket", refuse)
    assert doctor._ask_agent(StateDirectory(tmp_path))[0] is None


@pytest.mark.slow
def test_everything_is_gathered_without_an_agent_and_without_a_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = a_system(tmp_path)

    def probe() -> ProbeReport:
        return a_report()

    case, _ = gather(system, probe, (NATIVE,), cache_root=tmp_path / "c", state=tmp_path / "s")
    assert case.cluster is None
    assert case.network is not None
    assert {folder.path for folder in case.folders} >= {tmp_path / "c", tmp_path / "s"}
    assert case.missing_folder == ""

    def no_home() -> Path:
        raise RuntimeError("no home")

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    case, _ = gather(system, probe, (NATIVE,), cache_root=None, state=None)
    assert case.missing_folder == "there is no home directory for the node's state"
