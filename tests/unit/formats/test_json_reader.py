from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.formats.header_cases import MemoryFile

from potluck.errors import ModelFileError
from potluck.formats.json_reader import WINDOW_BYTES, JsonReader, read_document


def reader(text: str) -> JsonReader:
    data = text.encode()
    return JsonReader(MemoryFile(b"ab" + data + b"yz"), 2, 2 + len(data), what="it")


def members(text: str) -> dict[str, object]:
    """The object read member by member."""
    found = reader(text)
    values = {key: found.value() for key in found.keys(1000, "it")}
    found.finish()
    return values


@pytest.mark.parametrize("value", [12345, -1.5e-7, "é𝒳\\\n", [1, [2]], {"a": {"b": None}}, True])
def test_values_at_every_place_across_the_edge_of_a_window(value: object) -> None:
    for shift in range(40):
        before = "x" * (WINDOW_BYTES - 40 + shift)
        for ensure_ascii in (True, False):
            document = {before: 0, "value": value, "after": [before]}
            text = json.dumps(document, ensure_ascii=ensure_ascii)
            assert members(text) == document


@pytest.mark.parametrize("text", ["{}", " { } \n", '{"a":1}', '{ "a" : 1 , "b" : 2 }'])
def test_small_objects(text: str) -> None:
    assert members(text) == json.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        '{"a"',
        '{"a":',
        '{"a":1',
        '{"a":1,',
        '{"a":1,}',
        '{"a" 1}',
        '{"a":1 "b":2}',
        "{1:2}",
        "{} x",
        '{"a":1}}',
        '{"a":01}',
        '{"a":+1}',
        '{"a":.5}',
        '{"a":"\t"}',
        "{'a':1}",
    ],
)
def test_what_is_no_json(text: str) -> None:
    with pytest.raises(ModelFileError, match="it is not valid JSON"):
        members(text)


def test_bytes_that_are_not_utf_8() -> None:
    found = JsonReader(MemoryFile(b'{"\xff":1}'), 0, 7, what="it")
    with pytest.raises(ModelFileError, match="it is not valid JSON"):
        list(found.keys(1, "it"))


def test_a_document(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    document = {"a": [1, 2.5, None], "b": {"é": "x"}, "c": float("inf")}
    path.write_text(json.dumps(document))
    assert read_document(path, 1000) == document
    with pytest.raises(ModelFileError, match="larger than 10 bytes"):
        read_document(path, 10)
    path.write_text('{"a": {"b": 1, "b": 2}}')
    with pytest.raises(ModelFileError, match="has 'b' twice"):
        read_document(path, 1000)
    for text in ("[" * 900, "{", "\ud800", ""):
        path.write_text(text, errors="surrogatepass")
        with pytest.raises(ModelFileError, match="not a JSON document"):
            read_document(path, 1000)
    path.write_text("[]")
    with pytest.raises(ModelFileError, match="not a JSON object"):
        read_document(path, 1000)
