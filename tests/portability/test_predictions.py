"""What is predicted of a few wheels is what the dynamic linkers of old and new systems do.

``benchmarks/wheel_predictions.py`` does the same with many, and says how.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.kernels.build import not_shown
from support.portability.roots import require_root
from wheel_loads import compare_loads, describe_root
from wheel_trials import WheelTrial, explanations, fetch_wheel, wheel_trials

from potluck.portability.checks.host_check import HostCheck
from potluck.portability.checks.needs import read_needs
from potluck.portability.checks.prepared_wheel import PreparedWheel
from tools.roots.made_once import FOLDER
from tools.roots.package_set import roots
from tools.roots.wheel_site import unzip_wheel

pytestmark = pytest.mark.timeout(300)  # the first test of a root unpacks its packages

TRIALS = tuple(trial for trial in wheel_trials() if trial.is_in_tests)


@pytest.fixture(
    scope="module", params=TRIALS, ids=lambda trial: f"{trial.name}-{trial.version}-{trial.machine}"
)
def wheel(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[PreparedWheel, Path]:
    """A wheel, and the folder that it is unpacked to."""
    trial: WheelTrial = request.param
    try:
        file = fetch_wheel(trial, FOLDER / "wheels")
    except subprocess.CalledProcessError as error:
        not_shown(f"pip cannot fetch {trial.name}: {error.stderr.strip()}")
    folder = tmp_path_factory.mktemp("wheel")
    unzip_wheel(file, folder)
    return PreparedWheel(read_needs(file)), folder


@pytest.mark.parametrize("name", roots())
def test_every_load_is_as_predicted(wheel: tuple[PreparedWheel, Path], name: str) -> None:
    prepared, folder = wheel
    root = require_root(name)
    loads = compare_loads(prepared, folder, root, HostCheck(describe_root(root)))
    assert loads
    known = explanations()
    assert not [
        load
        for load in loads
        if not load.is_as_predicted
        and not any(each.is_of(prepared.needs.file, name, load.file) for each in known)
    ]
