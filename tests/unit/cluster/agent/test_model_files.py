"""Nodes find out that their copies of a model differ, and read no more than they have to."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pytest
from support.cluster.calls import a_record, changed
from support.cluster.content_files import ContentFolder

from potluck.catalog import ManifestView, describe_model, describe_view, manifest_digest
from potluck.catalog.locate import DEMO_DIRECTORY
from potluck.cluster.agent import model_files as module
from potluck.cluster.agent.model_files import Fingerprints
from potluck.errors import EngineError
from potluck.types.content import FileContent, HubOrigin, Manifest, ManifestFile
from potluck.types.deployment import DeploymentRecord, ModelFingerprint


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DEMO_DIRECTORY, tmp_path / "demo"))


def fingerprint(path: Path) -> ModelFingerprint:
    return Fingerprints().of(describe_model(str(path)))


def overwrite_weights(path: Path) -> None:
    """Other values, in a file of the same size, without a new modification time."""
    file = path / "model.safetensors"
    data = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    data[start:] = os.urandom(len(data) - start)
    status = file.stat()
    file.write_bytes(data)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_copies_are_the_same_and_other_weights_are_not(demo: Path) -> None:
    own = fingerprint(DEMO_DIRECTORY)
    assert fingerprint(demo) == own
    overwrite_weights(demo)
    other = fingerprint(demo)
    assert other.digest == own.digest
    assert own.difference(other) == "different weights"
    assert own.difference(own) == ""
    shaped = msgspec.structs.replace(own, digest="another")
    assert "configuration" in own.difference(shaped)


def test_files_are_read_once_until_they_change(demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    for name in ("sample_weights", "text_digest"):
        original = getattr(module, name)

        def noted(subject: object, name: str = name, original: object = original) -> str:
            read.append(name)
            result: str = original(subject)  # type: ignore[operator]
            return result

        monkeypatch.setattr(module, name, noted)
    prints = Fingerprints()
    first = prints.of(describe_model(str(demo)))
    assert prints.of(describe_model(str(demo))) == first
    assert sorted(read) == ["sample_weights", "text_digest"]
    overwrite_weights(demo)
    assert first.difference(prints.of(describe_model(str(demo)))) == "different weights"
    assert sorted(read) == ["sample_weights", "sample_weights", "text_digest"]
    (demo / "chat_template.jinja").write_text("{{ 1 }}")
    assert prints.of(describe_model(str(demo))).text != first.text
    assert read.count("text_digest") == 2


def of_model(path: Path) -> DeploymentRecord:
    return changed(a_record(), model=str(path), fingerprint=fingerprint(DEMO_DIRECTORY))


def test_another_tokenizer_must_not_answer(demo: Path) -> None:
    record, prints = of_model(demo), Fingerprints()
    overwrite_weights(demo)  # which is none of a gateway's business
    prints.check_text(record)
    assert prints.text_problem(record) == ""
    with (demo / "tokenizer_config.json").open("a") as file:
        file.write("\n")
    with pytest.raises(EngineError, match="differ from those of the node that deployed it"):
        prints.check_text(record)
    assert "tokenizer" in prints.text_problem(record)
    shutil.rmtree(demo)
    assert "no model found at" in prints.text_problem(record)


def test_of_the_hub_the_commit_is_compared(demo: Path) -> None:
    record = changed(of_model(demo), model="org/name@0123")
    assert Fingerprints().text_problem(record) == ""


def test_files_known_by_their_content_need_no_sample(tmp_path: Path) -> None:
    folder = ContentFolder()
    manifest = folder.add_model("demo")
    origin = HubOrigin(repo_id="org/name", commit="a" * 40)
    assert manifest.files[-1].name == "tokenizer_config.json"
    other = msgspec.structs.replace(manifest, files=manifest.files[:-1])

    def digest_of(files: Manifest) -> str:
        folder.reads.clear()
        view = ManifestView(files, folder, name="m", environ={"XDG_CACHE_HOME": str(tmp_path)})
        found = Fingerprints().of(describe_view(view))
        assert (found.weights, found.text) == ("", "")
        return found.digest

    assert digest_of(manifest) == f"manifest {manifest_digest(manifest)}"
    assert digest_of(msgspec.structs.replace(manifest, hub=origin)) == f"org/name@{'a' * 40}"
    assert not folder.reads
    assert digest_of(other) != digest_of(manifest)


def test_the_main_file_of_a_hub_model_is_in_its_fingerprint() -> None:
    """As in that of a node which reads it from the hub."""
    content = FileContent(sha256="a" * 64, num_bytes=1)
    manifest = Manifest(
        kind="gguf",
        files=(ManifestFile(name="q4/x.gguf", content=content),),
        main="q4/x.gguf",
        hub=HubOrigin(repo_id="org/name", commit="b" * 40),
    )
    assert module.manifest_fingerprint(manifest).digest == f"org/name@{'b' * 40}:q4/x.gguf"


def test_a_node_that_can_get_files_answers_without_having_any(demo: Path) -> None:
    manifest = ContentFolder().add_model("demo")
    own = fingerprint(demo)
    record = changed(a_record(), model=str(demo / "gone"), fingerprint=own)
    by_content = changed(record, manifest=manifest)
    fingerprints = Fingerprints()
    assert "no model found at" in fingerprints.text_problem(record, can_get=True)
    assert "no model found at" in fingerprints.text_problem(by_content)
    assert fingerprints.text_problem(by_content, can_get=True) == ""
