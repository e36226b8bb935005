"""Headers of model files, spoiled in ways that know their structure.

``mutated(kind, seed)`` is always the same for the same two: a case can be replayed.
"""

from __future__ import annotations

import enum
import json
import random
import struct
from collections.abc import Callable, Sequence
from typing import TypeVar

from support.formats import gguf_bytes as gb
from support.formats.safetensors_bytes import safetensors_bytes

Item = TypeVar("Item")


class Kind(enum.Enum):
    """What is mutated."""

    SAFETENSORS = "safetensors"
    INDEX = "index"
    GGUF = "gguf"


NUMBERS = (
    *(0, 1, 2, 3, 4, 7, 8, 16, 31, 32, 33, 64, 127, 128, 255, 256, 1000, 65535, 65536, 2**20),
    *(2**24 + 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**53 + 1, 2**62, 2**63 - 1, 2**63),
    *(2**64 - 32, 2**64 - 1),
)
NAMES = (
    *("w", "model.layers.0.self_attn.q_proj.weight", "token_embd.weight", "blk.0.attn_q.weight"),
    *("", " ", "\0", "a\0b", "../w", "/etc/passwd", "__metadata__", "\n", "\x1b[31m", "é", "‮", "𝒳"),
    *("x" * 64, "x" * 255, "x" * 256, "x" * 70_000, "\ud800", "{}", '"', "\\", "general.alignment"),
)
JSON_TEXTS = (
    *(
        "null",
        "true",
        "[]",
        "{}",
        '""',
        '"F32"',
        "-1",
        "-0",
        "1.0",
        "1e3",
        "1e400",
        "NaN",
        "Infinity",
    ),
    *(
        "[" * 500,
        "[" * 100_000,
        '{"a":' * 5000,
        "[" + "1," * 30_000 + "1]",
        "[" + "[]," * 9000 + "[]]",
    ),
    *(
        "9" * 30,
        "9" * 5000,
        "[-1]",
        "[1.5]",
        "[true]",
        "[null]",
        "[[0]]",
        "[0,0,0]",
        '[0,"0"]',
        "0x10",
    ),
    *(
        '"' + "a" * 40_000 + '"',
        '"\\ud800"',
        '"\\x"',
        '"\t"',
        '{"a":1,"a":1}',
        "'a'",
        "[1,]",
        "/**/1",
    ),
)


def mutated(kind: Kind, seed: int) -> bytes:
    """A file of ``kind`` with between none and four things wrong."""
    rng = random.Random(f"{kind.value} {seed}")
    content = _MAKERS[kind](rng, rng.choice((0, 1, 1, 1, 2, 2, 3)))
    if rng.random() < 0.4:
        content = _spoil_bytes(rng, content)
    return content


def _spoil_bytes(rng: random.Random, content: bytes) -> bytes:
    """One change that knows nothing of the structure."""
    data = bytearray(content)
    # Headers lie at the beginning, and what they are is decided in the first bytes.
    at = min(rng.randrange(len(data) + 1), rng.randrange(len(data) + 1))
    match rng.randrange(6):
        case 0:
            del data[at:]
        case 1:
            del data[at : at + rng.randrange(1, 20)]
        case 2:
            data[at:at] = rng.randbytes(rng.randrange(1, 20))
        case 3:
            data[at : at + 8] = struct.pack("<Q", rng.choice(NUMBERS))
        case 4:
            stretch = data[at : at + rng.randrange(1, 200)]
            data[at:at] = stretch * rng.randrange(1, 50)
        case _:
            for _ in range(rng.randrange(1, 5)):
                if data:
                    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _safetensors(rng: random.Random, num_faults: int) -> bytes:
    entries: list[tuple[str, list[tuple[str, str]]]] = []
    end = 0
    for number in range(rng.choice((0, 1, 2, 3, 5, 8, 13, 150))):
        shape = [rng.randrange(5) for _ in range(rng.randrange(4))]
        begin, end = end, end + _product(shape) * 4
        fields = [
            ("dtype", '"F32"'),
            ("shape", json.dumps(shape)),
            ("data_offsets", json.dumps([begin, end])),
        ]
        entries.append((json.dumps(f"layers.{number}.w"), fields))
    data = bytes(end)
    metadata = '"__metadata__":{"format":"pt"}' if rng.random() < 0.5 else ""
    prefix: int | None = None
    for _ in range(num_faults):
        match rng.randrange(8):
            case 0 if entries:  # a number
                _, fields = rng.choice(entries)
                at = rng.randrange(len(fields)) if fields else 0
                numbers = [rng.choice((rng.choice(NUMBERS), 0, end, 4)) for _ in range(2)]
                fields[at : at + 1] = [(rng.choice(("shape", "data_offsets")), json.dumps(numbers))]
            case 1 if entries:  # a value of any other kind
                _, fields = rng.choice(entries)
                key = rng.choice(("dtype", "shape", "data_offsets", "x", ""))
                text = rng.choice((*JSON_TEXTS, '"BF16"', '"I64"', '"F4"', '"F8_E4M3"', '"Q9"'))
                _change(rng, fields, (key, text))
            case 2:  # a name
                name = json.dumps(rng.choice(NAMES), ensure_ascii=rng.random() < 0.5)
                fields = rng.choice(entries)[1] if entries else []
                _change(rng, entries, (name, fields))
            case 3:  # a whole entry of any kind
                metadata = f'"__metadata__":{rng.choice(JSON_TEXTS)}'
            case 4:
                texts = ['"a":"' + "é" * rng.randrange(40_000) + '"' for _ in range(3)]
                metadata = '"__metadata__":{' + ",".join(texts) + "}"
            case 5:
                data = bytes(max(0, len(data) + rng.choice((-1, 1, -4, 4, 1000))))
            case 6:
                prefix = rng.choice(NUMBERS)
            case _:
                _change(rng, entries, None)
    members = [
        name + ":{" + ",".join(f'"{key}":{text}' for key, text in fields) + "}"
        for name, fields in entries
    ]
    if metadata:
        members.insert(rng.randrange(len(members) + 1), metadata)
    space = rng.choice(("", "", " ", "\n  ", " " * 3000))
    header = (space + "{" + f",{space}".join(members) + "}" + space).encode(
        "utf-8", "surrogatepass"
    )
    content = safetensors_bytes(header, data)
    return content if prefix is None else struct.pack("<Q", prefix) + content[8:]


def _index(rng: random.Random, num_faults: int) -> bytes:
    pairs = [
        (json.dumps(f"layers.{number}.w"), json.dumps(f"m-{number % 3}.safetensors"))
        for number in range(rng.choice((1, 2, 5, 300)))
    ]
    members = ['"metadata":{"total_size":12}', ""]
    for _ in range(num_faults):
        match rng.randrange(4):
            case 0:
                name = json.dumps(rng.choice(NAMES), ensure_ascii=rng.random() < 0.5)
                _change(rng, pairs, (name, pairs[0][1] if pairs else '"m"'))
            case 1:
                file = rng.choice((*JSON_TEXTS, *(json.dumps(name) for name in NAMES)))
                _change(rng, pairs, (rng.choice(('"a"', '"layers.0.w"')), file))
            case 2:
                key = rng.choice(('"metadata"', '"x"'))
                members.append(f"{key}:{rng.choice(JSON_TEXTS)}")
            case _:
                members.append(f'"weight_map":{rng.choice(JSON_TEXTS)}')
    members[1] = '"weight_map":{' + ",".join(f"{name}:{file}" for name, file in pairs) + "}"
    rng.shuffle(members)
    return ("{" + ",".join(members) + "}").encode("utf-8", "surrogatepass")


_SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def _gguf(rng: random.Random, num_faults: int) -> bytes:
    alignment = rng.choice((32, 32, 32, 8, 64))
    tensors: list[gb.Tensor] = []
    end = 0
    for number in range(rng.choice((0, 1, 2, 3, 5, 100))):
        name = "token_embd.weight" if number == 0 else f"blk.{number}.w"
        rows = rng.randrange(1, 4)
        type_number, columns, row_bytes = rng.choice(((0, 8, 32), (8, 32, 34), (12, 256, 144)))
        tensors.append(
            gb.Tensor(name=name, dimensions=(columns, rows), type_number=type_number, offset=end)
        )
        end += -(-rows * row_bytes // alignment) * alignment
    entries = [
        gb.entry("general.architecture", 8, gb.text("llama")),
        gb.entry("general.alignment", 4, gb.u32(alignment)),
        gb.entry("llama.block_count", 4, gb.u32(2)),
        gb.entry("llama.embedding_length", 4, gb.u32(8)),
        gb.entry("llama.attention.head_count", 4, gb.u32(1)),
        gb.entry("llama.context_length", 4, gb.u32(64)),
        gb.entry("llama.feed_forward_length", 4, gb.u32(8)),
        gb.entry("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5)),
        gb.entry("tokenizer.ggml.tokens", 9, gb.array(8, 3, gb.text("a") + gb.text("") * 2)),
        gb.entry("tokenizer.ggml.scores", 9, gb.array(6, 3, bytes(12))),
        gb.entry("tokenizer.ggml.flags", 9, gb.array(7, 3, b"\0\1\0")),
    ]
    data, num_tensors, num_entries, version = bytes(end), None, None, 3
    for _ in range(num_faults):
        match rng.randrange(10):
            case 0:
                _change(rng, entries, _gguf_entry(rng))
            case 1:
                _change(rng, entries, None)
            case 2:
                _change(rng, tensors, None)
            case 3 | 4:
                _change(rng, tensors, _gguf_tensor(rng))
            case 5:
                num_tensors = rng.choice(NUMBERS) % 2**64
            case 6:
                num_entries = rng.choice(NUMBERS) % 2**64
            case 7:
                version = rng.choice((0, 1, 2, 4, 2**24, 2**32 - 1))
            case 8:
                data = bytes(max(0, len(data) + rng.choice((-1, 1, -32, 32, 1000))))
            case _:
                key = rng.choice(
                    ("llama.block_count", "llama.embedding_length", "general.alignment")
                )
                value = gb.u32(rng.choice(NUMBERS) % 2**32)
                entries = [e for e in entries if key.encode() not in e] + [gb.entry(key, 4, value)]
    file = gb.Gguf(
        entries=entries,
        tensors=tensors,
        data=data,
        alignment=alignment,
        version=gb.u32(version),
        num_tensors=num_tensors,
        num_entries=num_entries,
    )
    return file.build()


def _gguf_entry(rng: random.Random) -> bytes:
    key = rng.choice((*NAMES, "llama.x", "llama.rope.freq_base", "split.count")).encode(
        "utf-8", "surrogatepass"
    )
    type_number = rng.choice((*_SCALARS, 8, 9, 9, 9, 13, 255, 2**32 - 1))
    value = rng.randbytes(_SCALARS.get(type_number, 3))
    if type_number == 8:
        value = gb.text(rng.randbytes(rng.choice((0, 5, 300, 70_000))))
        if rng.random() < 0.3:
            value = struct.pack("<Q", rng.choice(NUMBERS)) + value[8:]
    elif type_number == 9:
        kind = rng.choice((*_SCALARS, 8, 8, 9, 13))
        count = rng.choice((0, 1, 5, 700, 20_000))
        element = gb.text("ab") if kind == 8 else bytes(_SCALARS.get(kind, 12))
        value = gb.array(kind, rng.choice((count, count, rng.choice(NUMBERS))), element * count)
    return gb.entry(key, type_number, value)


def _gguf_tensor(rng: random.Random) -> gb.Tensor:
    name = rng.choice((*NAMES, "rope_freqs.weight", "output.weight"))
    return gb.Tensor(
        name=name.encode("utf-8", "surrogatepass"),
        dimensions=[rng.choice(NUMBERS) for _ in range(rng.choice((0, 1, 2, 2, 3, 4, 5, 40)))],
        type_number=rng.choice((0, 1, 2, 8, 12, 14, 23, 30, 4, 99, 2**32 - 1)),
        offset=rng.choice(NUMBERS),
    )


def _change(rng: random.Random, items: list[Item], new: Item | None) -> None:
    """Put ``new`` somewhere, in addition or instead; without it take out, repeat or move one."""
    at = rng.randrange(len(items) + 1)
    if new is not None:
        items[at : at + rng.randrange(2)] = [new]
    elif items:
        item = items.pop(min(at, len(items) - 1))
        items[at:at] = [item] * rng.randrange(3)


def _product(shape: Sequence[int]) -> int:
    result = 1
    for size in shape:
        result *= size
    return result


_MAKERS: dict[Kind, Callable[[random.Random, int], bytes]] = {
    Kind.SAFETENSORS: _safetensors,
    Kind.INDEX: _index,
    Kind.GGUF: _gguf,
}
