"""Findings about what is installed and cannot be loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.machines.doctor_cases import (
    NATIVE,
    a_case,
    a_gpu,
    a_report,
    a_system,
    grow,
    the_finding,
)

from potluck.portability.finding import Finding as MissingDependency
from potluck.portability.finding import Severity as Weight
from potluck.probe.doctor.case import Case, Distribution, OpenedLibrary, Severity, UnloadablePackage
from potluck.probe.doctor.examine import examine
from potluck.types.backend import BackendLibrary, BackendSpec, DeviceKind
from potluck.types.hardware import Trial
from potluck.types.unit import Interface

UBUNTU = Distribution(name="ubuntu", manager="apt")
FEDORA = Distribution(name="fedora", manager="dnf")
UNKNOWN = Distribution(name="void", manager="")

LOAD_ERROR = "libc.so.6: version `GLIBC_2.38' not found (required by zenoh.abi3.so)"


def a_lack(code: str, message: str, **others: str) -> MissingDependency:
    return MissingDependency(code=code, severity=Weight.FATAL, message=message, **others)


TOO_NEW = a_lack(
    "missing-version",
    "it needs GLIBC_2.38 of libc.so.6",
    library="libc.so.6",
    symbol="GLIBC_2.38",
    fix="take an older release",
)
NO_LIBRARY = a_lack("missing-library", "it needs libgone.so.1", library="libgone.so.1")


def zenoh(
    *lacks: MissingDependency, loss: str = "this node cannot join a cluster"
) -> UnloadablePackage:
    return UnloadablePackage(
        name="eclipse-zenoh", version="1.10.2", loss=loss, load_error=LOAD_ERROR, lacks=lacks
    )


@pytest.mark.parametrize(
    ("lacks", "others", "reason", "command", "details"),
    [
        (
            (TOO_NEW,),
            {},
            TOO_NEW.message,
            "pip install --force-reinstall --no-deps --no-binary eclipse-zenoh "
            "'eclipse-zenoh==1.10.2'",
            "take an older release",
        ),
        ((NO_LIBRARY,), {}, NO_LIBRARY.message, "apt-file search libgone.so.1", ""),
        (
            (TOO_NEW, NO_LIBRARY),
            {"distribution": FEDORA},
            f"{TOO_NEW.message}; {NO_LIBRARY.message}",
            "dnf provides '*/libgone.so.1'",
            "take an older release",
        ),
        (
            (NO_LIBRARY,),
            {"distribution": UNKNOWN},
            NO_LIBRARY.message,
            "find / -name libgone.so.1",
            "",
        ),
        (
            (),
            {},
            LOAD_ERROR,
            "pip install --force-reinstall --no-deps 'eclipse-zenoh==1.10.2'",
            "",
        ),
    ],
)
def test_a_package_that_cannot_be_loaded(
    tmp_path: Path,
    lacks: tuple[MissingDependency, ...],
    others: dict[str, Any],
    reason: str,
    command: str,
    details: str,
) -> None:
    finding = the_finding(
        a_case(a_system(tmp_path), unloadable_packages=(zenoh(*lacks),), **others)
    )
    assert (finding.check, finding.severity) == ("build", Severity.PREVENTS)
    assert finding.message == (
        f"eclipse-zenoh 1.10.2 is installed but cannot be loaded ({reason}): without it this "
        f"node cannot join a cluster"
    )
    assert (finding.command, finding.details) == (command, details)


def test_a_package_that_is_not_needed_is_a_note(tmp_path: Path) -> None:
    finding = the_finding(a_case(a_system(tmp_path), unloadable_packages=(zenoh(loss=""),)))
    assert finding.severity is Severity.NOTE
    assert finding.message == (
        f"eclipse-zenoh 1.10.2 is installed but cannot be loaded ({LOAD_ERROR})"
    )


def test_of_many_lacks_some_are_said(tmp_path: Path) -> None:
    lacks = [a_lack("missing-symbol", f"it needs f{n}", symbol=f"f{n}") for n in range(9)]
    package = zenoh(*lacks, lacks[0])
    finding = the_finding(a_case(a_system(tmp_path), unloadable_packages=(package,)))
    assert "(it needs f0; it needs f1; it needs f2, and 6 more)" in finding.message


def test_a_trial_that_fails_because_of_a_package_is_not_said_twice(tmp_path: Path) -> None:
    native = BackendSpec(
        name="native", module="m", kinds=frozenset({DeviceKind.CPU}), packages=("numpy",)
    )
    report = a_report(
        trials=(Trial(device_id="cpu", backend="native", works=False, reason="no numpy"),)
    )
    numpy = UnloadablePackage(
        name="numpy", version="2.4", loss="nothing can be computed", load_error="no", lacks=()
    )
    case = a_case(a_system(tmp_path), report, backends=(native,), unloadable_packages=(numpy,))
    assert the_finding(case).check == "build"


LIBRARY = BackendLibrary(
    name="libcuda.so",
    patterns=(r"libcuda\.so\.?[0-9]*",),
    folders=("/usr/lib",),
    variable="CUDA_PATH",
)
CUDA = BackendSpec(
    name="tinygrad:CUDA",
    module="m",
    kinds=frozenset({DeviceKind.GPU}),
    makes=frozenset({"NVIDIA"}),
    api="cuda",
    libraries=(LIBRARY,),
)


def a_card_without(root: Path, opened: OpenedLibrary, **others: Any) -> Case:
    """A card on which CUDA's backend did not work; ``opened`` is its library."""
    values: dict[str, Any] = {"container": "", "problem": "", "works": False, "files": {}}
    values |= others
    system = a_system(root, {"dev/nvidiactl": "", "usr/lib64/libnvidia-ml.so.1": ""})
    grow(root, values.pop("files"))
    card = a_gpu(
        "NVIDIA",
        "Tesla T4",
        "nvidia",
        system.dev / "nvidiactl",
        interfaces=(Interface(api="cuda", address=""),),
        problem=values.pop("problem"),
    )
    works = values.pop("works")
    trial = Trial(
        device_id=card.device_id, backend="tinygrad:CUDA", works=works, reason="driver failed"
    )
    native = Trial(device_id="cpu", backend="native", works=True)
    report = a_report(card, container=values.pop("container"), trials=(native, trial))
    return a_case(system, report, backends=(NATIVE, CUDA), opened_libraries=(opened,), **values)


NOWHERE = OpenedLibrary(library=LIBRARY, path="", load_error="", lacks=())


@pytest.mark.parametrize(
    ("others", "command"),
    [
        ({}, "sudo apt install libcuda1"),
        ({"distribution": UBUNTU}, "sudo ubuntu-drivers install"),
        ({"distribution": FEDORA}, "sudo dnf install xorg-x11-drv-nvidia-cuda-libs"),
        ({"distribution": UNKNOWN}, "find / -name libcuda.so"),
        (
            {"container": "docker"},
            "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility …",
        ),
    ],
)
def test_a_library_that_is_nowhere(tmp_path: Path, others: dict[str, Any], command: str) -> None:
    finding = the_finding(a_card_without(tmp_path, NOWHERE, **others))
    assert (finding.check, finding.severity) == ("library", Severity.PREVENTS)
    assert finding.message == (
        "NVIDIA Tesla T4: tinygrad:CUDA needs libcuda.so, which is not installed"
    )
    assert finding.command == command


def test_a_library_where_the_backend_does_not_look(tmp_path: Path) -> None:
    path = "/usr/lib/x86_64-linux-gnu/nvidia/libcuda.so.1"
    finding = the_finding(a_card_without(tmp_path, NOWHERE, files={path[1:]: ""}))
    assert finding.message == (
        f"NVIDIA Tesla T4: tinygrad:CUDA does not search {path} for libcuda.so"
    )
    assert (finding.command, finding.details) == (f"export CUDA_PATH={path}", "before potluck up")


@pytest.mark.parametrize(
    ("lacks", "reason", "command"),
    [
        ((NO_LIBRARY,), NO_LIBRARY.message, "apt-file search libgone.so.1"),
        ((TOO_NEW,), TOO_NEW.message, "sudo apt install libcuda1"),
        ((), "wrong ELF class: ELFCLASS32", "sudo apt install libcuda1"),
    ],
)
def test_a_library_that_does_not_load(
    tmp_path: Path, lacks: tuple[MissingDependency, ...], reason: str, command: str
) -> None:
    opened = OpenedLibrary(
        library=LIBRARY,
        path="/usr/lib/libcuda.so.1",
        load_error="wrong ELF class: ELFCLASS32",
        lacks=lacks,
    )
    finding = the_finding(a_card_without(tmp_path, opened))
    assert finding.message == (
        "NVIDIA Tesla T4: /usr/lib/libcuda.so.1, which tinygrad:CUDA needs, cannot be loaded: "
        f"{reason}"
    )
    assert finding.command == command


def test_a_library_that_loads_explains_nothing(tmp_path: Path) -> None:
    opened = OpenedLibrary(library=LIBRARY, path="/usr/lib/libcuda.so.1", load_error="", lacks=())
    finding = the_finding(a_card_without(tmp_path, opened))
    assert (finding.check, finding.message) == (
        "self-test",
        "pci-0000:01:00.0/tinygrad:CUDA does not work: driver failed",
    )


def test_what_works_needs_no_library(tmp_path: Path) -> None:
    assert examine(a_card_without(tmp_path, NOWHERE, works=True)) == ()


def test_a_device_with_another_problem_has_one_finding(tmp_path: Path) -> None:
    case = a_card_without(tmp_path, NOWHERE, problem="it fell off the bus")
    assert the_finding(case).check == "device"
