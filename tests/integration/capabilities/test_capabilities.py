"""``potluck.device_capabilities()`` on other machines, and on this one where it is hard.

Wherever it is called, it returns in time, with types that its schema allows and a CPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.machines.fake_nvml import build
from support.machines.icds import build_icd, icd_environment
from support.machines.umockdev import call_on_machine
from support.processes.confinement import as_user, covered, limited
from support.processes.environment import environment
from support.processes.hidden_modules import REASON, hide_core
from support.processes.waiting import done_within

import potluck
import potluck.capabilities

SCHEMA = json.loads((Path(potluck.capabilities.__file__).parent / "schema.json").read_text())
NONE = {"fp32": None, "fp16": None, "int8": None}

Document = dict[str, Any]

ASK = """
import json, sys, potluck
print(json.dumps(potluck.device_capabilities(timeout_seconds=30).to_dict()))
"""


def ask(
    script: str = ASK, *, prefix: tuple[str, ...] = (), env: Mapping[str, str] | None = None
) -> Document:
    """What a Python says that runs ``script``; nothing may be on its standard error."""
    completed = subprocess.run(
        [*prefix, sys.executable, "-c", script],
        env=environment() if env is None else env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (completed.returncode, completed.stderr) == (0, "")
    return check(json.loads(completed.stdout))


def check(document: Document) -> Document:
    jsonschema.validate(document, SCHEMA)
    assert document["devices"][0]["device_id"] == "cpu"
    return document


def on_machine(machine: str) -> dict[str, Document]:
    """What is said of the devices that another machine has, by their chips, the CPU left out."""
    document = check(
        json.loads(call_on_machine(machine, "support.machines.played_capabilities:describe"))
    )
    return {each["chip"]: each for each in document["devices"][1:]}


def test_a_board_with_a_mali() -> None:
    devices = on_machine("rk3588-kbase")
    mali, npu = devices["Mali-G610"], devices["Rockchip NPU"]
    # 2 × 64 multiply-adds × 4 cores × 1 GHz, and twice as much in float16.
    assert mali["flops"] == {"fp32": 0.512, "fp16": 1.024, "int8": None}
    assert {name: mali["sources"][name]["origin"] for name in ("fp32", "fp16", "int8")} == {
        "fp32": "derived",
        "fp16": "derived",
        "int8": "unknown",
    }
    # 16237584 KiB, of which 12003180 are free and 524288 for the system.
    assert (mali["memory"], mali["total_memory"]) == (11209, 15857)
    assert npu["flops"] == NONE
    assert npu["reason"] == "Potluck has no backend for it"


def test_a_jetson() -> None:
    (orin,) = on_machine("jetson-orin").values()
    assert orin["model"] == "NVIDIA Jetson AGX Orin Developer Kit"
    assert orin["flops"] == NONE  # there are two of that name, of different speed
    # 64319384 KiB; 60003180 free, less 524288.
    assert (orin["memory"], orin["total_memory"]) == (58084, 62811)


def test_a_machine_with_cards_of_nvidia(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build(tmp_path)))
    devices = on_machine("nvidia-two-cards")
    # 2 × 16384 cores × 2.52 GHz; 2 transfers × 384 bits / 8 × 10.501 GHz.
    assert devices["GeForce RTX 4090"]["flops"] == {
        "fp32": 82.57536,
        "fp16": 165.15072,
        "int8": 660.60288,
    }
    assert devices["GeForce RTX 4090"]["read_bytes_per_second"] == 1008.096e9
    assert devices["GeForce RTX 4090"]["memory"] == 20 * 1024
    assert devices["GeForce RTX 4090"]["total_memory"] == 24 * 1024
    # The library lists one card.
    assert devices["Tesla T4"]["flops"] == NONE
    assert (devices["Tesla T4"]["memory"], devices["Tesla T4"]["total_memory"]) == (None, None)


def test_this_machine_twice() -> None:
    """Rates that were measured are in the next answer too. No driver's library is loaded here."""
    script = """
import json, sys, potluck
measured = potluck.device_capabilities(timeout_seconds=60, measure=True)
again = potluck.device_capabilities()
assert again.flops == measured.flops, again
assert again.sources == measured.sources, again
loaded = {"numpy", "pynvml", "tinygrad", "potluck.kernels"} & set(sys.modules)
assert not loaded, loaded
print(json.dumps(again.to_dict()))
"""
    document = ask(script)
    assert (document["device_id"], document["backend"]) == ("cpu", "native")
    assert 0 < document["memory"] <= document["total_memory"]
    # From a board's core to a hundred of a server's.
    assert all(1e-4 < rate < 100 for rate in document["flops"].values())
    assert document["sources"]["fp32"]["origin"] == "measured"
    assert document["f16"]["is_supported"]


def test_without_the_core(tmp_path: Path) -> None:
    path = os.pathsep.join([hide_core(tmp_path / "site"), *sys.path])
    document = ask(env=environment(PYTHONPATH=path, XDG_CACHE_HOME=str(tmp_path)))
    assert (document["backend"], document["reason"]) == ("", REASON)
    assert document["memory"] > 0
    assert not document["int8"]["is_supported"]


def test_without_numpy(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise ImportError('no NumPy here')\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    document = ask(env=environment(PYTHONPATH=path, XDG_CACHE_HOME=str(tmp_path)))
    assert document["backend"] == ""
    assert "no NumPy here" in document["reason"]


def test_an_empty_proc() -> None:
    document = ask(prefix=covered("/proc", "mode=555"))
    assert (document["memory"], document["total_memory"]) == (None, None)
    assert document["sources"]["memory"]["text"] == (
        "/proc/meminfo cannot be read: is /proc mounted?"
    )


def test_an_ordinary_user_without_a_home() -> None:
    env = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    document = ask(prefix=as_user(), env={**env, "HOME": "/proc/nowhere"})
    assert document["backend"] == "native"


def test_little_address_space() -> None:
    assert ask(prefix=limited("-v", 400_000))["memory"] is not None


@pytest.mark.parametrize("num_files", [16, 5])
def test_few_open_files(num_files: int) -> None:
    """Threads take them from one another, so that now this is unknown and now that."""
    assert ask(prefix=limited("-n", num_files))["device_id"] == "cpu"


def test_without_threads_and_children() -> None:
    script = """
import json, resource, threading, potluck
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
try:
    threading.Thread(target=int).start()
    raise SystemExit("there may be threads")
except RuntimeError:
    print(json.dumps(potluck.device_capabilities().to_dict()))
"""
    env = environment(XDG_CACHE_HOME="/proc/nowhere")
    document = ask(script, prefix=as_user(), env=env)
    assert document["backend"] == ""
    assert document["memory"] > 0
    assert "start" in document["reason"]  # a thread, or a process


def test_in_a_loop_in_threads_and_in_forks() -> None:
    """Also where children are not waited for, standard streams are closed, and at the end."""
    script = """
import asyncio, atexit, json, os, signal, threading, potluck

async def main():
    potluck.device_capabilities()
    both = [asyncio.to_thread(potluck.device_capabilities) for _ in range(2)]
    return await asyncio.gather(*both)

first, second = asyncio.run(main())
assert first.backend == second.backend == "native"

pid = os.fork()
if pid == 0:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.closerange(0, 3)
    os._exit(potluck.device_capabilities().backend != "native")
assert os.waitpid(pid, 0)[1] == 0

atexit.register(lambda: print(json.dumps(potluck.device_capabilities().to_dict())))
"""
    assert ask(script)["backend"] == "native"


def test_drivers_that_crash_and_hang(tmp_path: Path) -> None:
    """In children; what another driver shows is there all the same."""
    for kind in ("crashes-at-load", "hangs-in-devices", "gpu"):
        build_icd(kind, tmp_path / "vendors")
    script = """
import json, logging, sys, time, potluck
logging.disable()
started = time.monotonic()
capabilities = potluck.device_capabilities(timeout_seconds=8)
assert time.monotonic() - started < 16
with open("/proc/self/maps") as maps:
    assert "OpenCL" not in maps.read()
print(json.dumps(capabilities.to_dict()))
"""
    env = icd_environment(tmp_path / "vendors") | {"XDG_CACHE_HOME": str(tmp_path)}
    document = ask(script, env=env)
    assert (document["device_id"], document["backend"]) == ("cpu", "native")
    assert [each["chip"] for each in document["devices"][1:]] == ["Mali-G610 r0p0"]


def test_a_machine_that_hangs() -> None:
    """Where even a file does not answer, it returns when it said, with what is known."""
    script = """
import json, time, potluck, potluck.host.boards as names
names.machine_name = lambda system: time.sleep(60)
started = time.monotonic()
capabilities = potluck.device_capabilities(timeout_seconds=1)
assert time.monotonic() - started < 20
print(json.dumps(capabilities.to_dict()))
"""
    with done_within(10):
        document = ask(script)
    assert document["reason"] == "there was no result within 1 s"


def test_a_probe_that_fails() -> None:
    """A warning of the log, and what is known all the same; here that is what files tell."""
    script = """
import json, logging, potluck, potluck.probe.probe as probe
def fail(*arguments, **options):
    raise RuntimeError("no such machine")
logging.disable()
probe.probe_node = fail
capabilities = potluck.device_capabilities()
assert capabilities.memory > 0
assert capabilities.reason == "not tried yet"
probe.files_report = fail
print(json.dumps(potluck.device_capabilities().to_dict()))
"""
    assert ask(script)["reason"] == "the probe failed with RuntimeError: no such machine"
