"""Which kind of network an interface leads to, by what the kernel shows of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from potluck.cli.addresses import Kind, kind_of


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """A machine with a card, what is on top of it, containers, and tunnels."""
    for path in (
        "eth0/device",
        "bond0/lower_eth0",
        "bond0.7/lower_bond0",
        "br0/bridge",
        "br0/lower_bond0.7",
        "docker0/bridge",
        "docker0/lower_veth1",
        "veth1",
        "tun0",
        "wg0",
        "ppp0",
    ):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "tun0" / "tun_flags").write_text("0x1001\n")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "flags", "kind"),
    [
        ("eth0", "up,broadcast,running", Kind.CARD),
        ("bond0", "up,broadcast,running", Kind.CARD),
        ("bond0.7", "up,broadcast,running", Kind.CARD),
        ("br0", "up,broadcast,running", Kind.CARD),
        ("docker0", "up,broadcast", Kind.INNER),
        ("veth1", "up,broadcast,running", Kind.OTHER),
        ("tun0", "up,running", Kind.TUNNEL),
        ("wg0", "up,pointopoint,running", Kind.TUNNEL),
        ("ppp0", "up,pointopoint,running", Kind.TUNNEL),
        ("unknown", "", Kind.OTHER),
    ],
)
def test_kinds(system: Path, name: str, flags: str, kind: Kind) -> None:
    assert kind_of(name, flags, system) is kind


def test_interfaces_that_are_on_top_of_each_other_come_to_an_end(system: Path) -> None:
    for one, other in (("x", "y"), ("y", "x")):
        (system / one / f"lower_{other}").mkdir(parents=True)
    assert kind_of("x", "", system) is Kind.OTHER
