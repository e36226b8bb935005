"""``/health/ready``: whether a load balancer should send requests here."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import httpx2
import pytest
from support.http.api_server import ask_app

from potluck.api.app import build_app
from potluck.api.config import ApiConfig
from potluck.api.keys import ApiKeys
from potluck.types.deployment import DeploymentState
from potluck.types.gateway import ModelStatus


class PlayedGateway:
    """Has models in the states that it is given."""

    def __init__(self, *states: DeploymentState) -> None:
        self._states = states

    def models(self) -> list[ModelStatus]:
        return [
            ModelStatus(
                model_id=f"secret-name-{number}",
                created=0,
                context_tokens=8,
                state=state,
                reason="secret reason",
            )
            for number, state in enumerate(self._states)
        ]


def get(path: str, *states: DeploymentState, config: ApiConfig | None = None) -> httpx2.Response:
    app = build_app(cast(Any, PlayedGateway(*states)), config or ApiConfig(), asyncio.Event())
    return ask_app(app, "GET", path)


LOADING, DEGRADED, READY = DeploymentState.LOADING, DeploymentState.DEGRADED, DeploymentState.READY


@pytest.mark.parametrize("states", [(READY,), (LOADING, READY), (READY, DEGRADED)])
def test_one_model_that_is_ready_is_enough(states: tuple[DeploymentState, ...]) -> None:
    answer = get("/health/ready", *states)
    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})


@pytest.mark.parametrize(
    ("states", "sentence"),
    [
        ((), "no model is deployed"),
        ((LOADING,), "no deployed model is ready to answer"),
        ((DEGRADED, DEGRADED), "no deployed model is ready to answer"),
    ],
)
def test_without_one_it_is_said_in_a_sentence_that_tells_strangers_nothing(
    states: tuple[DeploymentState, ...], sentence: str
) -> None:
    config = ApiConfig(keys=ApiKeys(()))
    answer = get("/health/ready", *states, config=config)
    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == sentence
    assert "secret" not in answer.text
    assert int(answer.headers["Retry-After"]) > 0
    assert get("/health", *states).json() == {"status": "ok"}


def test_where_no_key_is_needed_the_reasons_are_given() -> None:
    answer = get("/health/ready", DEGRADED)
    assert answer.json()["error"]["message"] == (
        "no deployed model is ready to answer: secret-name-0: secret reason"
    )
