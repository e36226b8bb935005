"""What clients are told of errors; each dialect has a form of its own for it."""

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
from potluck.types.gateway import ModelState, ModelStatus

_RETRY_READY_SECONDS = 1
"""To ask a model again that is ready by now, after its machines were lost under a request."""
_RETRY_UNKNOWN_SECONDS = 10
"""Where nobody knows when a model will be ready: a request that comes then waits for it."""


class ApiError(PotluckError):
    """An answer that is an error. ``param`` names what is wrong in the request, if anything is."""

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
    """The client has closed the connection: there is nobody to answer."""


def invalid(param: str | None, message: str, *, code: str = "invalid_value") -> ApiError:
    """A request that is refused for the value of ``param``."""
    return ApiError(400, message, param=param, code=code)


def overloaded(message: str, retry_after_seconds: float) -> ApiError:
    """No room; the client is told when to come again."""
    return ApiError(
        429, message, code="rate_limit_exceeded", headers=retry_after(retry_after_seconds)
    )


def internal_error() -> ApiError:
    """A mistake of ours, whose details are in the log and nobody else's business."""
    return ApiError(500, "the server made a mistake; its log says more", code="internal_error")


def retry_after(seconds: float | None) -> dict[str, str]:
    """The header that says when to come again: after ``seconds``, or nobody knows when."""
    if seconds is None:
        return {"Retry-After": str(_RETRY_UNKNOWN_SECONDS)}
    return {"Retry-After": str(max(1, math.ceil(seconds)))}


def to_api_error(
    error: PotluckError, *, prompt_param: str | None = None, status: ModelStatus | None = None
) -> ApiError:
    """What a client is told of ``error``.

    ``prompt_param`` is what the prompt is called in the request: ``messages`` or ``prompt``.
    ``status`` is that of the model that was asked, if it is deployed.
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
        return ApiError(422, message, code="request_refused")  # which clients do not send again
    if status is None:
        return ApiError(503, message, code="service_unavailable")
    if status.state is ModelState.READY:
        again = retry_after(_RETRY_READY_SECONDS)
        return ApiError(503, message, code="service_unavailable", headers=again)
    again = retry_after(status.ready_in_seconds)
    return ApiError(503, message, code="model_not_ready", headers=again)


def renamed(error: ApiError, names: Mapping[str, str]) -> ApiError:
    """Return ``error`` with the dialect's name of the field that it is about.

    ``names`` has the dialects' names of fields by the neutral ones.
    """
    if error.param is None or error.param not in names:
        return error
    name = names[error.param]
    message = re.sub(rf"(?<![\w.]){re.escape(error.param)}(?!\w)", name, str(error.message))
    return ApiError(error.status, message, code=error.code, param=name, headers=error.headers)


def forget_frames(error: BaseException) -> None:
    """Let go of the frames that ``error`` and its causes passed through.

    A frame that holds the error, or the task that it ended, is a cycle: all that its variables
    name, such as a prompt of megabytes, would stay until the next full garbage collection.
    """
    pending: list[BaseException | None] = [error]
    while pending:
        each = pending.pop()
        if each is not None and each.__traceback__ is not None:
            each.__traceback__ = None
            pending += [each.__cause__, each.__context__]
