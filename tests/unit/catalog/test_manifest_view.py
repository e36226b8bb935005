"""A model that is known by the content of its files: described, opened, and read only in part."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import IO, Any

import msgspec
import pytest
from support.cluster.content_files import ContentFolder
from support.models.hub_models import DEMO, INDEX, cut_demo

from potluck.catalog import (
    ContentFile,
    ManifestView,
    describe_model,
    describe_view,
    load_chat_template,
    load_token_list,
    load_tokenizer,
    manifest_digest,
    open_headers,
    open_vocabulary,
    open_weights,
    read_profile,
)
from potluck.catalog.locate import DEMO_DIRECTORY
from potluck.catalog.manifest_view import MAX_VIEWS
from potluck.errors import ModelFileError, ModelNotFoundError
from potluck.formats.files import ReadableFile
from potluck.models.names import FileKind
from potluck.types.content import FileContent, Manifest, ManifestFile
from potluck.types.program import Shard

NUM_LAYERS = 12


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """The demo with a file for every third layer, and one for the rest."""
    directory = tmp_path / "cut"
    directory.mkdir()

    def file_of(name: str) -> str:
        layer = name.removeprefix("model.layers.").partition(".")[0]
        number = 1 + int(layer) // 3 if layer.isdecimal() else 0
        return f"model-{number}.safetensors"

    for name, data in cut_demo(file_of).items():
        (directory / name).write_bytes(data)
    return directory


def view_of(
    manifest: Manifest, folder: ContentFolder, home: Path, name: str = "org/model"
) -> ManifestView:
    return ManifestView(manifest, folder, name=name, job="j", environ={"XDG_CACHE_HOME": str(home)})


def content_of(manifest: Manifest, name: str) -> FileContent:
    return next(file.content for file in manifest.files if file.name == name)


def test_the_description_is_that_of_the_directory(cut: Path, tmp_path: Path) -> None:
    folder = ContentFolder()
    view = view_of(folder.add_model(str(cut)), folder, tmp_path)
    described, expected = describe_view(view), describe_model(str(cut))
    assert described.config == expected.config
    assert described.sampling_defaults == expected.sampling_defaults
    assert described.vectors == expected.vectors
    assert described.files.kind is FileKind.HUGGING_FACE
    assert described.files.label == described.files.pinned_name == "org/model"


def test_describing_a_directory_reads_no_file_of_weights(cut: Path, tmp_path: Path) -> None:
    folder = ContentFolder()
    manifest = folder.add_model(str(cut))
    describe_view(view_of(manifest, folder, tmp_path))
    read = {sha256 for sha256, _, _ in folder.reads}
    names = {file.name for file in manifest.files if file.content.sha256 in read}
    assert names == {"config.json", "generation_config.json", INDEX} & set(DEMO | {INDEX: b""})


def test_a_stage_reads_its_own_files_only(cut: Path, tmp_path: Path) -> None:
    folder = ContentFolder()
    manifest = folder.add_model(str(cut))
    description = describe_view(view_of(manifest, folder, tmp_path))
    middle = Shard(
        start_layer=3, end_layer=5, num_layers=NUM_LAYERS, has_embedding=False, has_head=False
    )
    assert read_profile(description, [middle]).tensors
    with closing(open_weights(description, [middle])) as tensors:
        assert {file.path for file in tensors.files} == {"org/model:model-2.safetensors"}
        assert all(isinstance(file, ContentFile) for file in tensors.files)
    assert folder.chunks(content_of(manifest, "model-2.safetensors")) == ((0, 1),)
    for other in (0, 1, 3, 4):
        assert not folder.bytes_read(content_of(manifest, f"model-{other}.safetensors"))
    assert folder.num_open == 0


def test_the_tokenizer_is_brought_once_it_is_needed(cut: Path, tmp_path: Path) -> None:
    folder = ContentFolder()
    manifest = folder.add_model(str(cut))
    files = describe_view(view_of(manifest, folder, tmp_path)).files
    assert not (files.path / "tokenizer.json").exists()
    text = "The fox ran over the hill."
    expected = describe_model(str(cut)).files
    assert load_tokenizer(files).encode(text) == load_tokenizer(expected).encode(text)
    assert load_chat_template(files) == load_chat_template(expected)
    assert load_token_list(files) == load_token_list(expected)
    assert not folder.bytes_read(content_of(manifest, "model-1.safetensors"))
    assert all(job == "j" and keep for job, _, keep in folder.wanted)


def test_small_files_are_found_the_next_time(cut: Path, tmp_path: Path) -> None:
    folder = ContentFolder()
    manifest = folder.add_model(str(cut))
    load_tokenizer(describe_view(view_of(manifest, folder, tmp_path)).files)
    folder.reads.clear()
    description = describe_view(view_of(manifest, folder, tmp_path))
    load_tokenizer(description.files)
    assert open_vocabulary(description)
    assert not folder.reads


def test_headers_are_kept_for_whoever_reads_them_next(cut: Path, tmp_path: Path) -> None:
    folder = ContentFolder()
    manifest = folder.add_model(str(cut))
    with closing(open_headers(describe_view(view_of(manifest, folder, tmp_path)))) as first:
        expected = {name: (each.shape, each.offset) for name, each in first.tensors.items()}
    folder.reads.clear()
    description = describe_view(view_of(manifest, folder, tmp_path))
    with closing(open_headers(description)) as tensors:
        found = {name: (each.shape, each.offset) for name, each in tensors.tensors.items()}
        assert not folder.reads
        assert found == expected
        # What is not in them is read of the files.
        name, tensor = next(iter(tensors.tensors.items()))
        data = bytearray(tensor.num_bytes)
        tensors.read_stored(tensor, 0, memoryview(data))
        with closing(open_weights(describe_model(str(cut)), [Shard.whole(NUM_LAYERS)])) as on_disk:
            plain = bytearray(tensor.num_bytes)
            on_disk.read_stored(on_disk.tensors[name], 0, memoryview(plain))
        assert data == plain
    assert folder.num_open == 0


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "longer"])
def test_a_header_that_was_damaged_is_read_again(cut: Path, tmp_path: Path, damage: str) -> None:
    folder = ContentFolder()
    manifest = folder.add_model(str(cut))
    view = view_of(manifest, folder, tmp_path)
    open_headers(describe_view(view)).close()
    heads = list(view.directory.glob(".head-*"))
    assert len(heads) == 5
    sound = {head: head.read_bytes() for head in heads}
    for head, data in sound.items():
        changed = {
            "cut": data[:-1],
            "changed": data[:40] + bytes([data[40] ^ 1]) + data[41:],
            "empty": b"",
            "longer": data + b"\0",
        }
        head.write_bytes(changed[damage])
    folder.reads.clear()
    open_headers(describe_view(view_of(manifest, folder, tmp_path))).close()
    assert folder.reads
    assert {head: head.read_bytes() for head in heads} == sound


def test_a_header_that_was_removed_meanwhile_is_read_of_the_file(tmp_path: Path) -> None:
    folder = ContentFolder()
    data = os.urandom(1000)
    (tmp_path / "a.gguf").write_bytes(data)
    content = folder.add(tmp_path / "a.gguf")
    head = tmp_path / "cache" / "head"
    found = bytearray(len(data))
    for is_first in (True, False):
        file = ContentFile(
            "a.gguf", content, "a.gguf", lambda: folder.open_file(content, label="a.gguf"), head
        )
        with closing(file):
            file.read_into(0, memoryview(found))
            file.release()
            if is_first:
                continue
            head.unlink()  # as another process does if there are many models
            found = bytearray(len(data))
            file.read_into(0, memoryview(found))
    assert found == data


@pytest.mark.parametrize("num_bytes", [100, 100_000])
def test_a_header_that_no_disk_has_room_for_is_read(
    tmp_path: Path, num_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ContentFolder()
    data = os.urandom(num_bytes)
    (tmp_path / "a.gguf").write_bytes(data)
    content = folder.add(tmp_path / "a.gguf")
    head = tmp_path / "cache" / "head"
    make = Path.open

    def open_full(path: Path, mode: str) -> IO[Any]:
        if mode == "rb":
            return make(path, mode)
        path.touch(exist_ok=False)
        return make(Path("/dev/full"), "wb")

    monkeypatch.setattr(Path, "open", open_full)
    file = ContentFile(
        "a.gguf", content, "a.gguf", lambda: folder.open_file(content, label="a.gguf"), head
    )
    found = bytearray(num_bytes)
    with closing(file):
        file.read_into(0, memoryview(found))
        file.release()
    assert found == data
    assert not list(head.parent.iterdir())


def test_a_small_file_that_was_changed_is_brought_again(cut: Path, tmp_path: Path) -> None:
    folder = ContentFolder()
    manifest = folder.add_model(str(cut))
    config = describe_view(view_of(manifest, folder, tmp_path)).files.path / "config.json"
    data = config.read_bytes()
    for damaged in (data[:-1], data.replace(b"1", b"2", 1), b""):
        config.write_bytes(damaged)
        describe_view(view_of(manifest, folder, tmp_path))
        assert config.read_bytes() == data


def test_a_small_file_with_other_bytes_is_refused_and_not_kept(cut: Path, tmp_path: Path) -> None:
    folder = ContentFolder()
    manifest = folder.add_model(str(cut))
    path = cut / "config.json"
    path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
    view = view_of(manifest, folder, tmp_path)
    with pytest.raises(ModelFileError, match=r"org/model:config.json: its content has the SHA-256"):
        describe_view(view)
    assert not [file for file in view.directory.rglob("*") if file.is_file()]
    assert folder.num_open == 0


@pytest.mark.parametrize("lie", [-1, 1])
@pytest.mark.parametrize("name", ["config.json", "model-1.safetensors"])
def test_sizes_that_lie_are_found(cut: Path, tmp_path: Path, name: str, lie: int) -> None:
    folder = ContentFolder()
    manifest = folder.add_model(str(cut))
    files = tuple(
        file
        if file.name != name
        else ManifestFile(
            name=name,
            content=msgspec.structs.replace(file.content, num_bytes=file.content.num_bytes + lie),
        )
        for file in manifest.files
    )
    view = view_of(msgspec.structs.replace(manifest, files=files), folder, tmp_path)
    with pytest.raises(ModelFileError, match=f"org/model:{name}"):
        open_headers(describe_view(view)).close()
    assert folder.num_open == 0


def test_a_file_whose_size_differs_from_what_is_served_is_refused(tmp_path: Path) -> None:
    folder = ContentFolder()
    content = folder.add(DEMO_DIRECTORY / "config.json")
    claimed = FileContent(sha256="0" * 64, num_bytes=content.num_bytes + 1)

    def serve() -> ReadableFile:
        return folder.open_file(content, label="c")

    file = ContentFile("config.json", claimed, "c", serve, tmp_path / "head")
    with pytest.raises(ModelFileError, match=f"it has {content.num_bytes} bytes, but the manifest"):
        file.read_into(0, memoryview(bytearray(1)))
    assert folder.num_open == 0


def test_what_the_manifest_lacks_is_not_found(cut: Path, tmp_path: Path) -> None:
    folder = ContentFolder()
    view = view_of(folder.add_model(str(cut)), folder, tmp_path)
    for path in (view.directory / "other.safetensors", Path("/etc/passwd")):
        with pytest.raises(ModelNotFoundError, match="has no file"):
            view.open(path)


def test_a_file_that_the_index_names_and_the_manifest_lacks(cut: Path, tmp_path: Path) -> None:
    folder = ContentFolder()
    manifest = folder.add_model(str(cut))
    files = tuple(file for file in manifest.files if file.name != "model-3.safetensors")
    view = view_of(msgspec.structs.replace(manifest, files=files), folder, tmp_path)
    with pytest.raises(ModelFileError, match=r"model-3\.safetensors, which it names, is missing"):
        open_headers(describe_view(view))
    assert folder.num_open == 0


def test_an_index_that_leads_out_of_the_model_opens_nothing(cut: Path, tmp_path: Path) -> None:
    (cut / INDEX).write_text(
        (cut / INDEX).read_text().replace("model-1.safetensors", "../../../etc/passwd")
    )
    folder = ContentFolder()
    contents = {path.name: folder.add(path) for path in cut.iterdir()}
    manifest = Manifest(
        kind="hugging_face",
        files=tuple(ManifestFile(name=name, content=each) for name, each in contents.items()),
    )
    with pytest.raises(ModelFileError):
        open_headers(describe_view(view_of(manifest, folder, tmp_path)))
    assert folder.num_open == 0


def test_without_a_cache_folder_a_temporary_one_is_used(cut: Path, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        home = tmp_path / "file"
        home.write_text("no directory can be made in it")
    else:
        home = tmp_path / "home"
        home.mkdir(mode=0o500)
    folder = ContentFolder()
    view = view_of(folder.add_model(str(cut)), folder, home)
    directory = view.directory
    assert describe_view(view).config.num_layers == NUM_LAYERS
    assert tmp_path not in directory.parents
    assert directory.exists()
    del view
    assert not directory.exists()


def test_the_folders_of_other_models_are_bounded(cut: Path, tmp_path: Path) -> None:
    folder = ContentFolder()
    manifest = folder.add_model(str(cut))
    models = tmp_path / "potluck" / "models"
    for number in range(MAX_VIEWS + 3):
        (models / f"{number:032x}").mkdir(parents=True)
        os.utime(models / f"{number:032x}", (number, number))
    view = view_of(manifest, folder, tmp_path)
    assert view.directory == models / manifest_digest(manifest)
    kept = {path.name for path in models.iterdir()}
    assert len(kept) == MAX_VIEWS
    assert view.directory.name in kept
    assert f"{0:032x}" not in kept
