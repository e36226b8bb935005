"""Headers with as much in them as makes them costly, ``share`` of what the readers take at most."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

from support.formats import gguf_bytes as gb
from support.formats.header_mutations import Kind
from support.formats.safetensors_bytes import safetensors_bytes

from potluck.formats.gguf import MAX_HEADER_TENSORS
from potluck.formats.gguf_metadata import MAX_METADATA_ENTRIES, MAX_STRINGS
from potluck.formats.safetensors import MAX_FILES, MAX_HEADER_BYTES
from potluck.formats.source import MAX_NAME_BYTES, MAX_TENSORS


def _tensors(name_bytes: int, share: float) -> bytes:
    """Tensors without elements, of five dimensions that are objects of their own in memory."""
    each = '"%0{}d":{{"dtype":"F32","shape":[0,999,999,999,999],"data_offsets":[0,0]}}'
    names = range(int(share * MAX_TENSORS))
    body = ",".join(each.format(name_bytes) % number for number in names)
    return safetensors_bytes(b"{" + body.encode() + b"}")


def _long_names(share: float) -> bytes:
    return _tensors(MAX_NAME_BYTES, share)


def _short_names(share: float) -> bytes:
    return _tensors(5, share)


def _one_value(share: float) -> bytes:
    lists = b"[]," * (int(share * MAX_HEADER_BYTES) // 3 - 10)
    return safetensors_bytes(b'{"w":[' + lists + b"[]]}")


def _one_name(share: float) -> bytes:
    return safetensors_bytes(b'{"' + b"w" * (int(share * MAX_HEADER_BYTES) - 20) + b'":1}')


def _long_texts(share: float) -> bytes:
    num_bytes = int(share * MAX_HEADER_BYTES) // 2 - 50
    text = b'"%s":"%s"' % (b"\\u00e9" * (num_bytes // 6), b"\\n" * (num_bytes // 2))
    return safetensors_bytes(b'{"__metadata__":{' + text + b"}}")


def _space(share: float) -> bytes:
    return safetensors_bytes(b"{" + b" " * (int(share * MAX_HEADER_BYTES) - 2) + b"}")


def _index(share: float) -> bytes:
    pairs = (
        f'"{number:0160}":"{number % MAX_FILES:0160}"' for number in range(int(share * MAX_TENSORS))
    )
    return ('{"weight_map":{' + ",".join(pairs) + "}}").encode()


def _gguf_tensors(share: float) -> bytes:
    number = struct.pack("<d", 0.1)
    num_tensors = int(share * MAX_HEADER_TENSORS)
    return gb.Gguf(
        entries=[gb.entry(f"{n:05}", 12, number) for n in range(int(share * MAX_METADATA_ENTRIES))],
        tensors=[
            gb.Tensor(name=f"{n:0255}", dimensions=(999, 999, 999, 0)) for n in range(num_tensors)
        ],
    ).build()


def _gguf_arrays(share: float) -> bytes:
    num_strings = int(share * MAX_STRINGS)
    strings = gb.array(8, num_strings, gb.text("ab") * num_strings)
    flags = gb.array(7, 16 * num_strings, bytes(16 * num_strings))
    text = gb.text("é" * 8 * num_strings)
    return gb.Gguf(
        entries=[gb.entry("a", 9, strings), gb.entry("b", 9, flags), gb.entry("c", 8, text)]
    ).build()


LARGE_HEADERS: Mapping[str, tuple[Kind, Callable[[float], bytes]]] = {
    "as many tensors as can be, long names": (Kind.SAFETENSORS, _long_names),
    "as many tensors as can be, short names": (Kind.SAFETENSORS, _short_names),
    "one value": (Kind.SAFETENSORS, _one_value),
    "one name": (Kind.SAFETENSORS, _one_name),
    "metadata of long texts": (Kind.SAFETENSORS, _long_texts),
    "nothing but space": (Kind.SAFETENSORS, _space),
    "an index of as many tensors as can be": (Kind.INDEX, _index),
    "as many tensors and entries as can be": (Kind.GGUF, _gguf_tensors),
    "as many strings as can be": (Kind.GGUF, _gguf_arrays),
}
