"""A gateway whose model writes what it is told to, and takes tools and thinks as Qwen's do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from support.http.toy_gateway import END_OF_TEXT, LiveSequence, ToyGateway

from potluck.text.tool_formats.choice import choose_output_format
from potluck.types.gateway import ServedModel
from potluck.types.sequence import (
    Cancel,
    CommittedToken,
    FinishReason,
    OnUpdate,
    SequenceRequest,
    SequenceUpdate,
)
from potluck.types.step import SequenceId

TEMPLATE = "<think> </think> <tool_call>"
"""What a chat template is known by that thinks and calls tools as Qwen's do."""


class ScriptedGateway(ToyGateway):
    """Answers every request with ``script``, a byte a token, and with an end of text after it.

    ``num_cached_tokens`` of every prompt were cached. After ``failure_after`` bytes, if it is
    given, comes its error; the first token comes after ``first_seconds``. What ``is_cut_off`` has
    one token.
    """

    def __init__(self, script: bytes = b"Hello.") -> None:
        super().__init__()
        self.script = script
        self.num_cached_tokens = 3
        self.first_seconds = 0.0
        self.is_cut_off = False

    async def served_model(self, model_id: str) -> ServedModel:
        model = await super().served_model(model_id)
        return replace(
            model,
            output_format=choose_output_format(TEMPLATE, ()),
            template=TEMPLATE,
            can_think=True,
            architecture="toy",
        )

    def start(self, model_id: str, request: SequenceRequest, on_update: OnUpdate) -> Cancel:
        self.live.append(LiveSequence(request=request))
        self.num_open += 1
        task = asyncio.ensure_future(self._tell(request, on_update))

        def cancel() -> None:
            if not task.done():
                task.cancel()

        task.add_done_callback(lambda _: self._note_end())
        return cancel

    def _note_end(self) -> None:
        self.num_open -= 1

    async def _tell(self, request: SequenceRequest, on_update: OnUpdate) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(self.first_seconds)
            for index, token in enumerate(self._tokens(request)):
                if self.failure_after is not None and index == self.failure_after[0]:
                    on_update(self.failure_after[1])
                    return
                cached = 0 if index else self.num_cached_tokens
                on_update(SequenceUpdate(tokens=(token,), num_cached_tokens=cached))
                await asyncio.sleep(0)

    def _tokens(self, request: SequenceRequest) -> Sequence[CommittedToken]:
        tokens = [*self.script, END_OF_TEXT][: 1 if self.is_cut_off else request.max_new_tokens]
        return [
            CommittedToken(
                sequence_id=SequenceId(0),
                token=token,
                position=len(request.prompt_tokens) + index,
                logprob=-token / 100 if request.sampling.logprobs else None,
                top=(),
                finish_reason=self._reason(token, is_last=index == len(tokens) - 1),
                num_drafted=3 * (index == 1),
                num_accepted=2 * (index == 1),
            )
            for index, token in enumerate(tokens)
        ]

    def _reason(self, token: int, *, is_last: bool) -> FinishReason | None:
        if token == END_OF_TEXT:
            return FinishReason.STOP
        return FinishReason.LENGTH if is_last else None
