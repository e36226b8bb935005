"""Clients as they are published, unmodified, against an agent with the demo model.

``make`` installs them into ``build/clients``, from ``requirements.txt`` and ``node``; what is not
installed is not shown. Each runs all of its cases in one process (``programs``), and its first test
waits for them: half a minute beside other tests. The model answers through grammars: it is too
small to know what a tool is.
"""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.cluster.agents import Fleet
from support.processes.environment import environment
from support.processes.waiting import eventually

HERE = Path(__file__).parent
CLIENTS = HERE.parents[1] / "build" / "clients"
PYTHON = CLIENTS / "bin" / "python"
NODE_MODULES = CLIENTS / "node" / "node_modules"
LEAST_NODE = 20
SECONDS = 120
pytestmark = pytest.mark.timeout(300)

TALKS = ("streamed", "tool", "schema")
CASES = {
    "openai": (
        *TALKS,
        *("responses_streamed", "responses_tool", "responses_schema", "completions_streamed"),
    ),
    "anthropic": (*TALKS, "parsed", "count"),
    "ollama": (*TALKS, "generate_streamed", "models"),
    "litellm": (*TALKS, "anthropic_streamed", "ollama_streamed"),
    "langchain": (*TALKS, "function_schema", "responses_streamed"),
    "instructor": ("streamed_schema", "function_schema", "schema", "anthropic_schema"),
    "pydantic_ai": TALKS,
    "llm": TALKS,
    "node": (*TALKS, "responses_streamed", "responses_tool"),
}
SHARED = json.loads((HERE / "cases.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Fleet(tmp_path_factory.mktemp("clients")) as fleet:
        agent = fleet.start(1).await_up()
        agent.deploy("demo")
        yield agent.url
        # No request of any client has left a block in use.
        eventually(
            lambda: agent.metric("potluck_kv_blocks", model="demo", state="used") == 0,
            within=10,
            what="all blocks are free or kept for later prompts",
        )
        assert "Traceback" not in agent.log


def node_version(node: str) -> int:
    """Return Node's major version."""
    completed = subprocess.run([node, "--version"], capture_output=True, text=True, check=True)
    return int(completed.stdout.strip().removeprefix("v").partition(".")[0])


@functools.cache
def found(client: str, url: str) -> dict[str, Any]:
    """What a client's program reports of its cases."""
    if client == "node":
        node = shutil.which("node")
        if node is None or not NODE_MODULES.exists():
            pytest.skip("not shown: Node, or its client in build/clients/node, is not installed")
        if node_version(node) < LEAST_NODE:
            pytest.skip(f"not shown: its client needs Node {LEAST_NODE}")
        # A module finds its packages beside itself.
        program = shutil.copy(HERE / "node" / "openai_sdk.mjs", NODE_MODULES.parent)
        command = [node, program, url]
    else:
        if not PYTHON.exists():
            pytest.skip("build/clients is not installed: make build/clients/.installed")
        command = [str(PYTHON), str(HERE / "programs" / f"{client}_client.py"), url]
    completed = subprocess.run(
        [*command, str(HERE / "cases.json")],
        env=environment(LITELLM_LOCAL_MODEL_COST_MAP="True", LANGSMITH_TRACING="false"),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    reported: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
    return reported


@pytest.mark.parametrize(
    ("client", "case"), [(client, case) for client, cases in CASES.items() for case in cases]
)
def test_a_client(client: str, case: str, url: str) -> None:
    reported = found(client, url)
    assert set(reported) == set(CASES[client])
    result = reported[case]
    assert "error" not in result, result["error"]
    _check(case.split("_")[-1], result["value"])


def _check(kind: str, value: Any) -> None:
    if kind == "streamed":
        assert len(value["whole"]) > 20
        assert value["streamed"] == value["whole"]
    elif kind == "tool":
        assert value["name"] == SHARED["tool"]
        jsonschema.validate(value["arguments"], SHARED["schema"])
        assert isinstance(value["answer"], str)
    elif kind in ("schema", "parsed"):
        jsonschema.validate(value, SHARED["schema"])
    elif kind == "count":
        assert value["counted"] == value["used"] > 0
    else:
        assert kind == "models"
        assert value["listed"] == value["running"] == ["demo"]
        assert "completion" in value["capabilities"]
