from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "huggingface_hub",
    "jinja2",
    "llguidance",
    "numpy",
    "potluck.api",
    "potluck.kernels",
    "potluck.placement.place",
    "prometheus_client",
    "rich",
    "starlette",
    "tinygrad",
    "tokenizers",
    "uvicorn",
)
"""What only clients, planning, text and computing need. With NumPy and the solver an agent takes
14 MB more."""

_AGENT = (
    "potluck.cli.up",
    "potluck.cluster.agent.config",
    "potluck.cluster.agent.control",
    "potluck.cluster.agent.gateway",
    "potluck.cluster.agent.service",
)
"""What ``potluck up --no-http`` imports."""


def loaded_after(*lines: str) -> list[str]:
    """Return what is loaded of ``HEAVY`` in a process that ran ``lines``."""
    script = "\n".join((*lines, "import sys", f"print(*(set({HEAVY}) & set(sys.modules)))"))
    completed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    return completed.stdout.split()


@pytest.mark.slow
def test_an_agent_without_http_that_checks_a_model_for_another_loads_nothing_heavy() -> None:
    imports = [f"import {module}" for module in _AGENT]
    check = "from potluck.catalog import describe_model; describe_model('demo')"
    assert loaded_after(*imports, check) == []


@pytest.mark.slow
def test_an_agent_that_plans_loads_the_solver() -> None:
    assert "numpy" in loaded_after("import potluck.placement.placing")
