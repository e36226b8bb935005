"""Select the interfaces that a backend can use, and pass them to child processes."""

from __future__ import annotations

from potluck.types.backend import BackendSpec
from potluck.types.hardware import Device
from potluck.types.unit import Interface

_NONE = "-"


def usable_interfaces(spec: BackendSpec, device: Device) -> tuple[Interface | None, ...]:
    """Return the interfaces through which ``spec`` can use ``device``, in order of preference.

    The result is a single None for a backend that needs no interface, and empty if the device has
    no interface of the required kind.
    """
    if not spec.api:
        return (None,)
    return tuple(interface for interface in device.interfaces if interface.api == spec.api)


def interface_argument(interface: Interface | None) -> str:
    """Return a command-line argument: ``opencl=/etc/OpenCL/vendors/pocl.icd#0:0``, or ``-``."""
    return _NONE if interface is None else f"{interface.api}={interface.address}"


def read_interface(argument: str) -> Interface | None:
    """Parse an argument of :func:`interface_argument`; the description is not restored.

    Raise ``ValueError`` if it is invalid.
    """
    if argument == _NONE:
        return None
    api, separator, address = argument.partition("=")
    if not api or not separator:
        raise ValueError(f"{argument!r} is not a device interface (api=address, or {_NONE})")
    return Interface(api=api, address=address)


def interface_details(interface: Interface | None) -> tuple[str, ...]:
    """Return the parts of an interface that invalidate a result when they change.

    These are all of its parts, since the description contains the driver's version.
    """
    return () if interface is None else (interface.api, interface.address, interface.description)
