"""Headers come from packages that are pinned, and from nothing else."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from tools.wheels.errors import BuildError
from tools.wheels.python_headers import PinnedPackage, fetch, pinned_packages
from tools.wheels.targets import ABIS, MACHINES, PythonAbi


@pytest.mark.parametrize("abi", ABIS, ids=lambda abi: abi.python_tag)
def test_every_machine_has_its_headers(abi: PythonAbi) -> None:
    version = abi.headers
    packages = pinned_packages(version)
    assert len(packages) == len(MACHINES)
    for package, debian in zip(packages, ("amd64", "arm64"), strict=True):
        assert re.fullmatch(r"[0-9a-f]{64}", package.sha256)
        for url in package.urls:
            assert re.search(rf"/libpython{version}-dev_{version}\..*_{debian}\.deb$", url)


def test_another_file_than_the_pinned_one_is_refused(tmp_path: Path) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_bytes(b"right")
    wrong.write_bytes(b"wrong")
    digest = hashlib.sha256(b"right").hexdigest()
    urls = ((tmp_path / "missing").as_uri(), wrong.as_uri())
    with pytest.raises(BuildError, match=r"missing.*SHA-256"):
        fetch(PinnedPackage(urls=urls, sha256=digest))
    assert fetch(PinnedPackage(urls=(*urls, right.as_uri()), sha256=digest)) == b"right"
