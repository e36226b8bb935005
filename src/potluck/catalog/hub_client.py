"""Asking the hub, with patience where it says to wait, and what its errors mean.

All requests go through huggingface_hub: its session, tokens, mirrors and offline mode, by its own
environment variables.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, TypeVar

from potluck.cache_folder import hub_cache_folder
from potluck.catalog.hub_cache import COMMIT, RepositoryFile, Snapshot
from potluck.errors import ModelFileError, ModelNotFoundError

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

_T = TypeVar("_T")

_LISTING_SECONDS = 10.0
"""As huggingface_hub's own timeout for files; it has none for listings."""

_PARTIAL_CONTENT = 206
_BUSY_STATUSES = frozenset({429, 500, 502, 503, 504})
_PAUSE_SECONDS = (1.0, 2.0, 4.0)
"""Between tries, where the hub does not say how long to wait."""
_MOST_SECONDS = 60.0
"""To be told to wait longer is an error: a person may rather have a token, or come back later."""

_DISK_ERRORS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}
)


def patiently(ask: Callable[[], _T]) -> _T:
    """What ``ask`` returns, asked again while the hub is busy; then its error is passed on."""
    from huggingface_hub.errors import HfHubHTTPError

    for pause in _PAUSE_SECONDS:
        try:
            return ask()
        except HfHubHTTPError as error:
            seconds = seconds_to_wait(error, pause)
            if seconds is None:
                raise
            time.sleep(seconds)
    return ask()


def seconds_to_wait(error: HfHubHTTPError, otherwise: float) -> float | None:
    """How long to wait before asking again, or None where that is of no use.

    ``Retry-After`` is taken in seconds (RFC 9110, 10.2.3); of a date ``otherwise`` is made.
    """
    if error.response.status_code not in _BUSY_STATUSES:
        return None
    asked = error.response.headers.get("Retry-After", "")
    seconds = float(asked) if asked.isdecimal() else otherwise
    return seconds if seconds <= _MOST_SECONDS else None


def list_repository(repo_id: str, revision: str) -> Snapshot:
    """A repository's files at a revision. Raises huggingface_hub's errors."""
    from huggingface_hub import HfApi

    info = patiently(
        lambda: HfApi().model_info(
            repo_id, revision=revision, files_metadata=True, timeout=_LISTING_SECONDS
        )
    )
    if info.sha is None or not COMMIT.fullmatch(info.sha):
        raise ModelNotFoundError(
            f"the hub does not say which commit of {repo_id} it has",
            hint="HF_ENDPOINT must be a hub, or a mirror that speaks as one",
        )
    files = {}
    for sibling in info.siblings or []:
        name = PurePosixPath(sibling.rfilename)
        if name.is_absolute() or ".." in name.parts or "\0" in sibling.rfilename:
            raise ModelFileError(repo_id, f"a file named {sibling.rfilename!r}")
        files[sibling.rfilename] = RepositoryFile(
            size=sibling.size,
            sha256=None if sibling.lfs is None else sibling.lfs.sha256,
            git_id=None if sibling.lfs is not None else sibling.blob_id,
        )
    return Snapshot(repo_id=repo_id, commit=info.sha, files=files)


@contextmanager
def streamed(
    snapshot: Snapshot, name: str, start: int = 0, end: int | None = None
) -> Iterator[tuple[int, Iterator[bytes]]]:
    """A file's bytes from ``start`` on, up to ``end``: where they begin, and the bytes in pieces.

    They begin at 0 where the server has no ranges. Raises huggingface_hub's errors.
    """
    from huggingface_hub import constants, get_session, hf_hub_url, hf_raise_for_status
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    headers: dict[str, str] = {**build_hf_headers(), "Accept-Encoding": "identity"}
    if start or end is not None:
        headers["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
    # The session does not send the token on to another host that the hub redirects to.
    with get_session().stream(
        "GET",
        hf_hub_url(snapshot.repo_id, name, revision=snapshot.commit),
        headers=headers,
        timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
    ) as response:
        hf_raise_for_status(response)
        begin = 0
        if response.status_code == _PARTIAL_CONTENT:
            sent = response.headers.get("Content-Range", "")
            if not sent.startswith(f"bytes {start}-"):
                raise ModelFileError(
                    f"{snapshot.repo_id}:{name}",
                    f"bytes from {start} on were asked for, and the hub sends {sent or 'others'}",
                    hint="the hub, or the mirror (HF_ENDPOINT), is at fault",
                )
            begin = start
        # Pieces as they come: of larger ones, the last would be lost when the connection breaks.
        yield begin, response.iter_bytes()


def is_out_of_reach(error: Exception) -> bool:
    """Whether the hub did not answer, or not as a hub that works does."""
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in _BUSY_STATUSES
    return True


@contextmanager
def hub_errors_explained(name: str) -> Iterator[None]:
    """Raise Potluck's errors for those of huggingface_hub and of the disk."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise ModelNotFoundError(
            f"{name} is gated on the hub",
            hint="accept its terms on the hub's page, then set HF_TOKEN",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelNotFoundError(
            f"the hub has no model {name} that you may read",
            hint="check the name; for a private model set HF_TOKEN",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelNotFoundError(
            f"the hub has no such revision: {name}", hint="give a branch, a tag or a commit"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise _out_of_reach(name, str(error)) from error
    except errors.EntryNotFoundError as error:
        raise file_not_found(name) from error
    except errors.HFValidationError as error:
        raise ModelNotFoundError(f"{name} is not a hub id", hint="hub ids are org/name") from error
    except errors.HfHubHTTPError as error:
        raise _refused(name, error) from error
    except errors.HTTPError as error:  # type: ignore[attr-defined]
        raise _out_of_reach(name, str(error) or type(error).__name__) from error
    except OSError as error:
        if error.errno in _DISK_ERRORS:
            raise not_written(error) from error
        raise _out_of_reach(name, str(error) or type(error).__name__) from error


def file_not_found(name: str) -> ModelNotFoundError:
    """The repository is there, and the file is not."""
    return ModelNotFoundError(
        f"the hub has no file {name}", hint="list the repository's files on the hub's page"
    )


def not_written(error: OSError) -> ModelFileError:
    """The disk took no more."""
    return ModelFileError(
        str(error.filename or hub_cache_folder()),
        f"cannot be written: {error.strerror}",
        hint="make room there, or set HF_HOME to another disk; what is fetched already is kept",
    )


def _refused(name: str, error: HfHubHTTPError) -> ModelNotFoundError:
    status = error.response.status_code
    if status == 429:
        after = error.response.headers.get("Retry-After")
        return ModelNotFoundError(
            f"{name}: the hub takes no more requests from here for now",
            hint=(f"try again in {after} s; " if after else "try again later; ")
            + "HF_TOKEN raises the limit",
        )
    if status in (401, 403):
        return ModelNotFoundError(
            f"{name} may not be read with this token ({status})", hint="check HF_TOKEN"
        )
    return _out_of_reach(name, f"the hub answered {status} {error.response.reason_phrase}")


def _out_of_reach(name: str, reason: str) -> ModelNotFoundError:
    return ModelNotFoundError(
        f"{name} is not on this disk and could not be fetched: {reason.strip().splitlines()[0]}",
        hint="check the network (HF_ENDPOINT, HF_HUB_OFFLINE), or copy the model's directory here",
    )
