"""What ``potluck wheel check`` prints, its document and its exit code."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from support.elf_bytes import Elf, Need, Symbol
from support.linking import a_host, a_library
from support.wheel_bytes import write_wheel

import potluck
from potluck.cli import wheel as command
from potluck.cli.wheel import check_on
from potluck.errors import UsageError, WheelFileError
from potluck.portability.host import Host

SCHEMA = Path(potluck.__file__).parent / "cli/schemas/wheel.json"
NEW = replace(
    a_host(a_library("libm.so.6", "exp@@GLIBC_2.29", versions=("GLIBC_2.29",))), name="new"
)
OLD = replace(
    a_host(),
    name="old",
    libc_version=(2, 27),
    libraries=(a_host().libraries[0], a_library("libm.so.6", versions=("GLIBC_2.27",))),
)


def an_extension() -> bytes:
    return Elf(
        needed=["libc.so.6", "libm.so.6"],
        symbols=[Symbol(name="exp", version=2), Symbol(name="PyInit_a", is_defined=True)],
        needs=[Need(library="libm.so.6", versions=[("GLIBC_2.29", 2, 0)])],
    ).build()


@pytest.fixture
def wheel(tmp_path: Path) -> str:
    return str(write_wheel(tmp_path, {"pack/a.so": an_extension(), "pack/b.so": an_extension()}))


def test_a_wheel_that_loads(wheel: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_on([NEW], [wheel], as_json=False) == 0
    assert capsys.readouterr().out.splitlines() == [
        "pack-1.0-cp311-cp311-manylinux_2_17_x86_64.whl",
        "  tagged manylinux_2_17_x86_64; needs manylinux_2_31_x86_64 (GLIBC_2.29): "
        "it promises more than it keeps",
        "  on new: installs, loads",
    ]


def test_a_wheel_that_does_not(wheel: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_on([OLD], [wheel], as_json=False) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:4] == [
        "  on old: installs, will not load",
        "    fatal: pack/a.so, pack/b.so: it needs GLIBC_2.29 of libm.so.6 (exp), and old has "
        "GLIBC_2.27 at most",
    ]
    assert lines[4].startswith("      way out: a newer system or base image (Debian 11, ")
    assert len(lines) == 5


def test_several_hosts_are_a_table(wheel: str, capsys: pytest.CaptureFixture[str]) -> None:
    refusing = replace(NEW, name="refusing", libc_version=(2, 12))
    assert check_on([NEW, OLD, refusing], [wheel], as_json=False) == 1
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[:3] for line in lines] == [
        ["HOST", "INSTALLS", "VERDICT"],
        ["new", "yes", "loads"],
        ["old", "yes", "will"],
        ["refusing", "no", "loads"],
    ]
    assert lines[2].endswith(
        "pack/a.so: it needs GLIBC_2.29 of libm.so.6 (exp), and old has GLIBC_2.27 at most"
    )
    assert "does not go with glibc 2.12" in lines[3]


def test_the_document(wheel: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_on([NEW, OLD], [wheel], as_json=True) == 1
    out, err = capsys.readouterr()
    document = json.loads(out)
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    assert err == ""
    assert document["schema"] == "potluck.wheel/1"
    assert document["hosts"][1] == {
        "name": "old",
        "origin": "a test",
        "machine": "x86_64",
        "libc": "glibc 2.27",
        "python": "3.11",
    }
    (found,) = document["wheels"]
    assert found["promise"] == "promises more than it keeps"
    assert found["minima"] == [
        {
            "machine": "x86_64",
            "platform": "manylinux_2_31_x86_64",
            "because": [
                {"version": "GLIBC_2.29", "file": "pack/a.so"},
                {"version": "GLIBC_2.29", "file": "pack/b.so"},
            ],
            "libraries_outside": [],
        }
    ]
    assert [each["verdict"] for each in found["hosts"]] == ["loads", "will not load"]
    first = found["hosts"][1]["files"][0]
    assert (first["path"], first["opens_alone"]) == ("pack/a.so", False)
    assert first["findings"][0]["symbol"] == "exp@GLIBC_2.29"
    assert first["findings"][0]["feature"] is None


def test_a_file_that_is_no_wheel_has_no_promise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.so").write_bytes(an_extension())
    assert check_on([NEW], [str(tmp_path / "a.so")], as_json=False) == 0
    assert capsys.readouterr().out.splitlines()[1] == ("  needs manylinux_2_31_x86_64 (GLIBC_2.29)")


def test_one_of_a_projects_wheels_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = write_wheel(tmp_path, {"a.so": an_extension()})
    other = write_wheel(
        tmp_path, {"a.so": Elf(machine=183).build()}, tag="cp311-cp311-manylinux_2_17_aarch64"
    )

    def newest(project: str, hosts: list[Host]) -> list[Path]:
        assert project == "pack"
        return [here, other]

    monkeypatch.setattr(command, "_newest", newest)
    assert check_on([NEW], ["pack"], as_json=False) == 0
    assert check_on([NEW], ["pack", str(other)], as_json=False) == 1
    out = capsys.readouterr().out
    assert "on new: does not install, will not load" in out
    assert "take the wheel for x86_64" in out


@pytest.mark.parametrize("text", ["no/such", "gone.whl", "gone.so", "./pack"])
def test_a_path_that_leads_nowhere_is_no_name(text: str) -> None:
    with pytest.raises(UsageError, match="there is no such file"):
        check_on([NEW], [text], as_json=False)


def test_what_is_no_wheel_is_a_wrong_use(tmp_path: Path) -> None:
    (tmp_path / "pack-1.0-py3-none-any.whl").write_bytes(b"text")
    with pytest.raises(WheelFileError) as caught:
        check_on([NEW], [str(tmp_path / "pack-1.0-py3-none-any.whl")], as_json=False)
    assert caught.value.exit_code == 2
    assert caught.value.hint
