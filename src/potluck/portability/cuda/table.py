"""Which driver supports code of which toolkit on which GPU: the table ``cuda.toml``."""

from __future__ import annotations

import functools
import itertools

import msgspec

from potluck.portability.shipped_toml import read_toml

Numbers = tuple[int, ...]
"""A version as a tuple of numbers, which compares like the version."""


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The source of a row or a rule; ``read`` says which copy of it was used."""

    title: str
    url: str
    read: str


class Generation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The toolkits of one major version."""

    major: int
    least_driver: str
    oldest_capability: str
    document: str
    capability_document: str


class Toolkit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One toolkit: the driver that it came with, and the PTX version that both support."""

    cuda: str
    driver: str
    ptx: str


class Toolkits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All toolkits, oldest first."""

    document: str
    ptx_document: str
    rows: tuple[Toolkit, ...]


class BinaryCompatibility(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Compute capabilities of Tegra, whose machine code is its own."""

    tegra: tuple[str, ...]
    document: str
    tegra_document: str


class ArmBuilds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How builds for servers and for Jetson Linux differ on 64-bit ARM: the compute capabilities of
    boards with Jetson Linux, and the first Jetson Linux and CUDA that have one target for both.
    """

    jetson: tuple[str, ...]
    unified_linux: str
    unified_cuda: str
    document: str
    unified_document: str


class JetPack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A release of JetPack: its release of Jetson Linux, which includes the driver; the driver's
    version, if it has one; and the newest CUDA that it supports.
    """

    version: str
    linux: str
    cuda: str
    driver: str = ""


class JetPacks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The releases in which the CUDA version changed, oldest first."""

    document: str
    rows: tuple[JetPack, ...]


class CudaTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table. What it has no row for is unknown; nothing is guessed."""

    documents: dict[str, Document]
    generation: tuple[Generation, ...]
    toolkits: Toolkits
    binary_compatibility: BinaryCompatibility
    arm_builds: ArmBuilds
    jetpacks: JetPacks

    def __post_init__(self) -> None:
        cited = {row.document for row in self.generation}
        cited |= {row.capability_document for row in self.generation}
        cited |= {self.toolkits.document, self.toolkits.ptx_document, self.jetpacks.document}
        cited |= {self.binary_compatibility.document, self.binary_compatibility.tegra_document}
        cited |= {self.arm_builds.document, self.arm_builds.unified_document}
        if wrong := cited ^ set(self.documents):
            raise ValueError(f"documents not listed, or not cited: {', '.join(sorted(wrong))}")
        if others := set(self.arm_builds.jetson) - set(self.binary_compatibility.tegra):
            raise ValueError(f"GPUs of Jetsons that are not among Tegra's: {', '.join(others)}")
        for earlier, later in itertools.pairwise(self.toolkits.rows):
            if not numbers(earlier.cuda) < numbers(later.cuda):
                raise ValueError(f"CUDA {later.cuda} is listed after {earlier.cuda}")
            if not numbers(earlier.driver) < numbers(later.driver):
                raise ValueError(f"the driver of CUDA {later.cuda} is older than one before it")

        for older, newer in itertools.pairwise(self.jetpacks.rows):
            is_later = numbers(older.linux) < numbers(newer.linux)
            if not is_later or not numbers(older.cuda) < numbers(newer.cuda):
                raise ValueError(f"JetPack {newer.version} is listed after {older.version}")

    def least_driver(self, toolkit: Numbers) -> str:
        """Return the Linux driver that programs built with a toolkit require; empty if it or the
        toolkit is unknown.
        """
        if not toolkit:
            return ""
        rows = (row for row in self.generation if row.major == toolkit[0])
        return next((row.least_driver for row in rows), "")

    def driver_of(self, toolkit: Numbers) -> str:
        """Return the driver that supports all features of a toolkit (major, minor); "" if
        unknown.
        """
        return next(
            (row.driver for row in self.toolkits.rows if numbers(row.cuda) == toolkit[:2]), ""
        )

    def cuda_of_driver(self, driver: Numbers) -> tuple[int, int] | None:
        """Return the newest CUDA that a Linux driver supports; None if it is older than the
        table.
        """
        rows = [row for row in self.toolkits.rows if numbers(row.driver) <= driver]
        if not rows:
            return None
        major, minor = numbers(rows[-1].cuda)
        return major, minor

    def cuda_of_ptx(self, ptx: Numbers) -> tuple[int, int] | None:
        """Return the first CUDA that generates this version of PTX; None if none in the
        table does.
        """
        rows = self.toolkits.rows
        for row in rows:
            if ptx <= numbers(row.ptx):
                if ptx < numbers(rows[0].ptx):
                    return None
                major, minor = numbers(row.cuda)
                return major, minor
        return None

    def compiles(self, cuda: Numbers, ptx: Numbers) -> bool | None:
        """Return whether a driver whose newest CUDA is ``cuda`` accepts this PTX; None if unknown.

        A driver accepts every version up to its own.
        """
        rows = self.toolkits.rows
        known = [row for row in rows if numbers(row.cuda) <= cuda]
        if not known:
            return None
        if ptx <= numbers(known[-1].ptx):
            return True
        return None if len(known) == len(rows) and cuda > numbers(rows[-1].cuda) else False

    def jetpack_of(self, release: Numbers, driver: Numbers | None) -> JetPack | None:
        """Return the JetPack with this release of Jetson Linux, or else with this driver; None if
        neither is known.
        """
        rows = self.jetpacks.rows
        if release:
            found = [row for row in rows if numbers(row.linux) <= release]
        elif driver:
            found = [row for row in rows if row.driver and numbers(row.driver) <= driver]
        else:
            found = []
        return found[-1] if found else None

    def jetpack_for(self, toolkit: Numbers) -> JetPack | None:
        """Return the first JetPack whose CUDA has a toolkit's major version or a newer one."""
        rows = self.jetpacks.rows
        return next((row for row in rows if numbers(row.cuda)[:1] >= toolkit[:1]), None)

    def has_own_arm_builds(self, release: Numbers, cuda: Numbers | None) -> bool | None:
        """Return whether a Jetson with this release of Jetson Linux, or else with this CUDA, needs
        builds of its own; None if neither is known.
        """
        if release:
            return release < numbers(self.arm_builds.unified_linux)
        return None if cuda is None else cuda < numbers(self.arm_builds.unified_cuda)

    def is_tegra(self, capability: tuple[int, int]) -> bool:
        """Return whether GPUs of this compute capability are part of a Tegra, as a Jetson's are."""
        return dotted(capability) in self.binary_compatibility.tegra


def numbers(version: str) -> Numbers:
    """Return ``"450.80.02"`` as (450, 80, 2). Raise ``ValueError`` if it is malformed."""
    return tuple(int(part) for part in version.split("."))


def dotted(version: Numbers) -> str:
    """Return (12, 4) as ``"12.4"``."""
    return ".".join(map(str, version))


@functools.cache
def shipped_table() -> CudaTable:
    """Return the table in this package; it is read at the first use."""
    return read_toml(__package__, "cuda.toml", CudaTable)
