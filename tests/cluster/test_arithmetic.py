"""A model in BF16 over nodes with different instruction sets: one arithmetic, the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster.agents import AgentProcess, Fleet, no_end

from potluck import Model
from potluck.kernels import available_isas, fast_formats

PROMPT = "The harbour at night was quiet. A small light went on in the old house, and"
NUM_NEW = 12
ISAS = ("scalar", available_isas()[len(available_isas()) // 2], available_isas()[-1])
"""Of the nodes: the slowest, one between, and the fastest."""
HAS_FAST = "bf16" in fast_formats(ISAS[-1])


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[AgentProcess]]:
    """A node for each of ``ISAS``, none of which holds ``demo`` alone."""
    with Fleet(tmp_path_factory.mktemp("arithmetic")) as fleet:
        first = fleet.start(0, memory_limit="69M", environ={"POTLUCK_ISA": ISAS[0]}).await_up()
        for number, isa in enumerate(ISAS[1:], 1):
            environ = {"POTLUCK_ISA": isa}
            fleet.start(number, join=first, memory_limit="69M", environ=environ)
        for agent in fleet.live():
            agent.await_up()
        fleet.await_members()
        yield fleet.live()


def logprobs_of(agent: AgentProcess) -> list[tuple[str, float]]:
    with agent.client() as client:
        answer = client.completions.create(
            model="demo",
            prompt=PROMPT,
            max_tokens=NUM_NEW,
            temperature=0.0,
            logprobs=1,
            logit_bias=no_end(),
        )
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.tokens is not None
    assert found.token_logprobs is not None
    return list(zip(found.tokens, found.token_logprobs, strict=True))


def test_stages_on_different_instruction_sets_have_the_bits_of_one(
    agents: list[AgentProcess],
) -> None:
    deployed = agents[0].deploy(context=256, cache=256)
    assert deployed["arithmetic"] == "exact"
    assert len(deployed["stages"]) == len(ISAS)
    # A log-probability has the bits of all logits in it.
    answers = [logprobs_of(agent) for agent in agents]
    bias = {int(token): value for token, value in no_end().items()}
    for isa in (ISAS[0], ISAS[-1]):
        with Model.open("demo", context_tokens=256, isa=isa) as model:
            generation = model.generate(
                PROMPT, max_tokens=NUM_NEW, temperature=0.0, logit_bias=bias, logprobs=True
            )
            expected = [piece.logprob for piece in generation.result().pieces]
        for answer in answers:
            assert [logprob for _, logprob in answer] == expected
    assert len(set(answers[0])) > NUM_NEW // 2
    agents[0].ask("undeploy", name="demo")


def test_fast_takes_only_what_all_its_units_have(agents: list[AgentProcess]) -> None:
    """Two of three nodes lack it, and the model does not fit on the third."""
    done = agents[1].command_line("plan", "demo", "--context", "256", "--cache", "256")
    assert done.returncode == 0
    assert ("fast (" in done.stdout) == HAS_FAST
    options = ("--context", "256", "--cache", "256", "--arithmetic", "fast")
    done = agents[1].command_line("plan", "demo", *options)
    if not HAS_FAST:
        assert "exact, since no CPU here has fast products for its weights (bf16" in done.stdout
        return
    assert done.returncode == 1
    assert f"in {ISAS[-1]} arithmetic the model needs" in done.stderr
    assert "--arithmetic exact uses every unit" in done.stderr


@pytest.mark.skipif(not HAS_FAST, reason="not shown: no products of bf16 here")
def test_fast_leaves_out_units_that_lack_it(tmp_path: Path) -> None:
    with Fleet(tmp_path) as fleet:
        first = fleet.start(0, environ={"POTLUCK_ISA": ISAS[0]}).await_up()
        fleet.start(1, join=first).await_up()
        fleet.await_members()
        options = {"context_tokens": 256, "cache_tokens": 256}
        deployed = first.ask("deploy", model="demo", arithmetic="fast", **options)
        assert deployed["arithmetic"] == ISAS[-1]
        assert [stage["node_id"] for stage in deployed["stages"]] == [fleet.agents[1].node_id]
        (rejection,) = deployed["rejections"]
        assert rejection["node_id"] == first.node_id
        reason = f"it does not support the {ISAS[-1]} arithmetic of this deployment"
        assert rejection["reason"] == reason
        bias = {int(token): value for token, value in no_end().items()}
        with Model.open("demo", context_tokens=256) as model:
            exact = model.generate(
                PROMPT, max_tokens=NUM_NEW, temperature=0.0, logit_bias=bias, logprobs=True
            ).result()
        assert [logprob for _, logprob in logprobs_of(first)] != [
            piece.logprob for piece in exact.pieces
        ]
