"""The hosts of a cluster as the command line reads them: a node may answer what it likes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from potluck.cli.wheel_hosts import SilentNode, gather_hosts
from potluck.cluster.agent import asking
from potluck.cluster.agent.state import StateDirectory
from potluck.portability.hosts.host import Host, HostGpu, HostLibrary
from potluck.portability.hosts.writing import host_document

BOARD = Host(
    name="board-3",
    origin="the files of Debian",
    machine="aarch64",
    libc="glibc",
    libc_version=(2, 36),
    is_complete=True,
    libraries=(
        HostLibrary(
            soname="libc.so.6", path="/libc.so.6", versions=frozenset(), needed=(), symbols=None
        ),
    ),
    other_libraries=frozenset({"libgone.so.1"}),
    cuda_version=(12, 2),
    gpus=(HostGpu(name="Orin", compute_capability=(8, 7)),),
)

Answers = dict[str, dict[str, str]]
Gather = Callable[[Answers], tuple[list[Host], list[SilentNode]]]


@pytest.fixture
def gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gather:
    answers: Answers = {}

    def ask(path: Path, method: str, params: dict[str, Any]) -> Iterator[dict[str, Any]]:
        assert (path, method, params) == (tmp_path / "control.sock", "hosts", {})
        yield from ({"event": {"node_id": node, **answer}} for node, answer in answers.items())
        yield {"result": None}

    def gather(given: Answers) -> tuple[list[Host], list[SilentNode]]:
        answers.update(given)
        return gather_hosts(StateDirectory(tmp_path))

    monkeypatch.setattr(asking, "ask", ask)
    return gather


def described(host: Host) -> dict[str, str]:
    return {"description": json.dumps(host_document(host))}


def test_descriptions_and_problems_in_order(gathered: Gather) -> None:
    other = replace(BOARD, name="board-1")
    hosts, silent = gathered(
        {
            "c": {"problem": "it left"},
            "a": described(BOARD),
            "d": described(other),
            "b": {"problem": "it is busy"},
        }
    )
    assert hosts == [other, BOARD]
    assert silent == [
        SilentNode(node_id="b", problem="it is busy"),
        SilentNode(node_id="c", problem="it left"),
    ]


def test_nodes_of_one_name_are_told_apart(gathered: Gather) -> None:
    other = replace(BOARD, name="board-1")
    hosts, _ = gathered({"b": described(BOARD), "a": described(BOARD), "c": described(other)})
    assert [each.name for each in hosts] == ["board-1", "board-3 (a)", "board-3 (b)"]


@pytest.mark.parametrize(
    "description", ["", "{", "\ufffd", "[" * 100_000, "7", "{}", '{"schema": "potluck.host/99"}']
)
def test_a_description_that_is_none_is_a_problem(gathered: Gather, description: str) -> None:
    hosts, (silent,) = gathered({"a": {"description": description}})
    assert hosts == []
    assert silent.node_id == "a"
    assert " is no" in silent.problem
    assert "\n" not in silent.problem
