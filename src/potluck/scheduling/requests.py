"""Which requests a scheduler takes."""

from __future__ import annotations

from potluck.errors import ParameterError, PromptTooLongError
from potluck.types.sequence import Continuation, SequenceRequest


def num_new_tokens(
    request: SequenceRequest, continuation: Continuation, context_tokens: int
) -> int:
    """Return the most new tokens that ``request`` is given, with those of ``continuation``.

    Raise ``PromptTooLongError`` if the prompt or its first token does not fit, ``ParameterError``
    for a continuation that the request cannot have, or that leaves nothing to compute, and
    ``ValueError`` for a request that asks for nothing or for what excludes each other.
    """
    num_prompt_tokens = len(request.prompt_tokens)
    if num_prompt_tokens < 1:
        raise ValueError("a prompt has at least one token")
    if num_prompt_tokens + (request.max_new_tokens != 0) > context_tokens:
        raise PromptTooLongError(num_prompt_tokens, context_tokens)
    room = context_tokens - num_prompt_tokens
    num_new = room if request.max_new_tokens is None else min(request.max_new_tokens, room)
    if num_new < 0 or request.asks_for_nothing:
        raise ValueError("at least one new token, one score or a vector must be asked for")
    if request.pooling is not None and (num_new or request.num_scores):
        raise ValueError("a sequence that is pooled has no new tokens and no scores")
    _check_continuation(request, continuation, num_new)
    return num_new


def _check_continuation(request: SequenceRequest, continuation: Continuation, num_new: int) -> None:
    """Raise ``ParameterError`` for a continuation that the request cannot have, or that is its end.

    ``num_new`` tokens are the most that the request is given.
    """
    outputs, num_scored = continuation.output_tokens, continuation.num_scored
    if not 0 <= num_scored <= request.num_scores:
        raise _no_continuation(f"it has {num_scored} scores of {request.num_scores}")
    if outputs and num_scored < request.num_scores:
        raise _no_continuation("it has generated tokens and lacks scores of the prompt")
    if len(outputs) > num_new:
        raise _no_continuation(f"it has {len(outputs)} generated tokens of {num_new}")
    is_complete = len(outputs) == num_new and num_scored == request.num_scores
    if any(token in request.stop_tokens for token in outputs) or (
        is_complete and request.pooling is None
    ):
        raise _no_continuation("it has ended")


def _no_continuation(reason: str) -> ParameterError:
    return ParameterError(
        "continuation", f"the sequence cannot be continued from where it is said to be: {reason}"
    )
