"""The detectors' view of a machine: its files and libudev's database.

Every root can be replaced by another directory, so that trees of other machines can be read.
Nothing here raises because of the contents of a tree: values that cannot be read are None or
missing. Sources: ``sysfs(5)``, ``proc(5)``, the kernel's
``Documentation/ABI/testing/sysfs-bus-pci``.
"""

from __future__ import annotations

import enum
import errno
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MAX_FILE_BYTES = 1 << 20
"""Files of sysfs have one page; the files of procfs that are read here have tens of KiB."""


MAX_NAME_CHARACTERS = 96
"""The size of NVML's longest buffer for a name (NVML_DEVICE_NAME_V2_BUFFER_SIZE)."""


class Access(enum.Enum):
    """Whether this process may use a device file."""

    USABLE = "usable"
    FORBIDDEN = "forbidden"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True, kw_only=True)
class PciDevice:
    """A function on the PCI bus. Identifiers are numbers; ``driver`` is empty if none is bound.

    ``path`` is its directory in sysfs.
    """

    address: str
    vendor: int
    device: int
    device_class: int
    driver: str
    path: Path

    @property
    def is_display(self) -> bool:
        """Whether its class is 0x03 (display controllers) or 0x12 (processing accelerators)."""
        return self.device_class >> 16 in (0x03, 0x12)

    @property
    def ids(self) -> str:
        """The ids as ``lspci -n`` writes them: ``10de:2684``."""
        return f"{self.vendor:04x}:{self.device:04x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderNode:
    """A DRM render node: its device file and the device behind it.

    ``device`` is the resolved directory of the parent in sysfs, ``driver`` its kernel driver,
    ``compatible`` its device-tree names, most specific first.
    """

    name: str
    device_file: Path
    device: Path
    driver: str
    compatible: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """The roots to read. ``files`` is the root for the rest, such as ``/etc`` and ``/usr``."""

    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    dev: Path = Path("/dev")
    files: Path = Path("/")

    def below_files(self, path: str) -> Path:
        """Return the path below ``files`` of an absolute path such as ``/etc/group``."""
        return self.files / path.lstrip("/")

    def text(self, path: Path) -> str | None:
        """Read a small file up to the first NUL (device-tree strings), without its last newline."""
        data = self.bytes(path)
        if data is None:
            return None
        return data.split(b"\0", 1)[0].decode("utf-8", errors="replace").strip()

    def bytes(self, path: Path) -> bytes | None:
        """Return the bytes of a small file, at most one MiB, without blocking on pipes or
        devices.
        """
        try:
            return read_regular_file(path, _MAX_FILE_BYTES)
        except (OSError, ValueError):  # ValueError: a NUL in a name from a tree
            return None

    def number(self, path: Path) -> int | None:
        """Return the number in a file, decimal or hexadecimal with 0x."""
        text = self.text(path)
        try:
            return None if text is None else int(text, 0)
        except ValueError:
            return None

    def inode(self, path: Path) -> int | None:
        """Return the inode number of a file or directory, which is unique in its file system."""
        try:
            return path.stat().st_ino
        except (OSError, ValueError):
            return None

    def entries(self, directory: Path) -> list[Path]:
        """Return the entries of a directory, sorted by name; empty if it cannot be read."""
        try:
            return sorted(directory.iterdir())
        except OSError:
            return []

    def driver(self, device: Path) -> str:
        """Return the name of the kernel driver bound to a device of sysfs, or empty."""
        try:
            return (device / "driver").readlink().name
        except OSError:
            return self.uevent(device).get("DRIVER", "")

    def uevent(self, device: Path) -> Mapping[str, str]:
        """Return the kernel's properties of a device (``DRIVER``, ``OF_COMPATIBLE_0`` …)."""
        text = self.text(device / "uevent") or ""
        pairs = (line.partition("=") for line in text.splitlines())
        return {name: value for name, separator, value in pairs if separator}

    def compatible(self, device: Path) -> tuple[str, ...]:
        """Return a device's device-tree names, most specific first."""
        properties = self.uevent(device)
        found: list[str] = []
        while (name := properties.get(f"OF_COMPATIBLE_{len(found)}")) is not None:
            found.append(name)
        if not found:
            data = self.bytes(device / "of_node" / "compatible") or b""
            found = [part.decode("ascii", errors="replace") for part in data.split(b"\0") if part]
        return tuple(found)

    def udev(self, device: Path) -> Mapping[str, str]:
        """Return ``uevent`` and additional properties from libudev, such as names from its hardware
        database.

        Without libudev, or for a tree of another machine, only the kernel's properties are
        returned.
        """
        properties = dict(self.uevent(device))
        if self.sys == Path("/sys"):
            properties.update(_libudev_properties(str(device)))
        return properties

    def pci_devices(self) -> Iterator[PciDevice]:
        """Yield all functions on the PCI bus, by address."""
        for path in self.entries(self.sys / "bus/pci/devices"):
            vendor, device = self.number(path / "vendor"), self.number(path / "device")
            if vendor is None or device is None:
                continue
            yield PciDevice(
                address=path.name,
                vendor=vendor,
                device=device,
                device_class=self.number(path / "class") or 0,
                driver=self.driver(path),
                path=resolve(path),
            )

    def render_nodes(self) -> Iterator[RenderNode]:
        """Yield all DRM render nodes; on boards not all of them are GPUs."""
        for path in self.entries(self.sys / "class/drm"):
            if not path.name.startswith("renderD"):
                continue
            device = resolve(path / "device")
            yield RenderNode(
                name=path.name,
                device_file=self.dev / "dri" / path.name,
                device=device,
                driver=self.driver(device),
                compatible=self.compatible(device),
            )

    def access(self, device_file: Path) -> Access:
        """Return whether this process may open a device file for reading and writing."""
        if os.access(device_file, os.R_OK | os.W_OK):
            return Access.USABLE
        # os.path.exists would return False for a directory that this user may not search.
        try:
            device_file.stat()
        except FileNotFoundError:
            return Access.ABSENT
        except OSError:
            return Access.FORBIDDEN
        return Access.FORBIDDEN

    def group(self, device_file: Path) -> str:
        """Return the name of a device file's group, or its number if it has no name."""
        try:
            return group_name(device_file.stat().st_gid)
        except OSError:
            return ""


THIS_MACHINE: Final = System()


def resolve(path: Path) -> Path:
    """Return the target of a link in sysfs, or the path itself if links form a loop."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path


def group_name(gid: int) -> str:
    """Return the name of a group, or its number if it has no name."""
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _libudev_properties(device: str) -> Mapping[str, str]:
    try:
        import pyudev
    except ImportError:  # the package or libudev itself is missing
        return {}
    try:
        return dict(pyudev.Devices.from_sys_path(pyudev.Context(), device).properties)
    except (pyudev.DeviceNotFoundError, OSError, ValueError):
        return {}


def read_regular_file(path: Path, max_bytes: int) -> bytes:
    """Return at most ``max_bytes`` of a regular file; files of sysfs and procfs are regular too.

    Raise ``OSError`` if it cannot be read or is not a regular file, and ``ValueError`` if its name
    contains a NUL.
    """
    # The type is checked before opening, because opening a device can change it (a tape is
    # rewound). The file is opened without waiting for a writer, because it may have been replaced.
    _check_regular(path, path.stat().st_mode)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with open(descriptor, "rb", closefd=True) as file:  # noqa: PTH123 - a descriptor
        _check_regular(path, os.fstat(descriptor).st_mode)
        return file.read(max_bytes)


def _check_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "is not a regular file", os.fspath(path))


def printable(reported: str) -> str:
    """Return the name of a device as reported, on one line, safe for a terminal.

    Everything from a NUL byte on is removed, as are control characters and replacements for bytes
    that could not be decoded. Only the first ``MAX_NAME_CHARACTERS`` characters are used.
    """
    text = reported.partition("\0")[0][:MAX_NAME_CHARACTERS]
    shown = (each if each.isprintable() and each != "\ufffd" else " " for each in text)
    return " ".join("".join(shown).split())
