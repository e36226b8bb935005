"""What commands import before they do anything."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HEAVY = {
    "asyncio",
    "cryptography",
    "numpy",
    "potluck.catalog",
    "potluck.cluster.agent.control",
    "potluck.cluster.agent.service",
    "potluck.kernels",
    "potluck.local",
    "potluck.placement.layout",
    "potluck.types.program",
    "rich.console",
    "zenoh",
}
"""What agents and models need. Together they took a command half a second."""


def loaded_after(*arguments: str) -> set[str]:
    """Return the modules that are loaded when ``potluck ARGUMENTS`` ends."""
    script = (
        "import sys\n"
        "from potluck.cli.main import main\n"
        "try:\n"
        f"    main({list(arguments)})\n"
        "finally:\n"
        "    print(*sys.modules, file=sys.stderr)\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "XDG_STATE_HOME": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return set(completed.stderr.split())


@pytest.mark.slow
@pytest.mark.parametrize("command", ["ps", "nodes", "rebalance", "down"])
def test_commands_that_ask_the_agent_load_neither_agents_nor_models(command: str) -> None:
    assert not HEAVY & loaded_after(command)


@pytest.mark.slow
def test_texts_and_paths_load_nothing_to_convert_them() -> None:
    loaded = loaded_after("up", "--state", "/dev/null", "--listen", "127.0.0.1:0")
    assert "potluck.cli.up" in loaded
    assert "pydantic_core" not in loaded


def test_the_version_needs_no_command() -> None:
    assert not HEAVY & loaded_after("--version")


@pytest.mark.slow
def test_help_loads_the_commands_without_what_they_run() -> None:
    assert HEAVY & loaded_after("--help") <= {"asyncio", "potluck.types.program"}
