"""Whatever a fleet file says, it is a fleet that can be planned for, or an error that names it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.errors import UsageError
from potluck.placement.fleet.file import fleet_of
from potluck.placement.fleet.keys import FLEET, LINKS, MACHINE, PAIR, UNIT, Fleet
from potluck.placement.fleet.planning import coordinator_of, fleet_links, node_reports

PATH = Path("/nowhere/fleet.toml")
TEXTS = [
    "8 GiB",
    "24G",
    "0",
    "٣ GB/s",
    "9" * 40,
    "5 GB/s",
    "1 Mbit/s",
    "3 Gop/s",
    "2 ms",
    "native",
    "tinygrad:CL",
    "",
]
NAMES = ["a", "b", "a-1", "a b"]

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 5000),
    st.floats(),
    st.sampled_from([*TEXTS, *NAMES]),
)


def tables(names: list[str], values: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.dictionaries(st.sampled_from([*names, "other"]), values, max_size=5)


def rows(names: list[str], values: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.one_of(scalars, st.lists(st.one_of(scalars, tables(names, values)), max_size=3))


operations = st.dictionaries(st.sampled_from(["f32", "int8", "f64"]), scalars, max_size=2)
units = rows([key.name for key in UNIT.keys], st.one_of(scalars, operations))
sound = st.fixed_dictionaries(
    {"name": st.sampled_from(NAMES), "memory": st.sampled_from(["8 GiB", "1M", "9 TiB"])},
    optional={
        "count": st.integers(1, 3),
        "units": units,
        "usable_memory": st.sampled_from(["1 GiB", "4096"]),
        "read_bandwidth": st.sampled_from(["5 GB/s", "1 kbit/s"]),
    },
)
machines = st.one_of(
    rows([key.name for key in MACHINE.keys], st.one_of(scalars, operations, units)),
    st.lists(sound, min_size=1, max_size=3),
)
ends = st.sampled_from(NAMES)
pairs = st.one_of(
    rows([key.name for key in PAIR.keys], scalars),
    st.lists(st.fixed_dictionaries({"from": ends, "to": ends, "latency": st.just("1 ms")})),
)
links = tables([key.name for key in LINKS.keys], st.one_of(scalars, pairs))
fleets = st.one_of(
    tables([key.name for key in FLEET.keys], st.one_of(scalars, machines, links)),
    st.fixed_dictionaries({"machines": machines}, optional={"links": links, "coordinator": ends}),
)


@pytest.mark.slow
@given(values=fleets)
def test_a_fleet_or_an_error_that_names_the_file(values: dict[str, object]) -> None:
    try:
        fleet = fleet_of(values, PATH)
    except UsageError as error:
        usage_error = error
    else:
        _check(fleet)
        return
    assert str(PATH) in usage_error.message
    assert usage_error.hint


def _check(fleet: Fleet) -> None:
    reports = node_reports(fleet)
    assert len({report.node_id for report in reports}) == len(reports) > 0
    assert coordinator_of(fleet) in {report.node_id for report in reports}
    links = fleet_links(fleet)
    for report in reports:
        assert report.usable_bytes > 0
        assert report.units
        assert len({unit.unit_id for unit in report.units}) == len(report.units)
        link = links.link(reports[0].node_id, report.node_id)
        assert link.latency_seconds > 0
        assert link.bytes_per_second > 0
