"""``potluck deploy --cache-disk``: prompts that are known after a redeployment and a restart."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.cluster.agents import AgentProcess, Fleet, await_ready, measured_cache, no_end
from support.models.small_lfm2 import SLOT_BYTES, write_small_lfm2
from support.processes.waiting import eventually

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
    """Over two stages, each with a folder of its own; without the option nothing is written."""
    monkeypatch.setenv("XDG_CACHE_HOME", measured_cache(tmp_path / "cache"))
    folder = tmp_path / "cache" / "potluck" / "kv"
    with two_nodes(tmp_path / "fleet") as (first, second):
        deploy(first, 0)
        expected, num_tokens, num_cached = answer(first)
        assert num_cached == 0
        num_blocks = (num_tokens - 1) // 16
        assert num_blocks > 12
        assert not folder.exists()
        first.ask("undeploy", name="demo")

        deploy(first, 2**30)
        assert answer(first) == (expected, num_tokens, 0)
        eventually(lambda: is_kept(folder, num_blocks), within=10, what="it is on disk")
        first.ask("undeploy", name="demo")

        deploy(second, 2**30)
        assert answer(first) == (expected, num_tokens, 16 * num_blocks)
        assert answer(second, PROMPT + "and")[2] >= 16 * num_blocks
        second.ask("undeploy", name="demo")


def test_a_prompt_survives_the_loss_of_a_stage_and_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker is killed; then both agents are; and damage to the files costs time only."""
    monkeypatch.setenv("XDG_CACHE_HOME", measured_cache(tmp_path / "cache"))
    folder = tmp_path / "cache" / "potluck" / "kv"
    with two_nodes(tmp_path / "fleet") as (first, second):
        deploy(first, 2**30)
        expected, num_tokens, _ = answer(first)
        num_known = (num_tokens - 1) // 16 * 16
        eventually(lambda: is_kept(folder, num_known // 16), within=10, what="it is on disk")
        (worker,) = second.workers()
        os.kill(worker, signal.SIGKILL)
        assert answer(first) == (expected, num_tokens, num_known)
        assert worker not in second.workers()
    damaged = sorted(folder.rglob("*.block"))[0]
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    with two_nodes(tmp_path / "again") as (first, _):
        deploy(first, 2**30)
        text, _, num_cached = answer(first)
        assert text == expected
        assert num_cached % 16 == 0
        assert num_cached < num_known
        eventually(lambda: is_kept(folder, num_known // 16), within=10, what="it is on disk again")
    with two_nodes(tmp_path / "once more") as (first, _):
        deploy(first, 2**30)
        assert answer(first) == (expected, num_tokens, num_known)


def test_states_survive_a_redeployment_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model with short convolutions: the prompt goes on from the checkpoint near its end."""
    monkeypatch.setenv("XDG_CACHE_HOME", measured_cache(tmp_path / "cache"))
    folder = tmp_path / "cache" / "potluck" / "kv"
    model = write_small_lfm2(tmp_path / "model")
    with Fleet(tmp_path / "fleet") as fleet:
        agent = fleet.start(0).await_up()

        def deploy_it() -> None:
            agent.ask("deploy", model=model, model_id="demo", cache_disk_bytes=2**30)
            await_ready(agent, "demo")

        deploy_it()
        expected, num_tokens, num_cached = answer(agent)
        num_kept = (num_tokens - 8) // 16 * 16
        assert num_cached == 0
        assert num_kept > 128
        assert answer(agent) == (expected, num_tokens, num_kept), "in memory"
        assert agent.metric("potluck_prefix_cache_checkpoint_hits_total", model="demo") == 1
        assert agent.metric("potluck_state_slots", model="demo", state="live") == 0
        assert agent.metric("potluck_state_bytes", model="demo", state="checkpoint") >= SLOT_BYTES
        eventually(lambda: list(folder.glob("*-states/*.block")), within=10, what="it is on disk")
        agent.ask("undeploy", name="demo")
        deploy_it()
        assert answer(agent) == (expected, num_tokens, num_kept)


def test_a_folder_that_cannot_be_used_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is served as without the option."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", measured_cache(cache))
    (cache / "potluck").mkdir(parents=True, exist_ok=True)
    (cache / "potluck" / "kv").write_text("not a folder", encoding="ascii")
    with Fleet(tmp_path / "fleet") as fleet:
        agent = fleet.start(0).await_up()
        deploy(agent, 2**30)
        expected, num_tokens, _ = answer(agent)
        assert answer(agent) == (expected, num_tokens, num_tokens - 1)
        for _ in range(3):
            assert agent.metric("potluck_kv_blocks", model="demo", state="used") == 0
        assert agent.log.count("demo stores no cache blocks on disk, because node") == 1


def is_kept(folder: Path, num_blocks: int) -> bool:
    """Whether both stages have as many blocks."""
    stages = list(folder.iterdir())
    return len(stages) == 2 and all(
        len(list(stage.glob("*.block"))) >= num_blocks for stage in stages
    )


@contextmanager
def two_nodes(directory: Path) -> Iterator[tuple[AgentProcess, AgentProcess]]:
    with Fleet(directory) as fleet:
        first = fleet.start(0, memory_limit="400M").await_up()
        second = fleet.start(1, memory_limit="400M", join=first).await_up()
        fleet.await_members()
        yield first, second
