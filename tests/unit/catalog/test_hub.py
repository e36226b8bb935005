"""Repositories on the hub that are no model in Hugging Face layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from potluck.catalog.hub import fetch_small_files
from potluck.catalog.hub_cache import RepositoryFile, Snapshot
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
