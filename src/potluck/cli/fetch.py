"""``potluck fetch``: download a model, or some of its files, from the hub."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from potluck.cli.options import JsonOption
from potluck.cli.output import emit_json, note, progress_bar
from potluck.types.document import Count, Document, document_of
from potluck.types.quantities import format_bytes, format_count

if TYPE_CHECKING:
    from potluck.catalog import FetchedFile, ModelFiles


def fetch(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A hub id: org/name, org/name:Q4_K_M, org/name:file.gguf, org/name@revision.",
            show_default=False,
        ),
    ],
    file: Annotated[
        list[str] | None,
        typer.Option(
            "--file",
            metavar="NAME",
            help="Download only this file; for the first part of a split GGUF file, also the "
            "other parts. Can be repeated.",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Download the files of MODEL from the hub in advance.

    Only the files that the model needs are downloaded, to huggingface_hub's cache (HF_HOME). This
    is optional: nodes download what their stages need.
    """
    from potluck.catalog import fetch_model

    with _progress(model) as advance:
        found, fetched = fetch_model(model, only=file or (), on_fetch=advance)
    document = _document(found, fetched)
    if json:
        emit_json(document)
        return
    came = [each for each in fetched if each.fetched_bytes]
    note(
        f"downloaded {format_bytes(document.fetched_bytes)} in {format_count(len(came), 'file')}; "
        f"{format_bytes(document.present_bytes)} were already present"
    )
    print(found.path)


@contextmanager
def _progress(model: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar."""
    from rich.progress import DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

    with progress_bar(
        DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn()
    ) as bar:
        task = bar.add_task(f"downloading {model}", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class FetchedFileDocument(Document, frozen=True, kw_only=True):
    """A file of the model."""

    name: str
    """Path in the repository."""
    path: str
    bytes: Count
    fetched_bytes: Count
    """Bytes downloaded now; more than ``bytes`` if a partial download could not be used."""


class FetchDocument(Document, frozen=True, kw_only=True):
    """The output of ``potluck fetch --json``."""

    schema: Literal["potluck.fetch/1"] = "potluck.fetch/1"
    model: str
    """MODEL as given."""
    pinned: str
    """MODEL at its current commit."""
    path: str
    """The model's directory, or its (first) .gguf file."""
    files: tuple[FetchedFileDocument, ...]
    fetched_bytes: Count
    present_bytes: Count
    """Bytes that were on this disk before."""


def _document(found: ModelFiles, fetched: Sequence[FetchedFile]) -> FetchDocument:
    return FetchDocument(
        model=found.name,
        pinned=found.pinned_name,
        path=str(found.path),
        files=tuple(
            document_of(FetchedFileDocument, each, path=str(each.path), bytes=each.num_bytes)
            for each in fetched
        ),
        fetched_bytes=sum(each.fetched_bytes for each in fetched),
        # Leftovers that were discarded do not count.
        present_bytes=sum(max(0, each.num_bytes - each.fetched_bytes) for each in fetched),
    )
