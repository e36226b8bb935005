"""Who may bring a library that a wheel does not have."""

from __future__ import annotations

import tomllib
from importlib import resources

import pytest
from packaging.markers import Marker
from packaging.version import InvalidVersion

from potluck.portability.hosts.host import HostPython
from potluck.portability.linking.opened_libraries import provider_of, required_names

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
    names = required_names((line,), "x86_64", PYTHON)
    assert names == (("nvidia-cublas-cu12",) if is_required else ())


def test_markers_are_about_the_hosts_python() -> None:
    pypy = HostPython(implementation="pypy", version=(3, 11))
    lines = (
        "a; platform_python_implementation == 'PyPy'",
        "b; platform_python_implementation == 'CPython'",
        "c; implementation_name == 'cpython'",
    )
    assert required_names(lines, "x86_64", pypy) == ("a",)
    assert required_names(lines, "x86_64", PYTHON) == ("b", "c")


def test_a_marker_about_what_is_no_version_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """``packaging`` before 26 raises an error."""

    def evaluate(*_: object) -> bool:
        raise InvalidVersion("6.1.0-18-amd64")

    monkeypatch.setattr(Marker, "evaluate", evaluate)
    assert required_names(("pyobjc; platform_release >= '20.0'",), "x86_64", PYTHON) == ()


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
        # No name or folder says whose these are, and a table does.
        ("libc10.so", [], ["numpy", "torch"], "torch"),
        ("libnvToolsExt.so.1", [], ["nvidia-cublas-cu12", "nvidia-nvtx-cu12"], "nvidia-nvtx-cu12"),
        (
            "libcudart.so.13",
            ["nvidia/cu13/lib"],
            ["nvidia-cudnn-cu13", "cuda-toolkit"],
            "cuda-toolkit",
        ),
        ("libnvinfer.so.10", [], ["tensorrt-cu12-libs"], "tensorrt-cu12-libs"),
        # Names that begin alike, and only as a whole word.
        (
            "libcusparseLt.so.0",
            [],
            ["nvidia-cusparse-cu12", "nvidia-cusparselt-cu12"],
            "nvidia-cusparselt-cu12",
        ),
        ("libtorchaudio.so", [], ["torch"], ""),
        ("libpython3.11.so.1.0", [], ["opencv-python", "python-dateutil"], ""),
        ("libtbb.so.12", [], ["tbb"], "tbb"),
        ("libmathdx.so.0", [], ["nvidia-libmathdx-cu12"], "nvidia-libmathdx-cu12"),
        # A folder that is one distribution's, and folders that are not.
        ("libodd.so.1", ["torch/lib"], ["numpy", "torch"], "torch"),
        ("libodd.so.1", ["nvidia/cudnn/lib"], ["nvidia-cudnn-cu12"], "nvidia-cudnn-cu12"),
        ("libodd.so.1", ["nvidia/cufft/lib"], ["nvidia-cudnn-cu12"], ""),
        ("libodd.so.1", ["nvidia/cu13/lib"], ["nvidia-cudnn-cu13"], ""),
        ("libodd.so.1", ["torch/lib", "nvidia/cudnn/lib"], ["torch", "nvidia-cudnn-cu12"], ""),
        # The host's, whatever the search path.
        ("libcuda.so.1", ["nvidia/cudnn/lib"], ["nvidia-cudnn-cu13"], ""),
        ("libcuda.so.1", [], ["nvidia-cuda-runtime-cu12", "cuda-python"], ""),
        ("libnvidia-ml.so.1", ["nvidia/cudnn/lib"], ["nvidia-ml-py", "nvidia-cudnn-cu12"], ""),
        ("libssl.so.3", ["torch/lib"], ["torch"], ""),
        ("libGL.so.1", ["torch/lib"], ["torch"], ""),
        ("libgomp.so.1", ["torch/lib"], ["torch"], ""),
        ("libssl.so.3", ["pack.libs"], ["numpy"], ""),
        ("libssl.so.3", ["", ".."], ["numpy"], ""),
        ("libmpi.so.40", ["nvidia/cuda_cccl/lib"], ["nvidia-cuda-cccl-cu12"], ""),
        ("libmpi.so.40", [], ["nvidia-cuda-cccl-cu12", "openmpi"], "openmpi"),
        ("libodd.so.1", ["nvidia/cuda/lib"], ["nvidia-cuda-cccl"], ""),
        ("libm.so.6", [], ["m"], ""),
    ],
)
def test_who_brings_it(library: str, sought: list[str], required: list[str], expected: str) -> None:
    assert provider_of(library, sought, required) == expected


def test_every_provider_is_of_use() -> None:
    file = resources.files("potluck.portability.linking").joinpath("providers.toml")
    rows = tomllib.loads(file.read_text("utf-8"))["provider"]
    for row in rows:
        for library in row["libraries"]:
            assert not library.endswith(".so")
            for name in row["distributions"]:
                assert provider_of(f"{library}.so.1", [], [f"{name}-cu12"]) == f"{name}-cu12"
