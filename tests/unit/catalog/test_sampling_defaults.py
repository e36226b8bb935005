from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from potluck.catalog.sampling_defaults import gguf_sampling_defaults, read_generation_config
from potluck.errors import ModelFileError
from potluck.types.sampling import default_sampling, merged_sampling


def f32(value: float) -> float:
    """As it comes out of a GGUF file."""
    return float(np.float32(value))


def gguf(**keys: object) -> dict[str, float | int]:
    metadata = {f"general.sampling.{key}": value for key, value in keys.items()}
    return gguf_sampling_defaults({"general.name": "m", **metadata}, path="m.gguf")


def test_a_gguf_file_that_says_nothing_has_llama_cpps_defaults() -> None:
    assert gguf() == {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}


def test_what_a_gguf_file_recommends_goes_first() -> None:
    assert gguf(temp=f32(0.6), top_p=f32(0.9), penalty_repeat=f32(1.05)) == {
        "temperature": 0.6,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.05,
        "repetition_penalty": 1.05,
    }
    assert gguf(top_k=20, min_p=0.0)["top_k"] == 20
    assert gguf(top_k=20, min_p=0.0)["min_p"] == 0.0


@pytest.mark.parametrize("top_k", [0, -1])
def test_no_top_k_is_all_tokens(top_k: int) -> None:
    assert "top_k" not in gguf(top_k=top_k)
    assert default_sampling(gguf(top_k=top_k))["top_k"] is None


def test_a_negative_temperature_is_greedy_as_in_llama_cpp() -> None:
    assert gguf(temp=f32(-1.0))["temperature"] == 0.0


def test_samplers_that_there_are_not_are_left_out() -> None:
    assert gguf(mirostat=2, xtc_probability=f32(0.5), sequence="dkypmxt") == gguf()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"top_p": f32(1.5)}, "top_p is 1.5"),
        ({"temp": "hot"}, "temperature is 'hot'"),
        ({"top_k": f32(2.5)}, "top_k is 2.5"),
        ({"min_p": float("nan")}, "min_p is nan"),
        ({"penalty_repeat": float("inf")}, "repetition_penalty is inf"),
    ],
)
def test_a_gguf_file_that_recommends_nonsense_is_refused(
    keys: dict[str, object], message: str
) -> None:
    with pytest.raises(ModelFileError, match=message) as caught:
        gguf(**keys)
    assert "m.gguf" in str(caught.value)


def test_hugging_face_models_recommend_what_their_file_says(tmp_path: Path) -> None:
    path = tmp_path / "generation_config.json"
    assert read_generation_config(path) == {}
    path.write_text(json.dumps({"temperature": 0.6, "top_k": 0, "top_p": 0.9}))
    assert read_generation_config(path) == {}
    path.write_text(json.dumps({"do_sample": True, "temperature": 0.6, "top_k": 0, "top_p": 0.9}))
    assert read_generation_config(path) == {"temperature": 0.6, "top_p": 0.9}


def test_what_is_asked_for_goes_before_what_is_recommended() -> None:
    recommended = gguf()
    requested = {"temperature": 1.0, "top_k": None, "seed": 3}
    assert merged_sampling(recommended, requested) == {
        "temperature": 1.0,
        "top_k": None,
        "top_p": 0.95,
        "min_p": 0.05,
        "seed": 3,
    }
    assert default_sampling({}) == {
        "temperature": 1.0,
        "top_k": None,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    }
