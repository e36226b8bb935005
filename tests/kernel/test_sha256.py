"""SHA-256 with a state that can be saved, against hashlib."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest

from potluck.kernels import Sha256State

DATA = random.Random(4).randbytes(3000)
LENGTHS = (*range(260), 511, 512, 513, 1000, 2999, 3000)


@pytest.mark.parametrize("step", [1, 7, 55, 56, 63, 64, 65, 128, 4000])
def test_the_digest_is_that_of_hashlib(step: int) -> None:
    for length in LENGTHS:
        state = Sha256State()
        for start in range(0, length, step):
            state.update(DATA[start : min(start + step, length)])
        assert state.num_bytes == length
        assert state.digest() == hashlib.sha256(DATA[:length]).digest()


def test_another_state_goes_on() -> None:
    for length in LENGTHS:
        first = Sha256State()
        first.update(DATA[:length])
        saved = first.save()
        assert len(saved) == 40 + length % 64
        second = Sha256State.restored(saved)
        assert second.num_bytes == length
        second.update(DATA[length:])
        assert second.digest() == hashlib.sha256(DATA).digest()
        assert first.digest() == hashlib.sha256(DATA[:length]).digest()


def test_the_digest_can_be_asked_for_in_between() -> None:
    state = Sha256State()
    for start in range(0, len(DATA), 100):
        state.update(DATA[start : start + 100])
        assert state.digest() == hashlib.sha256(DATA[: start + 100]).digest()


def test_a_saved_state_has_the_published_words() -> None:
    # FIPS 180-4, 5.3.3.
    words = "6a09e667bb67ae853c6ef372a54ff53a510e527f9b05688c1f83d9ab5be0cd19"
    assert Sha256State().save().hex() == words + "00" * 8


def test_a_million_letters() -> None:
    # FIPS 180-2, B.3.
    state = Sha256State()
    state.update(b"a" * 1_000_000)
    expected = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"
    assert state.digest().hex() == expected


def test_a_length_that_needs_more_than_32_bits_goes_on() -> None:
    # No message of 2^33 bytes is hashed here: only that the length is kept whole.
    saved = Sha256State().save()[:32] + (2**33).to_bytes(8, "big")
    state = Sha256State.restored(saved)
    state.update(b"abc")
    assert state.num_bytes == 2**33 + 3
    assert state.save()[32:40] == (2**33 + 3).to_bytes(8, "big")


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_are_taken_in_any_form(kind: type) -> None:
    state = Sha256State()
    state.update(kind(DATA))
    state.update(np.frombuffer(DATA, np.uint8))
    assert state.digest() == hashlib.sha256(DATA + DATA).digest()


@pytest.mark.parametrize(
    "saved",
    [
        b"",
        bytes(39),
        bytes(41),
        bytes(39) + b"\1",
        bytes(32) + b"\xff" * 8 + bytes(63),
        bytes(1000),
    ],
)
def test_what_is_no_saved_state_is_refused(saved: bytes) -> None:
    with pytest.raises(ValueError, match="saved state"):
        Sha256State.restored(saved)


def test_what_is_no_bytes_is_refused() -> None:
    with pytest.raises(TypeError):
        Sha256State().update(np.zeros(4, np.float32))
    with pytest.raises(TypeError):
        Sha256State().update(np.zeros(8, np.uint8)[::2])
