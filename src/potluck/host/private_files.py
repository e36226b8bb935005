"""Files and folders that are this user's alone, written whole or not at all.

A file is written to a draft beside it, which takes its place when it is complete: a full disk or a
crash leaves the file as it was. Modes are 0600 and 0700 whatever the process's umask. Nothing here
words errors for users: functions raise ``OSError``.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import pwd
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from potluck.host.system import group_name

_DRAFT_SUFFIX = ".draft"
_UID_MAP = Path("/proc/self/uid_map")
_OVERFLOW_UID = Path("/proc/sys/kernel/overflowuid")
_ALL_UIDS = ["0", "0", "4294967295"]
"""The one line of ``uid_map`` outside of any user namespace (``user_namespaces(7)``)."""


def make_private_folder(path: Path) -> None:
    """Make the folder, and the parents that it lacks, with mode 0700; one that exists is closed."""
    missing = []
    for folder in (path, *path.parents):
        if folder.exists():
            break
        missing.append(folder)
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process was first
            folder.mkdir(mode=0o700)
        folder.chmod(0o700)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    if not missing:
        path.chmod(0o700)


def replace_file(path: Path, data: bytes, *, is_durable: bool = True) -> None:
    """Write ``data`` to ``path``, with mode 0600, in place of what was there.

    ``is_durable``: also after a power failure there is the old file or the new one.
    """
    with _draft(path, data, is_durable=is_durable) as draft:
        draft.replace(path)
    if is_durable:
        sync_folder(path.parent)


def create_file(path: Path, data: bytes) -> bool:
    """Write ``data`` to ``path``, with mode 0600, unless there is something; whether it was done.

    Of several processes that do this at once one writes, and all find its file.
    """
    with _draft(path, data, is_durable=True) as draft:
        try:
            # A link fails, rather than replaces, where another process was first.
            path.hardlink_to(draft)
        except FileExistsError:
            return False
    sync_folder(path.parent)
    return True


def remove_drafts(folder: Path) -> None:
    """Remove what a process left behind that ended while it wrote a file of ``folder``.

    For whoever alone writes there.
    """
    for draft in folder.glob(f".*{_DRAFT_SUFFIX}"):
        draft.unlink(missing_ok=True)


def folder_problem(folder: Path) -> str | None:
    """Why others than this user and root could change what is in ``folder``; None if nobody can.

    A group may write if it is this user's private one. What is said follows the folder's name.
    """
    status = folder.stat()
    if status.st_uid != os.geteuid():
        return f"belongs to another user ({_user_name(status.st_uid)})"
    who = _other_writers(status)
    return None if who is None else f"can be written to by {who}"


def parent_problem(folder: Path) -> str | None:
    """Why others could put another folder in the place of one in ``folder``; None if nobody can.

    One that everybody may write to is sound if it is sticky, as ``/tmp`` is.
    """
    status = folder.stat()
    if status.st_uid not in (0, os.geteuid()) and not _is_outside_namespace(status.st_uid):
        return f"belongs to another user ({_user_name(status.st_uid)})"
    who = _other_writers(status)
    is_sticky = bool(status.st_mode & stat.S_ISVTX)
    return None if who is None or is_sticky else f"can be written to by {who}"


def _other_writers(status: os.stat_result) -> str | None:
    if status.st_mode & stat.S_IWOTH:
        return "everybody"
    if status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid):
        return f"its group ({group_name(status.st_gid)})"
    return None


def _is_own_group(gid: int) -> bool:
    """Whether a group is the private one of this user: of the same name, and without others."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    is_named_alike = user.pw_gid == gid and group.gr_name == user.pw_name
    return is_named_alike and set(group.gr_mem) <= {user.pw_name}


def _is_outside_namespace(uid: int) -> bool:
    """Whether an owner is hidden by this process's user namespace, as root is in many sandboxes."""
    try:
        is_hidden = uid == int(_OVERFLOW_UID.read_text(encoding="ascii"))
        return is_hidden and _UID_MAP.read_text(encoding="ascii").split() != _ALL_UIDS
    except (OSError, ValueError):
        return False


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


@contextmanager
def _draft(path: Path, data: bytes, *, is_durable: bool) -> Iterator[Path]:
    """Write a complete draft of ``path`` to its folder, and delete it at the end of the block."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}{_DRAFT_SUFFIX}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(draft, flags, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)
            file.write(data)
            file.flush()
            if is_durable:
                os.fsync(descriptor)
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Flush the names in ``folder`` to disk, if its file system supports that."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # the file is there, and some file systems refuse this
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
