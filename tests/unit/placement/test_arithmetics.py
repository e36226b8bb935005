"""The one arithmetic of a deployment: which, on which units, and what is said of its gain."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import pytest
from support.cluster.calls import a_plan, a_record, changed
from support.cluster.node_reports import node_report
from support.machines import hardware

from potluck.cluster.wire.calls import decode, encode
from potluck.errors import EngineError, InsufficientMemoryError
from potluck.placement.plan import computing_in, plan_in
from potluck.placement.planned import PlannedModel, PlannedStage
from potluck.types.arithmetic import Arithmetic
from potluck.types.choices import Quantization
from potluck.types.cluster import UnitId
from potluck.types.deployment import DeploymentRecord
from potluck.types.hardware import Figure, Figures, Origin, Trial
from potluck.types.node import NodeReport, UnitReport
from potluck.types.program import Shard
from potluck.types.stage import StagePlan, StageSize
from potluck.types.unit import Role

EXACT, PAIRS, AMX, I8MM = Arithmetic
ISAS: Mapping[Arithmetic, tuple[str, ...]] = {
    EXACT: ("scalar", "avx2"),
    PAIRS: ("scalar", "avx2", "avx512", "avx512_bf16"),
    AMX: ("scalar", "avx2", "avx512", "avx512_bf16", "amx"),
    I8MM: ("scalar", "neon", "dotprod", "i8mm"),
}
ABLE = {EXACT: (EXACT,), PAIRS: (EXACT, PAIRS), AMX: (EXACT, PAIRS, AMX), I8MM: (EXACT, I8MM)}
SIZE = StageSize(context_tokens=64, num_blocks=4, max_step_tokens=64, num_threads=1)


def measured(value: float) -> Figure:
    return Figure(value=value, origin=Origin.MEASURED, source="a product")


def node(
    name: str,
    best: Arithmetic | None,
    *,
    gain: float | None = None,
    exact: float = 1e11,
    role: Role = Role.SERVES,
) -> NodeReport:
    """A node whose CPU's best arithmetic is ``best``; None: a device of another backend."""
    backend = "tinygrad:CL" if best is None else "native"
    figures = Figures()
    if gain is not None:
        figures = Figures(
            f16_operations_per_second=measured(exact),
            fast_bf16_operations_per_second=measured(gain * 1e11),
        )
    variants = () if best is None else ISAS[best]
    trial = Trial(device_id="cpu", backend=backend, works=True, variants=variants, figures=figures)
    unit = UnitReport(
        unit_id=UnitId(f"cpu/{backend}"),
        backend=backend,
        description="",
        usable_bytes=1000,
        is_shared=True,
        num_threads=1,
        max_threads=1,
        role=role,
        arithmetics=() if best is None else ABLE[best],
    )
    return node_report(name, unit, usable_bytes=1000, hardware=hardware.report(trials=(trial,)))


class Planner:
    """Places a model with weights in ``formats`` that needs ``least_units``."""

    def __init__(self, *nodes: NodeReport, formats: str = "bf16", least_units: int = 1) -> None:
        self.nodes = nodes
        self.formats = frozenset(formats.split())
        self.least_units = least_units
        self.left_out: list[str] = []

    def plan(self, arithmetic: Arithmetic) -> PlannedModel:
        computing = computing_in(arithmetic, self.nodes)
        units = [(each.node_id, unit) for each in computing.reports for unit in each.units]
        if len(units) < self.least_units:
            raise InsufficientMemoryError(2, 1, "the model needs 2 B", hint="add 1 more node")
        plan = StagePlan(
            shard=Shard.whole(1),
            size=SIZE,
            memory=a_plan(),
            read_bytes=0,
            product_formats=self.formats,
        )
        return PlannedModel(
            quantization=Quantization.NONE,
            arithmetic=arithmetic,
            arithmetic_note="",
            stages=tuple(
                PlannedStage(node_id=node_id, unit_id=unit.unit_id, plan=plan)
                for node_id, unit in units
            ),
            rejections=computing.rejections,
        )

    def __call__(self, fixed: Arithmetic | None) -> PlannedModel:
        return plan_in(fixed, self.nodes, self.plan)


def where(planned: PlannedModel) -> str:
    return " ".join(stage.node_id for stage in planned.stages)


def test_exact_is_for_every_unit_and_says_what_fast_would_gain() -> None:
    planned = Planner(node("a", EXACT), node("b", PAIRS, gain=1.96), node("c", None))(EXACT)
    assert (planned.arithmetic, where(planned), planned.rejections) == (EXACT, "a b c", ())
    assert planned.arithmetic_note == (
        "exact, bit-identical on every CPU; fast (avx512_bf16) would compute prompts' products of "
        "bf16 2.0 times as fast (measured with bf16) on 1 of 2 CPUs, and leave the others out"
    )


@pytest.mark.parametrize(
    ("nodes", "note"),
    [
        ([node("a", PAIRS)], "products of bf16 faster (not measured) on the CPU"),
        (
            [node("a", PAIRS, gain=1.8), node("b", PAIRS, gain=2.2)],
            "products of bf16 1.8 to 2.2 times as fast (measured with bf16) on all 2 CPUs",
        ),
        # What was measured is its tiles.
        (
            [node("a", AMX, gain=9.0), node("b", PAIRS), node("c", PAIRS, role=Role.OUT)],
            "products of bf16 faster (not measured) on all 2 CPUs",
        ),
        (
            [
                node("a", PAIRS, gain=2.0, exact=0.0),
                node("b", PAIRS, gain=math.nan),
                node("c", PAIRS, gain=1.5),
            ],
            "products of bf16 1.5 times as fast (measured with bf16) on all 3 CPUs",
        ),
    ],
)
def test_a_gain_that_was_not_measured_is_not_guessed(nodes: list[NodeReport], note: str) -> None:
    assert Planner(*nodes)(EXACT).arithmetic_note.endswith(note)


def test_nothing_is_said_where_fast_would_gain_nothing() -> None:
    assert Planner(node("a", EXACT))(EXACT).arithmetic_note == ""
    assert Planner(node("a", PAIRS), formats="q8_0 f32")(EXACT).arithmetic_note == ""


def test_fast_is_the_arithmetic_that_most_units_have() -> None:
    nodes = [node("a", AMX), node("b", PAIRS, gain=2.0), node("c", I8MM), node("d", EXACT)]
    planned = Planner(*nodes)(None)
    assert (planned.arithmetic, where(planned)) == (PAIRS, "a b")
    assert [(each.node_id, each.reason) for each in planned.rejections] == [
        ("c", "it does not support the avx512_bf16 arithmetic of this deployment"),
        ("d", "it does not support the avx512_bf16 arithmetic of this deployment"),
    ]
    assert planned.arithmetic_note == (
        "avx512_bf16 (fast), bit-identical on CPUs that have it, to compute prompts' products of "
        "bf16 2.0 times as fast (measured with bf16)"
    )


def test_of_those_that_as_many_units_have_the_fastest_is_taken() -> None:
    assert Planner(node("a", AMX), node("b", AMX))(None).arithmetic is AMX


def test_units_of_other_backends_stay_in_a_fast_deployment() -> None:
    assert where(Planner(node("a", PAIRS), node("b", None))(None)) == "a b"


def test_fast_is_refused_where_the_model_fits_only_with_units_that_lack_it() -> None:
    planner = Planner(node("a", PAIRS), node("b", EXACT), least_units=2)
    with pytest.raises(
        InsufficientMemoryError, match="in avx512_bf16 arithmetic the mod"
    ) as raised:
        planner(None)
    assert raised.value.hint == "add 1 more node; or --arithmetic exact uses every unit"
    assert where(planner(EXACT)) == "a b"


def test_quantized_weights_have_fast_products_on_tiles_alone() -> None:
    assert Planner(node("a", AMX), node("b", PAIRS), formats="q4_0")(None).arithmetic is AMX
    planned = Planner(node("a", PAIRS), node("b", EXACT), formats="q4_0 f32")(None)
    assert (planned.arithmetic, where(planned)) == (EXACT, "a b")
    note = "exact, since no CPU here has fast products for its weights (f32, q4_0)"
    assert planned.arithmetic_note == note


def test_a_fixed_arithmetic_stays_whatever_units_come() -> None:
    planned = Planner(node("a", AMX), node("b", AMX), node("c", PAIRS))(PAIRS)
    assert (planned.arithmetic, where(planned)) == (PAIRS, "a b c")
    with pytest.raises(EngineError, match="no unit supports i8mm") as raised:
        Planner(node("a", AMX), node("b", None))(I8MM)
    assert "--arithmetic exact" in raised.value.hint


def test_a_node_that_does_not_say_what_it_computes_in_is_left_out() -> None:
    """It is of an older version, whose products of BF16 weights have other bits."""
    (unit,) = node("a", PAIRS).units
    older = msgspec.structs.replace(
        node("a", PAIRS), units=(msgspec.structs.replace(unit, arithmetics=()),)
    )
    assert where(Planner(older, node("b", EXACT))(EXACT)) == "b"


@pytest.mark.parametrize("arithmetic", [None, *Arithmetic])
def test_the_record_keeps_it_for_a_successor(arithmetic: Arithmetic | None) -> None:
    record = changed(a_record(), arithmetic=arithmetic, arithmetic_note="so")
    assert decode(encode(record), DeploymentRecord) == record
