"""Checks of the directories that Potluck writes to."""

from __future__ import annotations

from collections.abc import Iterator

from potluck.probe.doctor.case import Case, Folder
from potluck.probe.doctor.finding import Finding, Severity
from potluck.quantities import format_bytes

STATE = "the node's state"
CACHE = "what the probe measured"
MODELS = "downloaded models"

_MOVED = {
    STATE: "potluck up --state DIRECTORY",
    CACHE: "export XDG_CACHE_HOME=DIRECTORY",
    MODELS: "export HF_HOME=DIRECTORY",
}
"""How to move each directory to another disk."""

_WITHOUT = {
    STATE: "this node cannot join a cluster",
    CACHE: "every device is tested again at every start",
    MODELS: "no model can be downloaded",
}

_IN_MEMORY = frozenset({"tmpfs", "ramfs"})


def folders(case: Case) -> Iterator[Finding]:
    """Check for a directory that is not writable, has no space, or is lost when the machine shuts
    down.
    """
    if case.missing_folder:
        yield Finding(
            check="folder",
            severity=Severity.PREVENTS,
            message=f"{case.missing_folder}: {_WITHOUT[STATE]}",
            command=_MOVED[STATE],
        )
    for folder in case.folders:
        if folder.is_read_only:
            yield _finding(folder, "is on a disk that is mounted read-only", _remount(case, folder))
        elif not folder.is_writable:
            yield _finding(folder, "is not writable", f"sudo chown -R $USER {folder.path}")
        elif folder.free_bytes < folder.needed_bytes:
            room = f"has {format_bytes(folder.free_bytes)} of free space"
            yield _finding(folder, room, f"df -h {folder.mount_point}", _elsewhere(folder))
        elif folder.file_system in _IN_MEMORY:
            yield _in_memory(folder)


def _finding(folder: Folder, what: str, command: str, details: str = "") -> Finding:
    return Finding(
        check="folder",
        severity=Severity.PREVENTS if folder.purpose == STATE else Severity.SLOWS,
        message=f"{folder.path} {what}: {_WITHOUT[folder.purpose]}",
        command=command,
        details=details,
    )


def _remount(case: Case, folder: Folder) -> str:
    if case.container:
        return _MOVED[folder.purpose]
    return f"sudo mount -o remount,rw {folder.mount_point}"


def _elsewhere(folder: Folder) -> str:
    return f"free some space, or use another disk: {_MOVED[folder.purpose]}"


def _in_memory(folder: Folder) -> Finding:
    takes_memory = folder.purpose == MODELS
    return Finding(
        check="folder",
        severity=Severity.SLOWS if takes_memory else Severity.NOTE,
        message=f"{folder.path} is in memory ({folder.file_system}): "
        + ("models occupy memory twice" if takes_memory else "it is lost when the machine stops"),
        command=_MOVED[folder.purpose],
    )
