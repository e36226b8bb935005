"""Run one side of a comparison in a separate process, whose failure does not end this one."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from comparison import Limits, Rates


class RunFailedError(Exception):
    """A side crashed, hung or printed no readable output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The measurements in the output of one process."""

    rates: Rates
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The measurements of one process. ``command`` has no directories, so it can be published."""

    command: tuple[str, ...]
    outcome: Outcome


def measured(
    command: Sequence[str],
    parse: Callable[[str], Outcome],
    timeout_seconds: float,
    environment: Mapping[str, str] | None = None,
) -> Run:
    """Run ``command`` and read what it prints; whatever goes wrong is a failure in the rates."""
    try:
        outcome = parse(output_of(command, timeout_seconds, environment))
        failure = None if outcome.rates.prefill or outcome.rates.decode else "it measured nothing"
    except RunFailedError as error:
        failure = str(error)
    except (ValueError, LookupError, TypeError) as error:
        failure = f"its output cannot be read ({type(error).__name__}: {error})"
    if failure is not None:
        outcome = Outcome(rates=Rates(failures=(failure,)))
    return Run(command=published(command), outcome=outcome)


def output_of(
    command: Sequence[str],
    timeout_seconds: float,
    environment: Mapping[str, str] | None = None,
    *,
    with_errors: bool = False,
) -> str:
    """Return a command's output, followed by its error output if ``with_errors``.

    Raises ``RunFailedError``.
    """
    try:
        completed = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
    except FileNotFoundError as error:
        raise RunFailedError(f"there is no {Path(command[0]).name}") from error
    except subprocess.TimeoutExpired as error:
        raise RunFailedError(f"gave no answer within {timeout_seconds:g} s") from error
    if completed.returncode:
        last = " ".join(completed.stderr.strip().splitlines()[-2:])
        raise RunFailedError(f"ended with {completed.returncode}: {last[-200:]}")
    return completed.stdout + completed.stderr if with_errors else completed.stdout


def published(command: Sequence[str]) -> tuple[str, ...]:
    """Return a command without the directories of this machine."""
    return tuple(Path(each).name if each.startswith("/") else each for each in command)
