"""Messages of commands that wait for the agent of a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from potluck.cli import cluster


@pytest.mark.parametrize(
    ("is_alone", "text"),
    [
        (False, "draining: handing requests and stages over to other nodes"),
        (True, "draining: finishing requests; there is no other node to hand them over to"),
    ],
)
def test_down_says_what_becomes_of_requests(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    is_alone: bool,
    text: str,
) -> None:
    event = {"is_draining": True, "is_alone": is_alone}
    monkeypatch.setattr(cluster, "ask", lambda *_: iter([{"event": event}, {"result": None}]))
    cluster.down(tmp_path)
    assert capsys.readouterr().err.splitlines() == [text, "this node has left the cluster"]
