"""Tables of an ELF file as NumPy records, whose fields have the specification's names without their
prefix.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from potluck.portability.elf.image import ElfHeader, ElfImage

Table: TypeAlias = npt.NDArray[np.void]


def record_type(header: ElfHeader, **fields: str) -> np.dtype[np.void]:
    """Return the type of a record of ``fields``: ``u2``, ``u4`` … in the file's byte order, or
    ``address``.
    """
    address = "u8" if header.is_64_bit else "u4"
    types = [
        (name, header.byte_order + (address if kind == "address" else kind))
        for name, kind in fields.items()
    ]
    return np.dtype(types)


def read_table(image: ElfImage, record: np.dtype[Any], offset: int, count: int, what: str) -> Any:
    """Return ``count`` records (or numbers) from ``offset`` on."""
    return np.frombuffer(image.read(offset, count * record.itemsize, what), dtype=record)


def loaded_table(
    image: ElfImage, record: np.dtype[Any], address: int, count: int, what: str
) -> Any:
    """Return ``count`` records (or numbers) at an address."""
    data = image.loaded(address, count * record.itemsize, what)
    return np.frombuffer(data, dtype=record, count=count)
