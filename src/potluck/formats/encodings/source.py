"""The tensors of an encoded model, with each weight as one tensor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from potluck.errors import ModelFileError
from potluck.formats.encodings.floats import FLOAT_TYPE, FloatTensor, MicroscaledTensor
from potluck.formats.encodings.integers import IntegerTensor
from potluck.formats.encodings.parts import contradiction
from potluck.formats.source import FileTensor, FileTensorSource, check_rows

if TYPE_CHECKING:
    from potluck.formats.encodings.encoding import Encoding
    from potluck.types.tensor import TensorInfo

EncodedTensor: TypeAlias = FloatTensor | IntegerTensor | MicroscaledTensor
"""A weight that is stored as several tensors, its ``parts``, and shown as one, ``info``.

``decoding_bytes`` is the memory that reading it needs in addition to its rows. ``read_rows`` fills
a buffer with rows in the format of ``info``; ``stored_ranges`` yields the ranges of ``parts`` that
it reads, or has read, for them. ``release`` frees data that the next read can load again.
"""


class EncodedSource(FileTensorSource):
    """``raw`` with quantized weights shown as one tensor each; a ``TensorSource``.

    ``tensors`` are those in the files, ``names`` those that are shown. It takes over the files of
    ``raw``, which must not be used any more. Rows are decoded in pieces; ``decoding_bytes`` is the
    additional memory for this, for the tensor read last.
    """

    def __init__(self, raw: FileTensorSource, encoding: Encoding) -> None:
        super().__init__(raw.tensors.values(), raw.files)
        self.encoding = repr(encoding)
        self._encoding = encoding
        self._shown = encoding.shown_names(self.tensors)
        self._decoders: dict[str, EncodedTensor | None] = {}
        self._last: EncodedTensor | None = None

    def names(self) -> Iterable[str]:
        """Return the names of all tensors that are shown, in file order."""
        return self._shown

    def info(self, name: str) -> TensorInfo:
        """Return the tensor as which ``name`` is shown.

        Raise the errors of ``FileTensorSource.info``, ``ModelFileError`` if its stored tensors
        contradict each other, and ``UnsupportedModelError`` if no supported format represents it
        exactly.
        """
        decoder = self._decoder(name)
        return super().info(name) if decoder is None else decoder.info

    def read_rows(self, name: str, start_row: int, end_row: int, out: memoryview) -> None:
        """Fill ``out`` with rows in the format of ``info``.

        Raise the errors of ``info`` and ``raw``.
        """
        decoder = self._decoder(name)
        if decoder is not self._last and self._last is not None:
            self._last.release()
        self._last = decoder
        if decoder is None:
            super().read_rows(name, start_row, end_row, out)
            return
        check_rows(decoder.info, start_row, end_row, out)
        if out.nbytes:
            with out.cast("B") as target:
                decoder.read_rows(start_row, end_row, target)

    def stored_parts(self, name: str) -> tuple[FileTensor, ...]:
        """Return the stored tensors that are shown as ``name``. Raise ``KeyError`` if none are."""
        decoder = self._decoder(name)
        return super().stored_parts(name) if decoder is None else decoder.parts

    def stored_ranges(
        self, name: str, start_row: int, end_row: int
    ) -> Iterator[tuple[FileTensor, int, int]]:
        """Yield the ranges of stored tensors that ``read_rows`` reads.

        Data that is only read once is included each time. Raise the errors of ``info``.
        """
        decoder = self._decoder(name)
        if decoder is None:
            return super().stored_ranges(name, start_row, end_row)
        return decoder.stored_ranges(start_row, end_row)

    def decoding_bytes(self, name: str) -> int:
        """Return the memory that reading rows of ``name`` needs in addition to them."""
        decoder = self._decoder(name)
        return 0 if decoder is None else decoder.decoding_bytes

    def close(self) -> None:
        """Close the files. Idempotent."""
        if self._last is not None:
            self._last.release()
        super().close()

    def _decoder(self, name: str) -> EncodedTensor | None:
        """Return the decoder of ``name``; None for a tensor that is not encoded."""
        if name not in self._decoders:
            self._decoders[name] = self._find(name)
        return self._decoders[name]

    def _find(self, name: str) -> EncodedTensor | None:
        encoding, tensors = self._encoding, self.tensors
        packed, mxfp4 = encoding.packed_parts(name), encoding.mxfp4_parts(name)
        for parts in (packed, mxfp4):
            if parts and parts[0] in tensors and name in tensors:
                raise contradiction(tensors[name], f"is stored twice: also as {parts[0]}")
        if packed and packed[0] in tensors and encoding.integers is not None:
            stem = name.removesuffix("weight")
            stored = {each.removeprefix(stem): tensors[each] for each in packed if each in tensors}
            return IntegerTensor(name, stored, encoding.integers, self.read_stored)
        if mxfp4 and mxfp4[0] in tensors:
            blocks, scales = (tensors.get(each) for each in mxfp4)
            if blocks is None or scales is None:
                raise ModelFileError(
                    tensors[mxfp4[0]].file.path, f"the tensor {mxfp4[1]} is missing"
                )
            return MicroscaledTensor(name, blocks, scales, self.read_stored)
        return self._find_scaled(name)

    def _find_scaled(self, name: str) -> EncodedTensor | None:
        """Find values that are stored under ``name`` itself, with separate scales."""
        encoding = self._encoding
        weight = self.tensors[name]
        companions = [
            self.tensors[each] for each in encoding.companions(name) if each in self.tensors
        ]
        is_float = weight.type_name == FLOAT_TYPE and encoding.floats is not None
        is_integer = weight.type_name == "I8" and encoding.integers is not None
        if not (is_float or is_integer):
            if companions:
                raise contradiction(weight, f"is {weight.type_name} but has scales")
            return None
        if len(companions) != 1:
            raise contradiction(
                weight, f"has {len(companions)} scale tensors, but needs exactly one"
            )
        if is_float and encoding.floats is not None:
            return FloatTensor(name, weight, companions[0], encoding.floats, self.read_stored)
        if encoding.integers is not None:
            stored = {"weight": weight, "weight_scale": companions[0]}
            return IntegerTensor(name, stored, encoding.integers, self.read_stored)
        return None
