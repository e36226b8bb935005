from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from potluck.cluster.network.membership import Address, MembershipConfig, PemPaths, parse_address
from potluck.cluster.network.membership.config import zenoh_json
from potluck.cluster.network.membership.diagnosis import explain, hint_for, unreachable
from potluck.cluster.network.membership.messages import (
    KeySpace,
    NodeSession,
    SessionId,
    parse_alive,
)
from potluck.errors import ParameterError
from potluck.types.cluster import NodeId

LOOPBACK = Address(host="127.0.0.1", port=7450)
LAN = Address(host="192.168.1.20", port=7450)
PEM = PemPaths(
    authority=Path("/a.pem"),
    certificate=Path("/c.pem"),
    key=Path("/k.pem"),
    removed=Path("/removed"),
)
NODE = NodeId("0123456789abcdef")


def config(**changes: Any) -> MembershipConfig:
    return MembershipConfig(**{"node_id": NODE, "cluster_id": "c", "listen": LOOPBACK, **changes})


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("192.168.1.20:7450", "192.168.1.20", 7450),
        ("[fd00::7]:1", "fd00::7", 1),
        (" box.local:65535\n", "box.local", 65535),
    ],
)
def test_addresses_are_read_and_written(text: str, host: str, port: int) -> None:
    address = parse_address(text)
    assert (address.host, address.port) == (host, port)
    assert str(address) == text.strip()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7450",
        "host",
        "host:",
        ":1",
        "host:-1",
        "host:65536",
        "fd00::7:1",
        "[host]:1",
        "a b:1",
        "tcp/host:1",
        "host#iface=x:1",
        "host:１",
        pytest.param("host:" + "1" * 5000, id="more digits than Python reads"),
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ParameterError, match="is not of the form HOST:PORT") as refused:
        parse_address(text, name="--join")
    assert refused.value.name == "--join"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.77.0.1", "10.77.0.1:7333"),
        ("box.local", "box.local:7333"),
        ("[fd00::7]", "[fd00::7]:7333"),
        ("10.77.0.1:7450", "10.77.0.1:7450"),
        ("[fd00::7]:1", "[fd00::7]:1"),
    ],
)
def test_the_port_may_be_omitted_where_there_is_a_default(text: str, expected: str) -> None:
    assert str(parse_address(text, default_port=7333)) == expected


@pytest.mark.parametrize("text", ["", "host:", "fd00::7", "a b", "host:x"])
def test_what_is_no_address_is_refused_with_a_default_port_too(text: str) -> None:
    with pytest.raises(ParameterError, match="is not of the form HOST:PORT") as refused:
        parse_address(text, name="join", default_port=7333)
    assert refused.value.hint.endswith(":7333")


@pytest.mark.parametrize(
    ("reasons", "hint"),
    [
        (["nothing is listening there"], "potluck up --lan runs there"),
        (["no answer", "the agent there has a different secret"], "potluck up --lan runs there"),
        (["the agent there has a different secret"], "the same secret"),
        (["a server without TLS answers there, such as the one for clients, not a node"], "7333"),
    ],
)
def test_the_hint_suits_what_was_found_at_the_addresses(reasons: list[str], hint: str) -> None:
    assert hint in hint_for(reasons)


@pytest.mark.parametrize("host", ["attic..local", "a" * 64 + ".local"])
def test_a_name_that_no_host_can_have_is_explained(host: str) -> None:
    address = Address(host=host, port=7333)
    assert explain(address, None) == unreachable(address) == "there is no host with that name"


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("192.168.1.20", False),
        ("localhost.example", False),
        ("0.0.0.0", False),
    ],
)
def test_loopback_is_recognized(host: str, is_loopback: bool) -> None:
    assert Address(host=host, port=1).is_loopback == is_loopback


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"node_id": "0123"}, "node_id"),
        ({"node_id": "0123456789ABCDEF"}, "node_id"),
        ({"cluster_id": "a/b"}, "cluster_id"),
        ({"cluster_id": "*"}, "cluster_id"),
        ({"cluster_id": ""}, "cluster_id"),
        ({"listen": Address(host="0.0.0.0", port=1), "pem": PEM}, "listen"),
        ({"listen": Address(host="box.local", port=1), "pem": PEM}, "listen"),
        ({"listen": LAN}, "pem"),
        ({"connect": (LOOPBACK, LAN)}, "pem"),
        ({"multicast": True, "pem": PEM}, "multicast"),
        ({"lease_milliseconds": 100}, "lease_milliseconds"),
        ({"join_timeout_seconds": 0.0}, "join_timeout_seconds"),
    ],
)
def test_unsound_configurations_are_refused(changes: dict[str, Any], name: str) -> None:
    with pytest.raises(ParameterError) as refused:
        config(**changes)
    assert refused.value.name == name


def test_without_certificates_zenoh_speaks_tcp_and_finds_nobody_by_itself() -> None:
    settings = json.loads(zenoh_json(config(connect=(LOOPBACK,)), LOOPBACK, None))
    assert settings["listen"]["endpoints"] == ["tcp/127.0.0.1:7450"]
    assert settings["connect"]["endpoints"] == ["tcp/127.0.0.1:7450"]
    assert settings["transport"]["link"]["protocols"] == ["tcp"]
    assert settings["scouting"]["multicast"]["enabled"] is False
    assert settings["transport"]["shared_memory"]["enabled"] is False


def test_with_certificates_zenoh_speaks_mutual_tls_only() -> None:
    secured = config(listen=LAN, connect=(LAN,), multicast=True, pem=PEM, lease_milliseconds=500)
    settings = json.loads(zenoh_json(secured, LAN, LOOPBACK))
    link = settings["transport"]["link"]
    assert settings["listen"]["endpoints"] == ["tls/192.168.1.20:7450", "tls/127.0.0.1:7450"]
    assert settings["connect"]["endpoints"] == ["tls/192.168.1.20:7450"]
    assert link["protocols"] == ["tls"]
    assert link["tls"]["enable_mtls"] is True
    assert link["tls"]["root_ca_certificate"] == "/a.pem"
    assert link["tls"]["listen_private_key"] == link["tls"]["connect_private_key"] == "/k.pem"
    assert link["tx"]["lease"] == 500
    assert settings["scouting"]["multicast"] == {"enabled": True, "interface": "192.168.1.20"}


def test_a_token_says_who_it_is_of() -> None:
    keys = KeySpace(cluster_id="c", wire_version=3)
    key = keys.alive(NODE, SessionId("5e55"))
    assert key == "potluck/c/3/alive/0123456789abcdef/5e55"
    node_session = NodeSession(node_id=NODE, session_id=SessionId("5e55"), wire_version=3)
    assert parse_alive(key) == node_session


@pytest.mark.parametrize(
    "key",
    [
        "potluck/c/3/alive/0123456789abcdef",
        "potluck/c/x/alive/0123456789abcdef/s",
        "potluck/c/3/alive/nobody/s",
        "other/c/3/alive/0123456789abcdef/s",
        "potluck/c/3/call/0123456789abcdef/s",
    ],
)
def test_other_keys_are_no_tokens(key: str) -> None:
    assert parse_alive(key) is None
