"""A CPU that announces AMX on which it does not work: the next best is used, and a line says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from support.kernels.emulated_core import (
    DEFECT_VARIABLE,
    DEFECTS,
    install_emulated_core,
    skip_unless_played,
)
from support.kernels.instruction_sets import IS_AMX_TESTED
from support.processes.command import assert_refused, run_command

TRIAL_WITHOUT_EXIT_STATUS = """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
from potluck import kernels
print(kernels.isa_problem("amx"))
"""

RUN = ("run", "demo", "-p", "Once upon a time", "-n", "3", "--temperature", "0")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    if not IS_AMX_TESTED:
        skip_unless_played("none")
    return {
        **install_emulated_core(tmp_path_factory.mktemp("emulated")),
        "POTLUCK_THREADS": "1",  # emulated, one is not waited for by another that spins
    }


@pytest.fixture(scope="module")
def expected(environment: dict[str, str]) -> str:
    """What the next best tells."""
    completed = run_command(*RUN, env={**environment, "POTLUCK_ISA": "avx512_bf16"})
    assert completed.returncode == 0, completed.stderr
    assert "amx" not in completed.stderr
    return completed.stdout


def native_trial(environment: dict[str, str]) -> dict[str, Any]:
    probed = run_command("probe", "--wait", "--json", env=environment)
    assert probed.returncode == 0, probed.stderr
    trials = json.loads(probed.stdout)["trials"]
    trial: dict[str, Any] = next(trial for trial in trials if trial["backend"] == "native")
    return trial


def test_it_is_the_fastest_where_it_works(environment: dict[str, str]) -> None:
    trial = native_trial(environment)
    assert trial["variants"][-2:] == ["avx512_bf16", "amx"]
    assert trial["reason"] == ""
    completed = run_command("run", "demo", "-p", "x", "-n", "1", env=environment)
    assert completed.returncode == 0, completed.stderr
    assert "amx" not in completed.stderr


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_model_runs_on_the_next_best(
    environment: dict[str, str], expected: str, defect: str
) -> None:
    skip_unless_played(defect)
    completed = run_command(*RUN, env={**environment, DEFECT_VARIABLE: defect})
    assert completed.stdout == expected
    line = "potluck: the instruction set amx does not work here, so avx512_bf16 is used: "
    assert completed.stderr.splitlines()[0] == line + DEFECTS[defect]


@pytest.mark.parametrize(
    ("defect", "problem"),
    [("none", ""), ("wrong", DEFECTS["wrong"]), ("faults", "it ended too early")],
)
def test_a_trial_whose_exit_status_is_lost(
    environment: dict[str, str], defect: str, problem: str
) -> None:
    skip_unless_played(defect)
    tried = subprocess.run(
        [sys.executable, "-c", TRIAL_WITHOUT_EXIT_STATUS],
        env={**os.environ, **environment, DEFECT_VARIABLE: defect},
        capture_output=True,
        text=True,
        check=True,
    )
    assert tried.stdout == problem + "\n"


def test_who_asks_for_it_is_told(environment: dict[str, str]) -> None:
    env = {**environment, DEFECT_VARIABLE: "refused", "POTLUCK_ISA": "amx"}
    refused = run_command(*RUN, env=env)
    message = f"the instruction set 'amx' does not work here: {DEFECTS['refused']}"
    assert_refused(refused, 2, message, "omit it")


@pytest.mark.parametrize("defect", ["wrong", "faults"])
def test_the_probe_says_what_is_wrong(environment: dict[str, str], defect: str) -> None:
    skip_unless_played(defect)
    cache = f"{environment['XDG_CACHE_HOME']}-{defect}"
    trial = native_trial({**environment, DEFECT_VARIABLE: defect, "XDG_CACHE_HOME": cache})
    assert trial["works"] is True, trial["reason"]
    assert trial["variants"] == ["scalar", "avx2", "avx512", "avx512_bf16"]
    reason = "wrong numbers: the q8_0 product[0][0]" if defect == "wrong" else "SIGILL"
    assert trial["reason"].startswith("amx: ")
    assert reason in trial["reason"]
