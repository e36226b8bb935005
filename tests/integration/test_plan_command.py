"""``potluck plan --fleet`` as it is run: no agent, no network, text or JSON."""

from __future__ import annotations

import json
from pathlib import Path

from support.processes.command import run_command
from support.schemas import validate_document

FLEET = """
[[machines]]
name = "desktop"
memory = "16 GiB"
read_bandwidth = "50 GB/s"
[[machines]]
name = "board"
count = 2
memory = "4 GiB"
read_bandwidth = "4 GB/s"
"""


def plan(tmp_path: Path, *options: str, text: str = FLEET) -> tuple[int, str, str]:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    state = {"POTLUCK_STATE": str(tmp_path / "nobody")}
    done = run_command("plan", "demo", "--fleet", str(path), *options, env=state)
    return done.returncode, done.stdout, done.stderr


def test_a_fleet_is_planned_with_nothing_running(tmp_path: Path) -> None:
    code, out, err = plan(tmp_path, "--for", "latency", "--streams", "4")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == [
        "STAGE",
        "NODE",
        "UNIT",
        "LAYERS",
        "MEMORY",
        "STEP",
        "ms",
        "HOP",
        "ms",
    ]
    assert lines[2].startswith("0      desktop  cpu/native")
    assert any(line.startswith("4 streams ") for line in lines)
    (unused,) = [line for line in lines if line.startswith("not used: ")]
    assert unused.startswith("not used: board-1, board-2 cpu/native: would add ")
    assert unused.endswith(" ms per token")
    assert not (tmp_path / "nobody").exists()


def test_its_document_fits_the_schema(tmp_path: Path) -> None:
    code, out, err = plan(tmp_path, "--json", "--for", "throughput", "--layout", "board-2=12")
    assert (code, err) == (0, "")
    document = json.loads(out)
    validate_document(document)
    assert document["objective"] == "throughput"
    assert [stage["end_layer"] for stage in document["stages"]] == [12]


def test_a_wrong_key_is_a_wrong_use(tmp_path: Path) -> None:
    code, out, err = plan(tmp_path, text=FLEET + "speed = 3\n")
    assert (code, out) == (2, "")
    message, hint = err.splitlines()
    assert message.endswith("fleet.toml: machines[1] (board): unknown key speed")
    assert hint.startswith("hint: ")


def test_a_wrong_layout_is_a_wrong_use(tmp_path: Path) -> None:
    code, _, err = plan(tmp_path, "--layout", "desktop=3")
    assert code == 2
    assert "--layout has 3 layers, but the model has 12" in err


def test_a_model_that_does_not_fit_is_a_failure(tmp_path: Path) -> None:
    text = '[[machines]]\nname = "a"\nmemory = "1 GiB"\nusable_memory = "20 MiB"\n'
    code, out, err = plan(tmp_path, text=text)
    assert (code, out) == (1, "")
    assert "the model needs" in err
