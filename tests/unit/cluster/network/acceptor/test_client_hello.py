"""What a client says first: hellos of OpenSSL, by hand, and of nobody."""

from __future__ import annotations

import contextlib
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.cluster.network.acceptor.routes import (
    MAX_HELLO_BYTES,
    ClientHello,
    Incomplete,
    read_client_hello,
)


def hello_of(
    name: str | None = None, protocols: tuple[str, ...] = (), *, is_only_newest: bool = True
) -> bytes:
    """What OpenSSL says first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if is_only_newest:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if protocols:
        context.set_alpn_protocols(list(protocols))
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def in_records(message: bytes, size: int) -> bytes:
    pieces = (message[start : start + size] for start in range(0, len(message), size))
    return b"".join(b"\x16\x03\x01" + len(each).to_bytes(2, "big") + each for each in pieces)


def extension(kind: int, body: bytes) -> bytes:
    return kind.to_bytes(2, "big") + len(body).to_bytes(2, "big") + body


def message_of(extensions: bytes | None) -> bytes:
    """A ClientHello by hand, as RFC 8446 has it in section 4.1.2."""
    body = b"\x03\x03" + bytes(32) + b"\x00" + b"\x00\x02\x13\x01" + b"\x01\x00"
    if extensions is not None:
        body += len(extensions).to_bytes(2, "big") + extensions
    return b"\x01" + len(body).to_bytes(3, "big") + body


def test_name_protocols_and_versions_are_read() -> None:
    found = read_client_hello(hello_of("ABC.stage.potluck", ("h2", "http/1.1")))
    assert found == ClientHello(
        name="abc.stage.potluck", protocols=(b"h2", b"http/1.1"), versions=frozenset({0x0304})
    )
    assert read_client_hello(hello_of()) == ClientHello(versions=frozenset({0x0304}))


@pytest.mark.parametrize(
    ("versions", "protocols", "expected"),
    [
        (b"\x03\x04", b"", True),  # OpenSSL with 1.3 alone, and rustls
        (b"\x7a\x7a\x03\x04", b"", True),  # with GREASE (RFC 8701)
        (b"\x03\x04\x03\x03", b"", False),
        (b"\x03\x03", b"", False),
        (None, b"", False),
        (b"\x03\x04", b"\x02h2", False),
    ],
)
def test_only_tls_1_3_alone_without_a_protocol_may_be_a_members(
    versions: bytes | None, protocols: bytes, expected: bool
) -> None:
    extensions = b""
    if versions is not None:
        extensions += extension(43, bytes([len(versions)]) + versions)
    if protocols:
        extensions += extension(16, len(protocols).to_bytes(2, "big") + protocols)
    found = read_client_hello(in_records(message_of(extensions), 1000))
    assert isinstance(found, ClientHello)
    assert found.may_be_member is expected


def test_a_hello_without_extensions_is_one_of_tls_1_2() -> None:
    found = read_client_hello(in_records(message_of(None), 1000))
    assert found == ClientHello()


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 50, 10_000])
def test_a_hello_in_several_records_is_the_same(size: int) -> None:
    whole = hello_of("x.potluck")
    assert read_client_hello(in_records(whole[5:], size)) == read_client_hello(whole)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_of_every_beginning_more_is_wanted_and_never_too_much(size: int) -> None:
    data = in_records(hello_of("x.potluck")[5:], size)
    for num_bytes in range(len(data)):
        found = read_client_hello(data[:num_bytes])
        assert isinstance(found, Incomplete)
        assert num_bytes < found.num_bytes <= len(data)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\x00\x01\x02",  # a ServerHello
        b"\x16\x03\x01\xff\xff",
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff",
        in_records(b"\x01\x00\x00\x03\x03\x03\x00", 100),
        in_records(message_of(extension(0, b"\x00\x05\x00\x00\x09abc")), 1000),
        in_records(message_of(extension(0, b"\x00\x04\x00\x00\x01\xff")), 1000),
        in_records(message_of(extension(0, b"\x00\x0d\x00\x00\x0a\x1bc.potluck")), 1000),
    ],
)
def test_what_is_no_hello_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"(it|its) "):
        read_client_hello(data)


def check(data: bytes) -> None:
    try:
        found = read_client_hello(data)
    except ValueError:
        return
    if isinstance(found, Incomplete):
        assert len(data) < found.num_bytes <= MAX_HELLO_BYTES


@given(st.binary(max_size=400))
def test_any_bytes_are_a_hello_incomplete_or_none(data: bytes) -> None:
    check(data)
    check(b"\x16\x03\x01" + data)
    check(in_records(b"\x01\x00" + data, 50) if data else data)
    check(in_records(message_of(data), 1000))


WHOLE = hello_of("0123456789abcdef.stage.potluck", ("h2",), is_only_newest=False)


@given(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=4), st.integers(0, 600))
def test_a_damaged_hello_is_a_hello_incomplete_or_none(
    position: int, damage: bytes, end: int
) -> None:
    data = bytearray(WHOLE)
    data[position : position + len(damage)] = damage
    check(bytes(data[:end]))
