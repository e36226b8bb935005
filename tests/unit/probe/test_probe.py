"""The whole probe with detectors and backends that do what they should not, as real children."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from support.engines.fake_backends.behaviour import CALLS, device, spec
from support.processes.waiting import done_within

from potluck.host.child import ChildFailure, ChildOutcome, Failure
from potluck.host.system import THIS_MACHINE, System
from potluck.probe import discovery, probe
from potluck.probe.cache import ProbeCache
from potluck.probe.detector import Detector, VendorQuery
from potluck.probe.probe import Measuring, ProbeOptions, probe_node
from potluck.probe.trials import running as trials
from potluck.probe.trials.running import try_backend
from potluck.types.backend import DeviceKind
from potluck.types.hardware import DetectorReport, Device, ProbeReport, Trial
from potluck.types.unit import Interface

TESTS = Path(__file__).parents[2]
CPU_AND_GPU = frozenset({DeviceKind.CPU, DeviceKind.GPU})
LATE = re.compile(r"has not responded after \d+ s")

Calls = Callable[[], list[str]]


@pytest.fixture
def cache(tmp_path: Path) -> ProbeCache:
    return ProbeCache(tmp_path / "probe.json")


@pytest.fixture(autouse=True)
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """One line for each child that was started.

    Children have less of a deadline than usual: however slow this machine is, their end is seen.
    """
    monkeypatch.setattr(discovery, "_CHILD_SHARE", 0.4)
    path = tmp_path / "calls"
    path.touch()
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv(CALLS, str(path))
    return lambda: path.read_text().splitlines()


@pytest.fixture
def never() -> Iterator[Callable[[], None]]:
    """Does not return before the test is over."""
    over = threading.Event()
    yield lambda: cast(None, over.wait())
    over.set()


def a_gpu(name: str) -> Device:
    return device(f"of-{name}")


def an_npu(name: str) -> Device:
    """What no backend is tried on."""
    return dataclasses.replace(a_gpu(name), kind=DeviceKind.NPU)


def note_outcome(report: DetectorReport, outcome: ChildOutcome) -> DetectorReport:
    problem = outcome.reason if isinstance(outcome, ChildFailure) else "it answered"
    return dataclasses.replace(report, problems=(problem,))


def a_detector(
    name: str,
    *devices: Device,
    query: str = "",
    before: Callable[[], None] = lambda: None,
    merge: Callable[[DetectorReport, ChildOutcome], DetectorReport] = note_outcome,
) -> Detector:
    def find(_: System) -> DetectorReport:
        before()
        return DetectorReport(detector=name, devices=devices)

    vendor_query = VendorQuery(module=f"support.engines.fake_backends.{query}", merge=merge)
    return Detector(name=name, find=find, queries=lambda *_: (vendor_query,) if query else ())


def a_strange_detector(name: str, report: object) -> Detector:
    return Detector(name=name, find=lambda _: cast(DetectorReport, report))


class Probed:
    """What came of a probe: every report, and when it came."""

    def __init__(
        self,
        cache: ProbeCache,
        *detectors: Detector,
        backends: tuple[str, ...] = ("works",),
        **how: Any,
    ) -> None:
        options = ProbeOptions(
            backends=[
                dataclasses.replace(
                    spec("works" if name == "plays" else name, is_software=name == "plays"),
                    kinds=CPU_AND_GPU,
                    name=name,
                )
                for name in backends
            ],
            num_threads=1,
            **how,
        )
        self.reports: list[ProbeReport] = []
        self.seconds: list[float] = []
        self._started = time.monotonic()
        self.last = probe_node(
            THIS_MACHINE, options, cache, detectors=detectors, on_report=self._on_report
        )
        assert self.reports[-1] == self.last
        assert self.last.is_complete
        assert [detector.detector for detector in self.last.detectors] == [
            "cpu",
            *(detector.name for detector in detectors),
        ]
        assert self.last.devices[0].device_id == "cpu"
        assert self.last.trials[0].device_id == "cpu"

    def _on_report(self, report: ProbeReport) -> None:
        self.reports.append(report)
        self.seconds.append(time.monotonic() - self._started)

    @property
    def trials(self) -> dict[str, tuple[bool, str]]:
        return {trial.unit_id: (trial.works, trial.reason) for trial in self.last.trials}

    @property
    def problems(self) -> dict[str, tuple[str, ...]]:
        return {
            detector.detector: detector.problems
            for detector in self.last.detectors
            if detector.problems
        }

    @property
    def device_ids(self) -> list[str]:
        return [each.device_id for each in self.last.devices]


@pytest.mark.slow
def test_what_goes_wrong_costs_one_line_each(cache: ProbeCache) -> None:
    def fail() -> None:
        raise OSError(5, "Input/output error")

    def fail_merging(report: DetectorReport, outcome: ChildOutcome) -> DetectorReport:
        raise KeyError("cards")

    probed = Probed(
        cache,
        a_detector("raises", before=fail),
        a_strange_detector("nothing", None),
        a_strange_detector(
            "words", DetectorReport(detector="words", devices=cast(Any, ("a GPU",)))
        ),
        a_detector("answers", an_npu("answers"), query="lies_throughout"),
        a_detector("refuses", an_npu("refuses"), query="refuses"),
        a_detector("throws", an_npu("throws"), query="raises"),
        a_detector("dies", an_npu("dies"), query="crashes"),
        a_detector("babbles", an_npu("babbles"), query="prints_rubbish"),
        a_detector("misread", an_npu("misread"), query="lies_throughout", merge=fail_merging),
        a_detector("gpus", a_gpu("0"), device("of-1", problem="no driver")),
        backends=("works", "lies_throughout", "crashes", "refuses", "raises"),
    )
    assert probed.problems == {
        "raises": ("failed with OSError: [Errno 5] Input/output error",),
        "nothing": ("failed with TypeError: NoneType is not a report",),
        "words": ("failed with TypeError: str is not a device",),
        "answers": ("it answered",),
        "refuses": ("libvendor.so.1 is not installed",),
        "throws": ("exited with code 1: KeyError: 'device'",),
        "dies": ("was killed by SIGSEGV",),
        "babbles": (
            "printed an invalid JSON document (Expecting value: line 1 column 1 (char 0)): "
            "'Welcome to libvendor!'",
        ),
        "misread": ("failed with KeyError: 'cards'",),
    }
    npus = ("answers", "refuses", "throws", "dies", "babbles", "misread")
    assert probed.device_ids == ["cpu", *(f"of-{name}" for name in npus), "of-0", "of-1"]
    wrong = "zeros: wrong numbers: the q8_0 product[0][0] is 0, but "
    for where in ("cpu", "of-0"):
        assert probed.trials.pop(f"{where}/lies_throughout")[1].startswith(wrong)
    outcomes = {
        "works": (True, ""),
        "crashes": (False, "was killed by SIGSEGV"),
        "refuses": (False, "libvendor.so.1 is not installed"),
        "raises": (False, "exited with code 1: KeyError: 'device'"),
    }
    for name, outcome in outcomes.items():
        assert probed.trials[f"cpu/{name}"] == probed.trials[f"of-0/{name}"] == outcome
        assert probed.trials[f"of-1/{name}"] == (False, "no driver")
    assert len(probed.trials) == 15


@pytest.mark.slow
def test_the_cpu_waits_for_no_layer_and_no_second_backend(
    cache: ProbeCache, never: Callable[[], None]
) -> None:
    with done_within(12):
        probed = Probed(
            cache,
            a_detector("stuck", a_gpu("stuck"), before=never),
            a_detector("quick", an_npu("quick")),
            a_detector("hangs", an_npu("hangs"), query="hangs"),
            backends=("works", "hangs"),
            deadline_seconds=8.0,
            trial_seconds=7.0,
        )
    first = probed.reports[0]
    assert first.detectors[0].detector == "cpu"
    assert [trial.unit_id for trial in first.trials] == ["cpu/works"]
    assert not first.is_complete
    assert probed.seconds[0] < 7  # when the hanging ones are given up
    assert probed.device_ids == ["cpu", "of-quick", "of-hangs"]
    assert probed.problems.keys() == {"stuck", "hangs"}
    assert LATE.fullmatch(probed.problems["stuck"][-1])
    assert probed.last.pending == ("stuck",)
    (reason,) = probed.problems["hangs"]
    assert re.fullmatch(r"did not respond within [23]\.\d+ s", reason)
    assert probed.trials["cpu/works"] == (True, "")
    assert probed.trials["cpu/hangs"] == (False, "did not respond within 7 s")
    for earlier, later in zip(probed.reports, probed.reports[1:], strict=False):
        assert {each.device_id for each in earlier.devices} <= {
            each.device_id for each in later.devices
        }
        assert set(earlier.trials) <= set(later.trials)


@pytest.mark.slow
def test_devices_are_tried_though_the_rest_of_their_layer_is_late(
    cache: ProbeCache, never: Callable[[], None]
) -> None:
    def merge(report: DetectorReport, _: ChildOutcome) -> DetectorReport:
        never()
        return report

    detector = a_detector("stuck", a_gpu("0"), query="lies_throughout", merge=merge)
    with done_within(5):
        probed = Probed(cache, detector, deadline_seconds=3.0)
    assert probed.device_ids == ["cpu", "of-0"]
    assert probed.problems.keys() == {"stuck"}
    assert LATE.fullmatch(probed.problems["stuck"][-1])
    assert probed.trials == {"cpu/works": (True, ""), "of-0/works": (True, "")}


@pytest.mark.slow
def test_a_trial_that_never_ends_is_given_up(
    cache: ProbeCache, never: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that waits for a disk: a child would have been ended."""

    def stuck(*pair: Any, **how: Any) -> Trial:
        if pair[1] == a_gpu("0"):
            never()
        return try_backend(*pair, **how)

    monkeypatch.setattr(probe, "try_backend", stuck)
    monkeypatch.setattr(probe, "_END_SECONDS", 0.2)
    monkeypatch.setattr(probe, "_MOST_BUSY", 1)
    probed = Probed(
        cache, a_detector("gpus", a_gpu("0"), a_gpu("1")), backends=("works",), trial_seconds=6.0
    )
    assert probed.trials == {
        "cpu/works": (True, ""),
        "of-0/works": (False, "its test did not finish within 6 s"),
        "of-1/works": (True, ""),
    }
    assert probed.last.pending == ("of-0/works",)


@pytest.mark.slow
def test_a_probe_that_does_not_wait_says_what_is_pending(cache: ProbeCache, calls: Calls) -> None:
    """And holds it against nobody: the next one that waits finds out."""
    detectors = (
        a_detector("gpus", a_gpu("0")),
        a_detector("hangs", a_gpu("1"), query="hangs"),
    )
    Probed(cache, a_detector("gpus", a_gpu("0")))
    with done_within(8):
        probed = Probed(cache, *detectors, backends=("works", "hangs"), wait_seconds=6.0)
    assert probed.last.pending == ("hangs", "cpu/hangs", "of-0/hangs", "of-1/hangs")
    assert LATE.fullmatch(probed.problems["hangs"][-1])
    assert probed.trials["of-0/works"] == (True, "")
    assert probed.trials["of-0/hangs"] == (False, "its test did not finish within 6 s")
    num_started = len(calls())
    waited = Probed(
        cache, *detectors, backends=("works", "hangs"), deadline_seconds=8.0, trial_seconds=3.0
    )
    assert len(calls()) > num_started
    assert waited.last.pending == ()
    assert waited.trials["of-0/hangs"] == (False, "did not respond within 3 s")


@pytest.mark.slow
def test_a_busy_machine_says_nothing_of_a_backend(
    cache: ProbeCache, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was known stays known, and a test that had no CPU is repeated the next time."""
    Probed(cache)

    def starve(*_: Any, **how: Any) -> ChildOutcome:
        return ChildFailure(failure=Failure.STARVED, reason="waited for a CPU", seconds=1.0)

    monkeypatch.setattr(trials, "run_child", starve)
    for retry in (True, True):
        busy = Probed(cache, retry=retry)
        assert busy.last.pending == ("cpu/works",)
        assert busy.trials == {"cpu/works": (False, "waited for a CPU")}
    monkeypatch.undo()
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    assert Probed(cache).trials == {"cpu/works": (True, "")}


@pytest.mark.slow
def test_devices_do_not_wait_for_each_other(cache: ProbeCache) -> None:
    """Each hangs for six seconds."""
    with done_within(5.5):
        probed = Probed(
            cache,
            a_detector("some", a_gpu("0"), a_gpu("1")),
            a_detector("more", a_gpu("2")),
            backends=("works", "hangs"),
            trial_seconds=6.0,
        )
    for each in ("cpu", "of-0", "of-1", "of-2"):
        assert probed.trials[f"{each}/works"] == (True, "")
        assert probed.trials[f"{each}/hangs"] == (False, "did not respond within 6 s")


@pytest.mark.slow
def test_what_plays_a_gpu_is_tried_on_request_only(cache: ProbeCache) -> None:
    player = device("opencl-pocl-0", is_software=True)
    detectors = (a_detector("gpus", a_gpu("0")), a_detector("software", player))

    def tried(**how: Any) -> list[str]:
        probed = Probed(cache, *detectors, backends=("works", "plays"), **how)
        assert "opencl-pocl-0" in probed.device_ids
        assert all(works for works, _ in probed.trials.values())
        return list(probed.trials)

    assert tried() == ["cpu/works", "of-0/works"]
    assert tried(requested_backend="works") == ["cpu/works", "of-0/works", "opencl-pocl-0/works"]
    assert tried(requested_backend="plays") == [
        *("cpu/works", "cpu/plays", "of-0/works", "of-0/plays"),
        "opencl-pocl-0/plays",
    ]
    assert len(tried(allow_software=True)) == 6


@pytest.mark.slow
def test_the_queries_of_a_layer_run_at_once_and_are_merged_in_their_order(
    cache: ProbeCache,
) -> None:
    def query(module: str) -> VendorQuery:
        def merge(report: DetectorReport, outcome: ChildOutcome) -> DetectorReport:
            problem = outcome.reason if isinstance(outcome, ChildFailure) else "it answered"
            return dataclasses.replace(report, problems=(*report.problems, f"{module}: {problem}"))

        return VendorQuery(module=f"support.engines.fake_backends.{module}", merge=merge)

    names = ("hangs", "crashes", "refuses", "lies_throughout")
    detector = Detector(
        name="asks",
        find=lambda _: DetectorReport(detector="asks"),
        queries=lambda *_: [query(name) for name in names],
    )
    probed = Probed(cache, detector, deadline_seconds=8.0)
    (first, *others) = probed.problems["asks"]
    assert re.fullmatch(r"hangs: did not respond within [23]\.\d+ s", first)
    assert others == [
        "crashes: was killed by SIGSEGV",
        "refuses: libvendor.so.1 is not installed",
        "lies_throughout: it answered",
    ]


@pytest.mark.slow
def test_what_may_be_another_layer_s_is_told_when_all_are_done(cache: ProbeCache) -> None:
    """An early report would have a device twice, and a later one take it back."""
    mali = dataclasses.replace(a_gpu("mali"), make="Arm Mali")
    interface = Interface(api="opencl", address="/etc/OpenCL/vendors/mali.icd#0:0")
    shown = dataclasses.replace(
        mali, device_id="opencl-mali-0", device_files=(), interfaces=(interface,)
    )
    joined = a_detector("opencl", shown)
    slow = a_detector("mali", mali, before=lambda: time.sleep(0.5))
    probed = Probed(cache, joined, slow)
    assert probed.device_ids == ["cpu", "of-mali"]
    assert probed.last.devices[1].interfaces == (interface,)
    for report in probed.reports:
        assert "opencl-mali-0" not in [each.device_id for each in report.devices]


@pytest.mark.slow
def test_what_was_dangerous_is_met_once_unless_asked_for(cache: ProbeCache, calls: Calls) -> None:
    def probe_again(*, retry: bool = False) -> tuple[list[str], int]:
        before = len(calls())
        probed = Probed(
            cache,
            a_detector("crash", an_npu("a"), query="crashes"),
            a_detector("hang", an_npu("b"), query="hangs"),
            backends=("hangs",),
            deadline_seconds=4.0,
            trial_seconds=1.5,
            retry=retry,
        )
        reasons = [reason for _, reason in probed.trials.values() if reason]
        reasons += [line for lines in probed.problems.values() for line in lines]
        return sorted(reasons), len(calls()) - before

    first, num_started = probe_again()
    assert num_started == 3
    assert [reason.partition(" within")[0] for reason in first] == [
        *["did not respond"] * 2,
        "was killed by SIGSEGV",
    ]
    assert probe_again() == (
        sorted(f"not tried again: {reason} (retry with potluck probe --retry)" for reason in first),
        0,
    )
    assert probe_again(retry=True)[1] == 3
    assert probe_again()[1] == 0


@pytest.mark.slow
def test_measuring_comes_last_and_is_remembered(cache: ProbeCache, calls: Calls) -> None:
    detector = a_detector("gpus", a_gpu("0"))
    probed = Probed(cache, detector, backends=("works", "refuses"), measuring=Measuring.IF_UNKNOWN)
    complete, measured = (report for report in probed.reports if report.is_complete)

    def rates(report: ProbeReport) -> list[float | None]:
        return [trial.figures.read_bytes_per_second.value for trial in report.trials]

    assert rates(complete) == [None] * 4
    assert rates(measured) == [5e9, None, 5e9, None]
    num_started = len(calls())
    for measuring, num_measured in ((Measuring.NEVER, 0), (Measuring.ALWAYS, 2)):
        again = Probed(cache, detector, measuring=measuring)
        assert rates(again.last) == [5e9, 5e9]
        assert len(calls()) == num_started + num_measured


def test_a_node_without_backends_has_its_devices() -> None:
    options = ProbeOptions(backends=(), num_threads=1)
    reports: list[ProbeReport] = []
    probe_node(
        THIS_MACHINE,
        options,
        ProbeCache(None),
        detectors=(a_detector("gpus", a_gpu("0")),),
        on_report=reports.append,
    )
    assert reports[0].detectors[0].detector == "cpu"
    assert [each.device_id for each in reports[-1].devices] == ["cpu", "of-0"]


@pytest.mark.slow
def test_hanging_layers_do_not_keep_the_process() -> None:
    code = """
import threading
from potluck.probe.cache import ProbeCache
from potluck.probe.detector import Detector, VendorQuery
from potluck.probe.probe import ProbeOptions, probe_node
from potluck.host.system import THIS_MACHINE
from potluck.types.hardware import DetectorReport

def never(*_):
    threading.Event().wait()

detectors = (
    Detector(name="find", find=never),
    Detector(
        name="merge",
        find=lambda _: DetectorReport(detector="merge"),
        queries=lambda *_: (VendorQuery(module="json.tool", merge=never),),
    ),
)
options = ProbeOptions(backends=(), num_threads=1, deadline_seconds=1.0)
report = probe_node(THIS_MACHINE, options, ProbeCache(None), detectors=detectors)
print([detector.problems for detector in report.detectors])
"""
    environment = {"PYTHONPATH": f"{TESTS.parent / 'src'}"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    late = "has not responded after 1 s"
    assert done.stdout == f"[(), ('{late}',), ('{late}',)]\n"
