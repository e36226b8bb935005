"""``potluck deploy --cache-disk``: prompts that are known after a redeployment and a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.agents import AgentProcess, Fleet, await_ready, eventually, no_end

WORDS = "the small boat crossed the quiet lake before the storm came over the hills "
PROMPT = WORDS * 20


def answer(agent: AgentProcess, prompt: str = PROMPT) -> tuple[str, int, int]:
    """The text, and how many tokens the prompt has and how many of them were in the cache."""
    with agent.client() as client:
        done: Any = client.completions.create(
            model="demo", prompt=prompt, max_tokens=8, temperature=0, logit_bias=no_end()
        )
    usage = done.usage
    details = usage.prompt_tokens_details
    return (
        done.choices[0].text,
        usage.prompt_tokens,
        0 if details is None else details.cached_tokens or 0,
    )


def deploy(agent: AgentProcess, disk_bytes: int) -> None:
    agent.ask("deploy", model="demo", objective="memory", cache_disk_bytes=disk_bytes)
    await_ready(agent, "demo")


def test_a_prompt_survives_a_redeployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over two stages, each with a folder of its own; and damage costs time only."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "potluck" / "kv"
    with Fleet(tmp_path / "fleet") as fleet:
        first = fleet.start(0, memory_limit="400M").await_up()
        second = fleet.start(1, memory_limit="400M", join=first).await_up()
        fleet.await_members()
        deploy(first, 0)
        expected, num_tokens, num_cached = answer(first)
        assert num_cached == 0
        num_blocks = (num_tokens - 1) // 16
        assert num_blocks > 12
        assert not folder.exists()
        first.ask("undeploy", name="demo")

        deploy(first, 2**30)
        assert answer(first) == (expected, num_tokens, 0)
        eventually(
            lambda: all(len(list(each.glob("*.block"))) >= num_blocks for each in folder.iterdir()),
            within=10,
            what="the blocks are on disk",
        )
        assert len(list(folder.iterdir())) == 2
        first.ask("undeploy", name="demo")

        deploy(second, 2**30)
        assert answer(first) == (expected, num_tokens, 16 * num_blocks)
        assert answer(second, PROMPT + "and")[2] >= 16 * num_blocks
        second.ask("undeploy", name="demo")

        for stage in folder.iterdir():
            for block in sorted(stage.glob("*.block"))[:2]:
                data = bytearray(block.read_bytes())
                data[-1] ^= 1
                block.write_bytes(data)
        deploy(first, 2**30)
        text, _, num_cached = answer(first)
        assert text == expected
        assert num_cached % 16 == 0
        assert num_cached < 16 * num_blocks
        first.ask("undeploy", name="demo")
