"""The entry point of ``potluck``, and the one place where errors are printed.

Exit codes: 0, 1 for a failure, 2 for a wrong use, 130 after Ctrl-C. An error is one line that says
what is wrong, then ``hint:`` with what to do; a traceback only with ``--debug``.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from potluck.cli.process_end import end_process, skips_finalization
from potluck.errors import PotluckError


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the console script, and end the process."""
    # Without a command, help is the answer.
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    _tolerate_other_encodings()
    try:
        status = _status(arguments)
    except Exception:
        if not skips_finalization():
            raise
        sys.excepthook(*sys.exc_info())
        status = 1
    end_process(status)


def _status(arguments: list[str]) -> int:
    """Run the command and print the error that ended it; return the exit status.

    With ``--debug``, and if the error is one of ours, raise it.
    """
    try:
        return _run(arguments)
    except PotluckError as error:
        if "--debug" in arguments:
            raise
        _fail(error.message, error.hint)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our stdout has gone (head, less)
        _discard_output()
        return 1
    except OSError as error:
        # Model files have errors of their own; what is left is a stream or a device.
        if "--debug" in arguments:
            raise
        _discard_output()
        where = error.filename or "the output"
        hint = "free some disk space, or write to another location"
        if isinstance(error, (FileNotFoundError, PermissionError)):
            hint = "check the path and its permissions"
        _fail(f"{where}: {error.strerror or error}", hint)
        return 1
    except (MemoryError, ImportError) as error:
        if "--debug" in arguments:
            raise
        reason = str(error).strip().splitlines() or ["out of memory"]
        _fail(f"cannot continue: {reason[0]}", "free some memory, or reinstall Potluck")
        return 1


def _run(arguments: list[str]) -> int:
    from potluck.host.cpu_baseline import require_supported_cpu

    require_supported_cpu()
    # Inside main's net: the libraries take a moment to load, in which Ctrl-C may come, and the
    # compiled core may be missing.
    from typer.exceptions import TyperException
    from typer.main import get_command

    from potluck.cli.app import application
    from potluck.cli.output import note
    from potluck.cli.settings import unknown_variables

    for name in unknown_variables(os.environ):
        note(f"ignored the environment variable {name}: there is no such setting")
    try:
        command = get_command(application(arguments))
        status = command.main(arguments, prog_name="potluck", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except TyperException as error:
        _fail(error.format_message(), "run potluck --help for commands and options")
        return 2
    return status or 0


def _tolerate_other_encodings() -> None:
    """Let stdout print ``?`` for characters that it cannot encode, and let invalid bytes in stdin
    pass; the tokenizer reports those.
    """
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def _discard_output() -> None:
    """Send what is still buffered nowhere, or Python would fail once more at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _fail(message: str, hint: str) -> None:
    if sys.stderr is None:
        return
    with contextlib.suppress(OSError):  # there is nowhere left to say it
        print(f"potluck: {message}", file=sys.stderr)
        if hint:
            print(f"hint: {hint}", file=sys.stderr, flush=True)
