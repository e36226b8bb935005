"""Wheels are made of a wheel without a core, and the same contents give the same bytes."""

from __future__ import annotations

import csv
import hashlib
import zipfile
from base64 import urlsafe_b64decode
from pathlib import Path

import pytest
from packaging.utils import parse_wheel_filename

from tools.wheels.errors import BuildError
from tools.wheels.targets import TARGETS, Target, target_named
from tools.wheels.wheel_archive import read_wheel, wheel_name, with_core, write_wheel

EPOCH = 1_700_000_000
PURE = {
    "potluck-0.1.dist-info/WHEEL": b"Root-Is-Purelib: true\nTag: py3-none-any\n",
    "potluck-0.1.dist-info/METADATA": b"Name: potluck\n",
    "potluck-0.1.dist-info/RECORD": b"old\n",
    "potluck/__init__.py": b"",
}
NAMES = {
    "cp311-x86_64": "potluck-0.1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
    "cp312-x86_64": "potluck-0.1-cp312-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
    "cp311-aarch64": "potluck-0.1-cp311-cp311-manylinux_2_17_aarch64.manylinux2014_aarch64.whl",
    "cp312-aarch64": "potluck-0.1-cp312-abi3-manylinux_2_17_aarch64.manylinux2014_aarch64.whl",
}


def test_every_target_has_its_name() -> None:
    assert {target.name: wheel_name(PURE, target) for target in TARGETS} == NAMES
    with pytest.raises(ValueError, match="cp310"):
        target_named("cp310-x86_64")


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_tags_and_file_name_agree(target: Target) -> None:
    files = with_core(PURE, b"\x7fELF", target)
    lines = files["potluck-0.1.dist-info/WHEEL"].decode().splitlines()
    tags = {line.removeprefix("Tag: ") for line in lines if line.startswith("Tag: ")}
    *_, named = parse_wheel_filename(wheel_name(files, target))
    assert tags == {str(tag) for tag in named}
    assert lines.count("Root-Is-Purelib: false") == 1
    assert not any("true" in line for line in lines)
    assert files[f"potluck/kernels/{target.module_file}"] == b"\x7fELF"


def test_the_module_has_the_name_that_python_looks_for() -> None:
    assert target_named("cp311-aarch64").module_file == "_core.cpython-311-aarch64-linux-gnu.so"
    assert target_named("cp312-x86_64").module_file == "_core.abi3.so"


def test_a_wheel_says_what_is_in_it(tmp_path: Path) -> None:
    files = with_core(PURE, b"core", TARGETS[0])
    path = tmp_path / "a.whl"
    write_wheel(path, files, epoch=EPOCH)
    read = read_wheel(path)
    record = read.pop("potluck-0.1.dist-info/RECORD").decode()
    assert read == files
    rows = {name: (digest, size) for name, digest, size in csv.reader(record.splitlines())}
    assert rows.pop("potluck-0.1.dist-info/RECORD") == ("", "")
    assert rows.keys() == files.keys()
    for name, (digest, size) in rows.items():
        assert int(size) == len(files[name])
        encoded = digest.removeprefix("sha256=") + "="
        assert urlsafe_b64decode(encoded) == hashlib.sha256(files[name]).digest()


def test_the_same_contents_give_the_same_bytes(tmp_path: Path) -> None:
    files = with_core(PURE, b"core", TARGETS[0])
    one, other = tmp_path / "one.whl", tmp_path / "other.whl"
    write_wheel(one, files, epoch=EPOCH)
    write_wheel(other, dict(reversed(files.items())), epoch=EPOCH)
    assert one.read_bytes() == other.read_bytes()
    write_wheel(other, files, epoch=EPOCH + 2)
    assert one.read_bytes() != other.read_bytes()
    with zipfile.ZipFile(one) as archive:
        names = archive.namelist()
        assert {info.external_attr >> 16 for info in archive.infolist()} == {0o100644}
    assert names[0].startswith("potluck/")
    assert names[-1] == "potluck-0.1.dist-info/RECORD"


def test_a_second_core_is_refused() -> None:
    files = with_core(PURE, b"core", TARGETS[0])
    with pytest.raises(BuildError, match="core already"):
        with_core(files, b"core", TARGETS[1])
    with pytest.raises(BuildError, match="WHEEL"):
        with_core({"potluck/__init__.py": b""}, b"core", TARGETS[0])
