"""The commands for other machines that ``potluck up`` prints.

The secret is only printed to a terminal. The output of a service goes to a journal, which more
people can read than may join the cluster, so it only names the file with the secret.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from potluck.child_environment import SECRET_VARIABLE


def is_shown(stream: TextIO | None, *, is_requested: bool) -> bool:
    """Whether the secret may be written to ``stream``."""
    return is_requested or (stream is not None and stream.isatty())


def invitation(
    address: str,
    *,
    secret: str | None,
    secret_file: Path | None,
    multicast: bool,
    is_invited: bool = False,
) -> Iterator[str]:
    """The lines. ``secret`` is None where it is not to be shown; a node that ``is_invited`` has
    none, and cannot invite others.

    ``secret_file`` is where this node keeps the secret, None if it was given one. ``multicast``:
    others may find this node without its ``address``.
    """
    if is_invited:
        return
    yield "to set up another machine, run potluck invite in another terminal"
    prefix = "" if secret is None else f"{SECRET_VARIABLE}={secret} "
    yield f"where Potluck is installed{', with the same secret' if secret is None else ''}, run:"
    yield f"  {prefix}potluck up --join {address}"
    if multicast:
        yield "or, if the network supports multicast:"
        yield f"  {prefix}potluck up --lan"
    if secret is None and secret_file is not None:
        yield f"the secret is in {secret_file} (--show-secret prints it here)"
