from __future__ import annotations

from pathlib import Path

import pytest
from support.machines.doctor_cases import a_system

from potluck.probe.doctor.case import Distribution, read_distribution


@pytest.mark.parametrize(
    ("text", "name", "manager"),
    [
        ('ID=debian\nVERSION_ID="12"\n', "debian", "apt"),
        ("NAME=Ubuntu\nID=ubuntu\nID_LIKE=debian\n", "ubuntu", "apt"),
        ('ID="linuxmint"\nID_LIKE="ubuntu debian"\n', "ubuntu", "apt"),
        ("ID='fedora'\n", "fedora", "dnf"),
        ('ID="almalinux"\nID_LIKE="rhel centos fedora"\n', "rhel", "dnf"),
        ("ID=manjaro\nID_LIKE=arch\n", "arch", "pacman"),
        ("ID=alpine\n", "alpine", ""),
        ("no sense\n\n=\n", "", ""),
    ],
)
def test_os_release(tmp_path: Path, text: str, name: str, manager: str) -> None:
    system = a_system(tmp_path, {"etc/os-release": text})
    assert read_distribution(system) == Distribution(name=name, manager=manager)


def test_where_it_may_be_too(tmp_path: Path) -> None:
    system = a_system(tmp_path, {"usr/lib/os-release": "ID=arch\n"})
    assert read_distribution(system).manager == "pacman"
    assert read_distribution(a_system(tmp_path / "bare")) == Distribution(name="", manager="")


def test_packages_by_distribution_and_by_manager() -> None:
    packages = {"ubuntu": "u", "apt": "a", "pacman": "p"}
    assert Distribution(name="ubuntu", manager="apt").install(packages) == "sudo apt install u"
    assert Distribution(name="debian", manager="apt").install(packages) == "sudo apt install a"
    assert Distribution(name="arch", manager="pacman").install(packages) == "sudo pacman -S p"
    assert Distribution(name="fedora", manager="dnf").install(packages) == ""
    assert Distribution(name="alpine", manager="").install(packages) == ""
