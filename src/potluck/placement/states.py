"""How many state slots the stages of a model have, as it was asked for."""

from __future__ import annotations

from potluck.errors import ParameterError
from potluck.models.states import slot_bytes
from potluck.types.model import ModelConfig
from potluck.types.ranges import require_number
from potluck.types.states import default_num_states


def num_states_of(
    config: ModelConfig,
    asked: int | None,
    *,
    default: int | None = None,
    least: int = 1,
    why: str = "",
) -> int:
    """Return the number of state slots that every stage of a model has; 0 for one without state.

    If None is ``asked`` for, take ``default``, or without one ``default_num_states``, and ``least``
    if that is more. Raise ``ParameterError`` for a number out of range or below ``least``, of which
    ``why`` says what it is for; and for any number asked for if the model has no state.
    """
    for number in (asked, default):
        if number is not None:
            require_number("states", number)
    num_bytes = slot_bytes(config)
    if asked is None:
        if num_bytes == 0:
            return 0
        return max(least, default_num_states(num_bytes) if default is None else default)
    if num_bytes == 0:
        raise ParameterError(
            "states",
            f"{config.family} models keep keys and values only, and have no states",
            hint="leave out --states",
        )
    if asked < least:
        raise ParameterError(
            "states",
            f"{asked} states are too few: {least} are needed for {why}",
            hint=f"give --states {least}, or leave it out",
        )
    return asked
