"""Real agents whose state directory cannot be written, was copied, or is not text."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from support.cluster.agents import Fleet, acceptor_of, transfers_of
from support.kernels.build import not_shown
from support.processes.command import COMMAND, assert_refused, run_command
from support.processes.environment import environment
from support.processes.waiting import done_within, eventually

from potluck.catalog.locate import DEMO_DIRECTORY
from potluck.cluster.network.trust.secret import generate_secret
from potluck.errors import UsageError

ODD = os.fsdecode(b"odd-\xff")
"""A name that is not UTF-8."""


@contextmanager
def small_disk(path: Path) -> Iterator[Path]:
    """A disk of 64 KiB of its own at ``path``."""
    path.mkdir()
    mounting = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "none", str(path)],
        capture_output=True,
        check=False,
        text=True,
    )
    if mounting.returncode != 0:
        not_shown(f"no disk can be mounted here: {mounting.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(disk: Path) -> Path:
    """A file that takes what room there is."""
    path = disk / "filler"
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return path


def test_a_full_disk_is_named_and_leaves_nothing_that_refuses_the_next_start(
    tmp_path: Path, fleet: Fleet
) -> None:
    with small_disk(tmp_path / "agent-0") as disk:
        state = disk / "state"
        filler = fill(disk)
        for environ in ({}, {"POTLUCK_SECRET": fleet.secret}):
            refused = run_command("up", "--state", str(state), "--no-http", env=environ)
            assert_refused(refused, 1, "No space left on device", "free space on its disk")
        assert {path.name for path in state.rglob("*")} == {"lock", "tls", "workers"}
        filler.unlink()

        agent = fleet.start(0, has_http=False).await_up()
        filler = fill(disk)
        failed = agent.command_line("deploy", "demo", "--context", "64")
        assert_refused(failed, 1, "No space left on device", "free space")
        acceptor = acceptor_of(agent)
        eventually(
            lambda: set(psutil.Process(agent.pid).children()) == {acceptor, *transfers_of(agent)},
            within=5,
            what="no worker is left",
        )
        assert list((state / "workers").iterdir()) == []
        assert agent.cluster()["deployments"] == []
        filler.unlink()
        assert agent.deploy(context=64)["state"] == "ready"
        assert "Traceback" not in agent.log


def test_a_disk_that_is_read_only_is_named(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        (disk / "state").mkdir(mode=0o700)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        refused = run_command("up", "--state", str(disk / "state"), "--no-http")
        assert_refused(refused, 1, "Read-only file system", "writable disk")


@pytest.mark.parametrize("name", ["node-id", "workers", "control.sock"])
def test_what_is_in_a_files_place_is_one_line(tmp_path: Path, name: str) -> None:
    """A folder where a file should be, and a file where a folder should be."""
    path = tmp_path / name
    if name in ("workers", "tls"):
        path.touch()
    else:
        path.mkdir()
    refused = run_command("up", "--state", str(tmp_path), "--no-http", "--threads", "1")
    assert_refused(refused, 1, str(path), "--state")


def test_a_directory_that_everybody_can_write_to_is_refused(tmp_path: Path) -> None:
    """With a note that would have an unrelated process ended."""
    (tmp_path / "state" / "workers").mkdir(parents=True)
    (tmp_path / "state").chmod(0o777)
    refused = run_command("up", "--state", str(tmp_path / "state"), "--no-http")
    assert_refused(refused, 2, "can be written to by everybody", "chmod go-w")


def test_no_child_has_the_secret(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = fleet.start(0, has_http=False, environ={"HF_TOKEN": "hub-token"}).await_up()
    agent.deploy(context=64)
    children = psutil.Process(agent.pid).children(recursive=True)
    workers = [each for each in children if each.pid in agent.workers()]
    assert workers
    for child in children:
        names = child.environ()
        assert fleet.secret not in "".join(names.values())
        # These fetch weights.
        may_fetch = child in (*workers, *transfers_of(agent))
        assert names.get("HF_TOKEN") == ("hub-token" if may_fetch else None)
    assert stat.S_IMODE(agent.state.stat().st_mode) == 0o700
    assert stat.S_IMODE((agent.state / "control.sock").stat().st_mode) == 0o600


def test_paths_that_are_not_text_are_used_or_refused_in_one_line(
    tmp_path: Path, fleet: Fleet
) -> None:
    odd = tmp_path / ODD
    shutil.copytree(DEMO_DIRECTORY, odd / "demo")
    (odd / "secret").write_text(generate_secret())
    shown = str(odd).encode("utf-8", "backslashreplace").decode()

    refused = run_command("up", "--state", str(odd / "state"), "--no-http")
    assert_refused(refused, 2, f"{shown}/state", "--state")
    used = subprocess.run(
        [*COMMAND, "run", str(odd / "demo"), "--context", "64", "--max-tokens", "2"],
        input=b"Once",
        env=environment(),
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert used.returncode == 0, used.stderr

    secret = ["--secret-file", str(odd / "secret")]
    agent = fleet.start(0, *secret, has_http=False, environ={"POTLUCK_SECRET": ""}).await_up()
    refused = agent.command_line("deploy", str(odd / "demo"))
    assert_refused(refused, 2, "is not UTF-8", "another name")
    for method, params in (
        ("plan", {"model": str(odd / "demo")}),
        ("deploy", {"model": "demo", "model_id": ODD}),
        ("undeploy", {"name": ODD}),
    ):
        with pytest.raises(UsageError, match="is not UTF-8"):
            agent.ask(method, **params)
    assert "Traceback" not in agent.log


def test_a_copied_state_directory_is_told_whose_it_is_and_how_to_get_its_own(
    fleet: Fleet,
) -> None:
    """As a copied SD card: the other node goes on with what it serves."""
    first, second = fleet.start_all(range(2), has_http=False)
    second.deploy(context=64)
    before = first.cluster()["deployments"]
    time.sleep(2)  # of two that have run for about as long, either might go on
    copy = first.state.parent / "copy"
    shutil.copytree(second.state, copy, ignore=shutil.ignore_patterns("control.sock"))
    for joined in (first, second):
        options = ("--state", str(copy), "--no-http", "--threads", "1", "--join", joined.address)
        with done_within(10):  # with all that Python takes to start and end
            refused = run_command("up", *options, env={"POTLUCK_SECRET": fleet.secret})
        assert refused.returncode == 1
        lines = refused.stderr.splitlines()
        assert f"is in use by the agent at {second.address}" in lines[-2], refused.stderr
        assert "--new-node-id" in lines[-1]
    eventually(
        lambda: f"also uses this node's id {second.node_id}" in second.log,
        within=2,
        what="it is told",
    )
    assert first.cluster()["deployments"] == before
    assert len(second.workers()) == 1

    fleet.start(7, "--state", str(copy), "--new-node-id", join=first, has_http=False).await_up()
    new_id = (copy / "node-id").read_text().strip()
    eventually(
        lambda: first.members() == {first.node_id, second.node_id, new_id},
        within=5,
        what="the copy takes part under an id of its own",
    )
