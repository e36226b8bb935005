"""Which device a process gives to tinygrad, by its environment alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from potluck.engines.tinygrad_environment import (
    VARIANTS,
    tinygrad_device,
    tinygrad_environment,
)
from potluck.errors import EngineError
from potluck.types.unit import Interface

COMMON = {"PARALLEL": "0", "CACHELEVEL": "0"}


def test_an_opencl_device_is_seen_alone_by_both_loaders(tmp_path: Path) -> None:
    file = tmp_path / "mali.icd"
    file.write_text("/usr/lib/libmali.so.1\n")
    mali = Interface(api="opencl", address=f"{file}#0:0")
    assert tinygrad_environment("tinygrad:CL", mali, "") == {
        **COMMON,
        "DEV": "CL:OPENCL",
        "OCL_ICD_VENDORS": str(file),
        "OCL_ICD_FILENAMES": "/usr/lib/libmali.so.1",
    }
    assert tinygrad_device("tinygrad:CL", mali) == "CL"


def test_a_driver_whose_file_is_gone_is_named_all_the_same() -> None:
    gone = Interface(api="opencl", address="/nowhere/mali.icd#0:0")
    assert tinygrad_environment("tinygrad:CL", gone, "") == {
        **COMMON,
        "DEV": "CL:OPENCL",
        "OCL_ICD_VENDORS": "/nowhere/mali.icd",
    }


def test_the_second_device_of_a_platform() -> None:
    second = Interface(api="opencl", address="/a#b.icd#0:1")
    assert tinygrad_environment("tinygrad:CL", second, "")["OCL_ICD_VENDORS"] == "/a#b.icd"
    assert tinygrad_device("tinygrad:CL", second) == "CL:1"


def test_a_cuda_device_is_chosen_by_uuid() -> None:
    card = Interface(api="cuda", address="GPU-1b2c")
    assert tinygrad_environment("tinygrad:CUDA", card, "nvrtc") == {
        **COMMON,
        "DEV": "CUDA:CUDA",
        "CUDA_VISIBLE_DEVICES": "GPU-1b2c",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    assert tinygrad_device("tinygrad:CUDA", card) == "CUDA"


@pytest.mark.parametrize("interface", [None, Interface(api="cuda", address="")])
def test_the_only_cuda_device_needs_no_name(interface: Interface | None) -> None:
    environment = tinygrad_environment("tinygrad:CUDA", interface, "")
    assert environment == {**COMMON, "DEV": "CUDA:PTX"}


def test_amd_is_reached_through_the_kernels_driver_alone() -> None:
    """Any other way unbinds it."""
    for variant in ("", *VARIANTS["tinygrad:AMD"]):
        for address, rank in (("", "0"), ("2", "2")):
            interface = Interface(api="kfd", address=address)
            device = tinygrad_environment("tinygrad:AMD", interface, variant)["DEV"]
            assert device.startswith(f"KFD:{rank}+AMD:")


@pytest.mark.parametrize(("backend", "device"), [("QCOM", "QCOM:CL"), ("CPU", "CPU:CLANG")])
def test_the_only_ones_of_their_kind(backend: str, device: str) -> None:
    name = f"tinygrad:{backend}"
    assert tinygrad_environment(name, None, "") == {**COMMON, "DEV": device}
    assert tinygrad_device(name, None) == backend


@pytest.mark.parametrize(
    ("backend", "address", "variant", "message"),
    [
        ("tinygrad:METAL", "", "", "no backend"),
        ("tinygrad:CPU", "", "llvm", "no variant"),
        ("tinygrad:CL", "/etc/pocl.icd", "", "is not the address"),
        ("tinygrad:CL", "/etc/pocl.icd#1:0", "", "first OpenCL platform"),
        ("tinygrad:CUDA", "0000:01:00.0", "", "UUID"),
        ("tinygrad:AMD", "gpu", "", "is not the index"),
    ],
)
def test_what_cannot_be_chosen(backend: str, address: str, variant: str, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        tinygrad_environment(backend, Interface(api="x", address=address), variant)
