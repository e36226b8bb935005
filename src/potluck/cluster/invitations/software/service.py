"""Answer an invited machine's requests for software: the installer, the wheels, and their choice.

The invitation server checks the token, and calls this in threads of its own.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import logging
import queue
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from potluck.cluster.invitations.answers import Answer, answer_of
from potluck.cluster.invitations.software.endpoint import Endpoint, python_program
from potluck.cluster.invitations.software.installed_wheel import (
    archive_member,
    folders_with_checkout,
)
from potluck.cluster.invitations.software.local_wheels import LocalWheels
from potluck.cluster.invitations.software.selection import OpenIndex, Software, choose_software
from potluck.errors import HostError, PotluckError
from potluck.portability.checks.needs import default_needs_folder
from potluck.portability.hosts.document import read_host
from potluck.portability.hosts.writing import MAX_DOCUMENT_BYTES
from potluck.portability.planning.pip_index import PipIndex
from potluck.portability.wheels.named_wheels import default_wheels_folder

_log = logging.getLogger(__name__)

_HEARTBEAT_SECONDS = 10.0
"""The installer gives up after minutes of silence, and pip can take longer."""

_MAX_CHOICES = 64
"""The maximum number of cached choices: machines of one kind get the same wheels."""

_PIECE_BYTES = 1 << 18

SendLine = Callable[[dict[str, Any]], None]


_MODULES = (
    "__init__",
    "errors",
    "host/__init__",
    "host/uname",
    "version",
    *(
        f"portability/{name}"
        for name in (
            "__init__",
            "elf/__init__",
            "elf/defined_symbols",
            "elf/dynamic",
            "elf/file",
            "elf/hash_table",
            "elf/image",
            "elf/machines",
            "hosts/__init__",
            "hosts/amd_architectures",
            "hosts/c_library",
            "hosts/host",
            "hosts/installed",
            "hosts/library_file",
            "hosts/root_files",
            "hosts/symbol_set",
            "hosts/writing",
        )
    ),
)
"""The imports of ``portability.hosts.{installed,writing}``; a test runs them."""

_MAIN = """\
import sys

from potluck.errors import PotluckError
from potluck.portability.hosts.installed import describe_host
from potluck.portability.hosts.writing import encoded, host_document

try:
    sys.stdout.buffer.write(encoded(host_document(describe_host())))
except PotluckError as error:
    sys.exit(f"error: {error.message}")
"""


@functools.cache
def description_program() -> bytes:
    """Return the archive. It prints a document of schema ``potluck.host/1``.

    It contains the modules that describe this machine for ``potluck probe``, which only import the
    standard library, so both descriptions are alike.
    """
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in _MODULES:
            source = resources.files("potluck").joinpath(f"{name}.py").read_bytes()
            archive.writestr(archive_member(f"potluck/{name}.py"), source)
        archive.writestr(archive_member("__main__.py"), _MAIN)
    return made.getvalue()


class SoftwareService:
    """The software of this node for any machine that has an invitation. Thread-safe."""

    def __init__(
        self,
        folders: Sequence[Path],
        environ: Mapping[str, str],
        *,
        open_index: OpenIndex = PipIndex,
    ) -> None:
        self._folders = folders_with_checkout(folders)
        self._store = default_wheels_folder(environ)
        self._needs = default_needs_folder(environ)
        self._open_index = open_index
        self._choosing = threading.Lock()
        self._chosen: dict[str, Software] = {}
        self._wheels: dict[str, Path] = {}

    def respond(self, endpoint: Endpoint, method: str, path: str, body: bytes) -> Answer | None:
        """Answer a request for ``path``, which follows the token; None if it is not for
        software.
        """
        if method == "POST" and path == "software":
            return Answer(
                status=200,
                content_type="application/jsonl",
                length=None,
                chunks=self._choice(body),
            )
        if method != "GET":
            return None
        match path:
            case "install.py":
                return _text(installer(endpoint), "text/x-python")
            case "install.sh":
                return _text(shell_installer(endpoint), "text/x-shellscript")
            case "describe.pyz":
                return _data(description_program(), "application/zip")
        match path.split("/"):
            case ["wheels", sha256, offset, _] if offset.isdecimal() and sha256 in self._wheels:
                return _file(self._wheels[sha256], int(offset))
        return None

    def choose(self, body: bytes, send_line: SendLine) -> Software:
        """Return the software for the machine that ``body``, a JSON document, describes.

        ``send_line`` is called before slow operations. Raise ``PotluckError``.
        """
        if len(body) > MAX_DOCUMENT_BYTES:
            raise HostError(f"a description of {len(body)} bytes is too long")
        try:
            document = msgspec.json.decode(body)
        except msgspec.DecodeError as error:
            raise HostError(f"this is not a description of a host: {error}") from None
        host = read_host(document)
        if self._store is None:
            raise HostError("this node has no home directory in which to store wheels")
        kind = _kind(document)
        with self._choosing:
            chosen = self._chosen.get(kind)
            if chosen is None or not all(each.path.exists() for each in chosen.wheels):
                send_line({"note": f"choosing the software for {host.name}"})
                chosen = choose_software(
                    LocalWheels(host, folders=self._folders, store=self._store, needs=self._needs),
                    self._open_index,
                    store=self._store,
                    needs=self._needs,
                    note=lambda text: send_line({"note": text}),
                )
                while len(self._chosen) >= _MAX_CHOICES:
                    del self._chosen[next(iter(self._chosen))]
                self._chosen[kind] = chosen
            self._wheels.update({each.sha256: each.path for each in chosen.wheels})
            return chosen

    def _choice(self, body: bytes) -> Iterator[bytes]:
        """Yield lines of JSON: notes, and finally the wheels or an error."""
        messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

        def choose() -> None:
            try:
                messages.put(_document(self.choose(body, messages.put)))
            except PotluckError as error:
                messages.put({"error": error.message, "hint": error.hint})
            except Exception as error:  # noqa: BLE001 - the boundary of a thread
                _log.exception("could not choose the software for a machine")
                messages.put({"error": f"internal error on the inviting node: {error!r}"})
            finally:
                messages.put(None)

        threading.Thread(target=choose, name="choose-software", daemon=True).start()
        while True:
            try:
                message = messages.get(timeout=_HEARTBEAT_SECONDS)
            except queue.Empty:
                message = {}
            if message is None:
                return
            yield json.dumps(message).encode() + b"\n"


def installer(endpoint: Endpoint) -> str:
    """Return the installer's program for one invitation."""
    known = {
        "host": endpoint.host,
        "port": endpoint.port,
        "token": endpoint.token,
        "certificate_sha256": endpoint.certificate_sha256,
        "invitation": endpoint.invitation,
    }
    declared, assigned = "ENDPOINT: Dict[str, Any] = {}\n", f"ENDPOINT = {known!r}\n"
    return _script("install.py").replace(declared, assigned, 1)


def shell_installer(endpoint: Endpoint) -> str:
    """Return the script that finds a Python for the installer."""
    return _script("install.sh").replace("@PROGRAM@", python_program(endpoint), 1)


def _script(name: str) -> str:
    return resources.files(__package__).joinpath("scripts", name).read_text("utf-8")


def _document(software: Software) -> dict[str, Any]:
    return {
        "version": software.version,
        "wheels": [
            {
                "project": each.project,
                "name": each.path.name,
                "sha256": each.sha256,
                "bytes": each.num_bytes,
            }
            for each in software.wheels
        ],
    }


def _kind(document: dict[str, Any]) -> str:
    """Return what machines that get the same wheels have in common."""
    known = {**document, "name": "", "origin": ""}
    return hashlib.sha256(msgspec.json.encode(known, order="sorted")).hexdigest()


def _text(text: str, content_type: str) -> Answer:
    return _data(text.encode(), f"{content_type}; charset=utf-8")


def _data(data: bytes, content_type: str) -> Answer:
    return answer_of(200, content_type, data)


def _file(path: Path, offset: int) -> Answer:
    """Return a file from ``offset`` on; if it is removed meanwhile, the connection is aborted."""
    num_bytes = max(path.stat().st_size - offset, 0)

    def chunks() -> Iterator[bytes]:
        with path.open("rb") as file:
            file.seek(offset)
            while piece := file.read(_PIECE_BYTES):
                yield piece

    return Answer(status=200, content_type="application/zip", length=num_bytes, chunks=chunks())
