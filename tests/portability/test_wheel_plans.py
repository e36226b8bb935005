"""Planned sets, installed by pip and imported in the roots that stand for their hosts."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.portability.roots import require_root
from wheel_plans import DEBIAN_12, DEBIAN_12_ARM, DEBIAN_13, Case, Place, run_case

from potluck.errors import WheelDownloadError
from potluck.portability.hosts.library_file import read_library_file
from potluck.portability.linking.stable_abi import new_python_symbols

pytestmark = pytest.mark.timeout(300)  # the first test of a root unpacks its packages

CASES = (
    Case(
        name="eclipse-zenoh",
        requirements=("eclipse-zenoh", "msgspec", "pyyaml"),
        modules=("zenoh", "msgspec", "yaml"),
        places=(DEBIAN_12, DEBIAN_12_ARM, DEBIAN_13),
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_planned_set_loads(case: Case, tmp_path: Path) -> None:
    for place in case.places:
        require_root(place.root)
    try:
        document = run_case(case, (), tmp_path)
    except WheelDownloadError as error:
        pytest.skip(f"not shown: {error.message}")
    assert document["has_shared"]
    assert {each["host"] for each in document["sets"]} == {each.host for each in case.places}
    for each in document["sets"]:
        assert each["is_loaded"], each
        assert not each["import_failures"], each


@pytest.mark.parametrize("place", [DEBIAN_12, DEBIAN_13], ids=lambda place: place.root)
def test_new_functions_of_python_are_where_they_are_said_to_be(place: Place) -> None:
    version = ".".join(map(str, place.python))
    program = require_root(place.root).path / "usr/bin" / f"python{version}"
    defined = read_library_file(program.read_bytes()).defined
    assert defined is not None
    names = {each.name for each in defined}
    for name, added in new_python_symbols().items():
        assert (name in names) == (added <= place.python), name
