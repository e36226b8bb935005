"""Prints docs/cli.md: the help of every command, as the program prints it.

python tools/cli_reference.py > docs/cli.md
"""

from __future__ import annotations

import os
import subprocess
import sys

_WIDTH = "100"


def command_help(*arguments: str) -> str:
    """What ``potluck … --help`` prints at a fixed width."""
    completed = subprocess.run(
        [sys.executable, "-m", "potluck", *arguments, "--help"],
        env={**os.environ, "COLUMNS": _WIDTH, "TERMINAL_WIDTH": _WIDTH, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return "\n".join(line.rstrip() for line in completed.stdout.strip().splitlines())


def command_names(*group: str) -> list[tuple[str, ...]]:
    """The subcommands, as the help of the program or of a group lists them, each group's own after
    it.
    """
    names: list[tuple[str, ...]] = [group] if group else []
    _, _, listed = command_help(*group).partition("Commands:\n")
    for line in listed.splitlines():
        if line.startswith("  ") and line[2] != " ":
            names += command_names(*group, line.split()[0])
    return names


def reference() -> str:
    """The whole page."""
    parts = [
        "# The `potluck` command",
        "Made by `tools/cli_reference.py` from the program itself.",
        f"```text\n{command_help()}\n```",
    ]
    for name in command_names():
        parts.append(f"## `potluck {' '.join(name)}`\n\n```text\n{command_help(*name)}\n```")
    parts.append(
        "## Output and exit codes\n\n"
        "Data goes to stdout, everything else to stderr. `--json` prints one document whose "
        "`schema` names its JSON Schema, which is in the package (`potluck/cli/schemas`). An error "
        "is one line that says what is wrong, then `hint:` with what to do; exit code 2 for a "
        "wrong use, 1 for a failure, 130 after Ctrl-C. `potluck --debug …` shows the traceback."
    )
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
