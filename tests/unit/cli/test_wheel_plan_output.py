"""What a plan looks like, for people and as a document."""

from __future__ import annotations

from dataclasses import replace

from support.portability.folder_index import PYTHON, a_host
from support.schemas import validate_document

from potluck.cli.wheel_hosts import SilentNode
from potluck.cli.wheel_plan_output import plan_document, plan_lines
from potluck.portability.planning.index import IndexFile
from potluck.portability.planning.judge import LostFeature
from potluck.portability.planning.plan import (
    Cost,
    HostPlan,
    Nearest,
    Plan,
    PlannedWheel,
    Problem,
    Reason,
)
from potluck.portability.planning.release_variants import UnusedVariant
from potluck.portability.planning.target import Target

TARGETS = [Target(a_host(name), PYTHON) for name in ("a", "b")]


def wheel(version: str, *lost: LostFeature) -> PlannedWheel:
    name = f"app-{version}-py3-none-any.whl"
    return PlannedWheel(
        name="app", version=version, file=IndexFile(filename=name, url="u"), lost=lost
    )


LOST = LostFeature(feature="tiles", message="this build has no libmathdx", fix="take 2.0")
NEAREST = Nearest(kind="release", message="app 1.0 installs and loads there", version="1.0")
PROBLEM = Problem(
    package="app",
    hosts=("b",),
    wanted=(">=2",),
    reasons=(Reason(message="2.0: the wheels are for musl", versions=("2.0",)),),
    nearest=(NEAREST,),
)
BOTH = Plan(
    hosts=("a", "b"),
    shared=tuple(HostPlan(host=host, wheels=(wheel("1.0", LOST),)) for host in ("a", "b")),
    own=(
        HostPlan(host="a", wheels=(wheel("2.0"),)),
        HostPlan(host="b", wheels=(wheel("1.0", LOST),)),
    ),
    costs=(
        Cost(
            host="a",
            package="app",
            shared_version="1.0",
            own_version="2.0",
            features=("tiles",),
        ),
    ),
)
NONE = Plan(
    hosts=("a", "b"),
    shared=None,
    own=(HostPlan(host="a", wheels=(wheel("2.0"),)),),
    problems=(PROBLEM,),
)


def test_both_answers_where_one_costs_something() -> None:
    lines = list(plan_lines(BOTH, TARGETS))
    assert lines[0] == "one version of each package for all 2 hosts:"
    assert lines[2].split() == ["app", "1.0", "all", "py3-none-any", "tiles"]
    assert "  app 1.0: this build has no libmathdx (fix: take 2.0)" in lines
    assert "  a: app 1.0 instead of 2.0, without tiles" in lines
    assert "the newest for each host:" in lines


def test_the_label_of_a_variant_and_the_variants_that_are_not_used() -> None:
    unused = UnusedVariant(label="cu128", reason="it is invalid", is_certain=False)
    file = IndexFile(filename="app-1.0-1-py3-none-any-x86_64_v3.whl", url="u")
    found = PlannedWheel(
        name="app", version="1.0", file=file, unused=(unused, replace(unused, label="rocm"))
    )
    plans = (HostPlan(host="a", wheels=(found,)),)
    plan = Plan(hosts=("a",), shared=plans, own=plans)
    lines = list(plan_lines(plan, TARGETS[:1]))
    assert lines[2].split() == ["app", "1.0", "a", "py3-none-any-x86_64_v3"]
    assert lines[3] == "  app 1.0 on a: the variants cu128, rocm are not used: it is invalid"
    document = validate_document(plan_document(plan, TARGETS[:1], ["app"], [], ["app"]))
    (wheel,) = document["own"][0]["wheels"]
    assert wheel["variant"] == "x86_64_v3"
    assert wheel["unused_variants"][1] == {"label": "rocm", "reason": "it is invalid"}


def test_why_nothing_fits_and_what_would() -> None:
    lines = list(plan_lines(NONE, TARGETS))
    assert lines[0] == "the newest for each host:"
    assert lines[-4:] == [
        "nothing fits: app on b",
        "  required: >=2",
        "  2.0: the wheels are for musl",
        "  nearest: app 1.0 installs and loads there",
    ]


def test_documents_keep_the_schema() -> None:
    silent = [SilentNode(node_id="n1", problem="no answer")]
    for plan in (BOTH, NONE):
        document = validate_document(plan_document(plan, TARGETS, ["app"], silent, ["app"]))
    assert document["shared"] is None
