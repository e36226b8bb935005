import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.placement.fleets import probe_document

from potluck.errors import UsageError
from potluck.placement.fleet.file import read_fleet
from potluck.placement.fleet.keys import LinkFigures, LinkPair, ManualDescription, Probed

Write = Callable[[str], Path]

MACHINE = '[[machines]]\nname = "a"\nmemory = "8 GiB"\n'


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "fleet.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_the_least_that_describes_a_machine(write: Write) -> None:
    fleet = read_fleet(write(MACHINE))
    (machine,) = fleet.machines
    assert machine.names == ("a",)
    assert isinstance(machine.description, ManualDescription)
    assert machine.description.memory_bytes == 8 * 2**30
    assert [unit.backend for unit in machine.description.units] == ["native"]
    assert machine.description.units[0].read_bytes_per_second is None
    assert fleet.coordinator == "a"
    assert fleet.links == LinkFigures()
    assert fleet.pairs == ()


def test_everything_that_can_be_said(write: Write) -> None:
    fleet = read_fleet(
        write(
            """
            coordinator = "board"
            [[machines]]
            name = "desktop"
            memory = "32 GiB"
            usable_memory = "28 GiB"
            cores = 8
            [[machines.units]]
            read_bandwidth = "40 GB/s"
            operations = "600 Gop/s"
            [[machines.units]]
            backend = "tinygrad:CUDA"
            device_memory = "10 GiB"
            operations = {f16 = "60 TFLOPS", int8 = "120 Top/s"}
            [[machines]]
            name = "board"
            count = 3
            memory = "8 GiB"
            [links]
            latency = "0.3 ms"
            bandwidth = "1 Gbit/s"
            [[links.pairs]]
            from = "desktop"
            to = "board"
            latency = "2 ms"
            one_way = true
            """
        )
    )
    desktop, board = fleet.machines
    assert board.names == ("board-1", "board-2", "board-3")
    assert desktop.usable_bytes == 28 * 2**30
    assert isinstance(desktop.description, ManualDescription)
    cpu, gpu = desktop.description.units
    assert (cpu.read_bytes_per_second, cpu.operations.int8) == (40e9, 600e9)
    assert gpu.device_bytes == 10 * 2**30
    assert (gpu.operations.f16, gpu.operations.int8, gpu.operations.f32) == (60e12, 120e12, None)
    assert fleet.coordinator == "board"
    assert fleet.links == LinkFigures(latency_seconds=3e-4, bytes_per_second=125e6)
    assert fleet.pairs == (
        LinkPair(
            source="desktop",
            target="board",
            is_one_way=True,
            figures=LinkFigures(latency_seconds=2e-3),
        ),
    )


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("machines = [", "fleet.toml: ", "TOML"),
        ("", "fleet.toml: machines is missing", "[[machines]]"),
        ("machines = []", "machines is empty", "[[machines]]"),
        ("machines = 3", "machines = 3 is not valid", "machines is the list of machines"),
        ("machines = [3]", "machines[0] is 3, but must be a table", "a machine has the keys"),
        (
            '[[machines]]\nmemory = "8 GiB"',
            "machines[0]: name is missing",
            "the name in the plan",
        ),
        (
            '[[machines]]\nname = "a b"\nmemory = "8 GiB"',
            "machines[0] (a b): name = 'a b' is not valid",
            "letters, digits",
        ),
        (
            MACHINE + 'readbandwidth = "1 GB/s"',
            "machines[0] (a): unknown key readbandwidth",
            "did you mean read_bandwidth? a machine has the keys",
        ),
        (
            MACHINE + "read_bandwidth = 25",
            "machines[0] (a): read_bandwidth = 25 is not valid",
            "read_bandwidth is the unit's memory bandwidth from its data sheet (plans assume "
            'less), as in read_bandwidth = "25 GB/s"',
        ),
        (MACHINE + "count = 0", "count = 0 is not valid", "the number of machines of this kind"),
        (MACHINE + "count = true", "count = True is not valid", "as in count = 4"),
        (
            MACHINE + "count = 4096" + "\n" + MACHINE,
            "4097 machines exceed the limit of 4096",
            "count",
        ),
        (MACHINE + "cores = 0.5", "cores = 0.5 is not valid", "as in cores = 8"),
        (MACHINE + 'operations = {f8 = "1 T/s"}', "operations = {'f8': '1 T/s'}", "by f32, f16"),
        (MACHINE + "operations = {}", "operations = {} is not valid", "multiply-add counts as two"),
        (MACHINE + 'backend = "cuda"', "unknown backend cuda", "native, tinygrad:CUDA"),
        (MACHINE + 'device_memory = "8 GiB"', "device_memory is set", "backend of the GPU"),
        (
            MACHINE + 'usable_memory = "9 GiB"',
            "usable_memory is more than memory",
            "stages may use",
        ),
        (
            MACHINE + "units = [{}, {}]",
            "machines[0] (a): two units have the backend native",
            "the default backend",
        ),
        (MACHINE + "units = []", "units is empty", "describe a unit"),
        (
            MACHINE + 'backend = "native"\n[[machines.units]]\nbackend = "native"',
            "machines[0] (a): backend cannot be used together with units",
            "one of the units",
        ),
        (
            MACHINE + '[[machines.units]]\nmemory = "1 GiB"',
            "machines[0] (a).units[0]: unknown key memory",
            "did you mean device_memory?",
        ),
        ('[[machines]]\nname = "a"', "either probe or memory is required", "with probe"),
        (
            MACHINE + 'probe = "a.json"',
            "memory cannot be used together with probe",
            "omit one of them",
        ),
        (
            MACHINE + MACHINE,
            "machines[1] (a): a is also the name of a machine of machines[0]",
            "name",
        ),
        (
            MACHINE + 'count = 2\n[[machines]]\nname = "a-2"\nmemory = "8 GiB"',
            "a-2 is also the name of a machine of machines[0] (a)",
            "must have different names",
        ),
        ('coordinator = "b"\n' + MACHINE, 'coordinator = "b" is not a machine', "machines are a"),
        (
            MACHINE + '[links]\nlatency = "5"',
            "links: latency = '5'",
            "one-way latency of a small message",
        ),
        (MACHINE + "[links]\npair = []", "links: unknown key pair", "did you mean pairs?"),
        (MACHINE + '[[links.pairs]]\nfrom = "a"', "links.pairs[0]: to is missing", "other end"),
        (
            MACHINE + '[[links.pairs]]\nfrom = "a"\nto = "c"\nlatency = "1 ms"',
            'links.pairs[0]: to = "c" is not a machine of this fleet',
            "machines are a",
        ),
        (
            MACHINE + '[[links.pairs]]\nfrom = "a"\nto = "a"',
            "links.pairs[0]: either latency or bandwidth is required",
            "omit the pair",
        ),
        ("x = " + 5000 * "1", "4300 digits", "in TOML"),
        ('[[machines]]\nname = "a"\nprobe = "\\u0000"', "null byte", "potluck probe --measure"),
    ],
)
def test_an_error_names_the_key_and_says_what_it_means(
    write: Write, text: str, message: str, hint: str
) -> None:
    path = write(text)
    with pytest.raises(UsageError) as raised:
        read_fleet(path)
    assert raised.value.message.startswith(str(path))
    assert message in raised.value.message
    assert hint in raised.value.hint


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(UsageError) as raised:
            read_fleet(path)
        assert str(path) in raised.value.message


def test_text_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"fleet\.toml"):
        read_fleet(path)


def test_a_machine_by_its_probe_report(write: Write, tmp_path: Path) -> None:
    (tmp_path / "board.json").write_text(json.dumps(probe_document()))
    (machine,) = read_fleet(write('[[machines]]\nname = "a"\nprobe = "board.json"')).machines
    assert isinstance(machine.description, Probed)
    assert machine.description.report.memory.usable.bytes == 2**30
    assert [unit.unit_id for unit in machine.description.units] == ["cpu/native"]


def with_memory(**changes: int) -> dict[str, object]:
    document = probe_document()
    memory = document["memory"]
    assert isinstance(memory, dict)
    return {**document, "memory": {**memory, **changes}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file"),
        ("{", "board.json: "),
        ("[]", "board.json: "),
        ('{"other": ' + 5000 * "[" + 5000 * "]" + "}", "recursion"),
        (json.dumps({"schema": "potluck.run/1", "units": []}), "its schema is potluck.run/1"),
        (json.dumps(probe_document(units=[])), "no unit of this machine works"),
        (json.dumps(probe_document(memory=3)), "memory"),
        (json.dumps(with_memory(total_bytes=2**63)), "more memory than any machine"),
        (json.dumps(with_memory(free_bytes=-1)), "more memory than any machine"),
        (json.dumps(probe_document(detectors=[])), "it does not describe the unit cpu/native"),
    ],
)
def test_a_broken_probe_report_is_named(
    write: Write, tmp_path: Path, text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / "board.json").write_text(text)
    with pytest.raises(UsageError) as raised:
        read_fleet(write('[[machines]]\nname = "a"\nprobe = "board.json"'))
    assert "machines[0] (a): probe: " in raised.value.message
    assert message in raised.value.message
    assert "potluck probe --measure --json" in raised.value.hint
