"""Build ``tokenizers`` models from plain vocabularies and merges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from potluck.errors import UnsupportedModelError
from potluck.text.pieces import SPACE_MARK

if TYPE_CHECKING:
    import tokenizers

    from potluck.text.pre_tokenizers import BytePreTokenizer

_MAX_PIECE_CHARACTERS = 1024
"""Splitting a piece takes quadratic time in its length; the longest in use are below 200."""


def is_library_error(error: BaseException) -> bool:
    """Return whether ``error`` may come from a call of the library.

    The library raises no more specific exception than ``Exception``. If its Rust code panics, it
    raises a ``PanicException``, which is no ``Exception`` and cannot be imported.
    """
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def build_byte_level(
    vocabulary: Mapping[str, int],
    merges: Iterable[tuple[str, str]],
    pre_tokenizer: BytePreTokenizer,
) -> tokenizers.Tokenizer:
    """Build a byte-level BPE model. Merges of pieces that are not in the vocabulary are dropped."""
    from tokenizers import Tokenizer, models, normalizers

    model = Tokenizer(
        models.BPE(
            vocab=dict(vocabulary),
            merges=_known(merges, vocabulary),
            ignore_merges=pre_tokenizer.ignores_merges,
        )
    )
    if pre_tokenizer.composes:
        model.normalizer = normalizers.NFC()
    model.pre_tokenizer = pre_tokenizer.build()
    return model


def build_ranked(ids: Mapping[str, int], pre_tokenizer: BytePreTokenizer) -> tokenizers.Tokenizer:
    """Build a byte-level BPE model whose merges follow from the order of ids, as in tiktoken.

    With ``ignores_merges``, a word that is a token becomes that token. In any other word, the
    neighbours whose joined bytes have the lowest id are merged first.
    """
    scores = {piece: -float(token) for piece, token in ids.items()}
    return build_byte_level(ids, merges_from_scores(scores), pre_tokenizer)


def build_sentence_piece(
    vocabulary: Mapping[str, int],
    merges: Iterable[tuple[str, str]],
    unknown: str | None,
) -> tokenizers.Tokenizer:
    """Build a SentencePiece BPE model: one word per text, with bytes for unknown characters.

    Merges of pieces that are not in the vocabulary are dropped.
    """
    from tokenizers import Tokenizer, models, normalizers

    model = Tokenizer(
        models.BPE(
            vocab=dict(vocabulary),
            merges=_known(merges, vocabulary),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    model.normalizer = normalizers.Replace(" ", SPACE_MARK)
    return model


def _known(
    merges: Iterable[tuple[str, str]], vocabulary: Mapping[str, int]
) -> list[tuple[str, str]]:
    return [
        (left, right)
        for left, right in merges
        if left in vocabulary and right in vocabulary and left + right in vocabulary
    ]


def merges_from_scores(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Derive the merges of SentencePiece's BPE, best first, from the scores of its pieces.

    SentencePiece joins the pair of neighbours whose joined piece has the best score, leftmost first
    (``bpe_model.cc``). So every split of a piece in two pieces is a merge with that piece's score.
    A run of one character is merged from the left, which leaves the longer part on the left, so
    that split ranks first.
    """
    merges: list[tuple[str, str]] = []
    for piece in sorted(scores, key=scores.__getitem__, reverse=True):
        if len(piece) > _MAX_PIECE_CHARACTERS:
            raise UnsupportedModelError(
                f"the tokenizer's vocabulary has a piece of {len(piece)} characters",
                missing=(f"pieces longer than {_MAX_PIECE_CHARACTERS} characters",),
            )
        for cut in range(len(piece) - 1, 0, -1):
            if (right := piece[cut:]) in scores and (left := piece[:cut]) in scores:
                merges.append((left, right))
    return merges
