import pytest

from potluck.placement.fleet.keys import (
    parse_byte_rate,
    parse_operation_rate,
    parse_seconds,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4096", 4096), ("16 GiB", 16 * 2**30), ("1.5G", 3 * 2**29), ("900MB", 900 * 2**20)],
)
def test_sizes_are_binary(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("25 GB/s", 25e9), ("1 Gbit/s", 125e6), ("800kB/s", 8e5), ("12.5 MB/s", 12.5e6)],
)
def test_byte_rates_are_decimal(text: str, expected: float) -> None:
    assert parse_byte_rate(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "expected"), [("300 Gop/s", 3e11), ("35 TFLOPS", 3.5e13), ("1 T/s", 1e12)]
)
def test_operation_rates(text: str, expected: float) -> None:
    assert parse_operation_rate(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "expected"), [("0.3 ms", 3e-4), ("250us", 2.5e-4), ("1 s", 1.0), ("0 ms", 0.0)]
)
def test_times(text: str, expected: float) -> None:
    assert parse_seconds(text) == pytest.approx(expected)


@pytest.mark.parametrize("parse", [parse_size, parse_byte_rate, parse_operation_rate])
@pytest.mark.parametrize("value", ["0", "0 GB/s", "0 Gop/s", "-1", "", "nan", "inf", 5, None, True])
def test_what_is_no_amount_is_refused(parse: object, value: object) -> None:
    assert callable(parse)
    with pytest.raises(ValueError, match="it "):
        parse(value)


@pytest.mark.parametrize("value", ["5", "GB/s", "5 mB/s", "5 GB", "9" * 400 + " GB/s", "٣ GB/s"])
def test_a_rate_has_a_unit(value: str) -> None:
    with pytest.raises(ValueError, match="it has another form"):
        parse_byte_rate(value)


def test_no_machine_has_more_memory_than_plans_can_count() -> None:
    assert parse_size("1048576 TiB") == 2**60
    for value in ("1048577 TiB", "99999999999999999999 GiB"):
        with pytest.raises(ValueError, match="more than any machine has"):
            parse_size(value)
