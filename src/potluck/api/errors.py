"""Errors that clients see; each dialect has its own format."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from potluck.errors import (
    ChatTemplateError,
    ModelNotFoundError,
    OverloadedError,
    ParameterError,
    PotluckError,
    PromptTooLongError,
    RefusedRequestError,
    UsageError,
)
from potluck.types.deployment import DeploymentState
from potluck.types.gateway import ModelStatus

_RETRY_READY_SECONDS = 1
"""Retry-After for a model that recovered after its nodes were lost during the request."""
_RETRY_UNKNOWN_SECONDS = 10
"""Retry-After if it is unknown when a model will be ready; the repeated request waits for it."""


class ApiError(PotluckError):
    """An error response. ``param`` names the invalid parameter, if any."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = dict(headers or {})


class ClientGoneError(Exception):
    """The client has closed the connection, so no response can be sent."""


def invalid(param: str | None, message: str, *, code: str = "invalid_value") -> ApiError:
    """Return an error that rejects a request because of the value of ``param``."""
    return ApiError(400, message, param=param, code=code)


def overloaded(message: str, retry_after_seconds: float) -> ApiError:
    """Return an error for lack of capacity, with the time to retry after."""
    return ApiError(
        429, message, code="rate_limit_exceeded", headers=retry_after(retry_after_seconds)
    )


def internal_error() -> ApiError:
    """Return an error for a bug of ours; only the log has the details."""
    return ApiError(500, "internal server error; see the agent's log", code="internal_error")


def retry_after(seconds: float | None) -> dict[str, str]:
    """Return the Retry-After header for ``seconds``, or a default if the time is unknown."""
    if seconds is None:
        return {"Retry-After": str(_RETRY_UNKNOWN_SECONDS)}
    return {"Retry-After": str(max(1, math.ceil(seconds)))}


def to_api_error(
    error: PotluckError, *, prompt_param: str | None = None, status: ModelStatus | None = None
) -> ApiError:
    """Convert ``error`` to the error that a client sees.

    ``prompt_param`` is the dialect's name of the prompt: ``messages`` or ``prompt``. ``status`` is
    that of the requested model, if it is deployed.
    """
    if isinstance(error, ApiError):
        return error
    message = f"{error.message} ({error.hint})" if error.hint else error.message
    if isinstance(error, PromptTooLongError):
        return ApiError(400, error.message, code="context_length_exceeded", param=prompt_param)
    if isinstance(error, ParameterError):
        return invalid(error.name, message)
    if isinstance(error, ChatTemplateError):
        return invalid(prompt_param, message)
    if isinstance(error, ModelNotFoundError):
        return ApiError(404, message, code="model_not_found", param="model")
    if isinstance(error, OverloadedError):
        return overloaded(error.message, error.retry_after_seconds)
    if isinstance(error, UsageError):
        return invalid(None, message)
    if isinstance(error, RefusedRequestError):
        return ApiError(422, message, code="request_refused")  # a status that clients do not retry
    if status is None:
        return ApiError(503, message, code="service_unavailable")
    if status.state is DeploymentState.READY:
        again = retry_after(_RETRY_READY_SECONDS)
        return ApiError(503, message, code="service_unavailable", headers=again)
    again = retry_after(status.ready_in_seconds)
    return ApiError(503, message, code="model_not_ready", headers=again)


def renamed(error: ApiError, names: Mapping[str, str]) -> ApiError:
    """Return ``error`` with the dialect's name of the field that it is about.

    ``names`` maps dialect-independent names of fields to the dialect's.
    """
    if error.param is None or error.param not in names:
        return error
    name = names[error.param]
    message = re.sub(rf"(?<![\w.]){re.escape(error.param)}(?!\w)", name, str(error.message))
    return ApiError(error.status, message, code=error.code, param=name, headers=error.headers)


def forget_frames(error: BaseException) -> None:
    """Release the frames in the tracebacks of ``error`` and its causes.

    A frame that refers to the error, or to the task that it ended, forms a reference cycle:
    everything that its variables refer to, such as a prompt of megabytes, would stay until the next
    full garbage collection.
    """
    pending: list[BaseException | None] = [error]
    while pending:
        each = pending.pop()
        if each is not None and each.__traceback__ is not None:
            each.__traceback__ = None
            pending += [each.__cause__, each.__context__]
