"""Building ``tokenizers`` models from plain vocabularies and merges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from potluck.errors import UnsupportedModelError
from potluck.text.pieces import SPACE_MARK

if TYPE_CHECKING:
    import tokenizers

    from potluck.text.pre_tokenizers import BytePreTokenizer

_MAX_PIECE_CHARACTERS = 1024
"""Finding the splits of a piece takes time in the square of its length; real ones are below 200."""


def build_byte_level(
    vocabulary: Mapping[str, int],
    merges: Iterable[tuple[str, str]],
    pre_tokenizer: BytePreTokenizer,
) -> tokenizers.Tokenizer:
    """A byte-level BPE model. Merges of pieces that are not in the vocabulary are left out."""
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


def build_sentence_piece(
    vocabulary: Mapping[str, int],
    merges: Iterable[tuple[str, str]],
    unknown: str | None,
) -> tokenizers.Tokenizer:
    """A SentencePiece BPE model: one word per text, bytes where a character is not in it.

    Merges of pieces that are not in the vocabulary are left out.
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
    """The merges that SentencePiece's BPE makes, best first, from the scores of its pieces.

    SentencePiece joins the neighbours whose joined piece has the best score, the leftmost first
    (``bpe_model.cc``). So every way to cut a piece in two pieces is a merge of that piece's score.
    A run of one character is merged from the left, which leaves the longer part on the left: that
    way ranks first.
    """
    merges: list[tuple[str, str]] = []
    for piece in sorted(scores, key=scores.__getitem__, reverse=True):
        if len(piece) > _MAX_PIECE_CHARACTERS:
            raise UnsupportedModelError(
                f"the tokenizer has a piece of {len(piece)} characters",
                missing=(f"pieces of over {_MAX_PIECE_CHARACTERS} characters",),
            )
        for cut in range(len(piece) - 1, 0, -1):
            if (right := piece[cut:]) in scores and (left := piece[:cut]) in scores:
                merges.append((left, right))
    return merges
