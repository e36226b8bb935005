"""``potluck serve`` as its users meet it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import signal
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from support.cluster.agents import POTLUCK, AgentProcess, Fleet, await_ready
from support.processes.waiting import eventually

SECONDS = 60


class ServeProcess(AgentProcess):
    """``potluck serve`` in a process of its own."""

    def __init__(
        self, directory: Path, environ: Mapping[str, str], arguments: Sequence[str]
    ) -> None:
        # ``up``, which the class adds, is a value of the option --name.
        super().__init__(
            9, directory, environ, [], [*POTLUCK, "serve", *arguments, "--threads", "1", "--name"]
        )

    def await_ready(self) -> str:
        """Wait until it has printed its address, and return that."""

        def is_ready() -> bool:
            assert self.process.poll() is None, self.log
            return "\n" in self.output

        eventually(is_ready, within=SECONDS, what="the model is served")
        return self.url


@contextlib.contextmanager
def served(fleet: Fleet, *arguments: str, **changes: str) -> Iterator[ServeProcess]:
    process = ServeProcess(
        fleet.directory / "serve",
        fleet.environ(**changes),
        ["demo", "--http", "127.0.0.1:0", *arguments],
    )
    try:
        yield process
    finally:
        process.clean_up()


def models(url: str) -> dict[str, str]:
    with urllib.request.urlopen(f"{url}/v1/models", timeout=SECONDS) as answer:
        return {each["id"]: each["state"] for each in json.load(answer)["data"]}


def test_the_address_comes_when_the_model_is_ready_and_ctrl_c_ends_all(tmp_path: Path) -> None:
    with Fleet(tmp_path) as fleet, served(fleet, "--context", "64") as process:
        url = process.await_ready()
        assert models(url) == {"up": "ready"}
        assert process.output == f"{url}\n"
        assert "up is ready on 1 stage\n" in process.log
        with process.client() as client:
            answer = client.completions.create(model="up", prompt="Once", max_tokens=4)
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 4
        workers = process.workers()
        assert workers
        assert process.end(signal.SIGINT) == 0
        assert not process.workers()


def test_a_model_that_is_not_there_ends_the_agent_too(tmp_path: Path) -> None:
    with Fleet(tmp_path) as fleet:
        process = ServeProcess(
            tmp_path / "serve", fleet.environ(), [str(tmp_path), "--http", "127.0.0.1:0"]
        )
        try:
            assert process.process.wait(SECONDS) != 0
            assert process.output == ""
            *_, error, hint = process.log.splitlines()
            assert error.startswith("potluck: "), process.log
            assert hint.startswith("hint: "), process.log
        finally:
            process.clean_up()


def test_wrong_options_are_told_before_anything_starts(tmp_path: Path) -> None:
    for wrong in (["--spares", "-1"], ["--lan", "--join", "127.0.0.1:1"], ["--json"]):
        completed = subprocess.run(
            [*POTLUCK, "serve", "demo", "--state", str(tmp_path / "state"), *wrong],
            env=Fleet(tmp_path).environ(),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert completed.returncode == 2, completed.stderr
        assert completed.stderr.startswith("potluck: ")
        assert not (tmp_path / "state").exists()


def test_it_joins_a_cluster_and_leaves_nothing_there(tmp_path: Path) -> None:
    with Fleet(tmp_path) as fleet:
        first = fleet.start(1).await_up()
        with served(fleet, "--join", first.address, "--for", "memory") as process:
            process.await_ready()
            deployment = await_ready(first, "up")
            assert {each["node_id"] for each in deployment["stages"]} == {
                first.node_id,
                process.node_id,
            }
            assert first.workers()
            assert process.end(signal.SIGINT) == 0
            assert first.deployment("up") is None
            eventually(lambda: not first.workers(), within=20, what="its stage is gone")


def test_down_hands_the_model_over(tmp_path: Path) -> None:
    with Fleet(tmp_path) as fleet:
        first = fleet.start(1).await_up()
        with served(fleet, "--join", first.address) as process:
            process.await_ready()
            assert process.command_line("down").returncode == 0
            assert process.process.wait(SECONDS) == 0
            deployment = await_ready(first, "up")
            assert {each["node_id"] for each in deployment["stages"]} == {first.node_id}


def test_clients_are_served_https_with_the_clusters_authority(tmp_path: Path) -> None:
    with Fleet(tmp_path) as fleet, served(fleet, "--tls", "auto") as process:
        url = process.await_ready()
        assert url.startswith("https://127.0.0.1:")
        authority = process.state / "tls" / "authority.pem"
        assert f"clients that trust {authority}" in process.log
        der = ssl.PEM_cert_to_DER_cert(authority.read_text())
        fingerprint = hashlib.sha256(der).digest().hex(":").upper()
        assert f"TLS authority: SHA-256 {fingerprint}" in process.log
        context = ssl.create_default_context(cafile=str(authority))
        with urllib.request.urlopen(f"{url}/health/ready", timeout=SECONDS, context=context) as ok:
            assert ok.status == 200
        assert f"clients: {url}" in process.command_line("ps").stdout
