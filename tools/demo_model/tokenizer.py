"""Trains the byte-level BPE tokenizer of the demo model: 2048 entries, any UTF-8 round-trips.

python -m tools.demo_model.tokenizer OUT_FOLDER
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing

from .documents import BOS, SPECIAL_TOKENS, documents

VOCABULARY = 2048
TOKENIZER_SEED = 7
TOKENIZER_DOCUMENTS = 20_000


def train_tokenizer(seed: int = TOKENIZER_SEED, count: int = TOKENIZER_DOCUMENTS) -> Tokenizer:
    """Learn the merges from ``count`` documents; the tokenizer puts the bos token in front."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(itertools.islice(documents(seed), count), trainer)
    tokenizer.post_processor = TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A {BOS}:1 $B:1",
        special_tokens=[(BOS, tokenizer.token_to_id(BOS))],
    )
    return tokenizer


def main() -> None:
    """Write ``tokenizer.json`` into the folder given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer()
    tokenizer.save(str(out / "tokenizer.json"))
    print(f"{tokenizer.get_vocab_size()} entries written to {out / 'tokenizer.json'}")


if __name__ == "__main__":
    main()
