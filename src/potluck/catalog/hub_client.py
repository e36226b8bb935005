"""Requests to the hub, with retries if it asks to wait, and the translation of its errors.

All requests use huggingface_hub with its session, tokens, mirrors and offline mode, which are
configured by its own environment variables.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeVar

import msgspec

from potluck.catalog.hub_cache import COMMIT, RepositoryFile, Snapshot, keep_head, read_head
from potluck.catalog.manifest_view import MAX_HEAD_BYTES
from potluck.errors import ModelFileError, ModelNotFoundError
from potluck.formats.files import OpenFile, ReadableFile, ReadOnlyFile
from potluck.host.cache_folder import hub_cache_folder

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo
    from huggingface_hub.errors import HfHubHTTPError


_T = TypeVar("_T")

_LISTING_SECONDS = 10.0
"""The same as huggingface_hub's timeout for files; it has none for listings."""

_PARTIAL_CONTENT = 206
_BUSY_STATUSES = frozenset({429, 500, 502, 503, 504})
_PAUSE_SECONDS = (1.0, 2.0, 4.0)
"""The delay between attempts if the hub does not specify one."""
_MOST_SECONDS = 60.0
"""A longer wait is an error: the user may prefer to set a token, or try again later."""

_LEAST_BYTES = 128 * 2**10
"""Enough for the whole header of most safetensors files, so that one request suffices."""

_DISK_ERRORS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}
)


def with_retries(ask: Callable[[], _T]) -> _T:
    """Return the result of ``ask``, which is retried while the hub is busy.

    When there are no attempts left, its error is propagated.
    """
    from huggingface_hub.errors import HfHubHTTPError

    for pause in _PAUSE_SECONDS:
        try:
            return ask()
        except HfHubHTTPError as error:
            seconds = retry_delay(error, pause)
            if seconds is None:
                raise
            time.sleep(seconds)
    return ask()


def retry_delay(error: HfHubHTTPError, otherwise: float) -> float | None:
    """Return the delay before a retry, or None if retrying is useless.

    It is ``Retry-After`` if that is in seconds (RFC 9110, 10.2.3), and ``otherwise`` if it is a
    date.
    """
    if error.response.status_code not in _BUSY_STATUSES:
        return None
    delay = error.response.headers.get("Retry-After", "")
    seconds = float(delay) if delay.isdecimal() else otherwise
    return seconds if seconds <= _MOST_SECONDS else None


def list_repository(repo_id: str, revision: str) -> Snapshot:
    """Return a repository's files at a revision.

    Raise huggingface_hub's errors, and ``ConnectionError`` for an answer that is not a listing.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, HTTPError  # type: ignore[attr-defined]

    try:
        info = with_retries(
            lambda: HfApi().model_info(
                repo_id, revision=revision, files_metadata=True, timeout=_LISTING_SECONDS
            )
        )
        return _snapshot_of(repo_id, info)
    except (HTTPError, OSError, HFValidationError):
        raise
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        # Such as the page of a network that requires a login.
        raise ConnectionError("the Hub's answer is not a list of files") from error


def _snapshot_of(repo_id: str, info: ModelInfo) -> Snapshot:
    if info.sha is None or not COMMIT.fullmatch(info.sha):
        raise ModelNotFoundError(
            f"the Hub did not report a commit for {repo_id}",
            hint="HF_ENDPOINT must be the Hub or a compatible mirror",
        )
    files = {}
    for sibling in info.siblings or []:
        name = PurePosixPath(sibling.rfilename)
        if name.is_absolute() or ".." in name.parts or "\0" in sibling.rfilename:
            raise ModelFileError(repo_id, f"a file named {sibling.rfilename!r}")
        sibling.rfilename.encode()  # raises ValueError for surrogates, which JSON can have
        listed = {
            "size": sibling.size,
            "sha256": None if sibling.lfs is None else sibling.lfs.sha256,
            "git_id": None if sibling.lfs is not None else sibling.blob_id,
        }
        files[sibling.rfilename] = msgspec.convert(listed, RepositoryFile)
    return Snapshot(repo_id=repo_id, commit=info.sha, files=files)


def may_fetch(repo_id: str, commit: str, name: str, timeout_seconds: float) -> bool:
    """Return whether the hub would send a file now, with a single request and no retries.

    The hub may be unreachable, have another copy of the repository (a mirror), or require a token.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    try:
        get_hf_file_metadata(hf_hub_url(repo_id, name, revision=commit), timeout=timeout_seconds)
    except (HTTPError, OSError, ValueError):
        return False
    return True


@contextmanager
def streamed(
    snapshot: Snapshot,
    name: str,
    start: int = 0,
    end: int | None = None,
    *,
    on_connected: Callable[[socket.socket], None] | None = None,
) -> Iterator[tuple[int, Iterator[bytes]]]:
    """Yield the offset at which the received bytes begin, and the bytes in pieces.

    They are the file's bytes from ``start`` to ``end``, or from 0 if the server does not support
    ranges. ``on_connected`` is called with the connection before they are read. Raise
    huggingface_hub's errors.
    """
    from huggingface_hub import constants, get_session, hf_hub_url, hf_raise_for_status
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    headers: dict[str, str] = {**build_hf_headers(), "Accept-Encoding": "identity"}
    if start or end is not None:
        headers["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
    # The session does not send the token to other hosts to which the hub redirects.
    with get_session().stream(
        "GET",
        hf_hub_url(snapshot.repo_id, name, revision=snapshot.commit),
        headers=headers,
        timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
    ) as response:
        hf_raise_for_status(response)
        stream = response.extensions.get("network_stream")
        if on_connected is not None and stream is not None:
            on_connected(stream.get_extra_info("socket"))
        begin = 0
        if response.status_code == _PARTIAL_CONTENT:
            sent = response.headers.get("Content-Range", "")
            if not sent.startswith(f"bytes {start}-"):
                raise ModelFileError(
                    f"{snapshot.repo_id}:{name}",
                    f"requested bytes from offset {start}, but the Hub sent "
                    f"{sent or 'a different range'}",
                    hint="this is a fault of the Hub or of the mirror (HF_ENDPOINT)",
                )
            begin = start
        # Pieces as they arrive: the last of larger ones would be lost when the connection breaks.
        yield begin, response.iter_bytes()


def is_out_of_reach(error: Exception) -> bool:
    """Return whether the hub did not respond, or responded with a server error."""
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in _BUSY_STATUSES
    return True


@contextmanager
def translate_hub_errors(name: str) -> Iterator[None]:
    """Convert errors of huggingface_hub and of the disk to Potluck's errors."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise ModelNotFoundError(
            f"{name} is a gated model on the Hub",
            hint="accept its terms on its Hub page, then set HF_TOKEN",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelNotFoundError(
            f"the Hub has no model {name}, or you do not have access to it",
            hint="check the name; for a private model, set HF_TOKEN",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelNotFoundError(
            f"the Hub has no such revision: {name}", hint="give a branch, a tag or a commit"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise _out_of_reach(name, str(error)) from error
    except errors.EntryNotFoundError as error:
        raise file_not_found(name) from error
    except errors.HFValidationError as error:
        raise ModelNotFoundError(
            f"{name} is not a Hub model id", hint="Hub model ids have the form org/name"
        ) from error
    except errors.HfHubHTTPError as error:
        raise _refused(name, error) from error
    except errors.HTTPError as error:  # type: ignore[attr-defined]
        raise _out_of_reach(name, str(error) or type(error).__name__) from error
    except OSError as error:
        if error.errno in _DISK_ERRORS:
            raise not_written(error) from error
        raise _out_of_reach(name, str(error) or type(error).__name__) from error


def file_not_found(name: str) -> ModelNotFoundError:
    """Return the error for a file that does not exist in an existing repository."""
    return ModelNotFoundError(
        f"the Hub has no file {name}", hint="see the list of files on the repository's Hub page"
    )


def not_written(error: OSError) -> ModelFileError:
    """Return the error for a file that cannot be written, for example because the disk is full."""
    return ModelFileError(
        str(error.filename or hub_cache_folder()),
        f"cannot be written: {error.strerror}",
        hint="free some space there, or set HF_HOME to a directory on another disk; what has "
        "been downloaded is kept",
    )


def _refused(name: str, error: HfHubHTTPError) -> ModelNotFoundError:
    status = error.response.status_code
    if status == 429:
        after = error.response.headers.get("Retry-After")
        return ModelNotFoundError(
            f"{name}: the Hub's rate limit is exceeded",
            hint=(f"try again in {after} s; " if after else "try again later; ")
            + "setting HF_TOKEN raises the limit",
        )
    if status in (401, 403):
        return ModelNotFoundError(
            f"{name} is not accessible with this token ({status})", hint="check HF_TOKEN"
        )
    return _out_of_reach(name, f"the Hub responded with {status} {error.response.reason_phrase}")


def _out_of_reach(name: str, reason: str) -> ModelNotFoundError:
    return ModelNotFoundError(
        f"{name} is not in the local cache and could not be downloaded: "
        f"{reason.strip().splitlines()[0]}",
        hint="check the network (HF_ENDPOINT, HF_HUB_OFFLINE), or copy the model's directory to "
        "this machine",
    )


def files_or_heads(snapshot: Snapshot) -> OpenFile:
    """Return a function that opens files of ``snapshot``; of files that are not on this disk, only
    the beginning can be read.
    """

    def open_file(path: Path) -> ReadableFile:
        name = str(path.relative_to(snapshot.directory))
        if snapshot.has(name):
            return ReadOnlyFile(path)
        if name not in snapshot.files:
            raise file_not_found(f"{snapshot.repo_id}:{name}")
        return HubFileHead(snapshot, name)

    return open_file


class HubFileHead:
    """The beginning of a file on the hub, as far as it was requested; a ``ReadableFile``.

    Downloaded data is stored next to the cache, so that it is requested only once per machine. It
    is not checked against the file's digest; weights are read from files that were checked.
    """

    def __init__(self, snapshot: Snapshot, name: str) -> None:
        self.path = f"{snapshot.repo_id}:{name}"
        self._snapshot = snapshot
        self._name = name
        size = snapshot.files[name].size
        if size is None:
            raise ModelFileError(
                self.path, "the Hub does not report its size", hint="download it with potluck fetch"
            )
        self.size = size
        self.num_bytes_read = 0
        self._head = read_head(snapshot, name, min(MAX_HEAD_BYTES, size))
        self._num_kept = len(self._head)

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill ``out`` from ``offset``.

        Raise ``ModelFileError`` past the end, or past the maximum size of a header, and
        ``ModelNotFoundError`` if the hub is unreachable.
        """
        end = offset + len(out)
        if end > self.size:
            raise ModelFileError(self.path, f"truncated: it ends at byte {self.size}")
        if end > MAX_HEAD_BYTES:
            raise ModelFileError(self.path, "it is not in the local cache", hint="potluck fetch")
        if end > len(self._head):
            wanted = max(end, 2 * len(self._head), _LEAST_BYTES)
            self._extend(min(wanted, self.size, MAX_HEAD_BYTES))
        out[:] = self._head[offset:end]
        self.num_bytes_read += len(out)

    def check_unchanged(self) -> None:
        """Do nothing: a snapshot belongs to one commit."""

    def release(self) -> None:
        """Do nothing: the downloaded data is needed to store it later."""

    def close(self) -> None:
        """Store the downloaded data. Idempotent."""
        if len(self._head) > self._num_kept:
            keep_head(self._snapshot, self._name, self._head)
            self._num_kept = len(self._head)

    def _extend(self, num_bytes: int) -> None:
        """Download the first ``num_bytes``, if they are not here yet."""
        with translate_hub_errors(self.path):
            more = with_retries(lambda: self._request(len(self._head), num_bytes))
        if len(more) != num_bytes - len(self._head):
            raise ModelFileError(self.path, "the Hub sent a different byte range than requested")
        self._head += more

    def _request(self, start: int, end: int) -> bytes:
        data = bytearray()
        with streamed(self._snapshot, self._name, start, end) as (begin, pieces):
            for piece in pieces:
                data += piece
                if begin + len(data) >= end:  # without ranges, it sends the whole file
                    break
        return bytes(data[start - begin : end - begin])
