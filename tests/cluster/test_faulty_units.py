"""Units that fail in use: the node stays up, answers from its CPU, and says why.

Agents and workers are real, on a machine that plays a GPU: an engine that computes as the native
one does, and fails when it is told to (``support.machines.faulty_unit``).
"""

from __future__ import annotations

import functools
import json
import shutil
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.cluster.agents import AgentProcess, Document, Fleet, await_ready, no_end
from support.formats.safetensors_bytes import safetensors_bytes
from support.machines import faulty_unit
from support.machines.faulty_unit import CL_UNIT, UNIT, Misbehaviour
from support.machines.icds import build_icd, change_icd
from support.processes.waiting import eventually

from potluck import Model
from potluck.catalog.locate import DEMO_DIRECTORY

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "support.machines.faulty_unit.agent")
PROMPT = "Once upon a time"
STEP_SECONDS = 1.0
BACK_SECONDS = 25.0
"""From the fault to an answer of the CPU, without loading: 2 seconds where nothing else runs. What
must not happen lasts 30: to wait for a step as long as units are usually given."""


class Machine:
    """One agent and its GPU."""

    def __init__(
        self, directory: Path, *, unit_id: str = UNIT, model: str = "demo", **environ: str
    ) -> None:
        self.unit_id = unit_id
        self.model = model
        self._file = directory / "misbehaviour"
        self.behave()
        self.fleet = Fleet(directory)
        self._environ = {
            "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'src'}",
            "XDG_CACHE_HOME": str(directory / "cache"),
            faulty_unit.FILE: str(self._file),
            "POTLUCK_UNIT_STEP_SECONDS": str(STEP_SECONDS),
            **environ,
        }
        self.agent: AgentProcess

    def start(self) -> None:
        self.agent = self.fleet.start(0, command=COMMAND, environ=self._environ).await_up()

    def misbehave(self, how: Misbehaviour) -> None:
        self._file.write_text(how.value, encoding="ascii")

    def behave(self) -> None:
        self._file.write_text("", encoding="ascii")

    def unit(self) -> Document:
        """The GPU, as the agent reports it."""
        (node,) = self.agent.cluster()["nodes"]
        found: dict[str, Document] = {unit["unit_id"]: unit for unit in node["units"]}
        return found.get(self.unit_id, {"role": "none", "reason": ""})

    def trial(self) -> Document:
        """How the probe's trial of it went; nothing if it was not tried yet."""
        (node,) = self.agent.cluster()["nodes"]
        trials: dict[str, Document]
        trials = {trial["device_id"]: trial for trial in node["hardware"]["trials"]}
        return trials.get(faulty_unit.DEVICE_ID, {})

    def await_gpu(self) -> None:
        eventually(lambda: self.unit()["role"] == "serves", within=40, what="the GPU serves")

    def deploy(self) -> Document:
        return self.agent.deploy(self.model, name="demo", context=256, cache=256)

    def ask(self, max_tokens: int = 8) -> str:
        with self.agent.client(timeout=60) as client:
            answer = client.completions.create(
                model="demo",
                prompt=PROMPT,
                max_tokens=max_tokens,
                temperature=0,
                logit_bias=no_end(),
            )
        return answer.choices[0].text


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    machine = Machine(tmp_path_factory.mktemp("faulty"))
    with machine.fleet:
        machine.start()
        machine.await_gpu()
        yield machine


@pytest.fixture
def machine(started: Machine) -> Iterator[Machine]:
    """The machine with its GPU, and nothing deployed; afterwards the same agent is there."""
    started.await_gpu()
    pid = started.agent.pid
    yield started
    started.behave()
    if started.agent.deployment("demo") is not None:
        started.agent.ask("undeploy", name="demo")
    assert started.agent.pid == pid
    assert started.agent.process.poll() is None


@functools.cache
def expected_text(model: str = "demo") -> str:
    """What the model says without a cluster."""
    with Model.open(model, context_tokens=256, num_threads=1) as alone:
        bias = {int(token): value for token, value in no_end().items()}
        generation = alone.generate(PROMPT, max_tokens=8, temperature=0, logit_bias=bias)
        return generation.result().text


def units_of(deployment: Document) -> list[str]:
    return [stage["unit_id"] for stage in deployment["stages"]]


def computed(process: psutil.Process) -> float:
    """The seconds of processor time that it has used; 0 once it has ended."""
    try:
        return sum(process.cpu_times()[:2])
    except psutil.NoSuchProcess:
        return 0.0


def check_left(machine: Machine, reason: str, since: float) -> None:
    """The unit was left for ``reason``, perhaps for a moment only; the CPU answers in time."""
    message = f"{machine.unit_id} is no longer used: {reason}"
    eventually(lambda: message in machine.agent.log, within=15, what=message)
    deployment = await_ready(machine.agent, "demo")
    assert units_of(deployment) == ["cpu/native"]
    loading = deployment["stages"][0]["load_seconds"]
    assert machine.ask() == expected_text(machine.model)
    assert time.monotonic() - since < BACK_SECONDS + loading
    eventually(lambda: len(machine.agent.workers()) == 1, within=5, what="one worker is left")


IN_A_STEP = [
    (Misbehaviour.CRASH, "killed: the worker was killed by SIGSEGV"),
    (
        Misbehaviour.EXIT,
        "driver error: the worker ended with exit code 77 without an error message",
    ),
    (Misbehaviour.HANG, "hung: a step took longer than 1 s"),
    (Misbehaviour.HOG, "hung: its worker has said nothing for 1 s"),
    (Misbehaviour.NAN, "not finite: its logits are not finite"),
]


@pytest.mark.parametrize(("how", "reason"), IN_A_STEP, ids=lambda value: getattr(value, "name", ""))
def test_a_unit_that_fails_in_a_step(machine: Machine, how: Misbehaviour, reason: str) -> None:
    deployed = machine.deploy()
    assert units_of(deployed) == [UNIT]
    assert machine.ask() == expected_text()
    (worker,) = machine.agent.workers()
    logged = len(machine.agent.log)
    machine.misbehave(how)
    started = time.monotonic()
    assert machine.ask() == expected_text(), "it goes on where the CPU computes it"
    check_left(machine, reason, started + 3 * STEP_SECONDS + 1)
    if how is Misbehaviour.NAN:
        # Tested at once. On a busy machine that takes longer than the pause, and it is used again.
        verdicts = (
            f"{UNIT} is still not used: {reason}, and its self-test passes",
            f"{UNIT} works again",
        )
        eventually(
            lambda: any(verdict in machine.agent.log[logged:] for verdict in verdicts),
            within=15,
            what="suspicion is followed up",
        )
    assert not psutil.pid_exists(worker)


def test_a_worker_that_is_killed_while_it_serves(machine: Machine) -> None:
    machine.deploy()
    (worker,) = machine.agent.workers()
    machine.misbehave(Misbehaviour.LIE)  # in tests only: it stays out as long as this is looked at
    with (
        machine.agent.client(timeout=60) as client,
        client.completions.create(
            model="demo",
            prompt=PROMPT,
            max_tokens=200,
            temperature=0,
            logit_bias=no_end(),
            stream=True,
        ) as chunks,
    ):
        next(iter(chunks))
        psutil.Process(worker).kill()
        killed = time.monotonic()
        assert list(chunks)[-1].choices[0].finish_reason == "length"
    check_left(machine, "killed: the worker was killed by SIGKILL", killed)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        (Misbehaviour.NO_MEMORY, "out of memory: no room for "),
        (Misbehaviour.HANG_LOADING, "hung: copying "),
    ],
    ids=["out of memory", "hang"],
)
def test_a_unit_that_fails_while_it_is_loaded(
    machine: Machine, how: Misbehaviour, reason: str
) -> None:
    """Who deploys gets what was asked for, and sees why it is elsewhere."""
    machine.misbehave(how)
    started = time.monotonic()
    deployed = machine.agent.command_line(
        "deploy", "demo", "--context", "256", "--for", "memory", "--json"
    )
    assert deployed.returncode == 0, deployed.stderr
    document = json.loads(deployed.stdout)
    assert units_of(document) == ["cpu/native"]
    (rejection,) = document["rejections"]
    assert rejection["unit_id"] == UNIT
    assert rejection["reason"].startswith(reason)
    check_left(machine, reason, started + 2 * STEP_SECONDS)


def test_what_is_shown_of_a_unit_that_is_out_and_that_nothing_is_left_running(
    machine: Machine,
) -> None:
    machine.deploy()
    machine.misbehave(Misbehaviour.DRIVER)
    assert machine.ask() == expected_text()
    reason = "driver error: the context is lost"
    check_left(machine, reason, time.monotonic())
    shown = machine.agent.command_line("ps", "--json")
    with urllib.request.urlopen(f"{machine.agent.url}/cluster", timeout=60) as answer:
        documents = [json.loads(shown.stdout), json.load(answer)]
    for document in documents:
        (node,) = document["nodes"]
        (unit,) = (unit for unit in node["units"] if unit["unit_id"] == UNIT)
        assert unit["role"] == "out"
        assert unit["reason"].startswith(reason)
    lines = machine.agent.command_line("ps").stdout.splitlines()
    (line,) = (line for line in lines if f"{UNIT}: out" in line)
    assert reason in line

    agent = psutil.Process(machine.agent.pid)
    before = {process: computed(process) for process in (agent, *agent.children(recursive=True))}
    time.sleep(1)  # the length of the measurement
    # Children that test the unit again come and go, and their time is no matter here.
    burnt = sum(computed(each) - used for each, used in before.items() if each.is_running())
    assert burnt < 0.4, "a thread spins"


def test_a_unit_that_lies_while_idle_is_not_met_again_after_a_restart(
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path, POTLUCK_IDLE_TEST_SECONDS="1")
    with machine.fleet:
        machine.start()
        machine.await_gpu()
        assert units_of(machine.deploy()) == [UNIT]
        machine.misbehave(Misbehaviour.LIE)
        eventually(
            lambda: machine.unit()["role"] == "out", within=30, what="the idle unit is found out"
        )
        check_left(
            machine,
            "wrong numbers: its self-test failed while it was idle: "
            "opencl: wrong numbers: the q8_0 product[0][0]",
            time.monotonic(),
        )
        machine.behave()
        machine.agent.end()
        machine.start()
        eventually(machine.trial, within=20, what="the GPU was looked at")
        trial = machine.trial()
        assert not trial["works"]
        # What was found while it was idle, or by the test after that.
        assert "wrong numbers: the q8_0 product[0][0]" in trial["reason"]
        assert machine.unit()["role"] != "serves"


# tinygrad on a real OpenCL driver, PoCL, through a library that spoils some calls
# (``support.machines.icds``): PoCL computes on the CPU, and passes for a GPU here.


@pytest.fixture(scope="module")
def icd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_icd("computing-gpu", tmp_path_factory.mktemp("icd"))


@pytest.fixture(scope="module")
def started_opencl(tmp_path_factory: pytest.TempPathFactory, icd: Path) -> Iterator[Machine]:
    """A machine whose GPU is PoCL's."""
    folder = tmp_path_factory.mktemp("opencl")
    # Opening the unit may take twenty times as long, which it does on a busy machine.
    environ = {faulty_unit.ICD: str(icd), "POTLUCK_UNIT_STEP_SECONDS": "0.6"}
    model = first_layer_of_demo(folder / "model")
    machine = Machine(folder, unit_id=CL_UNIT, model=str(model), **environ)
    with machine.fleet:
        machine.start()
        yield machine


def first_layer_of_demo(folder: Path) -> Path:
    shutil.copytree(DEMO_DIRECTORY, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    weights = folder / "model.safetensors"
    stored = weights.read_bytes()
    num_header_bytes = int.from_bytes(stored[:8], "little")
    header, data = json.loads(stored[8 : 8 + num_header_bytes]), stored[8 + num_header_bytes :]
    kept, entries = b"", {}
    for name, entry in header.items():
        if name != "__metadata__" and (".layers." not in name or ".layers.0." in name):
            begin, end = entry["data_offsets"]
            entries[name] = entry | {"data_offsets": [len(kept), len(kept) + end - begin]}
            kept += data[begin:end]
    weights.write_bytes(safetensors_bytes(entries, kept))
    return folder


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("out-of-resources", "out of memory: the device is out of memory: "),
        ("hang", "hung: "),
    ],
)
def test_an_opencl_driver_that_fails_while_a_model_is_loaded(
    started_opencl: Machine, icd: Path, fault: str, reason: str
) -> None:
    """Before the first step: to compile all of it for PoCL takes a minute where others compute."""
    machine = started_opencl
    machine.await_gpu()
    change_icd(icd, fault=fault)
    machine.misbehave(Misbehaviour.LIE)  # in tests only
    try:
        assert units_of(machine.deploy()) == ["cpu/native"]
        check_left(machine, reason, time.monotonic())
    finally:
        machine.behave()
    machine.agent.ask("undeploy", name="demo")
