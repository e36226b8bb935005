"""potluck wheel plan over an index on this machine, which pip asks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.portability.elf_bytes import Elf
from support.portability.local_index import IndexHandler, LocalIndex, hash_of, local_index
from support.portability.wheel_bytes import write_wheel
from support.processes.command import run_command
from support.schemas import validate_document

TAG = "cp311-cp311-manylinux_2_17_x86_64"
HOST = "debian-12-x86_64"


@pytest.fixture
def index(tmp_path: Path) -> Iterator[LocalIndex]:
    with local_index(tmp_path / "files") as index:
        yield index


def plan(index: LocalIndex, home: Path, *arguments: str) -> tuple[int, str, str]:
    completed = run_command("wheel", "plan", *arguments, env=index.environment(home))
    return completed.returncode, completed.stdout, completed.stderr


def test_a_plan_as_a_document(index: LocalIndex, tmp_path: Path) -> None:
    loads = {"core.so": Elf(needed=("libc.so.6",)).build(), "table.txt": bytes(1 << 20)}
    write_wheel(index.folder, loads, name="app", tag=TAG, metadata="Requires-Dist: lib\n")
    write_wheel(index.folder, name="lib", tag="py3-none-any")
    status, output, _ = plan(
        index, tmp_path, "app", "--host", HOST, "--host", "ubuntu-24.04-x86_64", "--json"
    )
    document = json.loads(output)
    validate_document(document)
    assert document["looked_up"] == ["app", "lib"]
    (problem,) = document["problems"]
    assert (problem["hosts"], status) == (["ubuntu-24.04-x86_64"], 1)
    (own,) = document["own"]
    assert [(each["name"], each["version"]) for each in own["wheels"]] == [
        ("app", "1.0"),
        ("lib", "1.0"),
    ]
    for each in own["wheels"]:
        assert each["sha256"] == hash_of(index.folder / each["file"])


def test_metadata_beside_a_wheel_is_read_instead_of_the_wheel(
    index: LocalIndex, tmp_path: Path
) -> None:
    for version, requires in (("2.0", "lib>=9"), ("1.0", "lib")):
        path = write_wheel(
            index.folder,
            name="app",
            version=version,
            tag=TAG,
            metadata=f"Requires-Dist: {requires}\n",
        )
        text = f"Metadata-Version: 2.1\nName: app\nVersion: {version}\nRequires-Dist: {requires}\n"
        path.with_name(f"{path.name}.metadata").write_text(text)
    write_wheel(index.folder, name="lib", tag="py3-none-any")
    status, output, _ = plan(index, tmp_path, "app", "--host", HOST)
    assert status == 0
    assert "app" in output
    read = [each for each in index.requests if "/files/app-2.0" in each]
    assert read == [f"GET /files/app-2.0-{TAG}.whl.metadata "]


def test_metadata_with_another_digest_is_refused(index: LocalIndex, tmp_path: Path) -> None:
    path = write_wheel(index.folder, name="app", tag=TAG)
    text = path.with_name(f"{path.name}.metadata")
    text.write_text("Metadata-Version: 2.1\nName: app\nVersion: 1.0\n")
    honest = IndexHandler.page

    def page(handler: IndexHandler, project: str) -> bytes:
        return honest(handler, project).replace(hash_of(text).encode(), b"0" * 64)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IndexHandler, "page", page)
        status, _, errors = plan(index, tmp_path, "app", "--host", HOST)
    assert status == 2
    assert "the SHA-256 of" in errors


def test_constraints_are_written(index: LocalIndex, tmp_path: Path) -> None:
    write_wheel(index.folder, name="app", tag="py3-none-any")
    output = tmp_path / "constraints.txt"
    status, _, _ = plan(index, tmp_path, "app", "--host", HOST, "--output", str(output))
    assert status == 0
    assert output.read_text() == f"# For {HOST}\napp==1.0\n"


def test_a_wheel_in_a_file_and_requirements_in_one(index: LocalIndex, tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, name="own", tag="py3-none-any", metadata="Requires-Dist: app\n")
    write_wheel(index.folder, name="app", tag="py3-none-any")
    write_wheel(index.folder, name="lib", tag="py3-none-any")
    (tmp_path / "requirements.txt").write_text("# a comment\nlib>=1  # another\n\n")
    status, output, _ = plan(
        index,
        tmp_path,
        str(wheel),
        "-r",
        str(tmp_path / "requirements.txt"),
        *("--host", HOST, "--json"),
    )
    document = json.loads(output)
    assert status == 0
    assert [each["name"] for each in document["own"][0]["wheels"]] == ["app", "lib", "own"]
    assert document["looked_up"] == ["lib", "app"]


def test_variants_are_chosen_by_the_file_of_the_index(index: LocalIndex, tmp_path: Path) -> None:
    variants = {
        "arm": {"aarch64": {"asimddp": ["on"]}},
        "mkl": {"blas_lapack": {"library": ["mkl"]}},
    }
    priorities = {"default-priorities": {"namespace": ["aarch64", "blas_lapack"]}}
    described = index.folder / "app-1.0-variants.json"
    described.write_text(json.dumps({**priorities, "variants": variants}))
    for label, properties in variants.items():
        data = json.dumps({**priorities, "variants": {label: properties}}).encode()
        write_wheel(index.folder, name="app", tag=f"{TAG}-{label}", info={"variant.json": data})
    arguments = ("app", "--host", HOST)
    status, output, _ = plan(index, tmp_path, *arguments)
    assert status == 1
    assert "only variants of the wheel fit the host (arm, mkl)" in output
    constraints = tmp_path / "constraints.txt"
    status, output, _ = plan(
        index, tmp_path, *arguments, "--variants", "--output", str(constraints)
    )
    assert status == 0
    assert f"{TAG}-mkl" in output
    assert constraints.read_text() == f"# For {HOST}\napp==1.0\n"
    status, output, _ = plan(index, tmp_path, *arguments, "--variants", "--json")
    document = json.loads(output)
    validate_document(document)
    (wheel,) = document["own"][0]["wheels"]
    assert (status, wheel["variant"], wheel["unused_variants"]) == (0, "mkl", [])
    described.write_bytes(b"{" + bytes(1 << 20))
    status, output, _ = plan(index, tmp_path, *arguments, "--variants")
    assert status == 1
    assert "app-1.0-variants.json cannot be read" in output
    assert "has more than 1048576 bytes" in output


def test_what_makes_no_sense_is_said_in_a_line(index: LocalIndex, tmp_path: Path) -> None:
    assert plan(index, tmp_path)[0] == 2
    assert plan(index, tmp_path, "app @ https://example.org/a.whl")[0] == 2
    (tmp_path / "requirements.txt").write_text("--index-url https://example.org\n")
    assert plan(index, tmp_path, "-r", str(tmp_path / "requirements.txt"))[0] == 2
    assert plan(index, tmp_path, "app", "--host", HOST, "--cluster")[0] == 2
    assert not index.requests
