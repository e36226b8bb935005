"""``potluck cache``: show and prune the model weights stored on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import typer

from potluck.cli.addresses import parse_size
from potluck.cli.options import JsonOption, settings
from potluck.cli.output import emit, emit_json, note
from potluck.cli.tables import table
from potluck.errors import UsageError
from potluck.store.content_store import ContentStore, default_limit_bytes, default_store_folder
from potluck.types.document import Count, Document, Sha256Text, document_of
from potluck.types.quantities import format_bytes

_SHORT_HASH = 12
_AGES = ((86400, "d"), (3600, "h"), (60, "min"))

cache = typer.Typer(
    help="Show the model weights stored on this machine, or remove unused ones.",
    invoke_without_command=True,
)


@cache.callback()
def show(context: typer.Context, json: JsonOption = False) -> None:
    """Show the model weights in this machine's store, most recently used first.

    Nodes store there what they download from other nodes and from the hub, keyed by content.
    """
    if context.invoked_subcommand is not None:
        return
    document = cache_document(own_store(os.environ), removed_bytes=None)
    emit(document, cache_lines(document, now=time.time()), as_json=json)


@cache.command()
def prune(
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="SIZE",
            help="Stop once at most this much is stored, for example 20GiB. Default: 0, which "
            "removes everything that is not in use.",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Remove weights from the store, least recently used first.

    Weights that are in use are kept. Removed models are downloaded again when they are deployed.
    """
    to_bytes = 0 if to is None else parse_size(to, "to")
    store = own_store(os.environ)
    removed_bytes = store.prune(to_bytes)
    document = cache_document(store, removed_bytes=removed_bytes)
    if json:
        emit_json(document)
        return
    note(f"removed {format_bytes(removed_bytes)}; {format_bytes(document.held_bytes)} remain")
    if document.held_bytes > to_bytes:
        note("the rest is in use: undeploy models, or stop this node with potluck down")


def own_store(environ: Mapping[str, str]) -> ContentStore:
    """Return this user's store, with the limit of the setting ``weights_store``.

    Raises ``UsageError`` where there is no home to keep anything in.
    """
    folder = default_store_folder(environ)
    if folder is None:
        raise UsageError("neither HOME nor XDG_CACHE_HOME is set", hint="set one of them")
    limit_bytes = settings().weights_store
    return ContentStore(folder, default_limit_bytes(folder) if limit_bytes is None else limit_bytes)


def cache_lines(document: CacheDocument, now: float) -> Iterator[str]:
    """Return a table of the files in the store, and a line with their sum."""
    if document.files:
        rows = [("FILE", "SHA-256", "KEPT", "OF", "USED", "STATE")]
        rows += [
            (
                file.label or "?",
                file.sha256[:_SHORT_HASH],
                format_bytes(file.held_bytes),
                format_bytes(file.bytes),
                _age(now - file.used_at),
                _state(file),
            )
            for file in document.files
        ]
        yield from table(rows)
    yield (
        f"{format_bytes(document.held_bytes)} of at most {format_bytes(document.limit_bytes)} "
        f"in {document.path}"
    )


class CachedFile(Document, frozen=True, kw_only=True):
    """A file of the cache, or a part of one."""

    sha256: Sha256Text
    bytes: Count
    """Size of the whole file."""
    held_bytes: Count
    """Bytes of the file that are kept here."""
    label: str
    """Name of the file when it was first fetched; may be empty."""
    is_verified: bool
    """The whole file has been hashed, so every part is known to belong to it."""
    is_in_use: bool
    """A process uses the file, so it is not removed."""
    used_at: float
    """Seconds since 1970."""


class CacheDocument(Document, frozen=True, kw_only=True):
    """The output of ``potluck cache --json`` and ``potluck cache prune --json``."""

    schema: Literal["potluck.cache/1"] = "potluck.cache/1"
    path: str
    """The folder, which may not exist yet."""
    limit_bytes: Count
    """Maximum size (the setting ``weights_store``)."""
    held_bytes: Count
    """Size of all files together."""
    removed_bytes: Count | None
    """Bytes removed by ``potluck cache prune``; null for ``potluck cache``."""
    files: tuple[CachedFile, ...]
    """The most recently used file first."""


def cache_document(store: ContentStore, *, removed_bytes: int | None) -> CacheDocument:
    """Return the document of ``potluck cache --json``."""
    files = store.listing()
    return CacheDocument(
        path=str(store.folder),
        limit_bytes=store.limit_bytes,
        held_bytes=sum(file.held_bytes for file in files),
        removed_bytes=removed_bytes,
        files=tuple(
            document_of(CachedFile, file, sha256=file.content.sha256, bytes=file.content.num_bytes)
            for file in files
        ),
    )


def _state(file: CachedFile) -> str:
    words = ["in use"] if file.is_in_use else []
    return ", ".join([*words, "verified" if file.is_verified else "not fully verified"])


def _age(seconds: float) -> str:
    for length, unit in _AGES:
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return "just now"
