"""Wheels, folders and files, and where what is in them gets installed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.portability.elf_bytes import Elf
from support.portability.wheel_bytes import write_wheel

from potluck.errors import WheelFileError
from potluck.portability.wheels.file import Distribution, open_package
from potluck.portability.wheels.misnamed_files import FileKind

ELF = Elf().build()


def paths(path: Path) -> list[str]:
    with open_package(path) as package:
        return [name for name, _ in package.elf_files()]


def distribution(path: Path) -> Distribution | None:
    with open_package(path) as package:
        return package.distribution


def test_the_elf_files_of_a_wheel_at_their_places(tmp_path: Path) -> None:
    members = {
        "pack/_core.so": ELF,
        "pack/tool": ELF,
        "pack/table.bin": b"no ELF file",
        "pack/short": b"\x7fE",
        "pack.libs/libx.so.1": ELF,
        "pack-1.0.data/purelib/pure/p.so": ELF,
        "pack-1.0.data/platlib/plat/p.so": ELF,
        "pack-1.0.data/data/lib/libd.so": ELF,
        "pack-1.0.data/scripts/run": ELF,
        "pack-1.0.data/headers/h": ELF,
        "pack/module.py": ELF,
    }
    assert paths(write_wheel(tmp_path, members)) == [
        "pack/_core.so",
        "pack/tool",
        "pack.libs/libx.so.1",
        "pure/p.so",
        "plat/p.so",
        "../../../lib/libd.so",
        "../../../bin/run",
    ]


def test_contents_are_whole(tmp_path: Path) -> None:
    with open_package(write_wheel(tmp_path, {"a.so": ELF})) as package:
        assert [bytes(data) for _, data in package.elf_files()] == [ELF]


def test_what_a_wheel_says_of_itself(tmp_path: Path) -> None:
    path = write_wheel(
        tmp_path,
        name="My_Pack",
        tag="cp38-abi3-manylinux2014_x86_64.manylinux_2_17_x86_64",
        metadata=(
            "Requires-Python: >=3.8\nRequires-Dist: numpy>=1\nRequires-Dist: x; extra == 'y'\n"
        ),
    )
    assert distribution(path) == Distribution(
        name="my-pack",
        version="1.0",
        tags=("cp38-abi3-manylinux2014_x86_64", "cp38-abi3-manylinux_2_17_x86_64"),
        requires_python=">=3.8",
        requires=("numpy>=1", "x; extra == 'y'"),
    )


@pytest.mark.parametrize("name", ["pack.whl", "pack-1.0.whl", "pack-1.0-py3-none.whl"])
def test_a_name_that_no_wheel_has(tmp_path: Path, name: str) -> None:
    path = write_wheel(tmp_path).rename(tmp_path / name)
    with pytest.raises(WheelFileError) as caught, open_package(path):
        pass
    assert "rename" in caught.value.hint


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ({"other-1.0.dist-info/METADATA": b""}, "2 METADATA"),
        ({}, "contains pack-1.0.dist-info, not other"),
    ],
)
def test_contents_of_something_else(
    tmp_path: Path, members: dict[str, bytes], problem: str
) -> None:
    path = write_wheel(tmp_path, members)
    if not members:
        path = path.rename(tmp_path / path.name.replace("pack", "other"))
    with pytest.raises(WheelFileError, match=problem), open_package(path):
        pass


def test_a_folder_and_the_links_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub/libx.so.1.2").write_bytes(ELF)
    (folder / "sub/libx.so.1").symlink_to("libx.so.1.2")
    (folder / "outside.so").symlink_to("/usr/lib/libc.so.6")
    (folder / "loop").symlink_to(folder)
    (folder / "nowhere.so").symlink_to("gone")
    (folder / "circle.so").symlink_to("elcric.so")
    (folder / "elcric.so").symlink_to("circle.so")
    (folder / "a.txt").write_bytes(b"text")
    with open_package(folder) as package:
        assert [name for name, _ in package.elf_files()] == ["sub/libx.so.1.2"]
        assert package.links["sub/libx.so.1"] == "sub/libx.so.1.2"
        assert "outside.so" not in package.links
        assert package.distribution is None


def test_a_single_file(tmp_path: Path) -> None:
    (tmp_path / "libx.so").write_bytes(ELF)
    assert paths(tmp_path / "libx.so") == ["libx.so"]


@pytest.mark.parametrize("data", [b"", b"text", b"\x1f\x8b"])
def test_other_files(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(WheelFileError, match="neither a wheel nor"), open_package(tmp_path / "f"):
        pass


def test_no_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with pytest.raises(WheelFileError, match="no such file") as caught, open_package(path):
        pass
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("info", "problem"),
    [
        ({}, ""),
        ({"WHEEL": b"Wheel-Version: 1.9\n"}, ""),
        ({"WHEEL": None}, "no WHEEL"),
        ({"RECORD": None}, "no RECORD"),
        ({"WHEEL": None, "RECORD": None}, "no WHEEL and no RECORD"),
        ({"WHEEL": b"Wheel-Version: 9\n"}, "Wheel-Version 9"),
        ({"WHEEL": b"Wheel-Version: 2.0\n"}, "Wheel-Version 2.0"),
        ({"WHEEL": b"Generator: x\n"}, "no Wheel-Version"),
        ({"WHEEL": b"Wheel-Version: new\n"}, "'new' is not a valid Wheel-Version"),
        ({"WHEEL": b"\xff\xfe\0"}, "no Wheel-Version"),
        ({"METADATA": b"Metadata-Version: 2.1\nName: other\nVersion: 1.0\n"}, ""),
        ({"METADATA": b"Metadata-Version: 2.1\nName: pack\nVersion: 2.0\n"}, ""),
        ({"METADATA": b"Metadata-Version: 2.1\nName: Pack\nVersion: 1\n"}, ""),
        ({"METADATA": b"Name: pack\n"}, "no Version"),
        ({"METADATA": b""}, "no Name and no Version"),
    ],
)
def test_what_installers_refuse_on_every_host(
    tmp_path: Path, info: dict[str, bytes | None], problem: str
) -> None:
    found = distribution(write_wheel(tmp_path, {"a.so": ELF}, info=info))
    assert found is not None
    assert problem in found.problem
    assert bool(found.problem) is bool(problem)


def test_files_that_are_named_like_libraries(tmp_path: Path) -> None:
    members = {
        "pack/good.so": ELF,
        "pack/empty.so": b"",
        "pack/libtext.so.1.2": b"libtext.so.1.2.3",
        "pack/mac.cpython-311-darwin.so": b"\xcf\xfa\xed\xfe" + bytes(28),
        "pack/win.so": b"MZ" + bytes(64),
        "pack/libscript.so": b"/* GNU ld script */\nINPUT(-lx)\n",
        "pack/libarchive.so": b"!<arch>\n",
        "pack/a.source": b"text",
        "pack/table.so.json": b"{}",
        "pack-1.0.data/headers/h.so": b"",
        "pack-1.0.data/data/lib/libd.so": b"\0",
    }
    expected = {
        "pack/empty.so": FileKind.EMPTY,
        "pack/libtext.so.1.2": FileKind.OTHER,
        "pack/mac.cpython-311-darwin.so": FileKind.MACH_O,
        "pack/win.so": FileKind.PE,
        "pack/libscript.so": FileKind.SCRIPT,
        "pack/libarchive.so": FileKind.ARCHIVE,
        "../../../lib/libd.so": FileKind.OTHER,
    }
    with open_package(write_wheel(tmp_path, members)) as package:
        assert {each.path: each.kind for each in package.misnamed_files()} == expected
    folder = tmp_path / "pack"
    folder.mkdir()
    for name, data in members.items():
        if name.startswith("pack/"):
            (tmp_path / name).write_bytes(data)
    with open_package(folder) as package:
        assert {each.path for each in package.misnamed_files()} == {
            name.removeprefix("pack/") for name in expected if name.startswith("pack/")
        }
