"""What ``potluck up`` says to type on other machines.

The secret is said to a person at a terminal. What a service says ends up in a journal, which more
people read than may join the cluster: it names the file that holds the secret.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from potluck.child_environment import SECRET_VARIABLE


def is_shown(stream: TextIO | None, *, is_asked_for: bool) -> bool:
    """Whether the secret may be written to ``stream``."""
    return is_asked_for or (stream is not None and stream.isatty())


def invitation(
    address: str, *, secret: str | None, secret_file: Path | None, multicast: bool
) -> Iterator[str]:
    """The lines. ``secret`` is None where it is not to be shown.

    ``secret_file`` is where this node keeps the secret, None if it was given one. ``multicast``:
    others may find this node without its ``address``.
    """
    prefix = "" if secret is None else f"{SECRET_VARIABLE}={secret} "
    yield f"on the other machines{', with the same secret' if secret is None else ''}, type:"
    yield f"  {prefix}potluck up --join {address}"
    if multicast:
        yield "or, where multicast passes:"
        yield f"  {prefix}potluck up --lan"
    if secret is None and secret_file is not None:
        yield f"the secret is in {secret_file} (--show-secret prints it here)"
