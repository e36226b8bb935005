"""Files that have the name of a library and are none: whole checks of wheels with one."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.portability.checked_wheel import check_wheel
from support.portability.elf_bytes import Elf
from support.portability.linking import a_host
from support.portability.wheel_bytes import write_wheel

from potluck.portability.checks.report import HostReport
from potluck.portability.finding import Severity, Verdict

ELF = Elf().build()


def report(
    folder: Path, *contents: bytes, info: dict[str, bytes | None] | None = None
) -> HostReport:
    members = {f"pack/lib{number}.so": each for number, each in enumerate(contents)}
    (found,) = check_wheel(write_wheel(folder, members, info=info), [a_host()]).hosts
    return found


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "an empty file"),
        (b"lib.so.1", "not an ELF file"),
        (b"\x7fEL", "not an ELF file"),
        (b"\xca\xfe\xba\xbe" + bytes(40), "Mach-O"),
        (b"MZ" + bytes(64), "PE file"),
        (b"!<arch>\n", "an archive"),
        (Elf(file_type=1).build(), "an object file"),
        (Elf(file_type=4).build(), "a core dump"),
    ],
)
def test_what_the_linker_refuses(tmp_path: Path, data: bytes, what: str) -> None:
    found = report(tmp_path, data)
    assert found.verdict is Verdict.WILL_NOT_LOAD
    (finding,) = found.findings
    assert (finding.code, finding.severity) == ("not-a-library", Severity.FATAL)
    assert (finding.file, found.files[0].opens_alone) == ("pack/lib0.so", False)
    assert what in finding.message
    assert finding.fix


def test_a_linker_script_is_for_builds(tmp_path: Path) -> None:
    script = b"/* GNU ld script\n   Use the shared library. */\nGROUP ( libx.so.1 )\n"
    found = report(tmp_path, script, ELF)
    assert found.verdict is Verdict.LOADS
    assert [each.severity for each in found.findings] == [Severity.NOTE]


@pytest.mark.parametrize("data", [b"\xcf\xfa\xed\xfe" + bytes(40), b"MZ" + bytes(40)])
def test_a_file_for_another_system_beside_one_for_this(tmp_path: Path, data: bytes) -> None:
    found = report(tmp_path, data, ELF)
    assert found.verdict is Verdict.LOADS
    assert [each.severity for each in found.findings] == [Severity.NOTE]


@pytest.mark.parametrize(
    ("name", "data"),
    [("libx.dylib", b"\xcf\xfa\xed\xfe" + bytes(40)), ("x.DLL", b"MZ" + bytes(40))],
)
def test_libraries_for_other_systems_alone(tmp_path: Path, name: str, data: bytes) -> None:
    alone = write_wheel(tmp_path, {f"pack/{name}": data}, tag="py3-none-any")
    (found,) = check_wheel(alone, [a_host()]).hosts
    assert found.verdict is Verdict.LOADS_WITHOUT
    (finding,) = found.findings
    assert (finding.severity, finding.feature) == (Severity.LIMIT, "its native code")
    both = write_wheel(tmp_path, {f"pack/{name}": data, "pack/libx.so": ELF})
    (found,) = check_wheel(both, [a_host()]).hosts
    assert not found.findings
    text = write_wheel(tmp_path, {f"pack/{name}": b"text"}, version="2.0", tag="py3-none-any")
    (found,) = check_wheel(text, [a_host()]).hosts
    assert not found.findings


def test_an_empty_file_beside_a_sound_one_is_refused_all_the_same(tmp_path: Path) -> None:
    assert report(tmp_path, b"", ELF).verdict is Verdict.WILL_NOT_LOAD


def test_installers_refuse_a_wheel_without_its_record(tmp_path: Path) -> None:
    found = report(tmp_path, ELF, info={"RECORD": None})
    assert not found.is_installed
    assert found.verdict is Verdict.LOADS
    assert found.refusal is not None
    assert "no RECORD" in found.refusal.message
