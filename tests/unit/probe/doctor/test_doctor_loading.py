"""What the doctor tries to load itself: packages with compiled parts, libraries of backends."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.kernels.build import require_tool
from support.machines.doctor_cases import a_report, a_system

from potluck.host.system import System
from potluck.probe.doctor import look
from potluck.probe.doctor.look import (
    Package,
    find_library,
    inspect_opened_libraries,
    inspect_packages,
)
from potluck.types.backend import BackendLibrary, BackendSpec, DeviceKind
from potluck.types.hardware import Trial

ELF = b"\x7fELF"

LIBRARY = BackendLibrary(
    name="libthing.so",
    patterns=(r"libthing\.so\.?[0-9]*", r"libother\.so\.?[0-9]*"),
    folders=("/usr/lib", "/lib/{machine}-linux-gnu"),
    variable="THING_PATH",
)


def put(root: Path, *names: str, data: bytes = ELF) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


@pytest.mark.parametrize(
    ("files", "environ", "found"),
    [
        ((), {}, ""),
        (("usr/lib/libthing.so.1",), {}, "/usr/lib/libthing.so.1"),
        (("usr/lib/libthing.so.1.2",), {}, ""),  # not a name that is looked for
        (
            ("lib/aarch64-linux-gnu/libthing.so", "usr/lib/libother.so.3"),
            {},
            "/lib/aarch64-linux-gnu/libthing.so",
        ),
        (
            ("usr/lib/libother.so.3", "lib/x86_64-linux-gnu/libthing.so"),
            {},
            "/usr/lib/libother.so.3",
        ),
        (
            ("opt/x/libthing.so.1", "usr/lib/libthing.so.1"),
            {"LD_LIBRARY_PATH": ":/opt/x"},
            "/opt/x/libthing.so.1",
        ),
        (
            ("opt/y/strange-name", "usr/lib/libthing.so.1"),
            {"THING_PATH": "/opt/y/strange-name"},
            "/opt/y/strange-name",
        ),
        (
            ("opt/y/libthing.so", "opt/x/libthing.so.1"),
            {"THING_PATH": "/opt/y", "LD_LIBRARY_PATH": "/opt/x"},
            "/opt/y/libthing.so",
        ),
    ],
)
def test_a_library_is_found_where_the_backend_finds_it(
    tmp_path: Path, files: tuple[str, ...], environ: dict[str, str], found: str
) -> None:
    system = a_system(tmp_path)
    put(tmp_path, *files)
    assert find_library(system, LIBRARY, "aarch64", environ) == found


def test_a_linker_script_is_no_library(tmp_path: Path) -> None:
    system = a_system(tmp_path)
    put(tmp_path, "usr/lib/libthing.so", data=b"GROUP ( libthing.so.1 )")
    put(tmp_path, "lib/x86_64-linux-gnu/libthing.so.1")
    found = find_library(system, LIBRARY, "x86_64", {})
    assert found == "/lib/x86_64-linux-gnu/libthing.so.1"


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``broken.so``, which is a module too, and needs a library that is gone."""
    folder = tmp_path_factory.mktemp("broken")
    gone = folder / "libgone.so.1"
    compiler = [require_tool("gcc"), "-shared", "-nostdlib", "-xc", "/dev/null", "-xnone"]
    subprocess.run([*compiler, "-Wl,-soname,libgone.so.1", "-o", str(gone)], check=True)
    command = [*compiler, "-Wl,--no-as-needed", str(gone), "-o", str(folder / "broken.so")]
    subprocess.run(command, check=True)
    gone.unlink()
    return folder


def test_a_package_whose_list_of_files_is_damaged_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "pack-1.0.dist-info"
    put(info, "METADATA", data=b"Metadata-Version: 2.1\nName: pack\nVersion: 1.0\n")
    put(info, "RECORD", data=b"pack.so,sha256=x,1\n\xff\xff")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(look, "_problem", lambda *_: "it is damaged")
    (found,) = inspect_packages([Package(name="pack", module="pack")])
    assert (found.version, found.load_error, found.lacks) == ("1.0", "it is damaged", ())


def test_a_library_whose_path_is_not_utf8_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = os.fsdecode(b"/opt/\xff")
    put(tmp_path, f"{folder[1:]}/libthing.so")
    monkeypatch.setattr(look, "_problem", lambda *_: "it is damaged")
    trial, backend = a_trial("a", works=False), a_backend(replace(LIBRARY, folders=(folder,)))
    report = a_report(trials=(trial,))
    (opened,) = inspect_opened_libraries(a_system(tmp_path), report, (backend,), {})
    assert (opened.load_error, opened.lacks) == ("it is damaged", ())


def a_backend(*libraries: BackendLibrary) -> BackendSpec:
    return BackendSpec(
        name="gpu", module="m", kinds=frozenset({DeviceKind.GPU}), libraries=libraries
    )


def a_trial(device_id: str, *, works: bool) -> Trial:
    return Trial(device_id=device_id, backend="gpu", works=works)


@pytest.mark.slow
def test_a_library_that_lacks_another_is_explained(broken: Path) -> None:
    library = replace(LIBRARY, patterns=(r"broken\.so",), folders=(str(broken),))
    report = a_report(trials=(a_trial("a", works=False), a_trial("b", works=False)))
    (opened,) = inspect_opened_libraries(System(), report, (a_backend(library),), {})
    assert opened.path == str(broken / "broken.so")
    assert opened.load_error.startswith("libgone.so.1: cannot open shared object file")
    (lack,) = opened.lacks
    assert (lack.code, lack.library) == ("missing-library", "libgone.so.1")


def test_libraries_of_backends_that_work_somewhere_are_left_alone(tmp_path: Path) -> None:
    report = a_report(trials=(a_trial("a", works=False), a_trial("b", works=True)))
    system = a_system(tmp_path)
    looked = inspect_opened_libraries(system, report, (a_backend(LIBRARY),), {})
    assert looked == ()


def test_a_library_that_is_nowhere_is_not_loaded(tmp_path: Path) -> None:
    report = a_report(trials=(a_trial("a", works=False),))
    system = a_system(tmp_path)
    (opened,) = inspect_opened_libraries(system, report, (a_backend(LIBRARY),), {})
    assert (opened.path, opened.load_error, opened.lacks) == ("", "", ())


def install(folder: Path, name: str, *files: str) -> None:
    """As pip leaves a distribution."""
    info = folder / f"{name}-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages, here and in children."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


@pytest.mark.slow
def test_a_package_whose_extension_does_not_load_is_explained(site: Path, broken: Path) -> None:
    (site / "broken.so").write_bytes((broken / "broken.so").read_bytes())
    install(site, "brittle", "broken.so", "missing.so", "../../outside.so")
    package = Package(name="brittle", module="broken", loss="all is lost")
    (found,) = inspect_packages((package,))
    assert (found.name, found.version, found.loss) == ("brittle", "1.5", "all is lost")
    assert found.load_error.startswith("libgone.so.1: cannot open shared object file")
    (lack,) = found.lacks
    assert (lack.code, lack.library) == ("missing-library", "libgone.so.1")


def test_a_package_that_kills_its_process_costs_a_line(site: Path) -> None:
    (site / "deadly.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n")
    install(site, "deadly", "deadly.py")
    (found,) = inspect_packages((Package(name="deadly", module="deadly"),))
    assert found.load_error == "was killed by SIGILL"
    assert found.lacks == ()


def test_packages_that_load_or_are_not_installed(site: Path) -> None:
    (site / "sound.py").touch()
    install(site, "sound", "sound.py")
    packages = (Package(name="sound", module="sound"), Package(name="absent", module="absent"))
    assert inspect_packages(packages) == ()
    assert "sound" not in sys.modules
