import pytest

from potluck.types.quantities import (
    format_bytes,
    format_few,
    format_number,
    format_percent,
    format_rate,
    format_seconds,
)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (1023 * 1024, "1023 KiB"),
        (15_400_000, "14.7 MiB"),
        (5 * 2**30, "5 GiB"),
        (3 * 2**50, "3072 TiB"),
    ],
)
def test_format_bytes(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("per_second", "text"),
    [(13.94e9, "13.9 GB/s"), (999.0, "999 B/s"), (1e12, "1 TB/s"), (2.5e15, "2500 TB/s")],
)
def test_format_rate(per_second: float, text: str) -> None:
    assert format_rate(per_second, "B/s") == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0042, "4.2 ms"), (0.999, "999 ms"), (1.5, "1.5 s"), (59.94, "59.9 s"), (95, "1 min 35 s")],
)
def test_format_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("names", "text"), [((), ""), (("a",), "a"), (("a", "b"), "a, b"), ("abcd", "a, b and 2 more")]
)
def test_format_few(names: tuple[str, ...] | str, text: str) -> None:
    assert format_few(names, 2) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.01234, "0.0123"), (5.0, "5"), (99.94, "99.9"), (1234.5, "1234")]
)
def test_format_number(value: float, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("part", "text"), [(0.0, "0 %"), (0.00321, "0.32 %"), (0.0999, "10 %"), (2.0345, "203 %")]
)
def test_format_percent(part: float, text: str) -> None:
    assert format_percent(part) == text
