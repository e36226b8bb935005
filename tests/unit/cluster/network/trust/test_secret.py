from __future__ import annotations

import base64
import random
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from potluck.cluster.network.trust.secret import (
    estimate_bits,
    generate_secret,
    load_secret,
    own_secret,
    parse_secret,
)
from potluck.errors import ParameterError

HEX = "4f1d8a60b93ce27581f6d0ea427b9c35e8a71bd2064fc93d5e80a7b61c2f94d3"


def test_generated_secrets_are_eight_groups_and_a_check() -> None:
    text = generate_secret()
    assert re.fullmatch(r"potluck(-[0-9A-HJKMNP-TV-Z]{4}){9}", text)
    assert parse_secret(text).text == text
    assert generate_secret() != text


def test_own_secret_may_be_typed_carelessly() -> None:
    secret = parse_secret(generate_secret())
    body = secret.text.removeprefix("potluck-")
    assert parse_secret(f"  {secret.text.lower()}\n") == secret
    assert parse_secret("Potluck-" + body.replace("-", " ")) == secret
    assert parse_secret("potluck-" + body.replace("0", "o").replace("1", "l")) == secret


def test_every_single_typing_error_is_found() -> None:
    text = generate_secret()
    last = len(text) - 1
    for index in (8, 9, 20, last):
        other = "A" if text[index] != "A" else "B"
        with pytest.raises(ParameterError, match="typo"):
            parse_secret(text[:index] + other + text[index + 1 :])
    with pytest.raises(ParameterError, match="typo"):
        parse_secret(text[:-1])
    with pytest.raises(ParameterError, match="typo"):
        parse_secret(text + "A")


def test_own_form_with_a_sound_check_but_no_randomness_is_weak() -> None:
    # The last group was computed by hand from SHA-256("potluck secret check" + 32 zeros).
    zeros = "0000-" * 8
    with pytest.raises(ParameterError, match="too weak"):
        parse_secret(f"potluck-{zeros}{_check('0' * 32)}")


def _check(characters: str) -> str:
    import hashlib

    digest = hashlib.sha256(b"potluck secret check" + characters.encode()).digest()
    return "".join("0123456789ABCDEFGHJKMNPQRSTVWXYZ"[byte & 31] for byte in digest[:4])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "letmein",
        "hunter2hunter2",
        "a" * 64,
        "ab" * 40,
        "0123456789abcdef" * 4,
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789",
        "correcthorsebatterystaplecorrecthorsebatterystaple",
        "correct-horse-battery-staple-purple-monkey-dishwasher",
        "ThisIsTheSecretOfOurClusterAndNobodyShouldKnowIt2024!",
        "it-is-a-long-way-to-the-top-if-you-want-to-rock-and-roll",
        "P@ssw0rd-for-my-cluster-2024-home!",
        "4f1d8a60b93ce275" * 4,
        HEX[:31],
    ],
)
def test_weak_secrets_are_refused(text: str) -> None:
    with pytest.raises(ParameterError, match="too weak") as caught:
        parse_secret(text)
    assert "openssl rand -hex 32" in caught.value.hint
    assert not text or text not in str(caught.value)


@pytest.mark.parametrize("text", [f"{HEX[:32]} {HEX[32:]}", HEX + "é", HEX + "\x07", "4f1d" * 80])
def test_malformed_secrets_are_refused(text: str) -> None:
    with pytest.raises(ParameterError):
        parse_secret(text)


def test_random_tokens_of_other_tools_are_taken() -> None:
    generator = random.Random(5)
    for _ in range(300):
        data = generator.randbytes(32)
        for text in (data.hex(), base64.b64encode(data).decode()):
            assert parse_secret(f"{text}\n").text == text


def test_estimate_counts_each_character_of_a_random_text() -> None:
    assert estimate_bits("") == 0
    # 8 different characters, none in a row, none repeated: 3 bits each.
    assert estimate_bits("0937182?") == pytest.approx(24)


def test_secret_is_not_in_its_repr() -> None:
    assert HEX not in repr(parse_secret(HEX))


def test_file_goes_before_environment(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(HEX + "\n")
    environ = {"POTLUCK_SECRET": generate_secret()}
    assert load_secret(environ, path) == parse_secret(HEX)
    assert load_secret(environ, None) == parse_secret(environ["POTLUCK_SECRET"])
    assert load_secret({}, None) is None


def test_an_empty_variable_is_no_secret_but_a_weak_one() -> None:
    with pytest.raises(ParameterError, match="too weak"):
        load_secret({"POTLUCK_SECRET": ""}, None)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="No such file"):
        load_secret({}, tmp_path / "missing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ParameterError, match="not ASCII"):
        load_secret({}, tmp_path / "binary")


def test_own_secret_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "secret"
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(own_secret, [path] * 8))
    assert len(found) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == ["secret"]
