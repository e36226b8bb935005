"""An agent that leaves while a thread is still in Zenoh."""

from __future__ import annotations

import sys
from pathlib import Path

from support.cluster.agents import Fleet
from support.cluster.zenoh_threads import BUSY_IN_ZENOH

COMMAND = (sys.executable, "-c", BUSY_IN_ZENOH + "from potluck.cli.main import main; main()")


def test_it_still_exits_with_0(tmp_path: Path) -> None:
    with Fleet(tmp_path) as fleet:
        agent = fleet.start(0, has_http=False, command=COMMAND).await_up()
        assert agent.end() == 0, agent.log
        assert "FATAL" not in agent.log


def test_and_with_1_if_it_cannot_listen(tmp_path: Path) -> None:
    with Fleet(tmp_path) as fleet:
        first = fleet.start(0, has_http=False).await_up()
        second = fleet.start(1, "--listen", first.address, has_http=False, command=COMMAND)
        assert second.process.wait(30) == 1, second.log
        assert "hint: " in second.log
