"""The lines to type: what a shell makes of them, and what may stand in them."""

from __future__ import annotations

import ast
import dataclasses
import shlex
import subprocess

import pytest

from potluck.cluster.invitations.software.endpoint import Endpoint, python_line, shell_line
from potluck.cluster.invitations.software.service import installer, shell_installer

ENDPOINT = Endpoint(
    host="10.0.0.7",
    port=7333,
    token="K7QW2M9C4T8RZ0XB6DHN3VJ5PYFA1GES",
    certificate_sha256="0f" * 32,
    public_key_sha256="A" * 42 + "/=",
    invitation="10.0.0.7:7333/K7QW2M9C4T8RZ0XB6DHN3VJ5PYFA1GES/" + "A" * 43,
)


def test_the_line_for_python_is_one_program_that_every_python_3_parses() -> None:
    program, option, text, *rest = shlex.split(python_line(ENDPOINT) + " --service")
    assert (program, option, rest) == ("python3", "-c", ["--service"])
    ast.parse(text, feature_version=(3, 7))
    assert "\n" not in text
    assert ENDPOINT.certificate_sha256 in text


def test_the_token_is_sent_after_the_certificate_was_compared() -> None:
    text = python_line(ENDPOINT)
    assert text.index(ENDPOINT.certificate_sha256) < text.index(ENDPOINT.token)


def test_the_line_for_a_shell_pins_the_key_with_both_programs() -> None:
    line = shell_line(ENDPOINT)
    checked = subprocess.run(["sh", "-n", "-c", line], capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "\n" not in line
    assert line.startswith(f"k=sha256//{ENDPOINT.public_key_sha256};")
    assert "--pinnedpubkey $k" in line
    assert "--pinnedpubkey=$k" in line
    assert line.endswith("|sh")


def test_an_address_of_ipv6_is_in_brackets_in_the_url_alone() -> None:
    endpoint = dataclasses.replace(ENDPOINT, host="fd00::7")
    assert "https://[fd00::7]:7333/join/" in shell_line(endpoint)
    assert 'HTTPSConnection("fd00::7",7333' in python_line(endpoint)


@pytest.mark.parametrize(
    "wrong",
    [
        {"host": "a;reboot"},
        {"host": "$(id)"},
        {"port": 0},
        {"port": 65536},
        {"token": "a'b"},
        {"token": ""},
        {"certificate_sha256": "0f" * 31},
        {"public_key_sha256": "A" * 44},
        {"invitation": "a b"},
        {"invitation": "`id`"},
    ],
    ids=str,
)
def test_nothing_that_means_something_to_a_shell_gets_in(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="of an invitation"):
        dataclasses.replace(ENDPOINT, **wrong)  # type: ignore[arg-type]


def test_the_installer_knows_where_it_is_from() -> None:
    text = installer(ENDPOINT)
    ast.parse(text, feature_version=(3, 7))
    (assigned,) = (
        each.value
        for each in ast.parse(text).body
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "ENDPOINT"
    )
    known = ast.literal_eval(assigned)
    assert known["token"] == ENDPOINT.token
    assert known["certificate_sha256"] == ENDPOINT.certificate_sha256


def test_the_script_for_a_shell_runs_the_program_of_the_line_for_python() -> None:
    script = shell_installer(ENDPOINT)
    checked = subprocess.run(["sh", "-n", "-c", script], capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert shlex.split(python_line(ENDPOINT))[2] in script
    assert "@PROGRAM@" not in script
