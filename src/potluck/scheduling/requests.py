"""Which requests a scheduler accepts."""

from __future__ import annotations

from potluck.errors import ParameterError, PromptTooLongError
from potluck.types.sequence import Continuation, SequenceRequest


def num_new_tokens(
    request: SequenceRequest, continuation: Continuation, context_tokens: int
) -> int:
    """Return the most new tokens that ``request`` is given, including those of ``continuation``.

    Raise ``PromptTooLongError`` if the prompt or its first token does not fit, ``ParameterError``
    for a continuation that does not belong to the request, or that leaves nothing to compute, and
    ``ValueError`` for a request for nothing or for incompatible results.
    """
    num_prompt_tokens = len(request.prompt_tokens)
    if num_prompt_tokens < 1:
        raise ValueError("a prompt must have at least one token")
    if num_prompt_tokens + (request.max_new_tokens != 0) > context_tokens:
        raise PromptTooLongError(num_prompt_tokens, context_tokens)
    room = context_tokens - num_prompt_tokens
    num_new = room if request.max_new_tokens is None else min(request.max_new_tokens, room)
    if num_new < 0 or request.generates_nothing:
        raise ValueError("at least one new token, one score or a vector must be requested")
    if request.pooling is not None and (num_new or request.num_scores):
        raise ValueError("a pooled sequence cannot have new tokens or scores")
    _check_continuation(request, continuation, num_new)
    return num_new


def _check_continuation(request: SequenceRequest, continuation: Continuation, num_new: int) -> None:
    """Raise ``ParameterError`` for a continuation that does not belong to the request, or ends it.

    ``num_new`` is the most new tokens that the request is given.
    """
    outputs, num_scored = continuation.output_tokens, continuation.num_scored
    if not 0 <= num_scored <= request.num_scores:
        raise _no_continuation(
            f"it has {num_scored} scores, but only {request.num_scores} were requested"
        )
    if outputs and num_scored < request.num_scores:
        raise _no_continuation("it has generated tokens but lacks scores of the prompt")
    if len(outputs) > num_new:
        raise _no_continuation(
            f"it has {len(outputs)} generated tokens, but at most {num_new} are allowed"
        )
    is_complete = len(outputs) == num_new and num_scored == request.num_scores
    if any(token in request.stop_tokens for token in outputs) or (
        is_complete and request.pooling is None
    ):
        raise _no_continuation("it has ended")


def _no_continuation(reason: str) -> ParameterError:
    return ParameterError("continuation", f"the sequence cannot be continued: {reason}")
