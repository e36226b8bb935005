"""Repositories on the hub that are no model in Hugging Face layout, and hubs that are none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import pytest

from potluck.catalog import hub_cache
from potluck.catalog.hub import fetch_small_files, find_snapshot
from potluck.catalog.hub_cache import RepositoryFile, Snapshot, remember
from potluck.catalog.locate import HubModel
from potluck.errors import ModelNotFoundError


@pytest.mark.parametrize(
    ("names", "message", "hint"),
    [
        (
            ("a.gguf", "b.gguf", "mmproj.gguf"),
            "org/name has 2 GGUF models",
            "name its file: org/name:a.gguf, org/name:b.gguf",
        ),
        (
            (),
            "org/name has no config.json",
            "give a directory or repository in Hugging Face layout",
        ),
        (
            ("config.json", "a.gguf", "b.gguf"),
            "org/name has 2 GGUF models",
            "name its file: org/name:a.gguf, org/name:b.gguf",
        ),
    ],
)
def test_the_gguf_files_of_a_repository_without_a_config_are_named(
    names: tuple[str, ...], message: str, hint: str
) -> None:
    files = {name: RepositoryFile(size=1) for name in ("README.md", *names)}
    snapshot = Snapshot(repo_id="org/name", commit="0" * 40, files=files)

    def check(_: Path) -> None:
        raise AssertionError("nothing is fetched")

    with pytest.raises(ModelNotFoundError) as caught:
        fetch_small_files(snapshot, check_config=check, check_tokenizer=check)
    assert (caught.value.message, caught.value.hint) == (message, hint)


@pytest.mark.parametrize(
    "answer",
    [
        "<html>Log in to the network of this hotel</html>",
        "[]",
        "null",
        "[" * 100_000,
        '{"siblings": [{"size": 3}]}',
        '{"lastModified": "yesterday"}',
        '{"sha": 5}',
        '{"siblings": [{"rfilename": "config.json", "size": "3"}]}',
        '{"siblings": [{"rfilename": "\\ud800", "size": 3}]}',
    ],
)
def test_an_answer_that_is_no_listing_counts_as_none(
    answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def model_info(*_: object, **__: object) -> huggingface_hub.ModelInfo:
        made: Callable[..., huggingface_hub.ModelInfo] = huggingface_hub.ModelInfo
        return made(**{"id": "org/name", "sha": "1" * 40, **json.loads(answer)})

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    monkeypatch.setattr(hub_cache, "hub_cache_folder", lambda: tmp_path)
    model = HubModel(repo_id="org/name")
    with pytest.raises(ModelNotFoundError, match="the Hub's answer is not a list of files"):
        find_snapshot(model)
    known = Snapshot(repo_id="org/name", commit="2" * 40, files={"a": RepositoryFile(size=1)})
    remember(known, "main")
    assert find_snapshot(model) == known
