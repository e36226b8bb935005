"""Whatever is in a wheel, reading and checking it ends in a report or in one clear error."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.portability.checked_wheel import check_wheel
from support.portability.elf_bytes import Definition, Elf, Need, Symbol
from support.portability.linking import a_host
from support.portability.wheel_bytes import write_wheel

from potluck.errors import PotluckError

EXTENSION = Elf(
    needed=["libc.so.6", "libx.so"],
    runpath="$ORIGIN/../lib:/usr/lib",
    symbols=[
        Symbol(name="malloc", version=2),
        Symbol(name="x_init"),
        Symbol(name="PyInit_a", is_defined=True, version=3),
    ],
    needs=[Need(library="libc.so.6", versions=[("GLIBC_2.2.5", 2, 0)])],
    definitions=[Definition(name="A_1", index=3)],
).build()

SETTINGS = settings(
    max_examples=50,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def check(path: Path) -> None:
    try:
        report = check_wheel(path, [a_host()])
    except PotluckError as error:
        assert "\n" not in error.message  # noqa: PT017 - whether it raises is not the question
        return
    assert len(report.hosts) == 1


@st.composite
def changed(draw: st.DrawFn, data: bytes) -> bytes:
    """``data`` with some bytes changed, cut off or put in."""
    result = bytearray(data)
    for _ in range(draw(st.integers(1, 6))):
        place = draw(st.integers(0, max(0, len(result) - 1)))
        match draw(st.sampled_from(["set", "cut", "insert", "word"])):
            case "set":
                result[place : place + 1] = draw(st.binary(min_size=1, max_size=1))
            case "cut":
                del result[place : place + draw(st.integers(1, 64))]
            case "insert":
                result[place:place] = draw(st.binary(min_size=1, max_size=16))
            case "word":
                word = draw(st.sampled_from([0, 1, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF]))
                result[place : place + 4] = word.to_bytes(4, "little")
    return bytes(result)


def a_sound_wheel() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pack/a.so", EXTENSION)
        archive.writestr("pack-1.0.dist-info/METADATA", "Name: pack\nVersion: 1.0\n")
    return buffer.getvalue()


@SETTINGS
@given(data=changed(a_sound_wheel()))
def test_a_broken_archive(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "pack-1.0-py3-none-linux_x86_64.whl"
    path.write_bytes(data)
    check(path)


@pytest.mark.slow
@SETTINGS
@given(data=changed(EXTENSION))
def test_a_broken_file_in_a_sound_wheel(tmp_path: Path, data: bytes) -> None:
    check(write_wheel(tmp_path, {"pack/a.so": data}, tag="py3-none-linux_x86_64"))


@pytest.mark.slow
@SETTINGS
@given(
    name=st.text(max_size=30),
    metadata=st.text(max_size=200),
)
def test_odd_names_and_metadata(tmp_path: Path, name: str, metadata: str) -> None:
    path = tmp_path / "pack-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        try:
            archive.writestr(name, EXTENSION)
        except (ValueError, IndexError):  # what no archive can be made of
            archive.writestr("a.so", EXTENSION)
        data = f"Name: pack\nVersion: 1.0\nRequires-Dist: {metadata}".encode("utf-8", "replace")
        archive.writestr("pack-1.0.dist-info/METADATA", data)
    check(path)
