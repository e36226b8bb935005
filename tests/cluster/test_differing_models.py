"""One path, other files on one node: other weights get no stage, another tokenizer no client."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import openai
import pytest
from support.cluster.agents import Fleet
from support.kernels.build import not_shown

from potluck.catalog.locate import DEMO_DIRECTORY

CONTEXT = 64


def seen_instead(path: Path, other: Path) -> tuple[str, ...]:
    """The command that goes on where ``path`` is what lies in ``other``."""
    if os.geteuid() != 0:
        not_shown("only root can mount another folder for one process")
    script = 'mount --bind "$0" "$1"; shift; exec "$@"'
    return ("unshare", "--mount", "sh", "-c", script, str(other), str(path))


def test_nodes_compare_weights_and_gateways_tokenizers(tmp_path: Path) -> None:
    model = Path(shutil.copytree(DEMO_DIRECTORY, tmp_path / "model"))
    other = Path(shutil.copytree(DEMO_DIRECTORY, tmp_path / "other"))
    with (other / "tokenizer_config.json").open("a") as file:
        file.write("\n")
    with Fleet(tmp_path) as fleet:
        first = fleet.start(0).await_up()
        second = fleet.start(1, join=first, prefix=seen_instead(model, other)).await_up()
        fleet.await_members()

        deployed = first.deploy(str(model), name="m", context=CONTEXT)
        assert {stage["node_id"] for stage in deployed["stages"]} == {first.node_id, second.node_id}
        with first.client() as client:
            assert client.completions.create(model="m", prompt="Once", max_tokens=2).usage
        with second.client() as client, pytest.raises(openai.APIStatusError) as refused:
            client.completions.create(model="m", prompt="Once", max_tokens=2)
        assert refused.value.status_code == 503
        assert "tokenizer" in refused.value.message
        for agent in (first, second):
            shown = agent.command_line("ps").stdout
            assert f"refuses requests: {second.node_id}: this node's tokenizer" in shown

        # The same agents, a file that has been written to: nothing old is believed.
        first.ask("undeploy", name="m")
        weights = other / "model.safetensors"
        data = bytearray(weights.read_bytes())
        start = 8 + int.from_bytes(data[:8], "little")
        data[start:] = bytes(byte ^ 1 for byte in data[start:])
        weights.write_bytes(data)
        deployed = first.deploy(str(model), name="m", context=CONTEXT)
        assert {stage["node_id"] for stage in deployed["stages"]} == {first.node_id}
        reasons = {each["node_id"]: each["reason"] for each in deployed["rejections"]}
        suffix = "differ from those of the coordinator: different weights"
        assert reasons[second.node_id].endswith(suffix)
