from pathlib import Path

import pytest

from potluck.catalog.hub_cache import Snapshot
from potluck.catalog.locate import DEMO_DIRECTORY, HubModel, ModelFiles, locate_model, parse_hub_id
from potluck.errors import ModelFileError, ModelNotFoundError
from potluck.models.names import FileKind


def no_download(model: HubModel) -> Snapshot:
    raise AssertionError(f"{model} must not be asked for")


def test_demo_is_the_model_in_the_package() -> None:
    files = locate_model("demo", no_download)
    assert files.path == DEMO_DIRECTORY
    assert files.kind is FileKind.HUGGING_FACE


def test_a_directory_with_config_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert locate_model(str(tmp_path), no_download) == ModelFiles(
        name=str(tmp_path), kind=FileKind.HUGGING_FACE, path=tmp_path
    )


def test_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.touch()
    assert locate_model(str(path), no_download).kind is FileKind.GGUF


def test_a_directory_of_gguf_files_names_them(tmp_path: Path) -> None:
    (tmp_path / "b.gguf").touch()
    (tmp_path / "a.gguf").touch()
    with pytest.raises(ModelNotFoundError) as caught:
        locate_model(str(tmp_path), no_download)
    assert caught.value.hint == "name one of its files: a.gguf, b.gguf"


@pytest.mark.parametrize("name", ["./missing", "/missing/model", "missing.gguf", "two words", ""])
def test_what_is_neither_on_disk_nor_a_hub_id(name: str) -> None:
    with pytest.raises(ModelNotFoundError, match="no model found at"):
        locate_model(name, no_download)


def test_a_path_that_cannot_be_looked_at() -> None:
    with pytest.raises(ModelFileError, match="File name too long"):
        locate_model("/" + "x" * 5000, no_download)


def test_a_safetensors_file_hints_at_its_directory(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.touch()
    with pytest.raises(ModelNotFoundError) as caught:
        locate_model(str(path), no_download)
    assert "directory that holds config.json" in caught.value.hint


def test_a_hub_id_is_asked_for_and_pinned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    commit = "89abcdef" * 5
    queries: list[HubModel] = []

    def find(model: HubModel) -> Snapshot:
        queries.append(model)
        return Snapshot(repo_id=model.repo_id, commit=commit, files={})

    whole = locate_model("some-org/some.model-1", find)
    one = locate_model("some-org/some.model-1@v2:Q8/x.gguf", find)
    assert queries == [
        HubModel(repo_id="some-org/some.model-1"),
        HubModel(repo_id="some-org/some.model-1", revision="v2", filename="Q8/x.gguf"),
    ]
    assert (whole.name, whole.kind) == ("some-org/some.model-1", FileKind.HUGGING_FACE)
    assert whole.path.parts[-3:] == ("models--some-org--some.model-1", "snapshots", commit)
    assert whole.pinned_name == f"some-org/some.model-1@{commit}"
    assert one.kind is FileKind.GGUF
    assert one.path == whole.path / "Q8" / "x.gguf"
    assert one.pinned_name == f"some-org/some.model-1@{commit}:Q8/x.gguf"
    assert locate_model(one.pinned_name, find).pinned_name == one.pinned_name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("org/name", HubModel(repo_id="org/name")),
        ("org/name@v1.0", HubModel(repo_id="org/name", revision="v1.0")),
        (
            "org/name@abc:x.gguf",
            HubModel(repo_id="org/name", revision="abc", filename="x.gguf"),
        ),
        ("org/name:x/y.gguf", HubModel(repo_id="org/name", filename="x/y.gguf")),
        ("org/name:file.bin", None),
        ("org/name@", None),
        ("org/name@../x", None),
        ("org", None),
        ("a/b/c", None),
        ("org/na me", None),
    ],
)
def test_parse_hub_id(name: str, expected: HubModel | None) -> None:
    assert parse_hub_id(name) == expected
