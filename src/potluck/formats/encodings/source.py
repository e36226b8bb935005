"""The tensors of an encoded model, each weight as one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from potluck.errors import ModelFileError
from potluck.formats.encodings.floats import FLOAT_TYPE, FloatTensor
from potluck.formats.encodings.integers import IntegerTensor
from potluck.formats.encodings.microscaled import MicroscaledTensor
from potluck.formats.encodings.parts import contradiction
from potluck.formats.source import FileTensor, FileTensorSource

if TYPE_CHECKING:
    from potluck.formats.encodings.encoding import Encoding
    from potluck.formats.encodings.parts import EncodedTensor
    from potluck.types.tensor import TensorInfo


class EncodedSource(FileTensorSource):
    """``raw`` with quantized weights shown as one tensor each; a ``TensorSource``.

    ``tensors`` are those of the files, ``names`` those that are shown. It owns the files of
    ``raw``, which must not be used any more. Rows are decoded in pieces; ``decoding_bytes`` is what
    that holds in addition, for the tensor read last.
    """

    def __init__(self, raw: FileTensorSource, encoding: Encoding) -> None:
        super().__init__(raw.tensors.values(), raw.files)
        self.encoding = repr(encoding)
        self._encoding = encoding
        self._shown = encoding.shown_names(self.tensors)
        self._decoders: dict[str, EncodedTensor | None] = {}
        self._last: EncodedTensor | None = None

    def names(self) -> Iterable[str]:
        """The names of all tensors that are shown, in file order."""
        return self._shown

    def info(self, name: str) -> TensorInfo:
        """What ``name`` is shown as.

        Raises as ``FileTensorSource.info``, ``ModelFileError`` where the tensors that are stored
        for it contradict one another, and ``UnsupportedModelError`` for those that no format here
        holds exactly.
        """
        decoder = self._decoder(name)
        return super().info(name) if decoder is None else decoder.info

    def read_rows(self, name: str, start_row: int, end_row: int, out: memoryview) -> None:
        """Fill ``out`` with rows in the format of ``info``. Raises as ``info`` and ``raw`` do."""
        decoder = self._decoder(name)
        if decoder is not self._last and self._last is not None:
            self._last.release()
        self._last = decoder
        if decoder is None:
            super().read_rows(name, start_row, end_row, out)
            return
        info = decoder.info
        if not 0 <= start_row <= end_row <= info.num_rows:
            raise ValueError(f"{name} has no rows [{start_row}, {end_row})")
        if out.nbytes != (end_row - start_row) * info.row_bytes:
            raise ValueError(f"rows [{start_row}, {end_row}) of {name} do not fill {out.nbytes} B")
        if out.nbytes:
            with out.cast("B") as target:
                decoder.read_rows(start_row, end_row, target)

    def stored_parts(self, name: str) -> tuple[FileTensor, ...]:
        """The tensors of the files that are shown as ``name``; ``KeyError`` if none are."""
        decoder = self._decoder(name)
        return super().stored_parts(name) if decoder is None else decoder.parts

    def decoding_bytes(self, name: str) -> int:
        """What reading rows of ``name`` holds besides them."""
        decoder = self._decoder(name)
        return 0 if decoder is None else decoder.decoding_bytes

    def close(self) -> None:
        """Close the files. Idempotent."""
        if self._last is not None:
            self._last.release()
        super().close()

    def _decoder(self, name: str) -> EncodedTensor | None:
        """What decodes ``name``; None for a tensor that is stored plainly."""
        if name not in self._decoders:
            self._decoders[name] = self._find(name)
        return self._decoders[name]

    def _find(self, name: str) -> EncodedTensor | None:
        encoding, tensors = self._encoding, self.tensors
        packed, mxfp4 = encoding.packed_parts(name), encoding.mxfp4_parts(name)
        for parts in (packed, mxfp4):
            if parts and parts[0] in tensors and name in tensors:
                raise contradiction(tensors[name], f"is there twice: also as {parts[0]}")
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
        """Values under ``name`` itself, with scales beside them."""
        encoding = self._encoding
        weight = self.tensors[name]
        companions = [
            self.tensors[each] for each in encoding.companions(name) if each in self.tensors
        ]
        is_float = weight.type_name == FLOAT_TYPE and encoding.floats is not None
        is_integer = weight.type_name == "I8" and encoding.integers is not None
        if not (is_float or is_integer):
            if companions:
                raise contradiction(weight, f"is {weight.type_name} and has scales beside it")
            return None
        if len(companions) != 1:
            raise contradiction(weight, f"has {len(companions)} tensors of scales, and needs one")
        if is_float and encoding.floats is not None:
            return FloatTensor(name, weight, companions[0], encoding.floats, self.read_stored)
        if encoding.integers is not None:
            stored = {"weight": weight, "weight_scale": companions[0]}
            return IntegerTensor(name, stored, encoding.integers, self.read_stored)
        return None
