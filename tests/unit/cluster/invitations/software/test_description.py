"""The program by which a machine without anything installed describes itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.schemas import validate_document

from potluck.cluster.invitations.software.service import description_program
from potluck.host.child_environment import child_environment
from potluck.portability.hosts.document import read_host
from potluck.portability.hosts.installed import describe_host
from potluck.portability.hosts.writing import MAX_DOCUMENT_BYTES, host_document


@pytest.mark.slow
def test_it_needs_the_standard_library_alone_and_says_what_the_probe_does(tmp_path: Path) -> None:
    program = tmp_path / "describe.pyz"
    program.write_bytes(description_program())
    done = subprocess.run(
        # Without site-packages, this Python has nothing installed.
        [sys.executable, "-I", "-S", str(program)],
        capture_output=True,
        check=False,
        env=child_environment(),
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) <= MAX_DOCUMENT_BYTES
    document = json.loads(done.stdout)
    validate_document(document)
    assert document == host_document(describe_host())
    assert read_host(document).machine == describe_host().machine


def test_the_same_modules_make_the_same_program() -> None:
    description_program.cache_clear()
    first = description_program()
    description_program.cache_clear()
    assert description_program() == first
    assert len(first) < 64 << 10
