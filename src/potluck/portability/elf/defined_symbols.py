"""The symbols that a file defines, in about ten bytes each.

A large library defines half a million symbols with 80 MB of names, and as separate objects each
would take 400 bytes. C++ names are similar to each other and compress to a tenth.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

_MAX_VERSIONS = 2**15 - 1
_NAMES_AT_ONCE = 2**12
_PIECE_BYTES = 2**18


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinedSymbol:
    """A dynamic symbol that the object exports and that its hash table finds.

    ``version`` is empty if it has none or only the base definition: then the symbol matches
    references to any version. A symbol whose version is not the default (``name@VERSION``) matches
    only references to that version.
    """

    name: str
    version: str = ""
    is_default: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinedSymbols:
    """Symbols in the order in which ``packed_symbols`` packed them.

    ``names`` are compressed (zlib), with a zero byte after each name. ``kinds`` has two bytes per
    symbol, little-endian: twice the index of its version in ``versions``, plus 1 for a default.
    """

    names: bytes = b""
    kinds: bytes = b""
    versions: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.kinds) // 2

    def __iter__(self) -> Iterator[DefinedSymbol]:
        for index, name in enumerate(_split(self.names)):
            yield self._symbol(index, _decoded(name))

    def named(self, wanted: Collection[str]) -> Iterator[DefinedSymbol]:
        """Yield the symbols that have one of the names."""
        encoded = {_encoded(name): name for name in wanted}
        for index, name in enumerate(_split(self.names)):
            if (found := encoded.get(name)) is not None:
                yield self._symbol(index, found)

    def _symbol(self, index: int, name: str) -> DefinedSymbol:
        kind = int.from_bytes(self.kinds[2 * index : 2 * index + 2], "little")
        return DefinedSymbol(name=name, version=self.versions[kind >> 1], is_default=bool(kind & 1))


def packed_symbols(symbols: Iterable[DefinedSymbol]) -> DefinedSymbols:
    """Pack the symbols in their order.

    Raise ``ValueError`` for a name with a zero byte, or for more versions than a file may define.
    """
    names, kinds = _Compressed(), array("H")
    versions: dict[str, int] = {}
    for each in symbols:
        encoded = _encoded(each.name)
        if b"\0" in encoded:
            raise ValueError("the name of a symbol contains a zero byte")
        names.append(encoded)
        place = versions.setdefault(each.version, len(versions))
        if place > _MAX_VERSIONS:
            raise ValueError(f"the symbols have more than {_MAX_VERSIONS} versions")
        kinds.append(2 * place + each.is_default)
    return DefinedSymbols(
        names=names.finished(), kinds=_little_endian(kinds), versions=tuple(versions)
    )


class _Compressed:
    """Names, compressed incrementally."""

    def __init__(self) -> None:
        self._compressor = zlib.compressobj(1)
        self._waiting: list[bytes] = []
        self._done = bytearray()

    def append(self, name: bytes) -> None:
        self._waiting.append(name)
        if len(self._waiting) == _NAMES_AT_ONCE:
            self._compress()

    def finished(self) -> bytes:
        self._compress()
        return bytes(self._done + self._compressor.flush())

    def _compress(self) -> None:
        self._done += self._compressor.compress(b"".join(each + b"\0" for each in self._waiting))
        self._waiting.clear()


def _split(names: bytes) -> Iterator[bytes]:
    """Yield the names, with only a few in memory at a time."""
    if not names:
        return
    decompressor = zlib.decompressobj()
    rest = names
    begun = b""
    while not decompressor.eof and rest:
        *whole, begun = (begun + decompressor.decompress(rest, _PIECE_BYTES)).split(b"\0")
        rest = decompressor.unconsumed_tail
        yield from whole


def _little_endian(kinds: array[int]) -> bytes:
    if sys.byteorder == "big":
        kinds.byteswap()
    return kinds.tobytes()


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def _decoded(name: bytes) -> str:
    return name.decode("utf-8", "surrogatepass")
