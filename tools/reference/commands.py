"""Generate ``docs/reference/cli.md``: the help of every command, as the program prints it."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

_WIDTH = "100"

_ROOT = Path(__file__).parents[2]


def command_help(*arguments: str) -> str:
    """Return what ``potluck … --help`` prints, which is as wide as the environment says."""
    from potluck.cli.main import main

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            main([*arguments, "--help"])
        except SystemExit as ended:
            if ended.code:
                raise
    return "\n".join(line.rstrip() for line in printed.getvalue().strip().splitlines())


def command_names(*group: str) -> list[tuple[str, ...]]:
    """Return the subcommands that the help of the program or of a group lists, each group's own
    after it.
    """
    names: list[tuple[str, ...]] = [group] if group else []
    _, _, listed = command_help(*group).partition("Commands:\n")
    for line in listed.splitlines():
        if line.startswith("  ") and line[2] != " ":
            names += command_names(*group, line.split()[0])
    return names


def page() -> str:
    """Return the text of the page.

    It is made in another process: libraries read how wide they may print once, when imported.
    """
    completed = subprocess.run(
        [sys.executable, "-m", __name__],
        env={**os.environ, "COLUMNS": _WIDTH, "TERMINAL_WIDTH": _WIDTH, "NO_COLOR": "1"},
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return completed.stdout


def _made_here() -> str:
    parts = [
        "# The `potluck` command",
        "Generated from the program by `python -m tools.reference`.",
        f"```text\n{command_help()}\n```",
    ]
    for name in command_names():
        parts.append(f"## `potluck {' '.join(name)}`\n\n```text\n{command_help(*name)}\n```")
    parts.append(
        "## Output and exit codes\n\n"
        "Data goes to stdout, everything else to stderr. With `--json` a command prints one\n"
        "document; its `schema`, such as `potluck.nodes/1`, names a JSON Schema, such as\n"
        "[`nodes.json`](schemas/nodes.json). An\n"
        "error is one line that names the problem, followed by a line that begins with `hint:`.\n"
        "The exit code is 2 for incorrect usage, 1 for a failure and 130 after Ctrl-C.\n"
        "`potluck --debug …` shows the traceback."
    )
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.stdout.write(_made_here())
