"""Who may bring a library that a wheel does not have."""

from __future__ import annotations

import pytest

from potluck.portability.host import HostPython
from potluck.portability.requirements import bringer, required_names

PYTHON = HostPython(implementation="cpython", version=(3, 11))


@pytest.mark.parametrize(
    ("line", "is_required"),
    [
        ("Nvidia_CUBLAS.cu12 (==12.1)", True),
        ("nvidia-cublas-cu12==1; platform_machine == 'x86_64' and sys_platform == 'linux'", True),
        ("nvidia-cublas-cu12; platform_machine == 'aarch64'", False),
        ("nvidia-cublas-cu12; extra == 'gpu'", False),
        ("nvidia-cublas-cu12; python_version >= '3.12'", False),
        ("nvidia-cublas-cu12; sys_platform == 'win32'", False),
        ("no requirement at all!", False),
    ],
)
def test_what_is_required(line: str, is_required: bool) -> None:
    names = required_names([line], "x86_64", PYTHON)
    assert names == (("nvidia-cublas-cu12",) if is_required else ())


@pytest.mark.parametrize(
    ("library", "sought", "required", "expected"),
    [
        ("libcublas.so.12", ["nvidia/cublas/lib"], ["nvidia-cublas-cu12"], "nvidia-cublas-cu12"),
        (
            "libcudart.so.12",
            ["nvidia/cuda_runtime/lib"],
            ["nvidia-cublas-cu12", "nvidia-cuda-runtime-cu12"],
            "nvidia-cuda-runtime-cu12",
        ),
        (
            "libcudnn.so.9",
            ["nvidia/cublas/lib", "nvidia/cudnn/lib"],
            ["nvidia-cublas-cu12", "nvidia-cudnn-cu12"],
            "nvidia-cudnn-cu12",
        ),
        ("libtorch_python.so", [], ["numpy", "torch"], "torch"),
        ("libcublasLt.so.12", [], ["nvidia-cublas-cu12"], "nvidia-cublas-cu12"),
        ("libc10.so", [], ["numpy", "torch"], ""),
        ("libssl.so.3", ["pack.libs"], ["numpy"], ""),
        ("libssl.so.3", ["", ".."], ["numpy"], ""),
        ("libm.so.6", [], ["m"], ""),
    ],
)
def test_who_brings_it(library: str, sought: list[str], required: list[str], expected: str) -> None:
    assert bringer(library, sought, required) == expected
