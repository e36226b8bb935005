"""Which OpenCL drivers are installed, by files and by the environment."""

from __future__ import annotations

import os
from pathlib import Path

from support.machines.machine_tree import machine_tree

from potluck.probe.gpus.icds import Icd, icd_environment, icd_file, installed_icds, library_identity

VENDORS = "etc/OpenCL/vendors"


def test_files_in_the_usual_folder_makers_first(tmp_path: Path) -> None:
    system = machine_tree(
        tmp_path,
        {
            f"{VENDORS}/mali.icd": "/usr/lib/libmali.so.1\n",
            f"{VENDORS}/nvidia.icd": "libnvidia-opencl.so.1",
            f"{VENDORS}/intel.icd": "  libigdrcl.so  \nand more",
            f"{VENDORS}/a-rusticl.icd": "libRusticlOpenCL.so.1",
            f"{VENDORS}/a.icd": "libpocl.so.2.10.0",
            f"{VENDORS}/mesa.icd.disabled": "libMesaOpenCL.so.1",
            f"{VENDORS}/README": "nothing",
        },
    )
    found = installed_icds(system, {})
    assert [(Path(icd.file).name, icd.library) for icd in found.icds] == [
        ("intel.icd", "libigdrcl.so"),
        ("mali.icd", "/usr/lib/libmali.so.1"),
        ("nvidia.icd", "libnvidia-opencl.so.1"),
        ("a-rusticl.icd", "libRusticlOpenCL.so.1"),
        ("a.icd", "libpocl.so.2.10.0"),
    ]
    assert found.problems == ()
    assert [icd.name for icd in found.icds] == ["intel", "mali", "nvidia", "a-rusticl", "a"]


def test_no_folder_is_no_driver(tmp_path: Path) -> None:
    assert installed_icds(machine_tree(tmp_path, {}), {}).icds == ()


def test_rubbish_is_one_line_each(tmp_path: Path) -> None:
    rubbish: dict[str, str | bytes | Path] = {
        "a.icd": b"",
        "b.icd": b"\n\n",
        "c.icd": b"\xff\xfe",
        "d.icd": b"lib\x1b[31m.so",
        "e.icd": b"x" * 5000,
        "f.icd": b"x" * (2 << 20),
        "g-long.icd": Path("x" * 300),  # a link to a name that no file can have
        "g.icd": Path("g.icd"),  # a link to itself
    }
    files: dict[str, str | bytes | Path] = {
        f"{VENDORS}/{name}": content for name, content in rubbish.items()
    }
    system = machine_tree(tmp_path, files | {f"{VENDORS}/good.icd": "libgood.so"})
    folder = system.files / "etc/OpenCL/vendors"
    os.mkfifo(folder / "h.icd")
    (folder / "i.icd").mkdir()
    found = installed_icds(system, {})
    assert [icd.library for icd in found.icds] == ["libgood.so"]
    names = (*rubbish, "h.icd", "i.icd")
    assert list(found.problems) == [f"{folder}/{name} does not name a library" for name in names]


def test_too_many_are_cut(tmp_path: Path) -> None:
    files: dict[str, str | bytes | Path] = {f"{VENDORS}/{n:02}.icd": "lib.so" for n in range(20)}
    found = installed_icds(machine_tree(tmp_path, files), {})
    assert len(found.icds) == 16
    assert found.problems == ("20 drivers are registered; only 16 were queried",)


def test_the_environment_decides_as_for_the_loaders(tmp_path: Path) -> None:
    system = machine_tree(tmp_path, {f"{VENDORS}/usual.icd": "libusual.so"})
    own = tmp_path / "own"
    own.mkdir()
    (own / "mine.icd").write_text("libmine.so")

    def found(**environ: str) -> list[tuple[str, str]]:
        return [(icd.file, icd.library) for icd in installed_icds(system, environ).icds]

    usual = (str(system.files / "etc/OpenCL/vendors/usual.icd"), "libusual.so")
    mine = (str(own / "mine.icd"), "libmine.so")
    assert found() == [usual]
    assert found(OCL_ICD_VENDORS="") == [usual]
    assert found(OCL_ICD_VENDORS=str(own)) == [mine]
    assert found(OCL_ICD_VENDORS=mine[0]) == [mine]
    assert found(OCL_ICD_VENDORS="usual.icd") == [usual]
    assert found(OCL_ICD_VENDORS="/opt/libvendor.so") == [("/opt/libvendor.so",) * 2]
    assert found(OPENCL_VENDOR_PATH=str(own)) == [mine]
    assert found(OCL_ICD_FILENAMES="/a.so:/b.so:") == [usual, ("/a.so",) * 2, ("/b.so",) * 2]
    assert found(OCL_ICD_VENDORS=mine[0], OCL_ICD_FILENAMES="libmine.so") == [mine]
    absent = installed_icds(system, {"OCL_ICD_VENDORS": "/nowhere.icd"})
    assert (absent.icds, absent.problems) == ((), ("/nowhere.icd does not name a library",))


def test_one_alone_is_what_its_environment_loads(tmp_path: Path) -> None:
    file = tmp_path / "a#b.icd"
    file.write_text("libmine.so\n")
    environment = icd_environment(f"{file}#0:1")
    assert environment == {"OCL_ICD_VENDORS": str(file), "OCL_ICD_FILENAMES": "libmine.so"}
    system = machine_tree(tmp_path / "tree", {})
    assert installed_icds(system, environment).icds == (Icd(file=str(file), library="libmine.so"),)
    assert icd_file(f"{file}#0:1") == str(file)
    assert icd_environment("/opt/lib.so#0:0") == {
        "OCL_ICD_VENDORS": "/opt/lib.so",
        "OCL_ICD_FILENAMES": "/opt/lib.so",
    }


def test_an_update_of_the_library_is_seen(tmp_path: Path) -> None:
    library = "usr/lib/aarch64-linux-gnu/libmine.so"
    system = machine_tree(tmp_path, {library: "old"})
    for name in ("libmine.so", "/usr/lib/aarch64-linux-gnu/libmine.so"):
        icd = Icd(file="/a.icd", library=name)
        before = library_identity(system, icd)
        assert before == library_identity(system, icd)
        os.utime(system.files / "usr/lib/aarch64-linux-gnu/libmine.so", ns=(1, len(name)))
        assert library_identity(system, icd) != before
    absent = Icd(file="/a.icd", library="libabsent.so")
    assert library_identity(system, absent) == ("/a.icd", "libabsent.so")
