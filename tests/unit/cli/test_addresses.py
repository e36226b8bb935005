from __future__ import annotations

import socket
import sys
from types import SimpleNamespace

import psutil
import pytest

from potluck.cli import addresses
from potluck.cli.addresses import (
    host_finder,
    lan_address,
    listen_address,
    other_addresses,
    parse_http,
    parse_size,
)
from potluck.cli.own_identity import join_options
from potluck.cluster.network.membership import parse_address
from potluck.errors import ParameterError, UsageError


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("4096", 4096),
        ("2G", 2 * 1024**3),
        ("1.5 GiB", 1536 * 1024**2),
        ("900m", 900 * 1024**2),
        ("3kb", 3072),
        ("0", 0),
    ],
)
def test_sizes(text: str, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize(
    "text", ["", "G", "-1G", "1e9", "2 X", "1,5G", "2GG", "8388608T", "9" * 400]
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ParameterError, match="is not a valid size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:7334", "127.0.0.1", 7334),
        ("[::1]:0", "::1", 0),
        ("box.local:80", "box.local", 80),
    ],
)
def test_http_addresses(text: str, host: str, port: int) -> None:
    assert parse_http(text) == (host, port)


@pytest.mark.parametrize(
    "text", ["7334", ":7334", "127.0.0.1", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:²"]
)
def test_what_is_no_http_address(text: str) -> None:
    with pytest.raises(ParameterError, match="is not of the form HOST:PORT"):
        parse_http(text)


@pytest.mark.parametrize(
    ("address", "chosen"),
    [
        ("127.0.0.1", "127.0.0.1:0"),
        ("127.0.0.1:99", "127.0.0.1:99"),
        ("10.1.2.3", "10.1.2.3:7333"),
        ("10.1.2.3:0", "10.1.2.3:0"),
    ],
)
def test_the_address_asked_for(address: str, chosen: str) -> None:
    for is_open in (True, False):
        assert str(listen_address(address, (), is_open=is_open)) == chosen


@pytest.mark.parametrize("address", ["::1", "[::1]:99", "fd00::7", "[fd00::7]"])
def test_nodes_do_not_listen_on_ipv6(address: str) -> None:
    with pytest.raises(ParameterError, match="IPv6") as raised:
        listen_address(address, (), is_open=True)
    assert "IPv4" in raised.value.hint


def test_nodes_do_not_join_by_ipv6() -> None:
    with pytest.raises(ParameterError, match=r"--join \[fd00::1\]:7333: .*IPv6"):
        join_options(["10.0.0.1", "[fd00::1]:7333"])


def test_an_invitation_from_a_closed_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ParameterError, match="HOST:PORT"):
        join_options(["-"])


def test_a_name_is_no_address_to_listen_on() -> None:
    with pytest.raises(ParameterError, match=r"box\.local is not an IP address"):
        listen_address("box.local:7333", (), is_open=True)
    with pytest.raises(ParameterError, match="HOST:PORT"):
        listen_address("box.local", (), is_open=True)


def test_a_node_that_is_not_open_listens_on_loopback() -> None:
    assert str(listen_address(None, (), is_open=False)) == "127.0.0.1:0"


def test_a_joining_node_takes_its_address_towards_the_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    addresses = []

    class Probe(socket.socket):
        def connect(self, address: object) -> None:
            addresses.append(address)

        def getsockname(self) -> tuple[str, int]:
            return ("10.5.0.9", 40000)

    monkeypatch.setattr(socket, "socket", Probe)
    members = (parse_address("127.0.0.1:1"), parse_address("10.5.0.1:7333"))
    assert str(listen_address(None, members, is_open=True)) == "10.5.0.9:7333"
    assert addresses == [("10.5.0.1", 7333)]


def no_route(monkeypatch: pytest.MonkeyPatch) -> None:
    class Probe(socket.socket):
        def connect(self, address: object) -> None:
            raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket, "socket", Probe)


def test_without_a_way_to_the_member_joining_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    no_route(monkeypatch)
    with pytest.raises(UsageError, match=r"no route from this machine to 10\.5\.0\.1:7333"):
        listen_address(None, (parse_address("10.5.0.1:7333"),), is_open=True)


def test_a_member_with_an_unknown_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(UsageError, match="there is no host with the name attic"):
        listen_address(None, (parse_address("attic:7333"),), is_open=True)


def interfaces(monkeypatch: pytest.MonkeyPatch, **addresses: tuple[bool, str]) -> None:
    monkeypatch.setattr(
        psutil,
        "net_if_stats",
        lambda: {
            name: SimpleNamespace(isup=is_up, flags="up,pointopoint" if name == "vpn0" else "up")
            for name, (is_up, _) in addresses.items()
        },
    )
    monkeypatch.setattr(
        psutil,
        "net_if_addrs",
        lambda: {
            name: [SimpleNamespace(family=socket.AF_INET, address=address)]
            for name, (_, address) in addresses.items()
        },
    )


def test_a_network_without_a_router_still_has_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    no_route(monkeypatch)
    interfaces(
        monkeypatch,
        a0=(False, "10.9.0.1"),
        b0=(True, "169.254.3.4"),
        eth0=(True, "10.8.0.1"),
        lo=(True, "127.0.0.1"),
    )
    assert str(listen_address(None, (), is_open=True)) == "10.8.0.1:7333"


def test_a_network_is_preferred_to_a_tunnel_with_the_default_route(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(addresses, "_source_address", lambda *_: "10.64.0.2")
    interfaces(monkeypatch, vpn0=(True, "10.64.0.2"), zeth=(True, "10.8.0.1"))
    assert lan_address() == "10.8.0.1"
    assert other_addresses("10.8.0.1") == (
        "other addresses of this machine, to choose with --listen: 10.64.0.2 (vpn0)"
    )
    interfaces(monkeypatch, vpn0=(True, "10.64.0.2"))
    assert lan_address() == "10.64.0.2"
    assert other_addresses("10.64.0.2") == ""


def test_the_default_route_decides_between_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_source_address", lambda *_: "10.9.0.1")
    interfaces(monkeypatch, a0=(True, "10.8.0.1"), b0=(True, "10.9.0.1"))
    assert lan_address() == "10.9.0.1"


def test_a_machine_without_a_network_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    no_route(monkeypatch)
    interfaces(monkeypatch, lo=(True, "127.0.0.1"))
    with pytest.raises(UsageError, match="no IPv4 address on a network") as raised:
        listen_address(None, (), is_open=True)
    assert "--listen" in raised.value.hint


def test_a_new_address_is_looked_for_on_the_same_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    no_route(monkeypatch)
    interfaces(monkeypatch, a0=(True, "10.8.0.1"), b0=(True, "10.9.0.1"))
    before = parse_address("10.9.0.1:7333")
    find, find_chosen = (host_finder(before, (), is_chosen=each) for each in (False, True))
    interfaces(monkeypatch, a0=(True, "10.8.0.1"), b0=(True, "10.9.0.77"))
    assert find() == find_chosen() == "10.9.0.77"
    interfaces(monkeypatch, a0=(True, "10.8.0.1"))
    assert find() == "10.8.0.1"
    assert find_chosen() is None, "the user has named an address of another interface"
    interfaces(monkeypatch, lo=(True, "127.0.0.1"))
    assert find() is None
