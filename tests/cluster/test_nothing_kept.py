"""Nodes without room on a disk stream what their stages read straight into memory."""

from __future__ import annotations

import shutil

from support.cluster.agents import Fleet, measured_cache, no_end
from support.processes.waiting import eventually

from potluck.catalog.locate import DEMO_DIRECTORY

CONTEXT = 64


def test_a_deployment_without_stores(fleet: Fleet) -> None:
    homes = [fleet.directory / f"home-{number}" for number in range(3)]
    agents = []
    for number, home in enumerate(homes):
        home.mkdir()
        agents.append(
            fleet.start(
                number,
                join=fleet.agents.get(0) if number else None,
                environ={"XDG_CACHE_HOME": measured_cache(home / "cache")},
                folder=home,
            ).await_up()
        )
    shutil.copytree(DEMO_DIRECTORY, homes[0] / "model")
    fleet.await_members()
    first = agents[0]

    def text(number: int) -> str:
        with agents[number].client() as client:
            answer = client.completions.create(
                model="m", prompt="Once", max_tokens=12, temperature=0, logit_bias=no_end()
            )
        return answer.choices[0].text

    def stored_bytes(number: int) -> int:
        folder = homes[number] / "cache" / "potluck" / "weights"
        return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())

    def deploy(*, keeps: bool) -> list[str]:
        everyone = {agent.node_id for agent in agents}

        def is_on_all() -> bool:
            """A node is left out, too, that a busy machine has kept silent for a second."""
            deployed = first.ask(
                "deploy",
                model="./model",
                model_id="m",
                context_tokens=CONTEXT,
                objective="memory",
                keep_weights=keeps,
            )
            if {stage["node_id"] for stage in deployed["stages"]} == everyone:
                return True
            assert deployed["rejections"] == []
            first.ask("undeploy", name="m")
            return False

        eventually(is_on_all)
        return [text(number) for number in range(3)]

    streamed = deploy(keeps=False)
    weights = (DEMO_DIRECTORY / "model.safetensors").stat().st_size
    assert all(stored_bytes(number) < weights / 20 for number in (1, 2))
    first.ask("undeploy", name="m")
    assert deploy(keeps=True) == streamed
    assert all(stored_bytes(number) > weights / 20 for number in (1, 2))
    assert len(set(streamed)) == 1
