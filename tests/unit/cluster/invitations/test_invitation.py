from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.cluster.invitations.invitation import (
    Invitation,
    generate_token,
    is_invitation,
    is_token,
    parse_invitation,
    token_digest,
)
from potluck.cluster.network.membership import Address
from potluck.errors import ParameterError

TOKEN = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
PIN = "A" * 42 + "E"
TEXT = f"10.0.0.7:7333/{TOKEN}/{PIN}"


def test_an_invitation_reads_as_it_is_written() -> None:
    invitation = parse_invitation(f" {TEXT}\n")
    assert invitation.addresses == (Address(host="10.0.0.7", port=7333),)
    assert invitation.token == TOKEN
    assert invitation.key_sha256 == bytes(31) + b"\x01"
    assert str(invitation) == TEXT
    assert TOKEN not in repr(invitation)


@given(st.binary(min_size=32, max_size=32))
def test_several_addresses_and_any_digest(digest: bytes) -> None:
    addresses = (Address(host="10.0.0.7", port=1), Address(host="fd00::7", port=65535))
    invitation = Invitation(addresses=addresses, token=generate_token(), key_sha256=digest)
    text = str(invitation)
    assert text.startswith("10.0.0.7:1,[fd00::7]:65535/")
    assert is_invitation(text)
    assert parse_invitation(text) == invitation


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "//",
        "10.0.0.7:7333",
        f"10.0.0.7/{TOKEN}/{PIN}",
        f"10.0.0.7:7333/{TOKEN[:-1]}/{PIN}",
        f"10.0.0.7:7333/{TOKEN[:-1]}U/{PIN}",
        f"10.0.0.7:7333/{TOKEN}/{PIN[:-1]}",
        f"10.0.0.7:7333/{TOKEN}/{PIN[:-1]}=",
        f"10.0.0.7:7333/{TOKEN}/{PIN}/",
        f"{'10.0.0.7:7333,' * 16}10.0.0.7:7333/{TOKEN}/{PIN}",
        f"{'x' * 3000}:1/{TOKEN}/{PIN}",
    ],
)
def test_typing_errors_are_refused_without_repeating_the_token(text: str) -> None:
    with pytest.raises(ParameterError) as caught:
        parse_invitation(text)
    assert TOKEN[:-1] not in caught.value.message


def test_tokens_differ_and_are_kept_as_digests() -> None:
    tokens = {generate_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(is_token(token) and len(set(token)) > 8 for token in tokens)
    assert len({token_digest(token) for token in tokens}) == 100
