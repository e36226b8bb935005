"""``potluck fetch``: bring a model, or some of its files, from the hub to this disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from potluck.catalog import FetchedFile, ModelFiles, fetch_model
from potluck.cli.options import JsonOption
from potluck.cli.output import emit_json, note
from potluck.quantities import format_bytes


def fetch(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A hub id: org/name, org/name:file.gguf, org/name@revision.",
            show_default=False,
        ),
    ],
    file: Annotated[
        list[str] | None,
        typer.Option(
            "--file",
            metavar="NAME",
            help="Only this file, and with the first part of a split GGUF file the others. "
            "Can be repeated.",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Fetch the files of MODEL from the hub ahead of their use.

    Those that it needs and no others; they land in huggingface_hub's cache (HF_HOME). Nodes fetch
    by themselves what their stages need.
    """
    with _progress(model) as advance:
        found, fetched = fetch_model(model, only=file or (), on_fetch=advance)
    if json:
        emit_json(_document(found, fetched))
        return
    came = [each for each in fetched if each.fetched_bytes]
    note(
        f"fetched {format_bytes(_fetched_bytes(fetched))} in {_files(len(came))}; "
        f"{format_bytes(_present_bytes(fetched))} were there already"
    )
    print(found.path)


@contextmanager
def _progress(model: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal; nothing elsewhere."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(f"fetching {model}", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


def _fetched_bytes(files: Sequence[FetchedFile]) -> int:
    return sum(each.fetched_bytes for each in files)


def _present_bytes(files: Sequence[FetchedFile]) -> int:
    """More came than a file has where what an earlier try had left was of no use."""
    return sum(max(0, each.num_bytes - each.fetched_bytes) for each in files)


def _document(found: ModelFiles, fetched: Sequence[FetchedFile]) -> dict[str, object]:
    """The document of ``potluck fetch --json`` (schema ``potluck.fetch/1``)."""
    return {
        "schema": "potluck.fetch/1",
        "model": found.name,
        "pinned": found.pinned_name,
        "path": str(found.path),
        "files": [
            {
                "name": each.name,
                "path": str(each.path),
                "bytes": each.num_bytes,
                "fetched_bytes": each.fetched_bytes,
            }
            for each in fetched
        ],
        "fetched_bytes": _fetched_bytes(fetched),
        "present_bytes": _present_bytes(fetched),
    }
