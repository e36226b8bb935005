"""What ``deploy`` and ``plan`` ask an agent for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from potluck.cli.placing import deploy_params
from potluck.errors import ParameterError
from potluck.types.deployment import Deploy


def make_deploy(model: str = "m", *, name: str | None = None, **given: Any) -> Deploy:
    return msgspec.convert(deploy_params(model, given, name=name), Deploy)


def test_states_are_asked_for_or_are_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POTLUCK_STATES", raising=False)
    assert (make_deploy().num_states, make_deploy().default_states) == (None, None)
    monkeypatch.setenv("POTLUCK_STATES", "12")
    assert (make_deploy().num_states, make_deploy().default_states) == (None, 12)
    both = make_deploy(num_states=7)
    assert (both.num_states, both.default_states) == (7, 12)


@pytest.mark.parametrize(("text", "units"), [("auto", None), ("off", 1), ("1", 1), ("4", 4)])
def test_groups_of_so_many_units_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, text: str, units: int | None
) -> None:
    monkeypatch.delenv("POTLUCK_TENSOR_PARALLEL", raising=False)
    assert make_deploy().tensor_parallel is None
    assert make_deploy(tensor_parallel=text).tensor_parallel == units
    monkeypatch.setenv("POTLUCK_TENSOR_PARALLEL", text)
    assert make_deploy().tensor_parallel == units
    assert make_deploy(tensor_parallel="2").tensor_parallel == 2


@pytest.mark.parametrize("text", ["all", "0", "65", "-2", "2.0", "", "9" * 5000])
def test_other_groups_are_refused(text: str) -> None:
    with pytest.raises(ParameterError, match=r"tensor_parallel is .*, but must be auto, off, or a"):
        make_deploy(tensor_parallel=text)


def test_the_path_of_a_model_is_made_absolute_and_the_agent_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.gguf").touch()
    assert make_deploy("m.gguf").model == str(tmp_path / "m.gguf")
    assert make_deploy(".").model == str(tmp_path)
    (tmp_path / "blobs").mkdir()
    Path("blobs/3f1c").touch()
    Path("blobs/linked.gguf").symlink_to("3f1c")
    assert make_deploy("blobs/linked.gguf").model == str(tmp_path / "blobs" / "linked.gguf")
    assert make_deploy("blobs/..").model == str(tmp_path)
    assert make_deploy("m.gguf").model_id is None
    assert make_deploy("m.gguf", name="mine").model_id == "mine"
    assert make_deploy("/mnt/m.gguf").model == "/mnt/m.gguf"


@pytest.mark.parametrize("model", ["", "demo", "~no-such-user/m", f"/{'m' * 300}"])
def test_what_is_no_path_on_this_machine_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: str
) -> None:
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path)
    deploy = make_deploy(model, draft="~no-such-user/m")
    assert (deploy.model, deploy.draft) == (model, "~no-such-user/m")


def test_the_path_of_a_draft_model_is_made_absolute(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("POTLUCK_DRAFT", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.gguf").touch()
    (tmp_path / "small").mkdir()
    assert make_deploy(draft="small.gguf").draft == str(tmp_path / "small.gguf")
    assert make_deploy(draft="./small").draft == str(tmp_path / "small")
    # It may be the name of a deployed model.
    assert make_deploy(draft="small").draft == "small"
    assert make_deploy(draft="org/name").draft == "org/name"
    assert make_deploy().draft == "ngram"
    monkeypatch.setenv("POTLUCK_DRAFT", "small.gguf")
    assert make_deploy().draft == str(tmp_path / "small.gguf")
    assert make_deploy(draft="off").draft == "off"
