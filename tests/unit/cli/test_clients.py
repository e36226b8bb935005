"""``potluck.cli.clients``: the options for serving clients."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from potluck.api.system_lines import KNOWN_CHANGING_LINES
from potluck.cli.clients import Clients, clients_of
from potluck.cli.options import settings
from potluck.cluster.network.trust.authority import derive_authority, issue_server_credentials
from potluck.cluster.network.trust.secret import Secret, generate_secret
from potluck.errors import ParameterError, UsageError


def clients(**options: Any) -> Clients | None:
    values: dict[str, Any] = {
        "http": "127.0.0.1:0",
        "no_http": False,
        "api_key_file": None,
        "tls": None,
        "tls_cert": None,
        "tls_key": None,
        "cors_origin": None,
        "drop_system_line": None,
        "strict_tools": False,
    }
    return clients_of(settings(), **{**values, **options})


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    authority = derive_authority(Secret(text=generate_secret()))
    pem = b"".join(issue_server_credentials(authority, ["localhost"]))
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cut = pem.index(b"-----BEGIN PRIVATE KEY")
    certificate.write_bytes(pem[:cut])
    key.write_bytes(pem[cut:])
    return certificate, key


def test_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    found = clients()
    assert found is not None
    assert (found.config.tls, found.is_tls_auto) == (None, False)
    assert found.config.cors_origins == frozenset()
    assert found.config.dropped_system_lines == KNOWN_CHANGING_LINES


def test_the_address_and_the_file_with_keys() -> None:
    found = clients(http="[::1]:80", api_key_file=Path("keys"))
    assert found is not None
    assert (found.config.host, found.config.port) == ("::1", 80)
    assert found.key_file == Path("keys")


@pytest.mark.parametrize(
    ("option_values", "config", "dropped"),
    [
        (["a:", "b:"], "", ("a:", "b:")),
        ([""], "", ()),
        (None, 'drop_system_line = "c:"', ("c:",)),
        (None, 'drop_system_line = ["c:", "d:"]', ("c:", "d:")),
        (None, "drop_system_line = []", ()),
        (["a:"], "drop_system_line = []", ("a:",)),
    ],
)
def test_lines_that_are_dropped(
    option_values: list[str] | None,
    config: str,
    dropped: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "potluck").mkdir()
    (tmp_path / "potluck" / "config.toml").write_text(config)
    found = clients(drop_system_line=option_values)
    assert found is not None
    assert found.config.dropped_system_lines == dropped


def test_a_certificate_of_files(files: tuple[Path, Path]) -> None:
    found = clients(tls_cert=files[0], tls_key=files[1])
    assert found is not None
    assert isinstance(found.config.tls, ssl.SSLContext)
    assert not found.is_tls_auto


def test_files_that_cannot_be_used(files: tuple[Path, Path], tmp_path: Path) -> None:
    certificate, key = files
    other = tmp_path / "other.pem"
    with pytest.raises(UsageError, match="cannot read"):
        clients(tls_cert=certificate, tls_key=other)
    other.write_text("no PEM")
    for pair in ((certificate, other), (other, key), (certificate, certificate)):
        with pytest.raises(UsageError, match="not a certificate and its private key"):
            clients(tls_cert=pair[0], tls_key=pair[1])


def test_a_key_with_a_password_asks_nobody(files: tuple[Path, Path]) -> None:
    from cryptography.hazmat.primitives import serialization

    certificate, key = files
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(UsageError, match="private key"):
        clients(tls_cert=certificate, tls_key=key)


@pytest.mark.parametrize(
    "options",
    [
        {"tls": "always"},
        {"tls": "auto", "tls_cert": Path("a")},
        {"tls_cert": Path("a")},
        {"tls_key": Path("a")},
        {"no_http": True, "tls": "auto"},
        {"no_http": True, "cors_origin": ["http://a"]},
        {"no_http": True, "drop_system_line": [""]},
        {"no_http": True, "api_key_file": Path("a")},
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        clients(**options)


def test_origins_are_checked() -> None:
    with pytest.raises(ParameterError, match="not an origin"):
        clients(cors_origin=["*"])
    found = clients(cors_origin=["http://a:1", "http://a:1/"])
    assert found is not None
    assert found.config.cors_origins == {"http://a:1"}


def test_nothing_for_no_clients() -> None:
    assert clients(no_http=True) is None
