"""What a build from source needs, read out of the source package."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.portability.folder_index import FolderIndex

from potluck.errors import WheelFileError
from potluck.portability.planning.index import IndexFile
from potluck.portability.planning.problems import build_needs

PROJECT = b'[build-system]\nrequires = ["setuptools>=61", "cython"]\n'


def sdist(folder: Path, files: Mapping[str, bytes]) -> str:
    name = "app-1.0.tar.gz"
    with tarfile.open(folder / name, "w:gz") as archive:
        for path, data in files.items():
            info = tarfile.TarInfo(f"app-1.0/{path}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return name


def needs(folder: Path, name: str) -> str:
    return build_needs(IndexFile(filename=name, url="test:"), FolderIndex(folder))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"app.py": b""}, "needs setuptools"),
        (
            {"pyproject.toml": PROJECT, "src/a.pyx": b"", "src/b.c": b""},
            "needs setuptools>=61, cython, and has sources in C, Cython, some of which may be "
            "unused",
        ),
        (
            {"a.c": b"", "b.cpp": b"", "gpu/k.cu": b"", "tests/t.f90": b"", "vendor/x.go": b""},
            "needs setuptools, and has sources in C, C++, CUDA, some of which may be unused",
        ),
        (
            {"src/lib.rs": b"", "vendor/pyproject.toml": PROJECT, "test cases/a.f": b""},
            "needs setuptools, and has sources in Rust, some of which may be unused",
        ),
        ({"pyproject.toml": b"[build-system"}, "needs setuptools"),
        ({"pyproject.toml": b"build-system = 1"}, "needs setuptools"),
        ({"pyproject.toml": b"[build-system]\nrequires = 1"}, "needs setuptools"),
    ],
)
def test_what_lies_in_it(tmp_path: Path, files: Mapping[str, bytes], expected: str) -> None:
    assert needs(tmp_path, sdist(tmp_path, files)) == expected


def test_a_zip_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "app-1.0.zip", "w") as archive:
        archive.writestr("app-1.0/a.go", b"")
        archive.writestr("app-1.0/pyproject.toml", PROJECT)
    assert needs(tmp_path, "app-1.0.zip") == (
        "needs setuptools>=61, cython, and has sources in Go, some of which may be unused"
    )


def test_what_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "app-1.0.tar.gz").write_bytes(b"no archive")
    with pytest.raises(WheelFileError, match="malformed"):
        needs(tmp_path, "app-1.0.tar.gz")


def test_an_encrypted_archive(tmp_path: Path) -> None:
    path = tmp_path / "app-1.0.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("app-1.0/pyproject.toml", PROJECT)
    data = bytearray(path.read_bytes())
    data[6] |= 1  # in the header of the member
    data[data.index(b"PK\1\2") + 8] |= 1  # and in the directory
    path.write_bytes(data)
    with pytest.raises(WheelFileError, match="malformed"):
        needs(tmp_path, path.name)


def test_a_project_file_that_is_nested_without_end(tmp_path: Path) -> None:
    with pytest.raises(WheelFileError, match="malformed"):
        needs(tmp_path, sdist(tmp_path, {"pyproject.toml": b"a = " + b"[" * 100_000}))
