from potluck.placement.fleet.keys import (
    DescribedUnit,
    Fleet,
    Machine,
    ManualDescription,
    OperationRates,
    Probed,
)
from potluck.placement.fleet.planning import coordinator_of, node_id_of, node_reports
from potluck.placement.offering import offers
from potluck.types.arithmetic import Arithmetic
from potluck.types.backend import DeviceKind
from potluck.types.hardware import (
    CpuFacts,
    DetectorReport,
    Device,
    DeviceMemory,
    Figure,
    Figures,
    Origin,
    ProbeReport,
    Trial,
)
from potluck.types.memory import MemoryFacts, MemoryLimit
from potluck.types.unit import ChosenUnit, Role

GIB = 2**30


def machine(*units: DescribedUnit, count: int = 1, usable_bytes: int | None = None) -> Machine:
    return Machine(
        name="box",
        place="fleet.toml: machines[0] (box)",
        count=count,
        usable_bytes=usable_bytes,
        description=ManualDescription(memory_bytes=16 * GIB, num_cores=8, units=units),
    )


def fleet(*machines: Machine) -> Fleet:
    return Fleet(machines=machines, coordinator=machines[0].name)


CPU = DescribedUnit(
    backend="native", read_bytes_per_second=4e10, operations=OperationRates(int8=1e12)
)
GPU = DescribedUnit(backend="tinygrad:CUDA", device_bytes=10 * GIB)


def test_what_is_written_by_hand_is_not_measured() -> None:
    (report,) = node_reports(fleet(machine(CPU)))
    (unit,) = report.units
    figure = unit.figures.read_bytes_per_second
    assert (figure.value, figure.origin) == (4e10, Origin.TABLE)
    assert figure.source == "fleet.toml: machines[0] (box)"
    assert unit.figures.int8_operations_per_second.origin is Origin.TABLE
    unknown = unit.figures.f32_operations_per_second
    assert (unknown.value, unknown.origin) == (None, Origin.UNKNOWN)
    assert unit.rates.decode_tokens_per_second.origin is Origin.UNKNOWN


def test_each_machine_of_an_entry_is_a_node_and_a_host() -> None:
    reports = node_reports(fleet(machine(CPU, count=3)))
    assert [report.name for report in reports] == ["box-1", "box-2", "box-3"]
    assert len({report.node_id for report in reports}) == 3
    assert len({report.host_id for report in reports}) == 3
    assert all(len(report.node_id) == 16 for report in reports)
    assert coordinator_of(fleet(machine(CPU, count=3))) == node_id_of("box-1")


def test_memory_less_the_systems_reserve_may_be_used() -> None:
    (report,) = node_reports(fleet(machine(CPU)))
    assert report.usable_bytes == 16 * GIB - GIB // 2
    (offer,) = offers([report], [report]).offers
    assert 15 * GIB < offer.usable_bytes < 16 * GIB - GIB // 2


def test_usable_memory_is_offered_as_it_is_written() -> None:
    (report,) = node_reports(fleet(machine(CPU, usable_bytes=4 * GIB)))
    (offer,) = offers([report], [report]).offers
    assert offer.usable_bytes == 4 * GIB


def test_units_that_use_the_machines_memory_share_it() -> None:
    shared = DescribedUnit(backend="tinygrad:CL")
    (report,) = node_reports(fleet(machine(CPU, shared, usable_bytes=4 * GIB)))
    assert sum(offer.usable_bytes for offer in offers([report], [report]).offers) == 4 * GIB


def test_units_have_ids_of_their_own() -> None:
    (report,) = node_reports(fleet(machine(CPU, GPU, GPU)))
    ids = [unit.unit_id for unit in report.units]
    assert ids == ["cpu/native", "gpu/tinygrad:CUDA", "gpu-2/tinygrad:CUDA"]
    assert [unit.is_shared for unit in report.units] == [True, False, False]
    assert report.units[1].usable_bytes == 10 * GIB
    assert report.units[0].arithmetics == (Arithmetic.EXACT,)
    assert report.units[1].arithmetics == ()


def test_figures_of_a_probe_keep_their_origin() -> None:
    measured = Figures(read_bytes_per_second=Figure(value=2e10, origin=Origin.MEASURED, source="x"))
    memory = DeviceMemory(total_bytes=None, free_bytes=None, is_shared=True, source="")
    cpu = Device(
        device_id="cpu",
        kind=DeviceKind.CPU,
        make="",
        name="Cortex",
        reported_name="",
        chip="",
        driver="",
        device_files=(),
        memory=memory,
    )
    report = ProbeReport(
        host_name="board",
        kernel="",
        container="",
        cpu=CpuFacts(
            name="", architecture="", num_cores=8, num_usable_cores=4, usable_reason="affinity"
        ),
        memory=MemoryFacts(
            total_bytes=8 * GIB,
            free_bytes=6 * GIB,
            reserve_bytes=GIB // 2,
            usable=MemoryLimit(bytes=5 * GIB, reason="free"),
        ),
        detectors=(DetectorReport(detector="cpu", devices=(cpu,)),),
        trials=(
            Trial(
                device_id="cpu", backend="native", works=True, variants=("amx",), figures=measured
            ),
        ),
        is_complete=True,
    )
    probed = Probed(
        report=report,
        units=(
            ChosenUnit(
                unit_id="cpu/native",
                device_id="cpu",
                backend="native",
                role=Role.RESERVE,
                reason="r",
            ),
        ),
    )
    entry = Machine(name="b", place="p", count=1, usable_bytes=None, description=probed)
    (node,) = node_reports(fleet(entry))
    (unit,) = node.units
    assert unit.figures == measured
    assert (unit.role, unit.reason, unit.num_threads) == (Role.RESERVE, "r", 4)
    assert unit.arithmetics == (Arithmetic.EXACT, Arithmetic.AMX)
    assert (node.usable_bytes, unit.usable_bytes) == (5 * GIB, 5 * GIB)
    assert node.hardware == report
