"""The child process that queries package indexes: pip itself, with its session and its settings.

Indexes, mirrors, find-links, proxies, certificates, keyrings and caches are those of ``pip
install``. Requests come as JSON lines on standard input; answers go as JSON lines to what was
standard output, and contents of files to paths that the requests name. The imports below are not
part of a stable API of pip (tested with pip 23.0 and newer, see ADR 0072); nothing else in Potluck
imports them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from optparse import Values
from pathlib import Path
from typing import Any

from pip._internal.commands.index import IndexCommand
from pip._internal.exceptions import PipError
from pip._internal.index.collector import LinkCollector, parse_links
from pip._internal.models.link import Link
from pip._internal.network.session import PipSession
from pip._vendor.requests import RequestException

_CHUNK_BYTES = 1 << 20
_PARTIAL_CONTENT = 206


class _PlanCommand(IndexCommand):  # type: ignore[misc]
    """Answers requests until the end of standard input. Settings are those of ``pip install``."""

    def run(self, options: Values, args: list[str]) -> int:
        with os.fdopen(int(args[0]), "w", encoding="utf-8") as answers:
            session = self.get_default_session(options)
            answerer = _Answerer(session, LinkCollector.create(session, options=options))
            for line in sys.stdin:
                answers.write(json.dumps(answerer.answer(json.loads(line))) + "\n")
                answers.flush()
        return 0


class _Answerer:
    def __init__(self, session: PipSession, collector: LinkCollector) -> None:
        self._session = session
        self._collector = collector

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer, or a description of the failure in ``problem``."""
        try:
            match request["ask"]:
                case "files":
                    return {"files": [_file(each) for each in self._links(request["project"])]}
                case "fetch":
                    return self._fetch(**request["fetch"])
                case "range":
                    return self._fetch_range(**request["range"])
                case _:
                    return {"problem": "unknown request"}
        except (PipError, RequestException, OSError) as error:
            return {"problem": str(error) or type(error).__name__}

    def _links(self, project: str) -> Iterator[Link]:
        sources = self._collector.collect_sources(project, candidates_from_page=self._of_page)
        for source in (*sources.find_links, *sources.index_urls):
            if source is not None:
                yield from source.page_candidates()
                yield from source.file_links()

    def _of_page(self, page: Link) -> Any:
        content = self._collector.fetch_response(page)
        return [] if content is None else list(parse_links(content))

    def _fetch(self, url: str, path: str, most_bytes: int | None) -> dict[str, Any]:
        left = most_bytes
        with self._session.get(url, headers=_headers(), stream=True) as response:
            response.raise_for_status()
            with Path(path).open("xb") as file:
                for chunk in response.iter_content(_CHUNK_BYTES):
                    if left is not None:
                        left -= len(chunk)
                        if left < 0:
                            return {"problem": f"{url} has more than {most_bytes} bytes"}
                    file.write(chunk)
        return {}

    def _fetch_range(self, url: str, start: int, end: int, path: str) -> dict[str, Any]:
        """Download bytes ``[start, end)``, or the last ``-start`` bytes if it is negative."""
        byte_range = f"bytes={start}" if start < 0 else f"bytes={start}-{end - 1}"
        with self._session.get(url, headers=_headers(Range=byte_range), stream=True) as response:
            response.raise_for_status()
            described = response.headers.get("Content-Range", "")
            unit, _, rest = described.partition(" ")
            span, _, total = rest.partition("/")
            first, _, last = span.partition("-")
            numbers = (first, last, total)
            if response.status_code != _PARTIAL_CONTENT or unit != "bytes":
                return {"total": None}
            if not all(each.isdigit() for each in numbers):
                return {"total": None}
            if start >= 0 and (int(first), int(last)) != (start, end - 1):
                return {"problem": f"the index sent {described} instead of {byte_range}"}
            left = int(last) - int(first) + 1
            with Path(path).open("r+b") as file:
                file.seek(int(first))
                for chunk in response.iter_content(_CHUNK_BYTES):
                    left -= len(chunk)
                    if left < 0:
                        break
                    file.write(chunk)
        if left:
            return {"problem": "the index sent a different number of bytes than announced"}
        return {"total": int(total), "first": int(first)}


def _file(link: Link) -> dict[str, Any]:
    metadata = link.metadata_link()
    return {
        "filename": link.filename,
        "url": link.url_without_fragment,
        "sha256": link.hash if link.hash_name == "sha256" else "",
        "requires_python": link.requires_python or "",
        "is_yanked": link.is_yanked,
        "metadata_sha256": None if metadata is None else _sha256(metadata),
    }


def _sha256(link: Link) -> str:
    return (link.hash or "") if link.hash_name == "sha256" else ""


def _headers(**others: str) -> dict[str, str]:
    """Request no compression, and do not store the response in pip's cache."""
    return {"Accept-Encoding": "identity", "Cache-Control": "no-cache, no-store", **others}


def main() -> None:
    """Reserve standard output for answers, since pip logs there."""
    answers = os.dup(1)
    os.dup2(2, 1)
    command = _PlanCommand("install", "Answers the planner's questions.")
    sys.exit(command.main(["--quiet", str(answers)]))


if __name__ == "__main__":
    main()
