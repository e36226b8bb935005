"""Commands in the documents are commands: what they name exists, with these options and values."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from potluck.cli.app import application

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "README.zh-CN.md",
    *ROOT.glob("docs/start/*.md"),
    *ROOT.glob("docs/guides/*.md"),
]
_OPERATOR = re.compile(r"[|;&<>]+")
_BLOCK = re.compile(r"^ *```sh\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def commands(path: Path) -> Iterator[list[str]]:
    """Yield the arguments of each ``potluck`` command in the shell blocks of a document."""
    for block in _BLOCK.findall(path.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            for command in _split(line):
                program, *arguments = [*itertools.dropwhile(_is_setting, command), ""]
                if program.rpartition("/")[2] == "potluck":
                    yield arguments[:-1]


def _split(line: str) -> list[list[str]]:
    """The words of each command of a line."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&<>")
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    for word in lexer:
        if _OPERATOR.fullmatch(word):
            found.append([])
        else:
            found[-1].append(word)
    return found


def _is_setting(word: str) -> bool:
    return word == "sudo" or re.match(r"[A-Z_]+=", word) is not None


def parse(arguments: list[str]) -> None:
    """Parse a command as ``potluck`` does, without running it."""
    command = get_command(application(arguments))
    context = command.make_context("potluck", list(arguments))
    while isinstance(command, TyperGroup):
        name, found, left = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        assert found is not None
        command = found
        context = command.make_context(name, left, parent=context)


CASES = [
    pytest.param(arguments, id=f"{path.name}: {' '.join(arguments)}"[:100])
    for path in DOCUMENTS
    for arguments in commands(path)
]


def test_there_are_some() -> None:
    assert len(CASES) > 40


@pytest.mark.parametrize("arguments", CASES)
def test_it_parses(arguments: list[str]) -> None:
    parse(arguments)


@pytest.mark.parametrize(
    "arguments", [["runn", "demo"], ["run", "demo", "--no-such-option"], ["run", "demo", "-n", "x"]]
)
def test_what_is_none_does_not_parse(arguments: list[str]) -> None:
    with pytest.raises(TyperException):
        parse(arguments)
