from __future__ import annotations

import subprocess
import sys

import pytest

from potluck.models.family import FAMILY_NAMES

NOT_NEEDED = (
    "asyncio",
    "cryptography",
    "highspy",
    "huggingface_hub",
    "jinja2",
    "llguidance",
    "potluck.api",
    "potluck.cluster.agent",
    "potluck.cluster.coordinator",
    "potluck.cluster.network.membership",
    "potluck.placement.solver",
    "potluck.scheduling.scheduler",
    "potluck.text",
    "potluck.types.hardware",
    "potluck.types.node",
    "psutil",
    "rich",
    "scipy",
    "starlette",
    "subprocess",
    "tinygrad",
    "tokenizers",
    "typer",
    "zenoh",
)
"""What only agents, clients, planning and text need. Those that workers used to import took a fifth
of the time in which a worker starts."""


def loaded_by_a_worker() -> set[str]:
    """Return what is loaded in a worker that has described the built-in model."""
    script = (
        "import sys, potluck.cluster.worker.process\n"
        "from potluck.catalog import describe_model\n"
        "describe_model('demo')\n"
        "print(*sys.modules)"
    )
    completed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    return set(completed.stdout.split())


@pytest.mark.slow
def test_a_worker_loads_only_what_it_needs_and_the_family_of_its_model() -> None:
    loaded = loaded_by_a_worker()
    assert not loaded & set(NOT_NEEDED)
    modules = {location.partition(".")[0] for location in FAMILY_NAMES}
    assert {name for name in modules if f"potluck.models.{name}" in loaded} == {"llama"}
