"""``potluck doctor`` on this machine, where something that is installed does not load."""

from __future__ import annotations

import json
from pathlib import Path

from support.processes.command import run_command
from support.processes.hidden_modules import hide

SRC = Path(__file__).resolve().parents[3] / "src"

LOAD_ERROR = "libstdc++.so.6: version `GLIBCXX_3.4.21' not found"


def test_packages_that_do_not_load_are_explained_by_what_still_runs(tmp_path: Path) -> None:
    """The doctor, and what it imports, does without them."""
    path = f"{hide(tmp_path / 'site', 'zenoh', 'numpy')}:{SRC}"
    env = {"PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path)}
    completed = run_command("doctor", "--json", "--state", str(tmp_path / "state"), env=env)
    assert completed.returncode == 1, completed.stderr
    assert completed.stderr == ""
    findings = json.loads(completed.stdout)["findings"]
    builds = [each for each in findings if each["check"] == "build"]
    for package, loss in (
        ("numpy", "nothing can be computed"),
        ("eclipse-zenoh", "this node cannot join a cluster"),
    ):
        (finding,) = (each for each in builds if each["message"].startswith(f"{package} "))
        expected = f" is installed but cannot be loaded ({LOAD_ERROR}): without it {loss}"
        assert finding["message"].endswith(expected)
        assert finding["severity"] == "prevents"
        assert finding["command"].startswith("pip install --force-reinstall --no-deps ")
    assert not [each for each in findings if each["check"] in ("self-test", "doctor")]
