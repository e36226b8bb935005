"""Deploying a broken model: one line that says what is wrong, and no worker for it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from support.cluster.agents import Fleet
from support.processes.command import assert_refused

from potluck.catalog.locate import DEMO_DIRECTORY


def test_no_worker_is_left_of_a_broken_model(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(DEMO_DIRECTORY, broken)
    os.truncate(broken / "model.safetensors", 15_000_000)
    with Fleet(tmp_path) as fleet:
        agent = fleet.start(0).await_up()
        refused = agent.command_line("deploy", str(broken), "--context", "64")
        assert_refused(refused, 1, "truncated: tensor 'model.", "again")
        assert str(broken / "model.safetensors") in refused.stderr
        assert agent.workers() == set()
        assert agent.cluster()["deployments"] == []
        deployed = agent.command_line("deploy", "demo", "--context", "64")
        assert deployed.returncode == 0, deployed.stderr
        assert len(agent.workers()) == 1
