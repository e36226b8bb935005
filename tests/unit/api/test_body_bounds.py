"""What a body may hold, counted before it is decoded."""

from __future__ import annotations

import json

import pytest

from potluck.api.body_bounds import (
    MAX_FIELDS,
    MAX_LEVELS,
    MAX_OBJECTS,
    MAX_STRINGS,
    MAX_VALUES,
    check_amount,
    check_fields,
)
from potluck.api.errors import ApiError

MESSAGE = {"role": "user", "content": 'one, two, [three], {four} \\ "five"'}


@pytest.mark.parametrize(
    "document",
    [
        {"prompt": [128_000] * 131_072},
        {"messages": [MESSAGE] * (MAX_OBJECTS - 2)},
        {"prompt": ',[{"\\' * 300_000},
        {"prompt": ["x" * 100] * (MAX_STRINGS - 2)},
    ],
)
def test_what_a_request_may_need_passes(document: object) -> None:
    check_amount(json.dumps(document).encode())


@pytest.mark.slow
@pytest.mark.parametrize("num_before", range(8))
def test_a_body_is_counted_alike_wherever_it_is_cut(num_before: int) -> None:
    text = 'x\\",[{' * 60_000
    check_amount(json.dumps({"prompt": "x" * num_before + text}).encode())
    for document in ({"prompt": text, "ids": [[]] * MAX_OBJECTS}, {"prompt": [text, *"x" * 2**18]}):
        with pytest.raises(ApiError, match="the request body has more than"):
            check_amount(b" " * num_before + json.dumps(document).encode())


@pytest.mark.parametrize(
    "document",
    [
        {"prompt": [1] * (MAX_VALUES + 1)},
        {"messages": [MESSAGE] * (MAX_OBJECTS + 1)},
        {"prompt": [[]] * 100_000},
        {"prompt": ["x"] * (MAX_STRINGS + 1)},
        {str(number): number for number in range(MAX_STRINGS + 1)},
    ],
)
def test_what_none_needs_is_refused(document: object) -> None:
    with pytest.raises(ApiError, match="the request body has more than") as error:
        check_amount(json.dumps(document).encode())
    assert (error.value.status, error.value.code) == (400, "invalid_json")


def test_objects_have_so_many_fields() -> None:
    wide = {str(number): 1 for number in range(MAX_FIELDS)}
    check_fields({"logit_bias": wide, "messages": [wide]})
    for document in ({**wide, "x": 1}, {"messages": [{"content": [{**wide, "x": 1}]}]}):
        with pytest.raises(ApiError, match="fields in one object"):
            check_fields(document)


def test_bodies_have_so_many_levels() -> None:
    nested: object = 1
    for _ in range(MAX_LEVELS // 2):
        nested = {"a": [nested, 1]}
    check_fields(nested)
    with pytest.raises(ApiError, match="levels of nesting"):
        check_fields([nested])
