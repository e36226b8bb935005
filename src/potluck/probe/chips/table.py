"""The schema of ``chips.toml``, and its reader.

Validation is strict: the whole file is invalid if it has an unknown key, a rate that is not
positive, a rate without a document and a place in it, a document that is not listed, or two rows
for one chip. A test reads the shipped file.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable
from typing import Annotated

import msgspec

from potluck.portability.shipped_toml import read_toml
from potluck.probe.chips.names import search_key

Text = Annotated[str, msgspec.Meta(min_length=1)]
Positive = Annotated[int, msgspec.Meta(gt=0)]


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of the file."""


class Document(_Row, frozen=True):
    """The source of figures. ``read`` says which copy of it was used."""

    title: Text
    url: Annotated[str, msgspec.Meta(pattern="^https://")]
    read: Text


class Rate(_Row, frozen=True):
    """One figure: its value (per second, or per clock), and its place in a document."""

    value: Annotated[float, msgspec.Meta(gt=0)]
    document: Text
    where: Text


class Chip(_Row, frozen=True):
    """A vendor's specification of a chip. A name with a memory size applies to that size only."""

    names: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1)]
    chips: tuple[Text, ...] = ()
    boost_clock_mhz: Positive | None = None
    read_bytes_per_second: Rate | None = None
    f32_operations_per_second: Rate | None = None
    f16_operations_per_second: Rate | None = None
    int8_operations_per_second: Rate | None = None


class MaliCore(_Row, frozen=True):
    """The rate of a Mali's shader core: float32 multiply-adds per clock.

    It is None for a model with cores of several sizes, since drivers do not report which it has.
    """

    name: Text
    product_id: Positive
    mask: Positive
    min_cores: Positive = 1
    multiply_adds_per_core: Positive | None = None


class NvidiaMultiprocessor(_Row, frozen=True):
    """The dense rates per clock of one multiprocessor of a compute capability.

    If the matrix units of GeForce RTX cards run at another rate than those of professional cards,
    the rates of GeForce RTX cards are separate.
    """

    capability: Annotated[str, msgspec.Meta(pattern=r"^\d+\.\d$")]
    cores: Positive
    f16_operations: Rate | None = None
    int8_operations: Rate | None = None
    geforce_f16_operations: Rate | None = None
    geforce_int8_operations: Rate | None = None


class AmdComputeUnit(_Row, frozen=True):
    """The dense rates per clock of one compute unit of AMD's targets.

    ``memory_transfers`` is the number of transfers per pin and clock of the memory type that all of
    these chips have.
    """

    targets: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1)]
    simds: Positive
    f32_operations: Rate | None = None
    f16_operations: Rate | None = None
    int8_operations: Rate | None = None
    memory_transfers: Rate | None = None


class ChipTable(_Row, frozen=True):
    """The whole file."""

    documents: dict[str, Document]
    chip: tuple[Chip, ...]
    mali: tuple[MaliCore, ...]
    mali_document: Text
    nvidia: tuple[NvidiaMultiprocessor, ...]
    nvidia_memory: Rate
    amd: tuple[AmdComputeUnit, ...]

    def __post_init__(self) -> None:
        rows = (self, *self.chip, *self.nvidia, *self.amd)
        cited = {self.mali_document, *(rate.document for row in rows for rate in _rates(row))}
        if wrong := cited ^ set(self.documents):
            raise ValueError(f"documents not listed, or not cited: {', '.join(sorted(wrong))}")
        for row in self.chip:
            if not _rates(row):
                raise ValueError(f"{row.names[0]} has no figure")
        _reject_repeated("name", (search_key(name) for row in self.chip for name in row.names))
        _reject_repeated("chip", (chip for row in self.chip for chip in row.chips))
        _reject_repeated("Mali", ((core.product_id, core.min_cores) for core in self.mali))
        _reject_repeated("capability", (sm.capability for sm in self.nvidia))
        _reject_repeated("target", (target for unit in self.amd for target in unit.targets))

    def source(self, rate: Rate) -> str:
        """Return the document and the place in it, for ``Figure.source``."""
        document = self.documents[rate.document]
        return f"{document.title}, {rate.where} ({document.url})"


def _reject_repeated(what: str, keys: Iterable[object]) -> None:
    repeated = [str(key) for key, count in Counter(keys).items() if count > 1]
    if repeated:
        raise ValueError(f"duplicate {what}: {', '.join(repeated)}")


# msgspec 0.22 crashes if several threads use a type for the first time at once, as happens here on
# a machine with GPUs of two vendors. Creating a decoder inspects all types of the table now, while
# a single thread imports this module.
msgspec.json.Decoder(ChipTable)


@functools.cache
def shipped_table() -> ChipTable:
    """Return the table in this package; it is read on first use."""
    return read_toml(__package__, "chips.toml", ChipTable)


def _rates(row: _Row) -> list[Rate]:
    return [value for value in msgspec.structs.astuple(row) if isinstance(value, Rate)]
