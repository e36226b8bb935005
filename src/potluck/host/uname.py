"""Who this machine is, also where ``uname(2)`` is denied.

Sandboxes with strict system call filters deny it. Python raises ``OSError`` then, and modules of
its standard library (``uuid``) cannot even be imported. The same facts are in ``/proc/sys/kernel``
(``proc_sys_kernel(5)``) and in the build of the interpreter. Other modules are imported when they
are needed: every process of Potluck's begins with this one.
"""

from __future__ import annotations

import os


def replace_denied_uname() -> None:
    """Have ``os.uname`` return what else is known, if the kernel denies it to this process."""
    try:
        os.uname()
    except OSError:
        os.uname = _uname_by_files


def host_name() -> str:
    """Return the machine's name; empty if nothing tells it."""
    import socket

    try:
        return socket.gethostname()
    except OSError:  # the C library asks uname
        return _kernel_text("hostname")


def boot_id() -> str:
    """Return the id of the kernel's boot, a UUID that containers share. Raise ``OSError`` if it
    cannot be read.
    """
    from pathlib import Path

    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _uname_by_files() -> os.uname_result:
    import sysconfig

    built_for = sysconfig.get_config_var("HOST_GNU_TYPE")
    architecture = built_for.partition("-")[0] if isinstance(built_for, str) else ""
    texts = map(_kernel_text, ("ostype", "hostname", "osrelease", "version"))
    return os.uname_result((*texts, architecture))


def _kernel_text(name: str) -> str:
    from pathlib import Path

    try:
        text = Path("/proc/sys/kernel", name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text.strip()
