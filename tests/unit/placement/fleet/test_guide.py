"""What docs/guides/planning.md says of fleet files is true, and its examples work."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from support.models.sparse_models import SparseModel
from support.placement.fleets import probe_document

from potluck.cli.plan import plan_lines
from potluck.placement.fleet.file import read_fleet
from potluck.placement.fleet.keys import FLEET, LINKS, MACHINE, PAIR, UNIT, Probed, Table
from potluck.placement.fleet.planning import plan_fleet
from potluck.placement.links import NETWORK
from potluck.placement.speed import unit_speed
from potluck.types.hardware import Figure, Figures, Origin, Rates

GUIDE = Path(__file__).parents[4] / "docs" / "guides" / "planning.md"
TEXT = GUIDE.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("table", [FLEET, MACHINE, LINKS, PAIR], ids=lambda table: table.words)
def test_every_key_is_in_the_guide_as_errors_explain_it(table: Table) -> None:
    for key in table.keys:
        assert f"| `{key.name}` | {key.meaning} | `{key.example}` |" in TEXT


def test_the_keys_of_units_are_those_of_machines() -> None:
    assert set(UNIT.keys) <= set(MACHINE.keys)


@pytest.mark.slow
def test_the_first_example_is_planned_and_shown_as_the_guide_says(tmp_path: Path) -> None:
    path = tmp_path / "home.toml"
    path.write_text(EXAMPLES[0])
    lines = list(plan_lines(msgspec.to_builtins(plan_fleet(path, {"model": "demo"}, None))))
    sample = TEXT.partition("$ potluck plan llama-8b.gguf --fleet home.toml\n")[2]
    shown = sample.partition("```")[0].splitlines()
    assert lines[0].split() == shown[0].split()
    for title in ("1 stream ", "8 streams ", "first token ", "accuracy ", "one unit more "):
        assert any(line.startswith(title) for line in shown)
        assert any(line.startswith(title) for line in lines)


@pytest.mark.slow
def test_the_example_of_a_group_is_as_the_guide_says(tmp_path: Path) -> None:
    model = SparseModel(
        hidden_size=4096,
        intermediate_size=14336,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        vocab_size=128256,
        max_context_tokens=131072,
        has_tied_head=False,
        stored="Q4_0",
    )
    fleet = GUIDE.parents[2] / "benchmarks" / "fleets" / "raspberry-pi-5.toml"
    params = {"model": str(model.write(tmp_path)), "context_tokens": 2048}
    shown = "\n".join(plan_lines(msgspec.to_builtins(plan_fleet(fleet, params, None))))
    sample = TEXT.partition("--fleet raspberry-pi-5.toml --context 2048\n")[2]
    lines = [line for line in sample.partition("```")[0].splitlines() if line not in ("", "…")]
    assert len(lines) == 13
    for line in lines:
        # What a stage takes besides weights and cache may change a little.
        pattern = re.sub(r"\d\\\.\d+/", r"\\d\\.\\d+/", re.escape(line))
        assert re.search(f"^{pattern}$", shown, re.MULTILINE), line
    for number in (1, 2, 3, 8):
        path = tmp_path / "boards.toml"
        path.write_text(fleet.read_text().replace("count = 4", f"count = {number}"))
        document = plan_fleet(path, params, None)
        prediction, first = document.prediction, document.stages[0].predicted
        assert prediction is not None
        assert first is not None
        row = f"| {number} | {prediction.tokens_per_second:.1f}"
        assert row in TEXT
        assert f"| {prediction.token_seconds * 1000:.0f} ms" in TEXT
        if number > 1:
            exchanges = first.exchange_seconds
            assert f", of which exchanges {exchanges * 1000:.0f} ms" in TEXT


def test_the_other_example_is_read(tmp_path: Path) -> None:
    (tmp_path / "desktop.json").write_text(json.dumps(probe_document()))
    path = tmp_path / "fleet.toml"
    path.write_text(EXAMPLES[1])
    fleet = read_fleet(path)
    assert len(EXAMPLES) == 2
    assert all(isinstance(machine.description, Probed) for machine in fleet.machines)
    assert [len(machine.names) for machine in fleet.machines] == [1, 2]


def test_what_plans_count_on_is_as_the_guide_says() -> None:
    given = Figure(value=1e11, origin=Origin.TABLE, source="a data sheet")
    speed = unit_speed(
        Rates(),
        Figures(read_bytes_per_second=given),
        is_shared=True,
    )
    assert speed.read.value == pytest.approx(0.4 * 1e11)
    assert "plans use 40 % of a figure from a data sheet" in " ".join(TEXT.split())
    assert (NETWORK.latency_seconds, NETWORK.bytes_per_second) == (0.3e-3, 100e6)
    assert "0.3 ms and 100 MB/s are assumed" in " ".join(TEXT.split())
