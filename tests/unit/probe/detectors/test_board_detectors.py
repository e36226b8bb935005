"""What boards' trees may hold besides what ``tests/fixtures/machines`` shows, in small trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from potluck.host.system import System
from potluck.probe.detectors import adreno, mali, other
from potluck.types.backend import DeviceKind
from potluck.types.hardware import Device


class Tree:
    """A machine below a temporary directory."""

    def __init__(self, root: Path) -> None:
        self.system = System(
            sys=root / "sys", proc=root / "proc", dev=root / "dev", files=root / "files"
        )

    def add(self, path: str, text: str = "") -> Path:
        file = self.system.sys / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def link(self, path: str, target: str) -> None:
        file = self.system.sys / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.symlink_to(self.system.sys / target)

    def platform_device(self, name: str, driver: str, *compatible: str) -> str:
        """Adds a node of the device tree; its place below /sys."""
        place = f"devices/platform/{name}"
        lines = [f"DRIVER={driver}"] if driver else []
        lines += [f"OF_COMPATIBLE_{number}={text}" for number, text in enumerate(compatible)]
        self.add(f"{place}/uevent", "\n".join(lines))
        self.link(f"bus/platform/devices/{name}", place)
        return place

    def render_node(self, device: str) -> None:
        self.add(f"{device}/drm/renderD128/uevent")
        self.link(f"{device}/drm/renderD128/device", device)
        self.link("class/drm/renderD128", f"{device}/drm/renderD128")

    def kbase(self, gpuinfo: str, *compatible: str) -> Device:
        """The one device that the Mali detector finds with this line of ``gpuinfo``."""
        place = self.platform_device("13000000.mali", "mali", *compatible)
        self.add(f"{place}/gpuinfo", gpuinfo)
        self.link("class/misc/mali0/device", place)
        (device,) = mali.DETECTOR.find(self.system).devices
        return device


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_mali_newer_than_its_driver_keeps_its_id(tree: Tree) -> None:
    device = tree.kbase("(Unknown Mali GPU) 7 cores r0p0 0xE001\n", "mediatek,mt6991-mali")
    assert device.name == "mediatek,mt6991-mali"
    assert device.reported_name == "(Unknown Mali GPU)"
    assert device.chip == "mali-e001"


@pytest.mark.parametrize(
    "gpuinfo", ["", "\n", "Mali-G57", "Mali-G57 five cores r0p1 0x9091", "\0\xff" * 500]
)
def test_a_gpuinfo_that_is_none_leaves_the_device_tree(tree: Tree, gpuinfo: str) -> None:
    device = tree.kbase(gpuinfo, "arm,mali-valhall")
    assert (device.name, device.reported_name) == ("arm,mali-valhall", "")
    assert device.chip == "arm,mali-valhall"
    assert device.device_id == "of-13000000.mali"


@pytest.mark.parametrize(
    ("cores", "clock", "is_known"),
    [
        ("4", "1000000000", True),
        ("32", "1000000000", True),
        ("0", "1000000000", False),
        ("129", "1000000000", False),
        ("999999", "1000000000", False),
        ("4", "8000000001", False),
        ("4", "-1", False),
        ("4", "9" * 30, False),
    ],
)
def test_figures_of_kbase_that_cannot_be(
    tree: Tree, cores: str, clock: str, is_known: bool
) -> None:
    place = "devices/platform/13000000.mali"
    tree.add(f"{place}/devfreq/13000000.mali/max_freq", clock)
    figures = tree.kbase(f"Mali-G610 {cores} cores r0p0 0xA867\n", "arm,mali-valhall").figures
    for figure in (figures.f32_operations_per_second, figures.f16_operations_per_second):
        assert (figure.value is not None) == is_known
        assert "not measured" in figure.source or is_known


@pytest.mark.parametrize("gpuinfo", ["Mali-G57 {} cores r0p1 0x9091", "Mali-G57 4 cores r0p1 0x{}"])
def test_numbers_of_kbase_that_are_too_long(tree: Tree, gpuinfo: str) -> None:
    device = tree.kbase(gpuinfo.format("9" * 5000), "arm,mali-valhall")
    assert (device.name, device.chip) == ("arm,mali-valhall", "arm,mali-valhall")


def add_ascend(tree: Tree, address: str, device: str = "0xd802", kind: str = "0x120000") -> None:
    place = f"devices/pci0000:00/{address}"
    for name, text in (("vendor", "0x19e5"), ("device", device), ("class", kind)):
        tree.add(f"{place}/{name}", text)
    tree.add(f"{place}/uevent", "DRIVER=devdrv_device_driver")
    tree.link(f"{place}/subsystem", "bus/pci")
    tree.link(f"bus/pci/devices/{address}", place)


def add_files(tree: Tree, *names: str) -> None:
    tree.system.dev.mkdir(exist_ok=True)
    for name in (*names, "davinci_manager", "davinci_manager_docker"):
        (tree.system.dev / name).touch()


def test_ascend_npus_on_the_pci_bus(tree: Tree) -> None:
    for address in ("0000:01:00.0", "0000:02:00.0"):
        add_ascend(tree, address)
    add_ascend(tree, "0000:03:00.0", device="0x0200", kind="0x020000")  # a network card
    add_files(tree, "davinci10", "davinci9")
    first, second = other.DETECTOR.find(tree.system).devices
    assert (first.device_id, first.make, first.name, first.chip) == (
        "pci-0000:01:00.0",
        "Huawei",
        "Ascend 910B",
        "19e5:d802",
    )
    assert first.kind is DeviceKind.NPU
    assert not first.memory.is_shared
    assert first.problem == other.UNUSED
    assert first.device_files == (str(tree.system.dev / "davinci9"),)
    assert second.device_files == (str(tree.system.dev / "davinci10"),)


def test_an_ascend_npu_of_a_container_that_sees_the_others_on_the_bus(tree: Tree) -> None:
    for address in ("0000:01:00.0", "0000:02:00.0"):
        add_ascend(tree, address, device="0xd999")
    add_files(tree, "davinci1")
    devices = other.DETECTOR.find(tree.system).devices
    assert [device.name for device in devices] == ["Ascend NPU", "Ascend NPU"]
    assert {device.device_files for device in devices} == {()}
    assert {device.problem for device in devices} == {other.UNUSED}


def test_an_ascend_npu_without_a_driver_file(tree: Tree) -> None:
    add_ascend(tree, "0000:01:00.0")
    (device,) = other.DETECTOR.find(tree.system).devices
    assert device.problem.startswith(f"{other.UNUSED}; its driver devdrv_device_driver has not")


def test_an_ascend_npu_inside_a_board(tree: Tree) -> None:
    add_files(tree, "davinci0")
    (device,) = other.DETECTOR.find(tree.system).devices
    assert (device.device_id, device.name, device.kind) == (
        "davinci0",
        "Ascend NPU",
        DeviceKind.NPU,
    )
    assert device.memory.is_shared
    assert device.problem == other.UNUSED


def test_what_a_driver_reports_is_safe_to_print(tree: Tree) -> None:
    device = tree.kbase("Mali-G57\x1b[31m 5 cores r0p1 0x9091\n", "arm,mali-valhall")
    assert device.reported_name == "Mali-G57 [31m"


def test_old_spellings_of_vendors_trees_name_the_model(tree: Tree) -> None:
    device = tree.kbase("", "arm,malit860", "arm,malit86x", "arm,malit8xx", "arm,mali-midgard")
    assert device.name == "Mali-T860"


def test_a_driver_that_made_no_device_file_is_said(tree: Tree) -> None:
    tree.platform_device("fb000000.gpu", "mali", "arm,mali-bifrost")
    (device,) = mali.DETECTOR.find(tree.system).devices
    assert device.problem == "its driver mali has not created a device file"


def test_memory_without_proc_is_not_known(tree: Tree) -> None:
    memory = tree.kbase("Mali-G57 5 cores r0p1 0x9091\n", "arm,mali-valhall").memory
    assert (memory.total_bytes, memory.free_bytes, memory.is_shared) == (None, None, True)


def test_other_gpus_on_the_platform_bus_are_no_malis(tree: Tree) -> None:
    tree.platform_device("3d00000.gpu", "adreno", "qcom,adreno-635.0", "qcom,adreno")
    tree.platform_device("axi:gpu", "vc4-drm", "brcm,bcm2712-vc6")
    assert mali.DETECTOR.find(tree.system).devices == ()


def test_a_chip_id_is_no_models_number(tree: Tree) -> None:
    """``qcom,adreno-43050c01`` is not "Adreno 430"."""
    tree.platform_device("3d00000.gpu", "adreno", "qcom,adreno-43050c01", "qcom,adreno")
    (device,) = adreno.DETECTOR.find(tree.system).devices
    assert device.name == "qcom,adreno-43050c01"
    assert device.problem == "its driver adreno has not created a device file"


def test_kgsl_that_reports_no_models_name_is_quoted(tree: Tree) -> None:
    tree.add("class/kgsl/kgsl-3d0/gpu_model", "Adreno33v2\n")
    (device,) = adreno.DETECTOR.find(tree.system).devices
    assert device.name == "Adreno33v2"


def test_kgsl_on_a_node_of_the_kernels_own_bindings_is_one_device(tree: Tree) -> None:
    place = tree.platform_device("3d00000.gpu", "kgsl-3d", "qcom,adreno-635.0", "qcom,adreno")
    tree.add("class/kgsl/kgsl-3d0/gpu_model", "Adreno643v1\n")
    tree.link("class/kgsl/kgsl-3d0/device", place)
    (device,) = adreno.DETECTOR.find(tree.system).devices
    assert (device.device_id, device.name) == ("of-3d00000.gpu", "Adreno 643")
    assert device.device_files == (str(tree.system.dev / "kgsl-3d0"),)


def test_a_display_without_gpu_is_no_adreno(tree: Tree) -> None:
    tree.render_node(tree.platform_device("ae01000.display", "msm_dpu", "qcom,glymur-dpu"))
    assert adreno.DETECTOR.find(tree.system).devices == ()
    assert other.DETECTOR.find(tree.system).devices == ()


@pytest.mark.parametrize(
    "driver",
    [
        *("amdgpu", "radeon", "i915", "xe", "nvidia", "nouveau", "nvgpu", "drm"),
        *("panthor", "panfrost", "lima", "msm", "msm_dpu", "adreno"),
        *("rockchip-drm", "vgem", "vkms"),
    ],
)
def test_what_another_layer_claims_is_not_listed_twice(tree: Tree, driver: str) -> None:
    tree.render_node(tree.platform_device("1000000.thing", driver))
    assert other.DETECTOR.find(tree.system).devices == ()


@pytest.mark.parametrize(
    ("driver", "make"), [("etnaviv", "Vivante"), ("powervr", "Imagination"), ("novel", "")]
)
def test_a_render_node_that_nobody_claims_is_named(tree: Tree, driver: str, make: str) -> None:
    tree.render_node(tree.platform_device("1000000.thing", driver))
    (device,) = other.DETECTOR.find(tree.system).devices
    assert (device.kind, device.make, device.name) == (DeviceKind.GPU, make, driver)
    assert device.problem.startswith("Potluck has no backend for it")


def test_an_accelerator_that_nobody_knows_is_an_npu(tree: Tree) -> None:
    place = tree.platform_device("2000000.thing", "novel", "maker,novel-npu")
    tree.link("class/accel/accel0/device", place)
    (device,) = other.DETECTOR.find(tree.system).devices
    assert (device.kind, device.make, device.name) == (DeviceKind.NPU, "", "maker,novel-npu")


def test_rockchip_npu_with_a_file_of_its_own_is_one_device(tree: Tree) -> None:
    """Built for DMA heaps, the driver makes /dev/rknpu, which has no link to the device."""
    for core in ("fdab0000", "fdac0000", "fdad0000"):
        tree.platform_device(f"{core}.npu", "RKNPU", "rockchip,rk3588-rknn-core")
    tree.add("class/misc/rknpu/dev", "10:120\n")
    (device,) = other.DETECTOR.find(tree.system).devices
    assert device.device_id == "of-fdab0000.npu"
    assert device.device_files == (str(tree.system.dev / "rknpu"),)


def test_links_that_lead_nowhere_or_in_circles_stop_nothing(tree: Tree) -> None:
    tree.link("class/misc/mali0/device", "class/misc/mali0/device")
    tree.link("class/accel/accel0/device", "nowhere")
    tree.link("bus/platform/devices/1000000.gpu", "bus/platform/devices/1000000.gpu")
    tree.add("class/drm/renderD128", "no directory")
    for detector in (mali, adreno, other):
        assert detector.DETECTOR.find(tree.system).problems == ()
