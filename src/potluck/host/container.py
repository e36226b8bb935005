"""Detect the kind of container in which this process runs.

Sources: ``systemd-detect-virt`` (systemd, ``src/basic/virt.c``) for the files, their order and
OpenVZ; https://systemd.io/CONTAINER_INTERFACE for how a manager identifies itself; the Kubernetes
documentation ("Accessing the Kubernetes API from a Pod") for the service account; the kernel's
``include/linux/proc_ns.h`` for the numbers of its first namespaces.
"""

from __future__ import annotations

import re
from pathlib import Path

from potluck.host.system import System

_FIRST_NAMESPACES = {
    "cgroup": "cgroup:[4026531835]",
    "ipc": "ipc:[4026531839]",
    "pid": "pid:[4026531836]",
    "uts": "uts:[4026531838]",
}
"""0xEFFFFFFB, 0xEFFFFFFF, 0xEFFFFFFC and 0xEFFFFFFE, as ``/proc/self/ns`` writes them."""

_GROUPS = (
    (re.compile(r"kubepods"), "kubernetes"),
    (re.compile(r"/docker[-/]"), "docker"),
    (re.compile(r"/libpod-"), "podman"),
    (re.compile(r"/lxc(/|\.payload)"), "lxc"),
)
"""Parts of the paths of containers' control groups, as seen from outside the container."""


def container(system: System) -> str:
    """Return the kind of container as its manager spells it (``docker``, ``podman``,
    ``kubernetes``, ``lxc``, ``wsl`` …), or empty.

    Of nested containers, the innermost counts: a Docker container under WSL is ``docker``.
    """
    # A virtual machine whose file system was created from an image also has the image's marks.
    if _is_in_first_namespaces(system):
        return _by_kernel(system)
    return _by_marks(system) or _by_kernel(system)


def _by_marks(system: System) -> str:
    """Detect containers by the files that managers create in them."""
    root = system.files
    groups = system.text(system.proc / "self/cgroup") or ""
    by_group = next((name for pattern, name in _GROUPS if pattern.search(groups)), "")
    has_service_account = _exists(root / "var/run/secrets/kubernetes.io/serviceaccount")
    if by_group == "kubernetes" or has_service_account:
        return "kubernetes"
    manager = _manager(system)
    # Images may identify themselves as "oci", which is not a manager.
    if manager and manager != "oci":
        return manager
    if _exists(root / "run/.containerenv"):
        return "podman"
    if _exists(root / ".dockerenv"):
        return "docker"
    return by_group


def _manager(system: System) -> str:
    """Return the manager's name from a file, or from the first process's environment."""
    for name in ("run/host/container-manager", "run/systemd/container"):
        if runtime := _word(system.text(system.files / name) or ""):
            return runtime
    environment = system.bytes(system.proc / "1/environ") or b""
    for setting in environment.decode("ascii", errors="replace").split("\0"):
        variable, _, value = setting.partition("=")
        if variable == "container":
            return _word(value)
    return ""


def _by_kernel(system: System) -> str:
    """Detect containers by the kernel's name or ``/proc``, without Linux namespaces."""
    release = system.text(system.proc / "sys/kernel/osrelease") or ""
    if "microsoft" in release.lower() or "WSL" in release:
        return "wsl"
    # An OpenVZ host has both.
    if _exists(system.proc / "vz") and not _exists(system.proc / "bc"):
        return "openvz"
    return ""


def _is_in_first_namespaces(system: System) -> bool:
    """Return whether this is certainly the host: no manager shares all of these namespaces with its
    containers.
    """
    for kind, first in _FIRST_NAMESPACES.items():
        try:
            if str((system.proc / "self/ns" / kind).readlink()) != first:
                return False
        except OSError:
            return False
    return True


def _word(text: str) -> str:
    return text if re.fullmatch(r"[a-z][a-z0-9-]{0,31}", text) else ""


def _exists(path: Path) -> bool:
    try:
        path.lstat()
    except OSError:
        return False
    return True
