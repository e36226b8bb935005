"""GPUs that cannot be used, and what to do about it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.machines.doctor_cases import (
    CPU,
    NATIVE,
    a_case,
    a_gpu,
    a_report,
    a_system,
    grow,
    the_finding,
)

from potluck.probe.doctor.case import Distribution, Severity, User
from potluck.probe.doctor.examine import examine
from potluck.types.backend import DeviceKind
from potluck.types.unit import Interface

DEBIAN = Distribution(name="debian", manager="apt")
UBUNTU = Distribution(name="ubuntu", manager="apt")
FEDORA = Distribution(name="fedora", manager="dnf")
ARCH = Distribution(name="arch", manager="pacman")
UNKNOWN = Distribution(name="", manager="")

OPENCL = Interface(api="opencl", address="/etc/OpenCL/vendors/x.icd#0:0")


def test_nothing_is_found_on_a_sound_machine(tmp_path: Path) -> None:
    system = a_system(
        tmp_path,
        {
            "dev/dri/renderD128": "",
            "dev/nvidiactl": "",
            "dev/nvidia0": "",
            "sys/module/nvidia/version": "550.54.14\n",
            "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.54.14": "",
            "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": "",
        },
    )
    nvidia = a_gpu(
        "NVIDIA",
        "GeForce RTX 4090",
        "nvidia",
        system.dev / "nvidiactl",
        system.dev / "nvidia0",
        interfaces=(Interface(api="cuda", address="GPU-1"),),
    )
    intel = a_gpu(
        "Intel",
        "UHD 770",
        "i915",
        system.dev / "dri/renderD128",
        device_id="pci-2",
        interfaces=(OPENCL,),
    )
    assert examine(a_case(system, a_report(nvidia, intel))) == ()


@pytest.mark.parametrize(
    ("make", "name", "title", "distribution", "command"),
    [
        (
            "NVIDIA",
            "GeForce RTX 4090",
            "NVIDIA GeForce RTX 4090",
            DEBIAN,
            "sudo apt install nvidia-driver",
        ),
        (
            "NVIDIA",
            "GeForce RTX 4090",
            "NVIDIA GeForce RTX 4090",
            UBUNTU,
            "sudo ubuntu-drivers install",
        ),
        (
            "NVIDIA",
            "GeForce RTX 4090",
            "NVIDIA GeForce RTX 4090",
            FEDORA,
            "sudo dnf install akmod-nvidia",
        ),
        (
            "NVIDIA",
            "GeForce RTX 4090",
            "NVIDIA GeForce RTX 4090",
            ARCH,
            "sudo pacman -S nvidia-open",
        ),
        ("NVIDIA", "GeForce RTX 4090", "NVIDIA GeForce RTX 4090", UNKNOWN, "sudo modprobe nvidia"),
        (
            "AMD",
            "Radeon RX 7900 XTX",
            "AMD Radeon RX 7900 XTX",
            DEBIAN,
            "sudo apt install firmware-amd-graphics && sudo modprobe amdgpu",
        ),
        ("Intel", "Arc A770", "Intel Arc A770", DEBIAN, "sudo modprobe -a xe i915"),
        ("Arm Mali", "Mali-G610", "Arm Mali-G610", DEBIAN, "sudo modprobe -a panthor panfrost"),
        ("Qualcomm Adreno", "Adreno 650", "Qualcomm Adreno 650", DEBIAN, "sudo modprobe msm"),
    ],
)
def test_no_driver(
    tmp_path: Path, make: str, name: str, title: str, distribution: Distribution, command: str
) -> None:
    gpu = a_gpu(make, name, "", problem="no kernel driver is bound to it")
    found = the_finding(a_case(a_system(tmp_path), a_report(gpu), distribution=distribution))
    assert found.severity is Severity.PREVENTS
    assert found.message == f"{title} is present, but no driver is bound to it"
    assert found.command == command
    assert found.device_id == "pci-0000:01:00.0"


@pytest.mark.parametrize("file", ["updates/dkms/nvidia.ko.xz", "kernel/nvidia-550/nvidia.ko"])
def test_an_nvidia_driver_that_is_installed_is_only_to_be_loaded(tmp_path: Path, file: str) -> None:
    system = a_system(tmp_path, {f"lib/modules/6.1.0-13-amd64/{file}": ""})
    gpu = a_gpu("NVIDIA", "GeForce RTX 4090", "")
    assert the_finding(a_case(system, a_report(gpu))).command == "sudo modprobe nvidia"


def test_a_tegra_without_its_driver(tmp_path: Path) -> None:
    gpu = a_gpu("NVIDIA", "Jetson Orin", "", device_id="of-17000000.gpu")
    assert the_finding(a_case(a_system(tmp_path), a_report(gpu))).command == "sudo modprobe nvgpu"


def test_nouveau(tmp_path: Path) -> None:
    gpu = a_gpu("NVIDIA", "GeForce RTX 3060", "nouveau")
    found = the_finding(a_case(a_system(tmp_path), a_report(gpu)))
    assert found.message == (
        "NVIDIA GeForce RTX 3060 is bound to nouveau, but compute requires NVIDIA's driver"
    )
    assert found.command == "sudo apt install nvidia-driver"


def test_a_gpu_of_a_virtual_machine(tmp_path: Path) -> None:
    gpu = a_gpu("AMD", "Radeon RX 6800", "vfio-pci")
    found = the_finding(a_case(a_system(tmp_path), a_report(gpu)))
    assert found.message == "AMD Radeon RX 6800 is reserved for virtual machines (vfio-pci)"
    assert found.command == (
        "echo 0000:01:00.0 | sudo tee /sys/bus/pci/drivers/vfio-pci/unbind "
        "&& echo 0000:01:00.0 | sudo tee /sys/bus/pci/drivers_probe"
    )


def test_what_no_backend_is_for_prevents_nothing(tmp_path: Path) -> None:
    gpu = a_gpu("NVIDIA", "GeForce RTX 4090", "")
    case = a_case(a_system(tmp_path), a_report(gpu), backends=(NATIVE,))
    assert the_finding(case).severity is Severity.NOTE


@pytest.mark.parametrize(
    "gpu",
    [
        a_gpu("Arm Mali", "Mali-450", "lima", Path("/nowhere"), problem="it only draws"),
        a_gpu("Rockchip", "Rockchip NPU", "", kind=DeviceKind.NPU, problem="nothing uses it"),
        a_gpu("Intel", "Intel NPU", "", kind=DeviceKind.NPU, problem="nothing uses it"),
        a_gpu("Broadcom", "VideoCore", "v3d", problem="nothing uses it"),
    ],
)
def test_nothing_is_said_of_what_could_not_be_used_anyway(tmp_path: Path, gpu: object) -> None:
    report = a_report(gpu)  # type: ignore[arg-type]
    assert examine(a_case(a_system(tmp_path), report, backends=(NATIVE,))) == ()


LIBRARY = "usr/lib/x86_64-linux-gnu/libnvidia-ml.so"
CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
    "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
)
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.104.05  Release Build  (root)\n"
)


@pytest.mark.parametrize(
    "loaded",
    [
        {"sys/module/nvidia/version": "535.104.05\n"},
        {"proc/driver/nvidia/version": CLOSED},
        {"proc/driver/nvidia/version": OPEN},
    ],
)
def test_a_driver_and_a_library_of_two_versions(tmp_path: Path, loaded: dict[str, str]) -> None:
    system = a_system(
        tmp_path,
        {**loaded, "dev/nvidiactl": "", f"{LIBRARY}.550.54.14": "", f"{LIBRARY}.1": ""},
    )
    gpu = a_gpu(
        "NVIDIA", "A10", "nvidia", system.dev / "nvidiactl", problem="NVML: version mismatch"
    )
    found = the_finding(a_case(system, a_report(gpu)))
    assert found.severity is Severity.PREVENTS
    assert found.message == (
        "the NVIDIA kernel driver is version 535.104.05, but its library is version 550.54.14 "
        "(/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.54.14)"
    )
    assert found.command == "sudo reboot"
    in_container = a_case(system, a_report(gpu, container="docker"))
    assert the_finding(in_container).command == "docker run --gpus all …"


@pytest.mark.parametrize("where", ["device", "detector"])
def test_nvml_tells_that_the_versions_differ(tmp_path: Path, where: str) -> None:
    system = a_system(tmp_path, {"dev/nvidiactl": "", f"{LIBRARY}.1": ""})
    problem = "NVML cannot be initialized: NVIDIA driver/library version mismatch"
    gpu = a_gpu(
        "NVIDIA",
        "A10",
        "nvidia",
        system.dev / "nvidiactl",
        problem=problem if where == "device" else "",
    )
    report = a_report(gpu, problems=(problem,) if where == "detector" else ())
    found = the_finding(a_case(system, report))
    assert found.message == "the NVIDIA kernel driver and its library have different versions"
    assert found.command == "sudo reboot"


def test_a_driver_without_its_library(tmp_path: Path) -> None:
    system = a_system(tmp_path, {"dev/nvidiactl": ""})
    gpu = a_gpu("NVIDIA", "A10", "nvidia", system.dev / "nvidiactl")
    found = the_finding(a_case(system, a_report(gpu)))
    assert found.message == (
        "the NVIDIA driver is loaded, but its library libnvidia-ml.so was not found"
    )
    assert found.command == "sudo apt install libnvidia-ml1"
    assert the_finding(a_case(system, a_report(gpu, container="docker"))).command == (
        "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility …"
    )


def test_a_library_of_nvml_in_a_folder_that_the_user_named(tmp_path: Path) -> None:
    files = {
        "dev/nvidiactl": "",
        "sys/module/nvidia/version": "535.104.05\n",
        "opt/nvidia/libnvidia-ml.so.535.104.05": "",
    }
    system = a_system(tmp_path, files)
    gpu = a_gpu("NVIDIA", "A10", "nvidia", system.dev / "nvidiactl")
    report = a_report(gpu)
    named = a_case(system, report, library_folders=("/opt/nvidia", "/opt/none"))
    assert "driver-library" not in [finding.check for finding in examine(named)]
    assert the_finding(a_case(system, report)).check == "driver-library"


@pytest.mark.parametrize(
    "fields",
    [
        {"memory": replace(CPU.memory, source="NVML", is_shared=False)},
        {"versions": (("driver", "535.104.05"), ("CUDA", "12.2"))},
    ],
)
@pytest.mark.parametrize("files", [{}, {f"{LIBRARY}.550.54.14": "", f"{LIBRARY}.1": ""}])
def test_a_library_that_answered_is_there(
    tmp_path: Path, fields: dict[str, Any], files: dict[str, str]
) -> None:
    """Whichever was loaded, it fits the driver in the kernel."""
    files = {"dev/nvidiactl": "", "sys/module/nvidia/version": "535.104.05\n", **files}
    system = a_system(tmp_path, files)
    gpu = a_gpu("NVIDIA", "A10", "nvidia", system.dev / "nvidiactl", **fields)
    found = examine(a_case(system, a_report(gpu)))
    assert "driver-library" not in [finding.check for finding in found]


@pytest.mark.parametrize(
    ("file", "group", "users", "in_force", "command"),
    [
        ("dri/renderD128", "render", "", set(), "sudo usermod -aG render $USER"),
        ("mali0", "video", "bob", set(), "sudo usermod -aG video $USER"),
        ("dri/renderD128", "render", "bob,alice", set(), "newgrp render"),
        (
            "dri/renderD128",
            "992",
            "",
            set(),
            "sudo groupadd --gid 992 gpu && sudo usermod -aG gpu $USER",
        ),
        (
            "mali0",
            "root",
            "",
            set(),
            'echo \'KERNEL=="mali0", GROUP="video", MODE="0660"\' '
            "| sudo tee /etc/udev/rules.d/70-potluck.rules && sudo udevadm control --reload "
            "&& sudo udevadm trigger && sudo usermod -aG video $USER",
        ),
        (
            "kgsl-3d0",
            "video",
            "alice",
            {"video"},
            'echo \'KERNEL=="kgsl-3d0", GROUP="video", MODE="0660"\' '
            "| sudo tee /etc/udev/rules.d/70-potluck.rules && sudo udevadm control --reload "
            "&& sudo udevadm trigger && sudo usermod -aG video $USER",
        ),
    ],
)
def test_no_permission(
    tmp_path: Path, file: str, group: str, users: str, in_force: set[str], command: str
) -> None:
    system = a_system(
        tmp_path,
        {"etc/group": f"root:x:0:\nvideo:x:44:{users}\nrender:x:104:{users}\n"},
        forbidden={file: group},
    )
    gpu = a_gpu("Arm Mali", "Mali-G610", "panthor", system.dev / file, problem="no permission")
    user = User(name="alice", is_root=False, groups=frozenset({"alice", *in_force}))
    found = the_finding(a_case(system, a_report(gpu), user=user))
    assert found.severity is Severity.PREVENTS
    assert found.message == (
        f"Arm Mali-G610: this user does not have permission to open /dev/{file} (owned by group "
        f"{group})"
    )
    assert found.command == command


def test_no_permission_in_a_container(tmp_path: Path) -> None:
    system = a_system(tmp_path, forbidden={"dri/renderD128": "104"})
    gpu = a_gpu("AMD", "Radeon RX 6800", "amdgpu", system.dev / "dri/renderD128")
    found = the_finding(a_case(system, a_report(gpu, container="podman")))
    assert found.command == "podman run --group-add $(stat -c %g /dev/dri/renderD128) …"


@pytest.mark.parametrize(
    ("container", "make", "driver", "files", "command"),
    [
        ("docker", "NVIDIA", "nvidia", ("nvidiactl", "nvidia0"), "docker run --gpus all …"),
        ("podman", "NVIDIA", "nvidia", ("nvidiactl",), "podman run --device nvidia.com/gpu=all …"),
        ("docker", "NVIDIA", "nvgpu", ("nvhost-gpu", "nvmap"), "docker run --runtime nvidia …"),
        (
            "docker",
            "AMD",
            "amdgpu",
            ("dri/renderD128", "kfd"),
            "docker run --device /dev/dri --device /dev/kfd …",
        ),
        ("docker", "Intel", "xe", ("dri/renderD128",), "docker run --device /dev/dri …"),
        ("docker", "Arm Mali", "mali", ("mali0",), "docker run --device /dev/mali0 …"),
        ("docker", "Arm Mali", "panthor", (), "docker run --device /dev/dri …"),
        (
            "docker",
            "Qualcomm Adreno",
            "kgsl-3d",
            ("kgsl-3d0",),
            "docker run --device /dev/kgsl-3d0 …",
        ),
        ("lxc", "Intel", "i915", ("dri/renderD128",), "lxc config device add CONTAINER gpu gpu"),
        (
            "kubernetes",
            "NVIDIA",
            "nvidia",
            ("nvidiactl",),
            "kubectl set resources deployment NAME --limits=nvidia.com/gpu=1",
        ),
    ],
)
def test_a_container_that_was_not_given_the_device(
    tmp_path: Path,
    container: str,
    make: str,
    driver: str,
    files: tuple[str, ...],
    command: str,
) -> None:
    system = a_system(tmp_path, {f"{LIBRARY}.1": ""})
    gpu = a_gpu(make, "X1", driver, *(system.dev / file for file in files))
    found = the_finding(a_case(system, a_report(gpu, container=container)))
    assert found.severity is Severity.PREVENTS
    shown = ", ".join(f"/dev/{file}" for file in files or ("dri",))
    assert found.message == f"{make} X1 is present, but {shown} was not passed to this container"
    assert found.command == command


@pytest.mark.parametrize(
    ("make", "driver", "file", "command"),
    [
        ("NVIDIA", "nvidia", "nvidiactl", "sudo nvidia-modprobe -c 0 -u"),
        (
            "Intel",
            "xe",
            "dri/renderD128",
            "sudo udevadm trigger --subsystem-match=drm",
        ),
        ("Arm Mali", "mali", "mali0", "sudo udevadm trigger --subsystem-match=misc"),
    ],
)
def test_device_files_that_are_missing_on_a_host(
    tmp_path: Path, make: str, driver: str, file: str, command: str
) -> None:
    system = a_system(tmp_path, {f"{LIBRARY}.1": ""})
    gpu = a_gpu(make, "X1", driver, system.dev / file)
    found = the_finding(a_case(system, a_report(gpu)))
    assert found.message == f"{make} X1 has a driver, but /dev/{file} does not exist"
    assert found.command == command


def test_wsl_is_no_container_that_could_be_given_more(tmp_path: Path) -> None:
    gpu = a_gpu("Intel", "Arc", "")
    case = a_case(a_system(tmp_path), a_report(gpu, container="wsl"))
    assert the_finding(case).details == ""
    host = a_case(a_system(tmp_path), a_report(gpu, container="docker"))
    assert the_finding(host).details == "on the host: a container uses the host's drivers"


MALI = "usr/lib/aarch64-linux-gnu/libmali.so.1"


def mali(system_root: Path, files: dict[str, str]) -> tuple[object, object]:
    system = a_system(system_root, {"dev/mali0": "", **files})
    gpu = a_gpu("Arm Mali", "Mali-G610", "mali", system.dev / "mali0", device_id="of-fb000000.gpu")
    return system, a_report(gpu, architecture="aarch64")


@pytest.mark.parametrize(
    ("files", "library"),
    [
        ({MALI: ""}, "/usr/lib/aarch64-linux-gnu/libmali.so.1"),
        ({"usr/lib/libMali.so": ""}, "/usr/lib/libMali.so"),
        ({MALI: "", "usr/lib/aarch64-linux-gnu/libMaliOpenCL.so.1": ""},
         "/usr/lib/aarch64-linux-gnu/libMaliOpenCL.so.1"),
        ({MALI: "", "etc/OpenCL/vendors/pocl.icd": "libpocl.so.2\n"},
         "/usr/lib/aarch64-linux-gnu/libmali.so.1"),
        ({MALI: "", "etc/OpenCL/vendors/mali.icd": "/usr/lib/libmali-gone.so\n"},
         "/usr/lib/aarch64-linux-gnu/libmali.so.1"),
    ],
)  # fmt: skip
def test_a_mali_that_opencl_does_not_know(
    tmp_path: Path, files: dict[str, str], library: str
) -> None:
    system, report = mali(tmp_path, files)
    found = the_finding(a_case(system, report))  # type: ignore[arg-type]
    assert found.severity is Severity.PREVENTS
    assert found.message == f"Arm Mali-G610: its library {library} is not registered with OpenCL"
    assert found.command == (
        f"sudo mkdir -p /etc/OpenCL/vendors && echo {library} "
        "| sudo tee /etc/OpenCL/vendors/mali.icd"
    )


@pytest.mark.parametrize(
    "files",
    [
        {},
        {MALI: "", "etc/OpenCL/vendors/mali.icd": "libMaliOpenCL.so.1\n"},
        {MALI: "", "etc/OpenCL/vendors/x.icd": "/usr/lib/aarch64-linux-gnu/libmali.so.1"},
    ],
)
def test_a_mali_without_a_library_or_whose_library_does_not_show_it(
    tmp_path: Path, files: dict[str, str]
) -> None:
    system, report = mali(tmp_path, files)
    found = the_finding(a_case(system, report))  # type: ignore[arg-type]
    assert found.check == "opencl"
    assert found.message == "Arm Mali-G610: " + (
        "no installed OpenCL driver lists it" if files else "there is no OpenCL driver for it"
    )
    assert found.command == "apt-cache search libmali"


def test_a_problem_that_no_check_knows_is_told_all_the_same(tmp_path: Path) -> None:
    system = a_system(tmp_path)
    grow(system.dev, {"dri/renderD128": ""})
    gpu = a_gpu(
        "AMD", "Radeon RX 6800", "amdgpu", system.dev / "dri/renderD128", problem="it is lost"
    )
    found = the_finding(a_case(system, a_report(gpu)))
    assert (found.severity, found.message, found.command) == (
        Severity.PREVENTS,
        "AMD Radeon RX 6800: it is lost",
        "sudo dmesg --level err,warn | tail -n 50",
    )


def test_root_is_not_told_to_use_sudo(tmp_path: Path) -> None:
    gpu = a_gpu("AMD", "Radeon RX 6800", "")
    root = User(name="root", is_root=True, groups=frozenset({"root"}))
    case = a_case(a_system(tmp_path), a_report(gpu), user=root)
    assert the_finding(case).command == "apt install firmware-amd-graphics && modprobe amdgpu"
