"""``potluck check`` as it is run: text, JSON, exit codes, and what it asks of a hub."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.models.hub_models import DEMO, cut_demo, hub_environment
from support.network.fake_hub import serve_hub
from support.processes.command import assert_refused, run_command
from support.schemas import validate_document

WEIGHTS = "model.safetensors"


def test_a_model_that_runs() -> None:
    done = run_command("check", "demo")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == (
        "model      llama, 12 layers, 7.61 million parameters, up to 2048 tokens of context"
    )
    assert lines[-1] == "this machine can run the model"
    assert any(line.startswith("memory     ") and "2048 tokens" in line for line in lines)


def test_one_that_does_not_fit() -> None:
    done = run_command("check", "demo", "--memory-limit", "20M", "--json")
    assert (done.returncode, done.stderr) == (1, "")
    document = json.loads(done.stdout)
    validate_document(document)
    assert not document["runs"]
    assert document["usable_bytes"] == 20 * 2**20
    (memory,) = document["memory"]
    assert not memory["fits"]
    (finding,) = document["findings"]
    assert finding["part"] == "memory"
    assert finding["stops"]


def test_wrong_uses() -> None:
    done = run_command("check", "demo", "--context", "9999")
    assert_refused(done, 2, "at most 2048 tokens", "set --context to at most 2048")


@pytest.mark.parametrize("kind", ["one file", "several", "unsupported"])
def test_of_a_hub_model_only_headers_are_fetched(kind: str, tmp_path: Path) -> None:
    files = dict(DEMO)
    if kind == "several":
        files = cut_demo(lambda name: f"model-{'layers.1' in name:d}.safetensors")
    elif kind == "unsupported":
        config = json.loads(files["config.json"])
        files["config.json"] = json.dumps(
            {**config, "architectures": ["NewForCausalLM"], "model_type": "new"}
        ).encode()
    with serve_hub({"org/fox": files}) as hub:
        env = hub_environment(tmp_path, hub.endpoint)
        done = run_command("check", "org/fox", "--json", env=env)
        document = json.loads(done.stdout)
        validate_document(document)
        assert done.returncode == (1 if kind == "unsupported" else 0)
        assert document["pinned"].startswith("org/fox@")
        assert document["tokenizer_tokens"] == 2048
        assert not any(name.endswith(".safetensors") for name in hub.fetched)
        weights = {name for name in files if name.endswith(".safetensors")}
        sizes = sum(len(files[name]) for name in weights)
        assert sum(hub.sent_bytes[name] for name in weights) < sizes / 4
        if kind == "unsupported":
            (finding,) = document["findings"]
            assert finding["missing"] == ["NewForCausalLM (model_type new)"]
