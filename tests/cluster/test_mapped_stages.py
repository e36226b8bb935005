"""``potluck deploy --mmap``: stages whose weights are in a file, and a file that shrinks."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
from support.cluster.agents import Fleet, await_ready, measured_cache, no_end
from support.processes.waiting import eventually

from potluck import Model
from potluck.engines.native.engine import choose_isa
from potluck.kernels import fast_formats

PROMPT = "Once upon a time"


def test_a_mapped_deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over two nodes that share a cache; it answers as one process does, and mends itself."""
    monkeypatch.setenv("XDG_CACHE_HOME", measured_cache(tmp_path / "cache"))
    packed = tmp_path / "cache" / "potluck" / "packed"
    with Model.open("demo") as model:
        bias = {int(token): value for token, value in no_end().items()}
        expected = model.generate(PROMPT, max_tokens=12, temperature=0.0, logit_bias=bias)
        text = expected.result().text
    with Fleet(tmp_path / "fleet") as fleet:
        first = fleet.start(0, memory_limit="400M").await_up()
        second = fleet.start(1, memory_limit="400M", join=first).await_up()
        fleet.await_members()
        planned = first.command_line("plan", "demo", "--mmap")
        assert "weights are memory-mapped and do not count as used memory" in planned.stdout
        loaded = first.ask("plan", model="demo", is_mapped=False, objective="memory")
        deployment = first.ask(
            "deploy", model="demo", is_mapped=True, arithmetic="fast", objective="memory"
        )
        assert deployment["is_mapped"] is True
        isa = choose_isa(None)
        assert deployment["arithmetic"] == (isa if "bf16" in fast_formats(isa) else "exact")
        assert len(deployment["stages"]) == 2
        mapped_bytes = sum(stage["num_bytes"] for stage in deployment["stages"])
        loaded_bytes = sum(stage["num_bytes"] for stage in loaded["stages"])
        assert mapped_bytes < loaded_bytes - 10 * 2**20  # of 16 MB of weights, with the head twice
        for agent in (first, second):
            (worker,) = agent.workers()
            files = {Path(mapped.path).parent for mapped in psutil.Process(worker).memory_maps()}
            assert packed in files

        def answer() -> str:
            with first.client() as client:
                return (
                    client.completions.create(
                        model="demo",
                        prompt=PROMPT,
                        max_tokens=12,
                        temperature=0,
                        logit_bias=no_end(),
                    )
                    .choices[0]
                    .text
                )

        assert answer() == text
        shrunk = sorted(packed.iterdir())[0]
        os.truncate(shrunk, 0)
        assert answer() == text, "it goes on with the file that is written again"
        eventually(
            lambda: f"{shrunk} has shrunk from" in first.log + second.log,
            within=20,
            what="the file is named",
        )
        await_ready(first, "demo")
        assert answer() == text
        assert shrunk.stat().st_size > 0
