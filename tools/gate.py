"""Run the tests that gate a change: every group even if one fails, then failed tests once more.

A test that fails and then passes in a new process, with nothing beside it, is reported as FLAKY.
More than ``MOST_FLAKY`` of them fail the run, and so do a test that fails twice and a group that
did not run to its end. ``build/gate/report.json`` has the same as the last lines of the output.

    python tools/gate.py [GROUP…]          what ``make test`` runs
    python tools/gate.py --all [GROUP…]    what ``make test-all`` runs
    python tools/gate.py quick             what ``make quick`` runs
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build" / "gate"
MOST_FLAKY = 3
NUM_SLOWEST = 10
NUM_CORES = len(os.sched_getaffinity(0))

BUILDING_WHEELS = tuple(
    f"tests/portability/test_{name}.py"
    for name in ("newcomers", "own_wheels", "run_demo", "wheel_build")
)
"""Tests that compile wheels, which takes minutes."""

CLUSTER = tuple(
    f"tests/cluster/{name}"
    for name in (
        "membership/test_joining.py::test_members_with_certificates_of_one_authority_join_and_call",
        "membership/test_joining.py::test_another_wire_version_is_reported_on_both_sides",
        "membership/test_lost_links.py::test_one_cut_link_parts_only_the_two",
        "membership/test_moving.py",
        "test_cluster_commands.py",
        "test_demo_tool.py::test_the_demo_answers_over_three_agents",
        "test_deployments.py::test_a_node_that_goes_down_lets_streams_finish",
        "test_deployments.py::test_what_does_not_fit_is_said_and_leaves_nothing",
        "test_drafts.py::test_a_stage_that_is_killed_while_it_verifies_changes_nothing",
        "test_faulty_units.py::test_a_unit_that_fails_in_a_step",
        "test_groups.py::test_a_group_computes_the_bits_of_one_unit[three]",
        "test_groups.py::test_what_is_left_of_a_group_goes_on_without_a_lost_node",
        "test_identical_text.py::test_the_text_does_not_depend_on_how_many_agents_compute_it[3]",
        "test_invitations.py::test_a_machine_without_the_secret_joins_serves_and_starts_again",
        "test_killed_processes.py::test_the_gateway_of_a_stream",
        "test_one_port.py::test_a_node_that_can_only_dial_out_takes_part[0]",
        "test_page.py::test_a_model_is_deployed_watched_loses_a_machine_and_is_undeployed",
        "test_prefix_cache.py::test_a_prefix_is_computed_once_for_clients_of_all_agents[2]",
        "test_recovery.py::test_a_worker_is_killed_and_all_streams_go_on",
        "test_recovery.py::test_an_agent_is_killed_and_streams_at_other_gateways_go_on",
        "test_recovery.py::test_requests_sent_during_a_recovery_wait_and_are_answered",
        "test_refused_nodes.py::test_another_secret_or_none_is_refused_with_a_hint",
        "test_requests_that_wait.py",
        "test_serve_command.py::test_the_address_comes_when_the_model_is_ready_and_ctrl_c_ends_all",
        "test_serve_command.py::test_down_hands_the_model_over",
        "test_weights_from_peers.py::test_a_model_that_one_of_three_nodes_has[model.gguf]",
        "test_weights_from_the_hub.py::test_each_byte_crosses_the_uplink_once",
    )
)
"""Join, deploy, serve, each kind of loss, leave, refuse; ``--all`` runs the whole tier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Tests that run in one process of pytest, or in several if ``spread`` is given."""

    name: str
    paths: tuple[str, ...]
    options: tuple[str, ...] = ()
    spread: str = ""
    """How pytest-xdist distributes the tests over the processes."""
    num_processes: int = 2 * NUM_CORES  # many tests wait: for processes, deadlines and links
    environment: dict[str, str] = field(default_factory=dict)

    def run(self) -> int:
        """Run all tests of the group, and return pytest's exit code."""
        spread = ("-n", str(self.num_processes), "--dist", self.spread) if self.spread else ()
        return self._pytest(*spread, *self.paths)

    def run_failed(self) -> int:
        """Run the tests that failed, in one new process, and return pytest's exit code."""
        return self._pytest(*self.failed())

    def failed(self) -> list[str]:
        """Return the ids of the tests that failed when the group last ran."""
        record = self._cache / "v" / "cache" / "lastfailed"
        return sorted(json.loads(record.read_text("utf-8"))) if record.exists() else []

    def seconds_of_tests(self) -> list[tuple[float, str]]:
        """Return how long each test took in the first run."""
        lines = (line for path in self._durations.iterdir() for line in path.open())
        return [(float(line.split()[0]), line.split(maxsplit=2)[2].strip()) for line in lines]

    def clear(self) -> None:
        """Forget earlier runs."""
        shutil.rmtree(self._cache, ignore_errors=True)
        shutil.rmtree(self._durations, ignore_errors=True)
        self._durations.mkdir(parents=True)

    @property
    def _cache(self) -> Path:
        return WORK / self.name

    @property
    def _durations(self) -> Path:
        return WORK / f"{self.name}-durations"

    def _pytest(self, *arguments: str) -> int:
        always = ("-q", f"--rootdir={ROOT}", "-o", f"cache_dir={self._cache}")
        command = (sys.executable, "-m", "pytest", *always, *self.options, *arguments)
        environment = {**os.environ, **self.environment, "TEST_DURATIONS": str(self._durations)}
        return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Processes that compute with NumPy and torch share the cores with one another."""

NOT_ON_RECORD = ("--leave-out-recorded",)
"""Modules whose tests would all be skipped are not imported (``tests/support/recorded``)."""

DETERMINISTIC = Group(
    name="deterministic",
    paths=("tests/unit", "tests/property", "tests/simulation", "tests/kernel", "tests/parity"),
    options=NOT_ON_RECORD,
    spread="worksteal",
    environment=ONE_THREAD,
)
INTEGRATION = Group(
    name="integration",
    paths=("tests/clients", "tests/integration"),
    options=NOT_ON_RECORD,
    spread="loadfile",
)
PAGE = Group(name="page", paths=("tests/page",), spread="loadfile")
PROCESSES = Group(
    name="processes",
    # Modules run in this order, those that take longest first.
    paths=(*PAGE.paths, *INTEGRATION.paths),
    options=(*NOT_ON_RECORD, "--no-loadscope-reorder"),
    spread="loadfile",
)

GATE = (
    DETERMINISTIC,
    Group(
        name="portability",
        paths=("tests/portability",),
        options=(*NOT_ON_RECORD, *(f"--ignore={path}" for path in BUILDING_WHEELS)),
        spread="loadfile",
    ),
    PROCESSES,
    Group(name="cluster", paths=CLUSTER, spread="loadfile", num_processes=NUM_CORES + 1),
)

EVERYTHING = tuple(
    dataclasses.replace(group, options=(*group.options, "--exhaustive"))
    for group in (
        DETERMINISTIC,
        Group(
            name="portability",
            paths=("tests/portability",),
            options=(*NOT_ON_RECORD, "--timeout=3000"),
        ),
        INTEGRATION,
        PAGE,
        Group(name="cluster", paths=("tests/cluster",)),
        Group(name="timing", paths=("tests",), options=("--timing",)),
    )
)

QUICK = Group(
    name="quick",
    paths=("tests/unit", "tests/property"),
    options=("-m", "not slow"),
    spread="worksteal",
    environment=ONE_THREAD,
)


def run(groups: Sequence[Group]) -> int:
    """Run the groups; return 0 if each ran to its end, nothing failed twice and few are flaky."""
    seconds_of_tests: list[tuple[float, str]] = []
    rows: list[dict[str, object]] = []
    broken: list[str] = []
    failed: list[Group] = []
    for group in groups:
        group.clear()
        started = time.monotonic()
        code = group.run()
        seconds = round(time.monotonic() - started, 1)
        of_group = group.seconds_of_tests()
        seconds_of_tests += of_group
        row = {"name": group.name, "exit": code, "tests": len(of_group), "seconds": seconds}
        rows.append(row)
        print(f"{group.name}: exit {code} after {seconds:.0f} s, {len(of_group)} tests", flush=True)
        if group.failed():
            failed.append(group)
        if code != (pytest.ExitCode.TESTS_FAILED if group.failed() else pytest.ExitCode.OK):
            broken.append(f"{group.name}: pytest ended with exit code {code}")
    flaky: list[str] = []
    wrong: list[str] = []
    for group in failed:
        before = group.failed()
        group.run_failed()
        after = group.failed()
        wrong += after
        flaky += [name for name in before if name not in after]
    print(f"The {NUM_SLOWEST} slowest tests, with their fixtures:")
    for seconds, name in sorted(seconds_of_tests, reverse=True)[:NUM_SLOWEST]:
        print(f"{seconds:8.1f} s  {name}")
    for name in flaky:
        print(f"FLAKY {name}")
    for name in wrong:
        print(f"FAILED TWICE {name}")
    for reason in broken:
        print(f"FAILED {reason}")
    print(f"{len(wrong) + len(broken)} failed, {len(flaky)} flaky")
    report = {"groups": rows, "flaky": flaky, "failed": [*wrong, *broken]}
    (WORK / "report.json").write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    return 1 if wrong or broken or len(flaky) > MOST_FLAKY else 0


def main() -> int:
    """Run the groups that are named, or all; return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", action="store_true", help="every test there is")
    parser.add_argument("groups", nargs="*", metavar="GROUP")
    arguments = parser.parse_args()
    groups = EVERYTHING if arguments.all else GATE
    named = [each for each in (*groups, QUICK) if each.name in arguments.groups]
    if unknown := set(arguments.groups) - {group.name for group in named}:
        parser.error(f"unknown group {', '.join(sorted(unknown))}")
    return run(named or groups)


if __name__ == "__main__":
    sys.exit(main())
