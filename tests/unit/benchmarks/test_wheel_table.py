"""The table of predictions says how many outcomes differ, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from wheel_loads import Load
from wheel_table import page
from wheel_trials import Explanation, explanations, tag_explanations

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks/results/wheel_predictions.json"

NAME = "thing-1.0-cp311-cp311-manylinux2014_x86_64.whl"


def document(predicted: str, real: str) -> dict[str, Any]:
    """Of one wheel with two files, one of which loads, on one root."""
    outcomes = [
        {"predicted": "", "real": "", "files": [0]},
        {"predicted": predicted, "real": real, "files": [1]},
    ]
    return {
        "roots": [{"name": "xenial-amd64", "machine": "x86_64", "libc_version": [2, 23]}],
        "wheels": [
            {
                "wheel": NAME,
                "least": ["manylinux_2_28_x86_64"],
                "auditwheel": "manylinux_2_28_x86_64",
                "files": ["thing/a.so", "thing/b.so"],
                "results": {"xenial-amd64": outcomes},
            }
        ],
    }


def test_what_is_as_predicted_has_no_note() -> None:
    made = page(document("it needs GLIBC_2.28", "version `GLIBC_2.28' not found"), (), {})
    assert "| thing 1.0 | 2014 | 2_28 | 2_28 | 1 of 2 |" in made
    assert "2 of 2 outcomes are as predicted; 1 load" in made
    assert "Differences" not in made


def test_a_difference_is_explained_or_called_unexplained() -> None:
    known = Explanation(wheel="thing-*", root="*", file="*/b.so", why="It is special.")
    made = page(document("", "undefined symbol: x"), (known,), {})
    assert "| 1 of 2; 1 differ: note 1 |" in made
    assert "1. It is special." in made
    assert "1. Unexplained: `thing/b.so`" in page(document("", "undefined symbol: x"), (), {})


def test_another_tag_than_auditwheels_is_explained_too() -> None:
    made = document("", "")
    made["wheels"][0]["auditwheel"] = "linux_x86_64"
    assert "| 2_28 | linux: note 1 |" in page(made, (), {"thing-*": "It counts more."})
    assert "1. Unexplained: the least tag" in page(made, (), {"other-*": "It counts more."})


@pytest.mark.parametrize(
    ("predicted", "real", "is_right"),
    [
        ("", "", True),
        ("", "undefined symbol: x", False),
        ("x is missing", "undefined symbol: x", True),
        ("x is missing", "", False),
        ("", "signal 11", True),
        ("x is missing", "signal 11", False),
    ],
)
def test_a_signal_comes_after_linking(predicted: str, real: str, is_right: bool) -> None:
    assert Load(file="a.so", predicted=predicted, real=real).is_as_predicted == is_right


def test_the_page_is_made_from_the_results() -> None:
    made = page(json.loads(RESULTS.read_text("utf-8")), explanations(), tag_explanations())
    assert (ROOT / "docs/reference/wheel-predictions.md").read_text("utf-8") == made
    assert "Unexplained" not in made
