"""Which driver runs which toolkit's code, on which GPU: the table ``cuda.toml``."""

from __future__ import annotations

import functools
import itertools
import tomllib
from importlib import resources

import msgspec

Numbers = tuple[int, ...]
"""A version, as numbers that compare as it does."""


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a row was read; ``read`` says which copy of it."""

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
    """One toolkit: the driver that it came with, and the PTX that both know."""

    cuda: str
    driver: str
    ptx: str


class Toolkits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of them, from the oldest."""

    document: str
    ptx_document: str
    rows: tuple[Toolkit, ...]


class BinaryCompatibility(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Compute capabilities of Tegra, whose machine code is its own."""

    tegra: tuple[str, ...]
    document: str
    tegra_document: str


class CudaTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table. What it has no row for is unknown, never guessed."""

    documents: dict[str, Document]
    generation: tuple[Generation, ...]
    toolkits: Toolkits
    binary_compatibility: BinaryCompatibility

    def __post_init__(self) -> None:
        cited = {row.document for row in self.generation}
        cited |= {row.capability_document for row in self.generation}
        cited |= {self.toolkits.document, self.toolkits.ptx_document}
        cited |= {self.binary_compatibility.document, self.binary_compatibility.tegra_document}
        if wrong := cited ^ set(self.documents):
            raise ValueError(f"documents not listed, or not cited: {', '.join(sorted(wrong))}")
        for earlier, later in itertools.pairwise(self.toolkits.rows):
            if not numbers(earlier.cuda) < numbers(later.cuda):
                raise ValueError(f"CUDA {later.cuda} stands after {earlier.cuda}")
            if not numbers(earlier.driver) < numbers(later.driver):
                raise ValueError(f"the driver of CUDA {later.cuda} is older than one before it")

    def generation_of(self, toolkit: Numbers) -> Generation | None:
        """The row for the toolkit's major version."""
        return next((row for row in self.generation if row.major == toolkit[0]), None)

    def driver_of(self, toolkit: Numbers) -> str:
        """The driver that has all the features of a toolkit, by major and minor; "" if unknown."""
        return next(
            (row.driver for row in self.toolkits.rows if numbers(row.cuda) == toolkit[:2]), ""
        )

    def cuda_of_driver(self, driver: Numbers) -> tuple[int, int] | None:
        """The newest CUDA that a driver of Linux has; None of one older than the table."""
        rows = [row for row in self.toolkits.rows if numbers(row.driver) <= driver]
        if not rows:
            return None
        major, minor = numbers(rows[-1].cuda)
        return major, minor

    def cuda_of_ptx(self, ptx: Numbers) -> tuple[int, int] | None:
        """The first CUDA that writes this version of PTX; None if none in the table does."""
        rows = self.toolkits.rows
        for row in rows:
            if ptx <= numbers(row.ptx):
                if ptx < numbers(rows[0].ptx):
                    return None
                major, minor = numbers(row.cuda)
                return major, minor
        return None

    def compiles(self, cuda: Numbers, ptx: Numbers) -> bool | None:
        """Whether a driver whose newest CUDA is ``cuda`` takes this PTX; None if that is unknown.

        It takes every version up to its own.
        """
        rows = self.toolkits.rows
        known = [row for row in rows if numbers(row.cuda) <= cuda]
        if not known:
            return None
        if ptx <= numbers(known[-1].ptx):
            return True
        return None if len(known) == len(rows) and cuda > numbers(rows[-1].cuda) else False

    def is_tegra(self, capability: tuple[int, int]) -> bool:
        """Whether GPUs of that compute capability are on a Tegra, as Jetson's are."""
        return dotted(capability) in self.binary_compatibility.tegra


def numbers(version: str) -> Numbers:
    """``"450.80.02"`` as (450, 80, 2). Raises ``ValueError``."""
    return tuple(int(part) for part in version.split("."))


def dotted(version: Numbers) -> str:
    """(12, 4) as ``"12.4"``."""
    return ".".join(map(str, version))


def parse_table(text: str) -> CudaTable:
    """A table from TOML. Raises ``ValueError`` that says what is wrong and where."""
    return msgspec.convert(tomllib.loads(text), CudaTable)


@functools.cache
def shipped_table() -> CudaTable:
    """The table in this package, read at its first use."""
    return parse_table(resources.files(__package__).joinpath("cuda.toml").read_text("utf-8"))
