from __future__ import annotations

import re

import pytest

from potluck.portability.features.rules import FeatureRules, rule_files, rules_for
from potluck.portability.shipped_toml import parse_toml

TOML = """
schema = "potluck.features/1"
distribution = "some-package"
functions = ["is_on"]
[documents.a]
title = "A"
url = "https://a"
read = "all"
[[rule]]
name = "off"
feature = "the thing"
severity = "limit"
message = "{version} has no thing"
document = "a"
when = { returns = { functions = ["is_on"], number = 0 } }
"""


def test_rules_are_read() -> None:
    rules = parse_toml(TOML, FeatureRules)
    assert [rule.name for rule in rules.rule] == ["off"]
    assert rules.rule[0].when.functions == {"is_on"}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("features/1", "features/2", "schema"),
        ("some-package", "Some_Package", "normalized"),
        ("some-package", "some-package/../x", "normalized"),
        (
            'functions = ["is_on"]\n[',
            'functions = ["is_on", "is_unused"]\n[',
            "not used: is_unused",
        ),
        ('functions = ["is_on"]\n[', "functions = []\n[", "not listed, or not used: is_on"),
        ('document = "a"', 'document = "b"', "not listed, or not cited: a, b"),
        ('severity = "limit"', 'severity = "fatal"', "severity"),
        ('feature = "the thing"', "", "limits no feature"),
        ("{version}", "{host}", "no host to fill in"),
        ("when = {", 'when = { version = "1.x",', "1.x"),
        ("when = {", "when = { until = 1,", "until"),
        ('name = "off"', 'name = "off"\nnamed = "off"', "named"),
    ],
)
def test_wrong_rules_are_refused(old: str, new: str, says: str) -> None:
    assert old in TOML
    with pytest.raises(ValueError, match=re.escape(says)):
        parse_toml(TOML.replace(old, new), FeatureRules)


def test_a_rule_that_stands_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="rules twice: off"):
        parse_toml(TOML + TOML[TOML.index("[[rule]]") :], FeatureRules)


def test_shipped_rules_are_sound_and_named_after_their_files() -> None:
    expected = {"eclipse-zenoh", "potluck", "pyopencl", "tinygrad", "torch", "warp-lang"}
    assert set(rule_files()) == expected
    for name in rule_files():
        rules = rules_for(name)
        assert rules is not None
        assert rules.distribution == name
        assert rules.rule


def test_rules_are_found_by_any_spelling() -> None:
    assert rules_for("Warp_Lang") is rules_for("warp-lang") is not None
    assert rules_for("numpy") is None
    assert rules_for("../features/torch") is None
