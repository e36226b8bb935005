from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from potluck.host.child_environment import SECRET_VARIABLE
from potluck.host.python_child import start_child

CHILD = """
import json, os, sys
document = {
    "arguments": sys.argv[1:-1],
    "is_leader": os.getpgid(0) == os.getpid(),
    "input": sys.stdin.read(),
    "names": sorted(os.environ),
}
os.write(int(sys.argv[-1]), json.dumps(document).encode())
"""


@pytest.mark.slow
@pytest.mark.parametrize("may_fetch", [False, True])
def test_a_child_gets_descriptors_and_a_process_group_but_no_secrets(
    may_fetch: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tells_what_it_got.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv(SECRET_VARIABLE, "s")
    monkeypatch.setenv("HF_TOKEN", "t")
    ours, theirs = os.pipe()

    async def run() -> int:
        child = await start_child(
            "tells_what_it_got", "a", "b c", str(theirs), descriptors=[theirs], may_fetch=may_fetch
        )
        return await child.wait()

    with os.fdopen(ours) as reading:
        try:
            assert asyncio.run(run()) == 0
        finally:
            os.close(theirs)
        document = json.load(reading)
    names = document.pop("names")
    assert document == {"arguments": ["a", "b c"], "is_leader": True, "input": ""}
    assert SECRET_VARIABLE not in names
    assert ("HF_TOKEN" in names) == may_fetch
