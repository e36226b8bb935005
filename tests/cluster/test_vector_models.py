"""Models that are made for vectors, over a cluster: deployed, asked, and through a lost worker."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from support.cluster.agents import AgentProcess, Fleet, await_ready
from support.models.random_models import make_random_model

import potluck
from potluck.catalog.locate import DEMO_DIRECTORY

TEXTS = [f"{'A long text about a fox. ' * (number % 9)}{number}" for number in range(120)]
DOCUMENTS = ["The fox is red.", "A kitten", "Once upon a time there was a mouse."]
TEMPLATE = (
    '{{ (messages | selectattr("role", "eq", "query") | first).content }} ? '
    '{{ (messages | selectattr("role", "eq", "document") | first).content }}'
)


def make(directory: Path) -> Path:
    vocab_size = json.loads((DEMO_DIRECTORY / "config.json").read_text())["vocab_size"]
    settings = {"vocab_size": vocab_size, "tie_word_embeddings": True, "head_dim": 32}
    make_random_model("qwen3", settings, directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO_DIRECTORY / name, directory)
    return directory


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without a head, as its configuration says."""
    directory = make(tmp_path_factory.mktemp("embedder"))
    config = json.loads((directory / "config.json").read_text())
    config["architectures"] = ["Qwen3Model"]
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By the logits of two tokens."""
    directory = make(tmp_path_factory.mktemp("reranker"))
    package = "sentence_transformers"
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": f"{package}.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_LogitScore", "type": f"{package}.LogitScore"},
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_LogitScore").mkdir()
    labels = {"true_token_id": 70, "false_token_id": 9}
    (directory / "1_LogitScore" / "config.json").write_text(json.dumps(labels))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return directory


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp("vectors")) as fleet:
        fleet.start_all(range(3))
        yield fleet


def embeddings(agent: AgentProcess, model: str) -> list[list[float]]:
    with agent.client() as client:
        answer = client.embeddings.create(model=model, input=TEXTS)
    return [each.embedding for each in answer.data]


def test_embeddings_survive_a_worker(fleet: Fleet, embedder: Path) -> None:
    with potluck.Model.open(str(embedder), context_tokens=128, num_threads=1) as model:
        expected: list[list[float]] = model.embed(TEXTS).vectors.tolist()
    agents = fleet.live()
    deployed = agents[0].deploy(str(embedder), name="embedder", context=128)
    assert deployed["stages"]
    assert embeddings(agents[2], "embedder") == expected
    with (
        agents[1].client() as client,
        pytest.raises(openai.BadRequestError, match="cannot generate text"),
    ):
        client.completions.create(model="embedder", prompt="a", max_tokens=1)

    found: list[list[list[float]]] = []
    asking = threading.Thread(target=lambda: found.append(embeddings(agents[2], "embedder")))
    asking.start()
    for agent in agents:
        for pid in agent.workers():
            os.kill(pid, signal.SIGKILL)
    asking.join(60)
    assert found == [expected]
    await_ready(agents[0], "embedder")
    agents[0].ask("undeploy", name="embedder")


def test_documents_are_ranked(fleet: Fleet, reranker: Path) -> None:
    with potluck.Model.open(str(reranker), context_tokens=128, num_threads=1) as model:
        expected = [(each.index, each.score) for each in model.rerank("Who is red?", DOCUMENTS)]
    agents = fleet.live()
    agents[1].deploy(str(reranker), name="reranker", context=128)
    body = {"model": "reranker", "query": "Who is red?", "documents": DOCUMENTS}
    for agent in agents:
        with agent.client() as client:
            answer: Any = client.post("/rerank", body=body, cast_to=object)
        results = [(each["index"], each["relevance_score"]) for each in answer["results"]]
        assert results == expected
    agents[1].ask("undeploy", name="reranker")
