"""Read the texts of a model's tokens without loading the tokenizer.

The last stage of a model needs them for grammars (``potluck.grammars``), and has no memory for a
tokenizer, which takes hundreds of megabytes for a large vocabulary. The result is the same as that
of ``TextTokenizer`` for the same files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from potluck.text.added_tokens import AddedToken
from potluck.text.pieces import Notation, piece_bytes
from potluck.types.text import TokenList


def list_tokens(
    vocab_size: int,
    piece: Callable[[int], str | None],
    added: Iterable[AddedToken],
    notation: Notation,
    end_tokens: tuple[int, ...],
) -> TokenList:
    """Return the list of the tokens below ``vocab_size``: pieces and added tokens."""
    by_id = {token.token: token for token in added}
    data = []
    for token in range(vocab_size):
        if (entry := by_id.get(token)) is not None:
            data.append(b"" if entry.control else entry.text.encode("utf-8"))
        else:
            text = piece(token)
            data.append(b"" if text is None else piece_bytes(text, notation))
    control = {token: entry.text for token, entry in by_id.items() if entry.control and entry.text}
    return TokenList(data=data, control=control, end_tokens=end_tokens)
