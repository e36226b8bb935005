"""What ``potluck wheel check`` prints, its document and its exit code."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from support.portability.elf_bytes import Elf, Need, Symbol
from support.portability.linking import a_host, a_library
from support.portability.wheel_bytes import write_wheel
from support.schemas import validate_document

from potluck.cli import wheel as command
from potluck.cli.wheel import check, check_on
from potluck.cli.wheel_document import short_lines
from potluck.cli.wheel_hosts import SilentNode
from potluck.errors import UsageError, WheelFileError
from potluck.portability.checks.report import HostReport, WheelReport
from potluck.portability.finding import Finding, Severity
from potluck.portability.hosts.host import Host
from potluck.portability.linking.promises import Promise
from potluck.portability.wheels import named_wheels

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
        "the tag claims compatibility that the files lack",
        "  on new: installs, loads",
    ]


def test_a_wheel_that_does_not(wheel: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_on([OLD], [wheel], as_json=False) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:4] == [
        "  on old: installs, will not load",
        "    fatal: pack/a.so, pack/b.so: it needs GLIBC_2.29 of libm.so.6 (exp), but old has "
        "at most GLIBC_2.27",
    ]
    assert lines[4].startswith("      fix: a newer system or base image (Debian 11, ")
    assert len(lines) == 5


def test_names_in_a_wheel_forge_no_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elf = Elf(needed=["libx\n\x1b[2Joverwritten\x9b.so"])
    check_on([NEW], [str(write_wheel(tmp_path, {"a.so": elf.build()}))], as_json=False)
    assert r"libx\n\x1b[2Joverwritten\x9b.so" in capsys.readouterr().out


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
        "pack/a.so: it needs GLIBC_2.29 of libm.so.6 (exp), but old has at most GLIBC_2.27"
    )
    assert "is not compatible with glibc 2.12" in lines[3]


def test_a_node_that_says_nothing_counts_as_one_where_it_does_not_load(
    wheel: str, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = [SilentNode(node_id="a" * 16, problem="it left")]
    assert check_on([NEW], [wheel], silent=silent, as_json=False) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"node {'a' * 16} did not describe its host: it left"
    assert check_on([NEW], [wheel], silent=silent, as_json=True) == 1
    document = json.loads(capsys.readouterr().out)
    validate_document(document)
    assert document["silent"] == [{"node_id": "a" * 16, "problem": "it left"}]


def test_the_cluster_is_not_checked_along_with_other_hosts() -> None:
    with pytest.raises(UsageError, match="cannot be used together"):
        check(wheels=["a.whl"], host=["debian-12-amd64"], cluster=True)


def test_the_document(wheel: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_on([NEW, OLD], [wheel], as_json=True) == 1
    out, err = capsys.readouterr()
    document = json.loads(out)
    validate_document(document)
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
    assert found["promise"] == "the tag claims compatibility that the files lack"
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
    assert "use the wheel for x86_64" in out


@pytest.mark.parametrize("text", ["no/such", "gone.whl", "gone.so", "./pack"])
def test_a_path_that_leads_nowhere_is_no_name(text: str) -> None:
    with pytest.raises(UsageError, match="no such file"):
        check_on([NEW], [text], as_json=False)


def test_what_is_no_wheel_is_a_wrong_use(tmp_path: Path) -> None:
    (tmp_path / "pack-1.0-py3-none-any.whl").write_bytes(b"text")
    with pytest.raises(WheelFileError) as caught:
        check_on([NEW], [str(tmp_path / "pack-1.0-py3-none-any.whl")], as_json=False)
    assert caught.value.exit_code == 2
    assert caught.value.hint


def test_one_line_for_each_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_wheel(
        tmp_path, {"a.so": Elf(machine=183).build()}, tag="cp311-cp311-manylinux_2_17_aarch64"
    )
    here = write_wheel(tmp_path, {"a.so": an_extension()})
    monkeypatch.setattr(command, "_newest", lambda *_: [other, here])
    monkeypatch.setattr(command, "_working_releases", lambda *_: [])
    assert check_on([NEW, OLD], ["pack"], as_json=False, is_short=True) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["HOST", "new", "old"]
    assert all(here.name in line for line in lines[1:])
    assert "GLIBC_2.29" in lines[2]
    assert check_on([NEW], [str(here)], as_json=False, is_short=True) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def best_of(folder: Path, host: Host, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the wheel that ``--short`` chooses."""
    check_on([host], [str(folder)], as_json=False, is_short=True)
    _, line = capsys.readouterr().out.splitlines()
    return next(word for word in line.split() if word.endswith(".whl"))


def test_the_best_wheel_is_the_newest_of_those_that_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for version in ("1.9", "1.10", "1.2", "2.0rc"):
        write_wheel(tmp_path, {"a.so": an_extension()}, version=version)
    assert best_of(tmp_path, NEW, capsys).startswith("pack-2.0rc-")
    write_wheel(tmp_path, {"a.py": b""}, version="3.0", tag="py3-none-any")
    assert best_of(tmp_path, NEW, capsys).startswith("pack-3.0-")
    assert best_of(tmp_path, OLD, capsys).startswith("pack-3.0-")  # the others do not load there


def limit(feature: str, code: str = "cuda-arch") -> Finding:
    return Finding(code=code, severity=Severity.LIMIT, message=f"no {feature}", feature=feature)


CRASHES = limit("", "cpu-level")
USES_AVX2 = Finding(code="cpu-used", severity=Severity.NOTE, message="it contains AVX2")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((limit("a"), limit("b")), (limit("a"),)),
        ((CRASHES,), (limit("a"), limit("b"))),
        ((USES_AVX2,), ()),
    ],
)
def test_the_best_wheel_lacks_the_least(
    first: tuple[Finding, ...], second: tuple[Finding, ...]
) -> None:
    def report(file: str, findings: tuple[Finding, ...]) -> WheelReport:
        host = HostReport(
            host="new", origin="", machine="x86_64", refusal=None, files=(), features=findings
        )
        return WheelReport(
            file=file, distribution=None, minima=(), promise=Promise.NONE, hosts=(host,)
        )

    _, line = short_lines([[report("first", first), report("second", second)]])
    assert "second" in line.split()
    _, line = short_lines([[report("first", second), report("second", first)]])
    assert "first" in line.split()


ARM = replace(NEW, name="arm", machine="aarch64")


def write_arm_wheel(folder: Path, name: str = "pack") -> Path:
    tag = "cp311-cp311-manylinux_2_17_aarch64"
    return write_wheel(folder, {"a.so": Elf(machine=183).build()}, name=name, tag=tag)


def test_wheels_for_other_architectures_are_counted_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = write_wheel(tmp_path, {"a.so": an_extension()})
    other = write_arm_wheel(tmp_path)
    assert check_on([NEW], [str(tmp_path)], as_json=False) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == here.name
    assert lines[-1] == "not shown: 1 wheel for other architectures (--json includes them)"
    assert other.name not in lines
    assert check_on([NEW], [str(tmp_path)], as_json=True) == 0
    document = json.loads(capsys.readouterr().out)
    assert {each["file"] for each in document["wheels"]} == {here.name, other.name}


def test_hosts_of_other_architectures_are_counted_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_wheel(tmp_path, {"a.so": an_extension()})
    write_arm_wheel(tmp_path)
    write_wheel(tmp_path, {"a.py": b""}, name="pure", tag="py3-none-any")
    assert check_on([NEW, OLD, ARM], [str(tmp_path)], as_json=False) == 1
    lines = capsys.readouterr().out.splitlines()
    named = [line.split()[:2] for line in lines if line.split()[0] in {"on", "new", "old", "arm"}]
    for_arm, for_x86, for_all = [["on", "arm:"]], ["new", "old"], ["new", "old", "arm"]
    assert named == [*for_arm, *([name, "yes"] for name in (*for_x86, *for_all))]
    assert lines[-1] == "not shown: 3 rows for other architectures (--json includes them)"
    assert check_on([NEW, ARM], [str(tmp_path)], as_json=True) == 0
    document = json.loads(capsys.readouterr().out)
    assert [len(each["hosts"]) for each in document["wheels"]] == [2, 2, 2]


def test_a_project_without_a_wheel_for_a_host_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_wheel(tmp_path, {"a.so": an_extension()})
    write_arm_wheel(tmp_path)
    lacking = write_arm_wheel(tmp_path, name="lacking")
    assert check_on([NEW], [str(tmp_path)], as_json=False) == 1
    lines = capsys.readouterr().out.splitlines()
    place = lines.index(lacking.name)
    assert "  on new: does not install, will not load" in lines[place:]
    assert lines[-1] == "not shown: 1 wheel for other architectures (--json includes them)"


class OlderPip:
    """Has the releases 1.0, which works on ``OLD``, and 2.0, which does not."""

    def __call__(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        if arguments[0] == "index":
            return subprocess.CompletedProcess(arguments, 0, "Available versions: 2.0, 1.0\n", "")
        folder = Path(arguments[arguments.index("--dest") + 1])
        version = "1.0" if arguments[-1].endswith("==1.0") else "2.0"
        extension = Elf(needed=["libc.so.6"]).build() if version == "1.0" else an_extension()
        write_wheel(folder, {"a.so": extension}, version=version)
        return subprocess.CompletedProcess(arguments, 0, "", "")


def test_the_release_that_works_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "potluck/wheels").mkdir(parents=True)
    monkeypatch.setattr(named_wheels, "run_pip", OlderPip())
    newest = write_wheel(tmp_path, {"a.so": an_extension()}, version="2.0")
    monkeypatch.setattr(command, "_newest", lambda *_: [newest])
    assert check_on([NEW, OLD], ["pack"], as_json=False) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == (
        "old: pack 1.0 is the newest release found that installs and loads there"
    )
    assert "works on old" in err
    assert "works on new" not in err
    assert check_on([NEW, OLD], ["pack"], as_json=True) == 1
    document = json.loads(capsys.readouterr().out)
    validate_document(document)
    assert document["working_releases"] == [{"project": "pack", "host": "old", "version": "1.0"}]


@pytest.mark.parametrize(("python", "exit_code"), [("", 0), ("3.11", 0), ("3.12", 1), ("3.11t", 1)])
def test_another_python(wheel: str, python: str, exit_code: int) -> None:
    with pytest.raises(typer.Exit) as caught:
        check(wheels=[wheel], host=["debian-12-x86_64"], python=python)
    assert caught.value.exit_code == exit_code


@pytest.mark.parametrize("python", ["3", "2.7", "py311", "3.11.4", "three"])
def test_what_is_no_python(wheel: str, python: str) -> None:
    with pytest.raises(UsageError, match="not a CPython version"):
        check(wheels=[wheel], host=["debian-12-x86_64"], python=python)
