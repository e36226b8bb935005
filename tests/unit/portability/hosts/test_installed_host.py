"""A description of a machine says what its loader does, and reads it from files."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.machines.machine_tree import machine_tree
from support.schemas import validate_document

from potluck.errors import HostError
from potluck.portability.hosts.c_library import find_c_library, read_library
from potluck.portability.hosts.host import Definition, Host, HostGpu, HostPython
from potluck.portability.hosts.installed import describe_host
from potluck.portability.hosts.root_files import RootFiles
from potluck.portability.hosts.writing import MAX_DOCUMENT_BYTES, host_document

OPENED = """
import ctypes, os, sys
for soname in sys.argv[1:]:
    ctypes.CDLL(soname)
print(*{os.path.realpath(line.split()[-1]) for line in open("/proc/self/maps") if "/" in line})
"""


@pytest.fixture(scope="module")
def this() -> Host:
    return describe_host()


def test_this_machine_is_what_python_says(this: Host) -> None:
    assert this.machine == platform.machine()
    assert (this.libc, ".".join(map(str, this.libc_version))) == platform.libc_ver()
    assert this.python == HostPython(
        implementation=platform.python_implementation().lower(), version=sys.version_info[:2]
    )
    assert this.page_bytes == os.sysconf("SC_PAGE_SIZE")
    assert this.name == platform.node()
    assert this.is_complete


def test_libraries_are_the_files_that_the_loader_opens(this: Host) -> None:
    sonames = [each.soname for each in this.libraries]
    assert {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6"} <= set(sonames)
    opened = subprocess.run(
        [sys.executable, "-c", OPENED, *sonames], capture_output=True, text=True, check=True
    ).stdout.split()
    for each in this.libraries:
        assert os.path.realpath(each.path) in opened


def test_libraries_known_by_name_are_those_of_ldconfig(this: Host) -> None:
    """Those of the C library's ABI, and what lies where the loader looks without its cache."""
    printed = subprocess.run(
        ["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True
    ).stdout
    lines = re.findall(r"^\t(\S+) \(([\w,-]+).*?\) => (\S+)$", printed, re.MULTILINE)
    (libc,) = (each.path for each in this.libraries if each.soname == "libc.so.6")
    (abi,) = (abi for _, abi, path in lines if path == libc)
    ours = {soname: path for soname, each, path in lines if each == abi and Path(path).exists()}
    others = {soname for soname, each, _ in lines if each != abi} - ours.keys()
    known = {each.soname for each in this.libraries} | this.other_libraries
    assert not this.other_libraries & {each.soname for each in this.libraries}
    assert ours.keys() <= known
    folders = {Path(path).parent for path in ours.values()}
    for name in known - ours.keys():
        assert any((folder / name).exists() for folder in folders)
        assert name not in others


def test_every_symbol_of_the_c_library_is_told(this: Host) -> None:
    """All that ``nm`` lists, each with its own version and no other."""
    (libc,) = (each for each in this.libraries if each.soname == "libc.so.6")
    printed = subprocess.run(
        ["nm", "--dynamic", "--defined-only", "--with-symbol-versions", libc.path],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    symbols = re.findall(r" [^A] (\w+)@(@?)([\w.]+)$", printed, re.MULTILINE)
    assert len(symbols) > 2000
    assert libc.symbols is not None
    for name, default, version in symbols:
        assert libc.symbols.defines(name, version) is Definition.PRESENT
        if default:
            assert libc.symbols.defines(name, "") is Definition.PRESENT
        assert libc.symbols.defines(name, "GLIBC_9.9") is Definition.ABSENT
    assert {version for _, _, version in symbols} <= libc.versions


def test_the_document_of_this_machine_fits(this: Host) -> None:
    document = host_document(this)
    validate_document(document)
    assert len(json.dumps(document, separators=(",", ":"))) <= MAX_DOCUMENT_BYTES


@pytest.fixture
def root(this: Host, tmp_path: Path) -> Path:
    """A tree with the C library of this machine, where its loader looks, and little else."""
    for each in this.libraries:
        if each.soname.startswith(("ld-linux", "libc.so", "libm.so")):
            copy = tmp_path / each.path[1:]
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(each.path, copy)
    machine_tree(
        tmp_path,
        {
            "usr/lib/os-release": 'NAME=Other\nPRETTY_NAME="Other Linux 7"',
            "usr/bin/python3.9": "",
            "usr/bin/python3": Path("python3.9"),
            "etc/ld.so.conf": "/opt/lib",
            "opt/lib/libown.so.2": b"",
        },
    )
    return tmp_path


def test_another_root_is_described_as_it_is(this: Host, root: Path) -> None:
    host = describe_host(root)
    assert host.libc_version == this.libc_version
    assert host.origin == "the files of Other Linux 7"
    assert host.python == HostPython(implementation="cpython", version=(3, 9))
    assert [each.soname for each in host.libraries][1:] == ["libc.so.6", "libm.so.6"]
    assert host.libraries[1] in this.libraries
    assert host.other_libraries == {"libown.so.2"}
    assert host.page_bytes is None
    assert host.cpu_features is None


def test_a_library_of_another_machine_is_passed_over(this: Host, root: Path) -> None:
    """As the loader does; also one that is cut off."""
    (libc,) = (each for each in this.libraries if each.soname == "libc.so.6")
    data = bytearray((root / libc.path[1:]).read_bytes())
    data[18:20] = (8).to_bytes(2, "little")  # e_machine: MIPS
    (root / "opt/lib/libc.so.6").write_bytes(data)
    (root / "opt/lib/libm.so.6").write_bytes(data[:50])
    assert describe_host(root).libraries[1:3] == this.libraries[1:3]


@pytest.mark.parametrize(
    ("cpuinfo", "features"),
    [
        ("processor: 0\n{field}: a b c\n\nprocessor: 1\n{field}: c b d", frozenset("bc")),
        ("processor: 0\nother: a b", None),
    ],
)
def test_features_are_those_of_all_cores(
    this: Host, root: Path, cpuinfo: str, features: frozenset[str] | None
) -> None:
    field = "flags" if this.machine == "x86_64" else "Features"
    machine_tree(root, {"proc/cpuinfo": cpuinfo.format(field=field)})
    assert describe_host(root).cpu_features == features


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "driver"),
    [
        ({"sys/module/nvidia/version": "550.54.14"}, (550, 54, 14)),
        (
            {
                "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  "
                "535.104.05  Sat Aug 19 01:15:15 UTC 2023"
            },
            (535, 104, 5),
        ),
        (
            {
                "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for "
                "aarch64  580.65.06  Release Build"
            },
            (580, 65, 6),
        ),
        ({}, None),
    ],
)
def test_nvidias_driver_is_known_by_the_kernels_files(
    root: Path, files: dict[str, str], driver: tuple[int, ...] | None
) -> None:
    machine_tree(root, files)
    assert describe_host(root).cuda_driver == driver


@pytest.mark.parametrize(
    ("file", "driver"), [("libcuda.so.535.104.05", (535, 104, 5)), ("libcuda.so.1.1", None)]
)
def test_in_a_container_the_drivers_library_tells_its_version(
    this: Host, root: Path, file: str, driver: tuple[int, ...] | None
) -> None:
    (math,) = (each for each in this.libraries if each.soname == "libm.so.6")
    shutil.copyfile(math.path, root / "opt/lib" / file)
    (root / "opt/lib/libcuda.so.1").symlink_to(f"/opt/lib/{file}")
    host = describe_host(root)
    assert host.libraries[-1].soname == "libcuda.so.1"
    assert host.cuda_driver == driver


def test_gpus_have_the_names_that_the_driver_gives(root: Path) -> None:
    information = "Model: \t\t NVIDIA GeForce RTX 3060\nIRQ:   \t\t 44"
    machine_tree(root, {"proc/driver/nvidia/gpus/0000:01:00.0/information": information})
    assert describe_host(root).gpus == (
        HostGpu(name="NVIDIA GeForce RTX 3060", compute_capability=None),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "release"),
    [
        ({"etc/nv_tegra_release": "# R36 (release), REVISION: 4.0, GCID: 1, BOARD: x"}, (36, 4, 0)),
        ({"etc/nv_tegra_release": "# R35 (release), REVISION: 2.1, GCID: 1"}, (35, 2, 1)),
        ({"proc/device-tree/compatible": "nvidia,p3768\0nvidia,tegra234\0"}, ()),
        ({"proc/device-tree/compatible": "raspberrypi,5-model-b\0brcm,bcm2712\0"}, None),
        ({"etc/nv_tegra_release": "something else"}, None),
        ({}, None),
    ],
)
def test_a_jetson_is_known_by_its_release_or_its_device_tree(
    root: Path, files: dict[str, str], release: tuple[int, ...] | None
) -> None:
    machine_tree(root, files)
    assert describe_host(root).tegra_release == release


def test_architectures_of_amd_are_those_of_its_driver(root: Path) -> None:
    nodes = "sys/class/kfd/kfd/topology/nodes"
    versions = {"0": "0", "1": "100300", "2": "90010", "10": "100300", "11": "10000000"}
    machine_tree(
        root,
        {
            f"{nodes}/{node}/properties": f"simd_count 8\ngfx_target_version {version}\n"
            for node, version in versions.items()
        },
    )
    machine_tree(root, {f"{nodes}/3/properties": "gfx_target_version 119900\n"})
    host = describe_host(root)
    assert host.amd_architectures == ("gfx1030", "gfx90a")
    validate_document(host_document(host))


@pytest.mark.parametrize("missing", ["ld-linux", "libc.so"])
def test_a_root_without_its_c_library_is_refused(this: Host, root: Path, missing: str) -> None:
    for each in this.libraries:
        if each.soname.startswith(missing):
            (root / each.path[1:]).unlink()
    with pytest.raises(HostError) as raised:
        describe_host(root)
    assert str(root) in raised.value.message
    assert raised.value.hint


def build_program(folder: Path, *options: str) -> Path:
    program = folder / "program"
    subprocess.run(
        ["cc", "-o", program, "-x", "c", "-", *options],
        input=b"int main(void) { return 0; }",
        check=True,
    )
    return program


@pytest.mark.parametrize(
    ("tag", "is_inherited"), [("--disable-new-dtags", True), ("--enable-new-dtags", False)]
)
def test_an_interpreters_own_libraries_come_first(
    tmp_path: Path, tag: str, is_inherited: bool
) -> None:
    """Those of conda are found by DT_RPATH; DT_RUNPATH is for the interpreter's own needs."""
    (tmp_path / "lib").mkdir()
    program = build_program(tmp_path, f"-Wl,{tag},-rpath,$ORIGIN/lib")
    (tmp_path / "lib/libz.so.1").touch()
    files = RootFiles(Path("/"))
    paths = find_c_library(files, str(program)).paths
    first = next(paths.candidates(files, "libz.so.1"))
    assert (first == str(tmp_path / "lib/libz.so.1")) == is_inherited


def test_musl_is_known_by_its_loader(this: Host, tmp_path: Path) -> None:
    """A loader of musl is its C library, and has the version in a string."""
    (libc,) = (each for each in this.libraries if each.soname == "libc.so.6")
    data = Path(libc.path).read_bytes() + b"\0musl libc\0" + b"\0001.2.4\0"
    loader = f"/lib/ld-musl-{this.machine}.so.1"
    machine_tree(tmp_path, {loader[1:]: data, "usr/lib/libz.so.1": data})
    host = describe_host(tmp_path)
    assert (host.libc, host.libc_version) == ("musl", (1, 2))
    assert [each.soname for each in host.libraries] == [
        f"libc.musl-{this.machine}.so.1",
        "libz.so.1",
    ]
    assert host.libraries[0].path == loader


def test_the_reader_takes_no_file_for_what_it_is_not(tmp_path: Path) -> None:
    machine_tree(tmp_path, {"a": b"\x7fELF", "b": b"", "c": "text"})
    files = RootFiles(tmp_path)
    assert [read_library(files, name) for name in ("/a", "/b", "/c", "/d")] == [None] * 4
