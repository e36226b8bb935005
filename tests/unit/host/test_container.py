"""Which container it is, from what managers leave behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.machines.machine_tree import machine_tree

from potluck.host.container import container

FIRST_NAMESPACES: dict[str, str | bytes | Path] = {
    "proc/self/ns/cgroup": Path("cgroup:[4026531835]"),
    "proc/self/ns/ipc": Path("ipc:[4026531839]"),
    "proc/self/ns/pid": Path("pid:[4026531836]"),
    "proc/self/ns/uts": Path("uts:[4026531838]"),
}
SERVICE_ACCOUNT = "var/run/secrets/kubernetes.io/serviceaccount/token"
OS_RELEASE = "proc/sys/kernel/osrelease"

CASES: dict[str, tuple[dict[str, str | bytes | Path], str]] = {
    "nothing": ({}, ""),
    "a host": (
        {
            "proc/self/cgroup": "0::/user.slice/user-1000.slice/session-2.scope",
            "proc/1/environ": b"HOME=/\0TERM=linux\0",
            OS_RELEASE: "6.12.9-amd64",
        },
        "",
    ),
    "the daemon of Docker itself": ({"proc/self/cgroup": "0::/system.slice/docker.service"}, ""),
    "the monitor of LXC itself": ({"proc/self/cgroup": "0::/lxc.monitor.box"}, ""),
    "docker": ({".dockerenv": b"", "proc/self/cgroup": "0::/"}, "docker"),
    "docker, by its group": (
        {"proc/self/cgroup": "4:memory:/docker/0123456789ab\n0::/"},
        "docker",
    ),
    "docker, by systemd's group": (
        {"proc/self/cgroup": "0::/system.slice/docker-0123456789ab.scope"},
        "docker",
    ),
    "docker sharing the host's processes": (
        {**FIRST_NAMESPACES, ".dockerenv": b"", "proc/self/ns/uts": Path("uts:[4026532221]")},
        "docker",
    ),
    "a virtual machine made from an image": ({**FIRST_NAMESPACES, ".dockerenv": b""}, ""),
    "docker under WSL": (
        {".dockerenv": b"", OS_RELEASE: "5.15.153.1-microsoft-standard-WSL2"},
        "docker",
    ),
    "podman": ({"run/.containerenv": b"", "proc/1/environ": b"container=podman\0"}, "podman"),
    "an image that calls itself oci": (
        {"run/.containerenv": b"", "proc/1/environ": b"A=b\0container=oci\0"},
        "podman",
    ),
    "lxc": ({"proc/1/environ": b"container=lxc\0TERM=x\0"}, "lxc"),
    "lxc with systemd": ({"run/systemd/container": "lxc"}, "lxc"),
    "lxc, by its group": ({"proc/self/cgroup": "0::/lxc.payload.box/init.scope"}, "lxc"),
    "systemd-nspawn": ({"run/host/container-manager": "systemd-nspawn"}, "systemd-nspawn"),
    "kubernetes": ({SERVICE_ACCOUNT: "x", "proc/self/cgroup": "0::/"}, "kubernetes"),
    "kubernetes with Docker": (
        {".dockerenv": b"", "proc/self/cgroup": "4:memory:/kubepods/besteffort/pod1/2"},
        "kubernetes",
    ),
    "WSL 2": ({OS_RELEASE: "5.15.153.1-microsoft-standard-WSL2"}, "wsl"),
    "WSL 1": ({OS_RELEASE: "4.4.0-19041-Microsoft"}, "wsl"),
    "WSL in its first namespaces": (
        {**FIRST_NAMESPACES, OS_RELEASE: "5.15.153.1-microsoft-standard-WSL2"},
        "wsl",
    ),
    "OpenVZ": ({"proc/vz/x": ""}, "openvz"),
    "the host of OpenVZ": ({"proc/vz/x": "", "proc/bc/x": ""}, ""),
    "rubbish": (
        {
            "run/systemd/container": b"\xff\xfe\x01\n",
            "proc/1/environ": b"container=\x80\x81\0",
            "proc/self/cgroup": b"\x00\xff",
            OS_RELEASE: b"\xf0\x9f",
        },
        "",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_container(tmp_path: Path, case: str) -> None:
    files, expected = CASES[case]
    assert container(machine_tree(tmp_path, files)) == expected
