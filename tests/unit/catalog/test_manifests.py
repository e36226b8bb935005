"""What manifests say, and which are refused before anything is made of them."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from support.cluster.content_files import ContentFolder
from support.models.hub_models import INDEX, cut_demo

from potluck.catalog import (
    check_manifest,
    describe_model,
    listed_contents,
    make_manifest,
    manifest_digest,
    manifest_names,
)
from potluck.catalog.hub_cache import RepositoryFile, Snapshot
from potluck.catalog.locate import DEMO_DIRECTORY, ModelFiles
from potluck.catalog.manifests import (
    MAX_FILES,
    MAX_SMALL_BYTES,
    weights_file,
)
from potluck.errors import ModelFileError, ModelNotFoundError
from potluck.models.names import FileKind
from potluck.types.content import MAX_FILE_BYTES, FileContent, HubOrigin, Manifest, ManifestFile

SHA = "0123456789abcdef" * 4
OTHER = "f" * 64


def file(name: str, sha256: str = SHA, num_bytes: int = 100) -> ManifestFile:
    return ManifestFile(name=name, content=FileContent(sha256=sha256, num_bytes=num_bytes))


def directory(*files: ManifestFile) -> Manifest:
    return Manifest(kind="hugging_face", files=(file("config.json"), *files))


def test_sound_manifests_pass() -> None:
    check_manifest(directory(file("model.safetensors", OTHER)), "m")
    check_manifest(directory(file("1_Pooling/config.json")), "m")
    check_manifest(Manifest(kind="gguf", files=(file("Q4/a.gguf"),), main="Q4/a.gguf"), "m")
    origin = HubOrigin(repo_id="org/name", commit="a" * 40)
    check_manifest(msgspec.structs.replace(directory(), hub=origin), "m")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "..",
        "../config.json",
        "a/../../b",
        "a/./b",
        "a//b",
        "/etc/passwd",
        "a/",
        "a\\..\\b",
        "a\0b",
        "a\nb",
        "\x1b[2J",
        "n" * 256,
        "é" * 128,
        "\ud800",
    ],
)
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(ModelFileError, match="list of files has the name") as caught:
        check_manifest(directory(file(name)), "m")
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        (Manifest(kind="pickle", files=(file("config.json"),)), "has the kind 'pickle'"),
        (Manifest(kind="hugging_face", files=()), "has 0 entries"),
        (directory(*(file(f"{i}") for i in range(MAX_FILES))), f"has {MAX_FILES + 1} entries"),
        (directory(file("a"), file("a")), "lists a twice"),
        (directory(file("a"), file("a/b")), "has a/b within another file"),
        (directory(file("a", "../" + SHA[3:])), "a digest that is not 64"),
        (directory(file("a", SHA.upper())), "a digest that is not 64"),
        (directory(file("a", SHA + "\n")), "a digest that is not 64"),
        (directory(file("a", num_bytes=-1)), "gives a -1 bytes"),
        (directory(file("a", OTHER, MAX_FILE_BYTES + 1)), "gives a "),
        (directory(file("a", num_bytes=101)), "gives the content of a two sizes"),
        (directory(file("tokenizer.json", OTHER, MAX_SMALL_BYTES + 1)), "gives tokenizer.json"),
        (Manifest(kind="hugging_face", files=(file("a"),)), "does not list config.json"),
        (msgspec.structs.replace(directory(), main="config.json"), "names a main file"),
        (Manifest(kind="gguf", files=(file("a.gguf"),)), "does not list its main file ''"),
        (Manifest(kind="gguf", files=(file("a.gguf"),), main="b.gguf"), "main file 'b.gguf'"),
        (Manifest(kind="gguf", files=(file("a.bin"),), main="a.bin"), "main file 'a.bin'"),
        (
            msgspec.structs.replace(directory(), hub=HubOrigin(repo_id="a/../b", commit="a" * 40)),
            "no repository and commit",
        ),
        (
            msgspec.structs.replace(directory(), hub=HubOrigin(repo_id="a/b", commit="main")),
            "no repository and commit",
        ),
    ],
)
def test_what_no_model_has_is_refused(manifest: Manifest, problem: str) -> None:
    with pytest.raises(ModelFileError, match=r"^m: its list of files ") as caught:
        check_manifest(manifest, "m")
    assert problem in caught.value.message


def test_a_digest_is_of_the_files_and_not_of_where_they_come_from() -> None:
    one = directory(file("a"), file("b", OTHER))
    again = Manifest(
        kind="hugging_face",
        files=tuple(reversed(one.files)),
        hub=HubOrigin(repo_id="org/name", commit="a" * 40),
    )
    assert manifest_digest(one) == manifest_digest(again)
    assert manifest_digest(one) != manifest_digest(directory(file("a"), file("b")))
    assert manifest_digest(one) != manifest_digest(directory(file("a"), file("c", OTHER)))
    assert len(manifest_digest(one)) == 32


def test_the_manifest_of_a_directory_has_what_is_read_of_it(tmp_path: Path) -> None:
    for name, data in cut_demo(lambda name: f"part-{'embed' in name:d}.safetensors").items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "tokenizer.model").write_bytes(b"the same once more")
    (tmp_path / "README.md").write_text("not read")
    (tmp_path / "other.safetensors").write_bytes(b"not in the index")
    manifest = ContentFolder().add_model(str(tmp_path))
    names = [each.name for each in manifest.files]
    assert {"part-0.safetensors", "part-1.safetensors", INDEX, "config.json"} <= set(names)
    assert not {"tokenizer.model", "README.md", "other.safetensors"} & set(names)
    assert names == sorted(names)
    assert (manifest.kind, manifest.main, manifest.hub) == ("hugging_face", "", None)
    assert weights_file(manifest) == INDEX
    check_manifest(manifest, "m")


def test_the_manifest_of_split_gguf_files_has_all_parts() -> None:
    for part in (1, 2):
        path = Path(f"/models/x-0000{part}-of-00003.gguf")
        files = ModelFiles(name=str(path), kind=FileKind.GGUF, path=path)
        names = [f"x-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
        assert manifest_names(files) == {name: Path("/models") / name for name in names}
        contents = {name: FileContent(sha256=SHA, num_bytes=1) for name in names}
        assert make_manifest(files, contents).main == names[0]


def test_a_hub_model_has_the_contents_that_its_listing_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    listing = {
        "config.json": RepositoryFile(size=10, git_id="e" * 40),
        "model.safetensors": RepositoryFile(size=100, sha256=SHA),
        "README.md": RepositoryFile(size=1),
    }
    snapshot = Snapshot(repo_id="org/name", commit="a" * 40, files=listing)
    files = ModelFiles(
        name="org/name", kind=FileKind.HUGGING_FACE, path=snapshot.directory, snapshot=snapshot
    )
    expected = {"config.json": None, "model.safetensors": FileContent(sha256=SHA, num_bytes=100)}
    assert listed_contents(files) == expected
    config = FileContent(sha256=OTHER, num_bytes=10)
    manifest = make_manifest(files, {**expected, "config.json": config})  # type: ignore[dict-item]
    assert manifest.hub == HubOrigin(repo_id="org/name", commit="a" * 40)
    check_manifest(manifest, "m")


def test_nothing_is_listed_of_a_model_on_the_disk() -> None:
    files = describe_model(str(DEMO_DIRECTORY)).files
    assert set(listed_contents(files).values()) == {None}


def test_weights_without_an_index_are_one_file() -> None:
    assert weights_file(directory(file("x.safetensors"))) == "x.safetensors"
    both = directory(file("x.safetensors"), file("model.safetensors"))
    assert weights_file(both) == "model.safetensors"
    with pytest.raises(ModelNotFoundError, match="no index"):
        weights_file(directory(file("x.safetensors"), file("y.safetensors")))
    with pytest.raises(ModelNotFoundError, match="no weights"):
        weights_file(directory())


def test_a_manifest_for_the_largest_model_fits_a_message() -> None:
    files = [
        file(f"model-{number:05d}-of-{MAX_FILES - 1:05d}.safetensors", f"{number:064x}")
        for number in range(MAX_FILES - 1)
    ]
    assert len(msgspec.msgpack.encode(directory(*files))) < 2**18
    assert json.loads(msgspec.json.encode(directory()))["main"] == ""
