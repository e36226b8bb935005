"""How the interfaces of devices are told to child processes, and which ones a backend can use."""

from __future__ import annotations

from potluck.types.hardware import BackendSpec, Device, Interface

_NONE = "-"


def usable_interfaces(spec: BackendSpec, device: Device) -> tuple[Interface | None, ...]:
    """What ``spec`` can reach ``device`` by, in the order of preference.

    One None for a backend that needs none; nothing where the device lacks what it needs.
    """
    if not spec.api:
        return (None,)
    return tuple(interface for interface in device.interfaces if interface.api == spec.api)


def interface_argument(interface: Interface | None) -> str:
    """The argument of a command line: ``opencl=/etc/OpenCL/vendors/pocl.icd#0:0``, or ``-``."""
    return _NONE if interface is None else f"{interface.api}={interface.address}"


def read_interface(argument: str) -> Interface | None:
    """What :func:`interface_argument` wrote, without the description.

    Raises ``ValueError`` where it is no such argument.
    """
    if argument == _NONE:
        return None
    api, separator, address = argument.partition("=")
    if not api or not separator:
        raise ValueError(f"{argument!r} is no interface: api=address, or {_NONE}")
    return Interface(api=api, address=address)


def interface_details(interface: Interface | None) -> tuple[str, ...]:
    """What of an interface makes a result old when it changes: all of it, as its driver's version
    stands in its description.
    """
    return () if interface is None else (interface.api, interface.address, interface.description)
