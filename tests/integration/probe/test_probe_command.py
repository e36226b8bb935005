"""``potluck probe`` as its users meet it, on this machine and where it lets a process have little.

Whatever is missing, there is a CPU in the report, a reason beside what does not work, and exit
code 0.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.kernels.build import require_tool
from support.machines.icds import build_icd
from support.processes.command import COMMAND, run_command
from support.processes.confinement import as_user, control_group, covered, inside, limited
from support.processes.environment import environment
from support.processes.hidden_modules import REASON, hide_core
from support.processes.waiting import done_within, eventually
from support.schemas import validate_document

from potluck.cli.options import seconds_to_wait
from potluck.probe.all_detectors import DETECTORS

MIB = 2**20
FIGURES = (
    "read_bytes_per_second",
    "f32_operations_per_second",
    "f16_operations_per_second",
    "int8_operations_per_second",
)
HOME_AND_CACHE = ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME")

Document = dict[str, Any]


def run_probe(
    *arguments: str,
    prefix: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    cache: Path | None = None,
) -> str:
    """What ``potluck probe`` says; it must succeed and say nothing else."""
    env = environment() if env is None else env
    completed = subprocess.run(
        [*prefix, *COMMAND, "probe", "--wait", *arguments],  # however busy this machine is
        env=env if cache is None else {**env, "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (completed.returncode, completed.stderr) == (0, "")
    return completed.stdout


def probe(*arguments: str, **how: Any) -> Document:
    """Its document, which is valid and has a CPU."""
    document: Document = json.loads(run_probe(*arguments, "--json", **how))
    validate_document(document)
    assert document["is_complete"]
    assert document["detectors"][0]["devices"][0]["device_id"] == "cpu"
    return document


def cpu_trial(document: Document) -> Document:
    trial: Document = document["trials"][0]
    assert (trial["device_id"], trial["backend"]) == ("cpu", "native")
    return trial


def figures(document: Document) -> list[float | None]:
    return [cpu_trial(document)["figures"][name]["value"] for name in FIGURES]


def works(document: Document) -> list[str]:
    """The units that do."""
    return [unit["unit_id"] for unit in document["units"] if unit["role"] != "out"]


def is_sound(document: Document) -> bool:
    """Whether it is of a machine whose CPU works."""
    return "cpu/native" in works(document) and cpu_trial(document)["reason"] == ""


def memory_line(table: str) -> str:
    """What of the memory may be used, and why not more."""
    (line,) = (line for line in table.splitlines() if " usable: " in line)
    return line.strip()


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Document]]:
    """A cache, and what two said who measured at once with it empty."""
    cache = tmp_path_factory.mktemp("measured")
    with ThreadPoolExecutor() as pool:
        both = [pool.submit(probe, "--measure", cache=cache) for _ in range(2)]
        return cache, [one.result() for one in both]


def test_the_table_names_the_machine_and_what_works() -> None:
    table = run_probe()
    node = os.uname()
    assert table.startswith(f"node    {node.nodename}, Linux {node.release}")
    assert re.search(r"^cores   \d+ of \d+ usable", table, re.MULTILINE)
    assert re.search(r"^cpu: .+ \(CPU\)$", table, re.MULTILINE)
    assert re.search(r"^  native +works: scalar", table, re.MULTILINE)
    assert re.search(r"^cpu/native +serves", table, re.MULTILINE)


def test_what_is_measured_is_shown_now_and_later(measured: tuple[Path, list[Document]]) -> None:
    cache, (one, other) = measured
    assert is_sound(one)
    assert all(value is not None and value > 1e8 for value in figures(one))
    assert cpu_trial(one)["rates"] == cpu_trial(other)["rates"]
    assert figures(one) == figures(other)  # one has measured, and the other waited for it
    origins = {cpu_trial(one)["figures"][name]["origin"] for name in FIGURES}
    assert origins == {"measured"}
    assert figures(probe(cache=cache)) == figures(one)
    assert re.search(
        r"^  native +works: scalar.*; [\d.e+]+ tokens/s decode; [\d.e+]+ tokens/s prefill$",
        run_probe(cache=cache),
        re.MULTILINE,
    )
    shown = re.findall(
        r"^  (reads|f32|16 bit|int8) +([\d.]+) ([MGT])(?:B|FLOP|OP)/s +measured  \S",
        run_probe(cache=cache),
        re.MULTILINE,
    )
    assert [name for name, _, _ in shown] == ["reads", "f32", "16 bit", "int8"]
    scales = {"M": 1e6, "G": 1e9, "T": 1e12}
    for (_, value, scale), figure in zip(shown, figures(one), strict=True):
        assert float(value) * scales[scale] == pytest.approx(figure, rel=0.01)
    # With other threads they would be others.
    assert figures(probe("--threads", "3", cache=cache)) == [None] * 4


@pytest.mark.parametrize("command", ["probe", "up"])
def test_a_backend_that_does_not_exist(command: str) -> None:
    completed = run_command(command, "--backend", "tinygrad:ABACUS")
    assert completed.returncode == 2
    error, hint = completed.stderr.splitlines()
    assert error.endswith("unknown backend tinygrad:ABACUS")
    assert hint.startswith("hint: known backends: native, tinygrad:CUDA, ")


def test_a_backend_that_works_nowhere_here(tmp_path: Path) -> None:
    """As what a GPU needs that is not here; shown by one command, refused by the other."""
    env = {"POTLUCK_BACKEND": "tinygrad:QCOM", "XDG_CACHE_HOME": str(tmp_path)}
    document = probe(env=environment(**env))
    (unit,) = document["units"]
    assert (unit["unit_id"], unit["role"]) == ("cpu/native", "idle")
    assert unit["reason"] == "tinygrad:QCOM was requested, but does not work here"
    completed = run_command("up", "--state", str(tmp_path / "state"), env=env)
    assert completed.returncode == 2
    error, hint = completed.stderr.splitlines()
    assert error.endswith(
        "tinygrad:QCOM does not work on any device of this machine: there is no device that it "
        "supports"
    )
    assert hint == "hint: these work here: cpu/native; potluck probe shows details"


def test_retry_tests_again_and_keeps_the_figures(measured: tuple[Path, list[Document]]) -> None:
    cache, (one, _) = measured
    again = probe("--retry", cache=cache)
    assert is_sound(again)
    assert figures(again) == figures(one)


def test_a_quarantined_cpu_is_said_to_be_until_a_retry(
    tmp_path: Path, measured: tuple[Path, list[Document]]
) -> None:
    """As after a self-test that crashed: written by hand into what the command itself wrote."""
    file = tmp_path / "potluck/probe.json"
    file.parent.mkdir()
    kept = json.loads((measured[0] / "potluck/probe.json").read_text())
    (key,) = (key for key in kept["entries"] if key.startswith("trial/native/cpu"))
    entry = kept["entries"].pop(key)
    entry["value"] = {"failure": "crashed", "reason": "was killed by SIGILL"}
    kept["entries"][f"quarantine/{key}"] = entry
    file.write_text(json.dumps(kept))
    document = probe(cache=tmp_path)
    assert works(document) == []
    assert cpu_trial(document)["reason"] == (
        "not tried again: was killed by SIGILL (retry with potluck probe --retry)"
    )
    assert is_sound(probe("--retry", cache=tmp_path))
    assert is_sound(probe(cache=tmp_path))


@pytest.mark.parametrize("rubbish", [b"\0\xff{", b"[" * 300_000])
def test_a_cache_that_makes_no_sense_is_written_anew(tmp_path: Path, rubbish: bytes) -> None:
    file = tmp_path / "potluck/probe.json"
    file.parent.mkdir()
    file.write_bytes(rubbish)
    assert is_sound(probe(cache=tmp_path))
    assert json.loads(file.read_bytes())["entries"]


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    assert is_sound(probe(prefix=covered(tmp_path, "ro"), cache=tmp_path))
    (tmp_path / "file").touch()
    assert is_sound(probe(cache=tmp_path / "file"))


def test_an_ordinary_user() -> None:
    document = probe(prefix=as_user())
    assert is_sound(document)
    assert document["detectors"][0]["problems"] == []


def test_a_user_without_a_home_or_a_name() -> None:
    env = {name: value for name, value in environment().items() if name not in HOME_AND_CACHE}
    assert is_sound(probe(prefix=as_user(54321), env=env))


@pytest.mark.parametrize("user", ["root", "nobody"])
def test_without_sys(user: str) -> None:
    mode = "555" if user == "root" else "000"
    prefix = covered("/sys", f"mode={mode}")
    document = probe(prefix=(*prefix, *(as_user() if user == "nobody" else ())))
    assert is_sound(document)
    assert [detector["devices"] for detector in document["detectors"][1:]] == [[]] * len(DETECTORS)


def test_without_proc() -> None:
    document = probe(prefix=covered("/proc", "mode=555"))
    assert document["memory"]["usable"] == {
        "bytes": 0,
        "reason": "/proc/meminfo cannot be read: is /proc mounted?",
    }
    assert is_sound(document)


def test_one_core() -> None:
    core = str(min(os.sched_getaffinity(0)))
    document = probe(prefix=(require_tool("taskset"), "-c", core))
    cpu = document["cpu"]
    assert cpu["num_usable_cores"] == 1
    assert cpu["usable_reason"] == ("all" if cpu["num_cores"] == 1 else "affinity")
    assert is_sound(document)


def test_the_limit_of_a_control_group_is_in_the_table() -> None:
    root = Path(f"/sys/fs/cgroup/memory/potluck-command-{os.getpid()}")
    with control_group(root, {"memory.limit_in_bytes": str(300 * MIB)}):
        table = run_probe(prefix=inside(root))
    line = memory_line(table)
    assert line.endswith(f" MiB usable: the control group's limit in {root}")
    assert 150 < float(line.split()[0]) < 300
    assert re.search(r"^  native +works: ", table, re.MULTILINE)


def test_a_limit_of_the_address_space_is_in_the_table() -> None:
    table = run_probe("--retry", prefix=limited("-v", 3_000_000))
    line = memory_line(table)
    assert line.endswith(" GiB usable: the address space limit (ulimit -v)")
    assert 2 < float(line.split()[0]) < 3_000_000 / 2**20
    assert re.search(r"^  native +works: ", table, re.MULTILINE)


def test_a_limit_that_is_too_low_for_the_self_test_costs_the_unit_only(tmp_path: Path) -> None:
    # Too low also for a heap that malloc makes for a thread, of 64 MiB of address space: trying one
    # takes that much for a moment, in which another thread may get nothing.
    document = probe(prefix=limited("-v", 110_000), cache=tmp_path)
    assert works(document) == []
    assert cpu_trial(document)["reason"]


def test_a_user_who_may_start_nothing(tmp_path: Path) -> None:
    """Neither threads nor children: the process itself is all that this user has."""
    prefix = (*as_user(54322), require_tool("prlimit"), "--nproc=1")
    document = probe(prefix=prefix, cache=tmp_path)
    assert works(document) == []
    assert cpu_trial(document)["reason"].startswith("cannot be started: ")
    for detector in document["detectors"][1:]:
        assert detector["problems"] == ["was not examined: can't start new thread"]


def test_the_users_own_limit() -> None:
    assert memory_line(run_probe("--memory-limit", "1G")) == "1 GiB usable: --memory-limit"
    usable = probe("--memory-limit", "1000T")["memory"]["usable"]
    assert usable["reason"] != "--memory-limit"


def test_stdout_that_is_closed() -> None:
    assert run_probe(prefix=("sh", "-c", 'exec "$@" >&-', "sh")) == ""


def test_a_reader_that_has_gone() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        completed = subprocess.run(
            [*COMMAND, "probe"],
            env=environment(),
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writing)
    assert (completed.returncode, completed.stderr) == (1, b"")


def test_without_the_core(tmp_path: Path) -> None:
    site = hide_core(tmp_path / "site")
    path = os.pathsep.join([site, *filter(None, [os.environ.get("PYTHONPATH")])])
    env = environment(PYTHONPATH=path, XDG_CACHE_HOME=str(tmp_path / "cache"))
    document = probe(env=env)
    assert works(document) == []
    assert cpu_trial(document) == {**cpu_trial(document), "works": False, "reason": REASON}
    table = run_probe(env=env)
    assert re.search(rf"^  native +does not work: {re.escape(REASON)}$", table, re.MULTILINE)


HEAVY = ("numpy", "zenoh", "pynvml", "pyudev", "potluck.kernels", "starlette", "cryptography")
SMALLEST_COMMAND = (
    sys.executable,
    "-c",
    "import importlib.metadata, subprocess, msgspec, typer.main",
)
"""A process that imports the libraries that every command needs, and does nothing."""
BUDGET = 4.0
"""The processor time of such a probe in times that of the smallest command: measured are 2.9. One
self-test or one heavy library adds 2 and more."""
DISTURBED = 3.0
"""How much longer it may take by the clock, where other things run on this machine."""


@pytest.mark.timing
def test_a_probe_that_knows_everything_takes_a_moment() -> None:
    """Compared with another process on the same CPU, at the same time: CPUs differ widely."""
    run_probe()
    pairs = [(_seconds(*SMALLEST_COMMAND), _seconds(*COMMAND, "probe", "--wait")) for _ in range(5)]
    smallest, probed = zip(*pairs, strict=True)
    of_processors = min(seconds for seconds, _ in probed)
    assert of_processors < BUDGET * min(seconds for seconds, _ in smallest)
    by_clock = min(seconds for _, seconds in probed)
    assert by_clock < BUDGET * DISTURBED * min(seconds for _, seconds in smallest)


def _seconds(*command: str) -> tuple[float, float]:
    """The processor time that a command takes, and its time by the clock."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, env=environment(), capture_output=True, timeout=120, check=True)
    by_clock = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, by_clock


def test_a_probe_that_knows_everything_imports_nothing_heavy() -> None:
    code = f"""
import sys
from potluck.cli.main import main
try:
    main(["probe"])
finally:
    print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""
    run_probe()
    completed = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (completed.returncode, completed.stderr) == (0, "[]\n")


def test_a_driver_that_hangs_is_named_and_not_waited_for(tmp_path: Path) -> None:
    """Nor is its process left behind."""
    build_icd("gpu", tmp_path)
    build_icd("hangs-at-load", tmp_path)
    env = {**environment(), "OCL_ICD_VENDORS": str(tmp_path)}
    with done_within(3.5):  # 5 s and some, where it would take 16 s
        completed = subprocess.run(
            [*COMMAND, "probe", "--json"], env=env, capture_output=True, text=True, check=False
        )
    assert (completed.returncode, completed.stderr) == (0, "")
    document = json.loads(completed.stdout)
    validate_document(document)
    (opencl,) = (detector for detector in document["detectors"] if detector["is_pending"])
    assert opencl["detector"] == "opencl"
    assert re.fullmatch(r"has not responded after \d s", opencl["problems"][-1])
    eventually(
        lambda: not any(b"hangs-at-load" in line for line in _command_lines()),
        within=5,
        what="the driver's process ends",
    )


def _command_lines() -> list[bytes]:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(path.read_bytes())
    return lines


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGTERM", "SIGKILL", "SIGSTOP"])
def test_a_driver_that_signals_its_parent_costs_a_line_at_most(name: str, tmp_path: Path) -> None:
    number = int(signal.Signals[name])
    icd = build_icd("signals-at-load", tmp_path, load=str(number))
    document = probe(env={**environment(), "OCL_ICD_VENDORS": str(icd)})
    (opencl,) = (detector for detector in document["detectors"] if detector["detector"] == "opencl")
    if name == "SIGKILL":
        assert opencl["problems"] == [f"{icd}: killed its supervisor with SIGKILL"]
    else:
        assert [device["device_id"] for device in opencl["devices"]] == ["opencl-signals-at-load-0"]


def test_the_time_of_a_command_begins_with_its_process() -> None:
    """A pytest that has run for a while has none left."""
    code = "from potluck.cli.options import seconds_to_wait; print(seconds_to_wait())"
    shell = ["sh", "-c", 'sleep 1; exec "$@"', "sh", sys.executable, "-c", code]
    done = subprocess.run(shell, capture_output=True, text=True, check=True)
    assert 0 <= float(done.stdout) < 4.05
    assert 0 <= seconds_to_wait() < 5
