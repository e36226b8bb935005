"""Control groups of version 1, which need root and a kernel that has them mounted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from support.kernel_build import not_shown


@contextmanager
def group(path: Path, files: Mapping[str, str]) -> Iterator[Path]:
    """A control group of version 1 of this test's own, or a report that there can be none."""
    try:
        path.mkdir()
    except OSError as error:
        not_shown(f"control groups of version 1 can't be made here: {error}")
    try:
        for name, text in files.items():
            (path / name).write_text(text)
        yield path
    finally:
        path.rmdir()


def inside(path: Path) -> tuple[str, ...]:
    """The command that enters a group and goes on."""
    return ("sh", "-c", f'echo $$ > {path}/cgroup.procs; exec "$@"', "sh")
