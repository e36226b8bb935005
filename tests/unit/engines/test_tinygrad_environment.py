"""How a process that computes with tinygrad is told which device it has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from potluck.engines.tinygrad.environment import tinygrad_device, tinygrad_environment
from potluck.errors import EngineError
from potluck.types.hardware import Interface


def chosen(backend: str, api: str, address: str, variant: str = "") -> Mapping[str, str]:
    """What is said of the device, without what is the same for all."""
    environment = dict(tinygrad_environment(backend, Interface(api=api, address=address), variant))
    assert environment.pop("PARALLEL") == "0"
    assert environment.pop("CACHELEVEL") == "0"
    return environment


def test_opencl_s_driver_is_the_only_one_for_both_loaders(tmp_path: Path) -> None:
    file = tmp_path / "mali.icd"
    file.write_text("/usr/lib/libmali.so.1\n")
    assert chosen("tinygrad:CL", "opencl", f"{file}#0:1") == {
        "DEV": "CL:OPENCL",
        "OCL_ICD_VENDORS": str(file),
        "OCL_ICD_FILENAMES": "/usr/lib/libmali.so.1",
    }
    interface = Interface(api="opencl", address=f"{file}#0:1")
    assert tinygrad_device("tinygrad:CL", interface) == "CL:1"
    with pytest.raises(EngineError, match="only uses the first OpenCL platform"):
        chosen("tinygrad:CL", "opencl", f"{file}#1:0")


def test_a_driver_whose_file_is_gone_is_named_all_the_same() -> None:
    assert chosen("tinygrad:CL", "opencl", "/nowhere/mali.icd#0:0") == {
        "DEV": "CL:OPENCL",
        "OCL_ICD_VENDORS": "/nowhere/mali.icd",
    }


def test_cuda_s_device_is_the_only_one_by_its_uuid() -> None:
    assert chosen("tinygrad:CUDA", "cuda", "GPU-1", "ptx") == {
        "DEV": "CUDA:PTX",
        "CUDA_VISIBLE_DEVICES": "GPU-1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    assert chosen("tinygrad:CUDA", "cuda", "") == {"DEV": "CUDA:PTX"}
    with pytest.raises(EngineError, match="without its UUID"):
        chosen("tinygrad:CUDA", "cuda", "0000:01:00.0")


def test_amd_s_device_is_reached_by_kfd_and_its_rank() -> None:
    assert chosen("tinygrad:AMD", "kfd", "1") == {"DEV": "KFD:1+AMD:LLVM"}
    assert chosen("tinygrad:QCOM", "kgsl", "") == {"DEV": "QCOM:CL"}
