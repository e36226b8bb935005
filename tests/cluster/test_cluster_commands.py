"""``up``, ``deploy``, ``plan``, ``ps``, ``undeploy`` and ``down`` as their users meet them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest
from support.processes.command import run_command
from support.processes.waiting import eventually
from support.schemas import validate_document

from potluck.cluster.agent.asking import RemoteError, ask
from potluck.cluster.agent.state import StateDirectory
from potluck.cluster.network.acceptor.supervisor import ACCEPTOR_MODULE
from potluck.cluster.network.trust.secret import generate_secret
from potluck.cluster.transfer.supervisor import TRANSFER_MODULE

SECONDS = 60


def environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("POTLUCK")}
    return {**kept, **changes}


def fails(*arguments: str, **changes: str) -> tuple[int, str]:
    """The exit code, and the error line with its hint: nothing else is printed."""
    completed = run_command(*arguments, env=changes)
    lines = completed.stderr.splitlines()
    assert completed.stdout == ""
    assert lines[0].startswith("potluck: "), completed.stderr
    assert [line.partition(":")[0] for line in lines] == ["potluck", "hint"], completed.stderr
    return completed.returncode, completed.stderr


class AgentProcess:
    def __init__(self, state: Path, secret: str, *options: str) -> None:
        self.state = state
        self.errors = state.with_suffix(".stderr")
        with self.errors.open("w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "potluck", "up", "--state", str(state), *options],
                env=environment(POTLUCK_SECRET=secret),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        assert self.address, self.errors.read_text()

    def json(self, schema: str, *arguments: str) -> dict[str, Any]:
        completed = run_command(*arguments, "--json", "--state", str(self.state))
        assert completed.returncode == 0, completed.stderr
        document: dict[str, Any] = json.loads(completed.stdout)
        validate_document(document, schema)
        return document

    def state_document(self) -> dict[str, Any]:
        *_, document = ask(self.state / "control.sock", "state", {})
        result: dict[str, Any] = document["result"]
        return result

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.send_signal(signal.SIGCONT)
            try:
                self.process.wait(SECONDS)
            finally:
                self.process.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def agent(state: Path, secret: str, *options: str) -> Iterator[AgentProcess]:
    started = AgentProcess(state, secret, *options)
    try:
        yield started
    finally:
        started.end()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[AgentProcess, AgentProcess]]:
    """Two agents in one cluster; the second has too little memory for a stage."""
    directory = tmp_path_factory.mktemp("agents")
    secret = generate_secret()
    with agent(directory / "a", secret, "--http", "127.0.0.1:0", "--threads", "1") as first:
        (own,) = first.json("cluster", "ps")["nodes"]
        options = ("--join", own["address"], "--no-http", "--memory-limit", "1M")
        with agent(directory / "b", secret, *options) as second:
            eventually(lambda: len(first.state_document()["nodes"]) == 2)
            yield first, second


def test_documents_fit_their_schemas_from_any_agent(
    pair: tuple[AgentProcess, AgentProcess],
) -> None:
    first, second = pair
    plan = second.json("plan", "plan", "demo", "--context", "256")
    assert [stage["end_layer"] for stage in plan["stages"]] == [12]
    (left_out,) = plan["rejections"]
    assert "1 MiB usable" in left_out["reason"]
    options = ("--name", "tales", "--context", "256", "--recovery-wait", "7.5")
    others = ("--no-prefix-cache", "--target-step-ms", "50", "--draft", "off")
    deployed = second.json("deploy", "deploy", "demo", *options, *others)
    assert deployed["recovery_wait_seconds"] == 7.5
    assert deployed["num_spares"] == 0
    assert (deployed["prefix_cache"], deployed["target_step_ms"]) == (False, 50.0)
    assert deployed["draft"] == "off"
    assert deployed["state"] == "ready"
    assert deployed["model_id"] == "tales"
    only_loaded = ("prefill", "progress", "read_bytes", "load_seconds", "predicted")
    placed = [
        {name: value for name, value in stage.items() if name not in only_loaded}
        for stage in deployed["stages"]
    ]
    only_planned = ("usable_bytes", "predicted")
    planned = [
        {name: value for name, value in stage.items() if name not in only_planned}
        for stage in plan["stages"]
    ]
    assert placed == planned
    seen = first.json("cluster", "ps")
    assert [each["model_id"] for each in seen["deployments"]] == ["tales"]
    with urllib.request.urlopen(f"{first.address}/cluster", timeout=SECONDS) as response:
        served = json.load(response)
    validate_document(served, "cluster")
    assert served["deployments"] == seen["deployments"]
    gone = run_command("undeploy", "tales", "--state", str(first.state))
    assert gone.stderr == "tales is undeployed\n"
    assert first.json("cluster", "ps")["deployments"] == []


def test_the_plan_says_who_is_left_out_and_why(pair: tuple[AgentProcess, AgentProcess]) -> None:
    completed = run_command("plan", "demo", "--state", str(pair[0].state))
    (line,) = [line for line in completed.stdout.splitlines() if line.startswith("not used: ")]
    assert "cpu/native: 1 MiB usable, but one layer needs" in line


def test_a_plan_predicts_speed_and_follows_a_layout(
    pair: tuple[AgentProcess, AgentProcess],
) -> None:
    first, _ = pair
    options = ("--context", "256", "--for", "throughput", "--streams", "4")
    plan = first.json("plan", "plan", "demo", *options)
    assert (plan["objective"], plan["num_streams"]) == ("throughput", 4)
    assert plan["prediction"]["num_streams"] == 4
    assert plan["stages"][0]["predicted"]["decode_seconds"] > 0
    node = plan["stages"][0]["node_id"]
    laid_out = first.json("plan", "plan", "demo", "--context", "256", "--layout", f"{node}=12")
    assert laid_out["has_layout"]
    for layout, message in (
        (f"{node}=11", "--layout has 11 layers, but the model has 12"),
        ("nobody=12", "unknown node nobody"),
        (f"{node}/gpu=12", f"{node} has no unit gpu"),
        ("12", "is not a stage"),
    ):
        for command in ("plan", "deploy"):
            arguments = (command, "demo", "--layout", layout, "--state", str(first.state))
            refused = run_command(*arguments)
            assert refused.returncode != 0
            assert message in refused.stderr
    assert first.json("cluster", "ps")["deployments"] == []


def test_a_schema_refuses_what_it_does_not_know() -> None:
    with pytest.raises(jsonschema.ValidationError):
        validate_document({"schema": "potluck.plan/1", "model": "demo"})


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("deploy", "/nowhere"), "/nowhere"),
        (("deploy", "demo", "--context", "1"), "context is 1, but must be an integer from 2"),
        (("deploy", "demo", "--context", "64", "--cache", "63"), "a cache of 63 tokens"),
        (("plan", "demo", "--context", "100000"), "a context of 100000 tokens"),
        (("deploy", "demo", "--spares", "65"), "spares is 65, but must be an integer from 0"),
        (("deploy", "demo", "--recovery-wait", "nan"), "recovery_wait is nan, but must be"),
        (("deploy", "demo", "--recovery-wait", "-1"), "recovery_wait is -1.0, but must be"),
        (("undeploy", "nothing"), "nothing is deployed as nothing"),
    ],
)
def test_what_the_agent_refuses(
    pair: tuple[AgentProcess, AgentProcess],
    arguments: tuple[str, ...],
    named: str,
) -> None:
    status, stderr = fails(*arguments, "--state", str(pair[0].state))
    assert status == 2
    assert named in stderr


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"target_step_ms": 0}, "target_step_ms is 0.0, but must be a number from 1 to 60000"),
        ({"prefix_cache": 1}, "malformed request"),
        ({"draft": "org/small"}, "org/small is not in the local cache"),
        ({"num_spares": 65}, "spares is 65, but must be an integer from 0 to 64"),
        ({"recovery_wait_seconds": 1e6}, "must be a number of seconds from 0 to 86400"),
        ({"recovery_wait_seconds": "soon"}, "malformed request"),
    ],
)
def test_an_agent_checks_what_no_command_asks(
    pair: tuple[AgentProcess, AgentProcess], params: dict[str, object], named: str
) -> None:
    path = StateDirectory(pair[0].state).control_socket
    with pytest.raises(RemoteError, match=named) as error:
        list(ask(path, "deploy", {"model": "demo", **params}))
    assert error.value.exit_code == 2


def test_a_second_agent_does_not_take_a_directory_or_a_port(
    pair: tuple[AgentProcess, AgentProcess], tmp_path: Path
) -> None:
    first, _ = pair
    status, stderr = fails("up", "--state", str(first.state))
    assert status == 2
    assert "already running" in stderr
    taken = first.address.removeprefix("http://")
    status, stderr = fails("up", "--state", str(tmp_path / "c"), "--http", taken)
    assert status == 1
    assert "Address already in use" in stderr
    assert "--http HOST:PORT" in stderr


@pytest.mark.parametrize(
    "command", [("ps",), ("plan", "demo"), ("deploy", "demo"), ("undeploy", "demo"), ("down",)]
)
def test_commands_without_an_agent(tmp_path: Path, command: tuple[str, ...]) -> None:
    status, stderr = fails(*command, "--state", str(tmp_path))
    assert status == 2
    assert "no agent runs here" in stderr
    assert "potluck up" in stderr
    with socket.socket(socket.AF_UNIX) as dead:  # what an agent that was killed leaves
        dead.bind(str(tmp_path / "control.sock"))
    assert fails(*command, "--state", str(tmp_path))[1] == stderr


SHORT = "correct-horse-battery-staple"


@pytest.mark.parametrize(
    ("arguments", "secret", "named"),
    [
        (("--lan", "--join", "127.0.0.1:1"), None, "cannot be used together"),
        (("--join", "nowhere:x"), None, "HOST:PORT"),
        (("--join", "127.0.0.1:1"), None, "joining a cluster requires its secret"),
        (("--no-http",), SHORT, "too weak"),
        (("--no-http", "--secret-file", "/nowhere/secret"), None, "/nowhere/secret"),
        (("--no-http", "--api-key-file", "keys"), None, "--no-http"),
        (("--http", "7334"), None, "--http 7334"),
        (("--http", "0.0.0.0:0"), None, "no API keys are set"),
        (("--memory-limit", "much"), None, "--memory-limit much"),
        (("--listen", "box.local:1"), None, "box.local"),
        (("--listen", "0.0.0.0"), None, "0.0.0.0"),
        (("--threads", "0"), None, "--threads"),
    ],
)
def test_up_refuses_what_makes_no_sense(
    tmp_path: Path,
    arguments: tuple[str, ...],
    secret: str | None,
    named: str,
) -> None:
    given = {} if secret is None else {"POTLUCK_SECRET": secret}
    status, stderr = fails("up", "--state", str(tmp_path / "state"), *arguments, **given)
    assert status == 2
    assert named in stderr
    assert SHORT not in stderr


def test_up_says_when_the_state_directory_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    status, stderr = fails("up", "--state", str(tmp_path / "file"))
    assert status == 1
    assert str(tmp_path / "file") in stderr
    status, stderr = fails("up", "--state", str(tmp_path / ("x" * 100)))
    assert status == 2
    assert "too long" in stderr


def test_up_says_when_the_node_id_is_spoilt(tmp_path: Path) -> None:
    (tmp_path / "node-id").write_text("me\n")
    status, stderr = fails("up", "--state", str(tmp_path), "--no-http")
    assert status == 2
    assert f"{tmp_path / 'node-id'} does not contain a node id" in stderr


def children(process: int) -> list[psutil.Process]:
    return psutil.Process(process).children(recursive=True)


def test_down_leaves_in_order(tmp_path: Path) -> None:
    with agent(tmp_path / "a", generate_secret(), "--http", "127.0.0.1:0") as alone:
        alone.json("deploy", "deploy", "demo", "--context", "64")
        workers = children(alone.process.pid)
        assert len(workers) > 1  # and the acceptor
        down = run_command("down", "--state", str(alone.state))
        assert down.returncode == 0
        assert down.stderr.splitlines()[-1] == "this node has left the cluster"
        assert alone.process.wait(SECONDS) == 0
        assert not any(worker.is_running() for worker in workers)
        assert not (alone.state / "control.sock").exists()


def test_a_second_ctrl_c_ends_at_once_and_leaves_no_worker(tmp_path: Path) -> None:
    with agent(tmp_path / "a", generate_secret(), "--http", "127.0.0.1:0") as alone:
        alone.json("deploy", "deploy", "demo", "--context", "64")
        workers = children(alone.process.pid)
        assert len(workers) > 1  # and the acceptor
        # A Ctrl-C while one of them still imports would end it with a traceback.
        assert alone.process.pid not in {os.getpgid(worker.pid) for worker in workers}
        alone.process.send_signal(signal.SIGSTOP)  # so that both are pending
        os.killpg(alone.process.pid, signal.SIGTERM)
        os.killpg(alone.process.pid, signal.SIGINT)
        alone.process.send_signal(signal.SIGCONT)
        assert alone.process.wait(SECONDS) in (128 + signal.SIGINT, 128 + signal.SIGTERM)
        assert psutil.wait_procs(workers, timeout=20)[1] == []


def test_ctrl_c_undoes_a_deployment(tmp_path: Path) -> None:
    with agent(tmp_path / "a", generate_secret(), "--http", "127.0.0.1:0") as alone:
        alone.process.send_signal(signal.SIGSTOP)  # so that it is surely not done yet
        deploying = subprocess.Popen(
            [sys.executable, "-m", "potluck", "deploy", "demo", "--state", str(alone.state)],
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        eventually(lambda: psutil.Process(deploying.pid).net_connections(kind="unix"))
        deploying.send_signal(signal.SIGINT)
        _, stderr = deploying.communicate(timeout=SECONDS)
        assert deploying.returncode == 130
        assert stderr == "interrupted: removing what was deployed so far\n"
        alone.process.send_signal(signal.SIGCONT)
        for _ in range(4):  # it would be deployed by then
            time.sleep(0.5)
            last = alone.state_document()["deployments"]
        assert last == []
        kept = [each.cmdline() for each in children(alone.process.pid)]
        for module in (ACCEPTOR_MODULE, TRANSFER_MODULE):
            assert sum(module in each for each in kept) == 1, kept
        assert len(kept) == 2, kept
