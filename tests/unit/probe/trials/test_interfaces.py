"""Interfaces on command lines, and which of them a backend can use."""

from __future__ import annotations

import pytest
from support.engines.fake_backends.behaviour import device, spec

from potluck.probe.trials.interfaces import interface_argument, read_interface, usable_interfaces
from potluck.types.unit import Interface

VENDOR = Interface(api="opencl", address="/etc/OpenCL/vendors/a=b.icd#0:1")
MESA = Interface(api="opencl", address="/etc/OpenCL/vendors/rusticl.icd#0:0")
CUDA = Interface(api="cuda", address="")


@pytest.mark.parametrize(
    ("interface", "argument"),
    [(None, "-"), (VENDOR, "opencl=/etc/OpenCL/vendors/a=b.icd#0:1"), (CUDA, "cuda=")],
)
def test_an_argument_and_back(interface: Interface | None, argument: str) -> None:
    assert interface_argument(interface) == argument
    assert read_interface(argument) == interface


@pytest.mark.parametrize("argument", ["", "opencl", "=a", "--"])
def test_what_is_no_interface(argument: str) -> None:
    with pytest.raises(ValueError, match="is not a device interface"):
        read_interface(argument)


def test_which_a_backend_can_use() -> None:
    gpu = device(interfaces=(VENDOR, CUDA, MESA))
    assert usable_interfaces(spec("x"), gpu) == (None,)
    assert usable_interfaces(spec("x", api="opencl"), gpu) == (VENDOR, MESA)
    assert usable_interfaces(spec("x", api="kfd"), gpu) == ()
