from pathlib import Path

import pytest

from potluck.catalog.hub_cache import RepositoryFile, Snapshot
from potluck.catalog.locate import (
    DEMO_DIRECTORY,
    HubModel,
    ModelFiles,
    files_on_hub,
    locate_model,
    parse_hub_id,
)
from potluck.errors import ModelFileError, ModelNotFoundError
from potluck.models.names import FileKind


def on_disk(name: str) -> ModelFiles:
    files = locate_model(name)
    assert isinstance(files, ModelFiles), f"{files} must not be asked for"
    return files


def on_hub(name: str, snapshot: Snapshot) -> ModelFiles:
    model = locate_model(name)
    assert isinstance(model, HubModel)
    return files_on_hub(name, model, snapshot)


def test_demo_is_the_model_in_the_package() -> None:
    files = on_disk("demo")
    assert files.path == DEMO_DIRECTORY
    assert files.kind is FileKind.HUGGING_FACE


def test_a_directory_with_config_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert on_disk(str(tmp_path)) == ModelFiles(
        name=str(tmp_path), kind=FileKind.HUGGING_FACE, path=tmp_path
    )


@pytest.mark.parametrize("name", ["model.gguf", "MODEL.GGUF", "model-Q8_0.Gguf"])
def test_a_gguf_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.touch()
    assert on_disk(str(path)).kind is FileKind.GGUF


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("a.gguf",), "a.gguf"),
        (("A-Q8_0.GGUF", "README.md", "tokenizer.json"), "A-Q8_0.GGUF"),
        (("a.gguf", "mmproj-a-f16.gguf", "imatrix.gguf", "config.json"), "a.gguf"),
        (
            ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "a.mmproj.gguf"),
            "a-00001-of-00002.gguf",
        ),
        (("config.json", "model.safetensors", "a.gguf"), None),
        (("config.json", "model.safetensors.index.json", "a.gguf"), None),
        (("config.json", "pytorch_model.bin", "a.gguf"), "a.gguf"),
        (("config.json",), None),
        (("config.json", "pytorch_model.bin"), None),
    ],
)
def test_a_directory_stands_for_its_only_model(
    tmp_path: Path, names: tuple[str, ...], expected: str | None
) -> None:
    for name in names:
        (tmp_path / name).touch()
    files = on_disk(str(tmp_path))
    if expected is None:
        assert (files.kind, files.path) == (FileKind.HUGGING_FACE, tmp_path)
    else:
        assert (files.kind, files.path) == (FileKind.GGUF, tmp_path / expected)


@pytest.mark.parametrize(
    ("names", "message", "hint"),
    [
        (
            ("b.gguf", "a.gguf", "mmproj.gguf"),
            "has 2 GGUF models",
            "name its file: {0}/a.gguf, {0}/b.gguf",
        ),
        (
            ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "b.gguf"),
            "has 2 GGUF models",
            "name its file: {0}/a-00001-of-00002.gguf, {0}/b.gguf",
        ),
        (
            ("a-00002-of-00002.gguf",),
            "only a-00002-of-00002.gguf",
            "a-00001-of-00002.gguf is missing",
        ),
        (("mmproj-a.gguf",), "only mmproj-a.gguf", "give the file of the model"),
        (
            ("adapter_config.json", "adapter_model.safetensors"),
            "an adapter for org/base",
            "merge it into org/base",
        ),
        (
            ("adapter_config.json", "adapter_model.safetensors", "config.json"),
            "an adapter for org/base",
            "merge_and_unload",
        ),
        (
            ("pytorch_model.bin", "tokenizer.json"),
            "pytorch_model.bin, a pickle file",
            "save_pretrained",
        ),
        (
            ("consolidated.safetensors", "params.json"),
            "Mistral's library",
            "config.json and model.safetensors",
        ),
        (("consolidated.00.pth", "params.json"), "consolidated.00.pth, a pickle file", "convert"),
        (("model.safetensors",), "no config.json", "Hugging Face layout"),
        ((), "no config.json", "Hugging Face layout"),
    ],
)
def test_a_directory_that_is_no_model_says_what_to_do(
    tmp_path: Path, names: tuple[str, ...], message: str, hint: str
) -> None:
    for name in names:
        (tmp_path / name).touch()
    if "adapter_config.json" in names:
        (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    with pytest.raises(ModelNotFoundError) as caught:
        on_disk(str(tmp_path))
    assert message in caught.value.message
    assert hint.format(tmp_path) in caught.value.hint


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"base_model_name_or_path": 3}', b"\xff"])
def test_an_adapter_that_does_not_name_its_base(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "adapter_config.json").write_bytes(content)
    with pytest.raises(ModelNotFoundError, match="an adapter for its base model"):
        on_disk(str(tmp_path))


REPOSITORY = (
    "README.md",
    "x-Q4_K_M.gguf",
    "x-UD-Q4_K_M.gguf",
    "x-UD-Q4_K_XL.gguf",
    "x-Q4_K_S.gguf",
    "BF16/x-BF16-00001-of-00002.gguf",
    "BF16/x-BF16-00002-of-00002.gguf",
    "mmproj-BF16.gguf",
    "x-Q8_0.gguf",
    "y-Q8_0.gguf",
)


def repository(*names: str, is_listed: bool = True) -> Snapshot:
    files = {name: RepositoryFile(size=1) for name in names}
    return Snapshot(repo_id="org/name", commit="0" * 40, files=files, is_listed=is_listed)


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("Q4_K_M", "x-Q4_K_M.gguf"),
        ("q4_k_m", "x-Q4_K_M.gguf"),
        ("UD-Q4_K_M", "x-UD-Q4_K_M.gguf"),
        ("Q4_K_XL", "x-UD-Q4_K_XL.gguf"),
        ("BF16", "BF16/x-BF16-00001-of-00002.gguf"),
    ],
)
def test_a_quantization_names_a_file_of_a_repository(tag: str, expected: str) -> None:
    files = on_hub(f"org/name:{tag}", repository(*REPOSITORY))
    assert files.kind is FileKind.GGUF
    assert files.pinned_name == f"org/name@{'0' * 40}:{expected}"
    assert files.name == f"org/name:{tag}"


@pytest.mark.parametrize(
    ("tag", "message", "hint"),
    [
        ("Q8_0", "2 GGUF models with Q8_0", "org/name:x-Q8_0.gguf, org/name:y-Q8_0.gguf"),
        ("Q4_K", "no GGUF model with Q4_K in its name", "org/name:BF16/x-BF16-00001-of-00002.gguf"),
        ("Q5", "no GGUF model with Q5 in its name", "…"),
    ],
)
def test_a_quantization_that_is_not_clear(tag: str, message: str, hint: str) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        on_hub(f"org/name:{tag}", repository(*REPOSITORY))
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert "mmproj" not in caught.value.hint
    assert "00002-of" not in caught.value.hint


def test_a_quantization_is_not_denied_where_the_hub_was_not_asked() -> None:
    partly = repository("x-Q4_K_M.gguf", is_listed=False)
    assert on_hub("org/name:Q4_K_M", partly).kind is FileKind.GGUF
    with pytest.raises(ModelNotFoundError, match="could not be asked") as caught:
        on_hub("org/name:Q8_0", partly)
    assert "HF_HUB_OFFLINE" in caught.value.hint


def test_a_repository_with_one_gguf_model_stands_for_it() -> None:
    files = on_hub("org/name", repository("README.md", "a.gguf", "mmproj-a.gguf", "config.json"))
    assert (files.kind, files.path.name) == (FileKind.GGUF, "a.gguf")


@pytest.mark.parametrize(
    "name", ["./missing", "/missing/model", "~no-such-user/m", "missing.gguf", "two words", ""]
)
def test_what_is_neither_on_disk_nor_a_hub_id(name: str) -> None:
    with pytest.raises(ModelNotFoundError, match="no model found at"):
        on_disk(name)


def test_a_path_that_cannot_be_looked_at() -> None:
    with pytest.raises(ModelFileError, match="File name too long"):
        on_disk("/" + "x" * 5000)


def test_a_safetensors_file_hints_at_its_directory(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.touch()
    with pytest.raises(ModelNotFoundError) as caught:
        on_disk(str(path))
    assert "directory that holds config.json" in caught.value.hint


def test_a_hub_id_names_a_model_and_is_pinned(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    commit = "89abcdef" * 5
    snapshot = Snapshot(repo_id="some-org/some.model-1", commit=commit, files={})
    names = ("some-org/some.model-1", "some-org/some.model-1@v2:Q8/x.gguf")
    assert [locate_model(name) for name in names] == [
        HubModel(repo_id="some-org/some.model-1"),
        HubModel(repo_id="some-org/some.model-1", revision="v2", filename="Q8/x.gguf"),
    ]
    whole, one = (on_hub(name, snapshot) for name in names)
    assert (whole.name, whole.kind) == ("some-org/some.model-1", FileKind.HUGGING_FACE)
    assert whole.path.parts[-3:] == ("models--some-org--some.model-1", "snapshots", commit)
    assert whole.pinned_name == f"some-org/some.model-1@{commit}"
    assert one.kind is FileKind.GGUF
    assert one.path == whole.path / "Q8" / "x.gguf"
    assert one.pinned_name == f"some-org/some.model-1@{commit}:Q8/x.gguf"
    assert on_hub(one.pinned_name, snapshot).pinned_name == one.pinned_name


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
        ("org/name:X.GGUF", HubModel(repo_id="org/name", filename="X.GGUF")),
        ("org/name:Q4_K_M", HubModel(repo_id="org/name", tag="Q4_K_M")),
        ("org/name@v2:UD-Q4_K_XL", HubModel(repo_id="org/name", revision="v2", tag="UD-Q4_K_XL")),
        ("org/name:latest", HubModel(repo_id="org/name")),
        ("hf.co/org/name:Q8_0", HubModel(repo_id="org/name", tag="Q8_0")),
        ("https://huggingface.co/org/name", HubModel(repo_id="org/name")),
        ("hf.co/name", None),
        ("org/name:", None),
        ("org/name:a:b", None),
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
