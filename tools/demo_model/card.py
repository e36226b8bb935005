"""Writes the model card: measures the exported model and lets it tell its samples.

python -m tools.demo_model.card RUN_FOLDER OUT_FOLDER
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from .documents import HELD_OUT_DOCUMENTS, HELD_OUT_SEED
from .train import held_out_loss

CARD = Path(__file__).with_name("card.md")


@dataclass(frozen=True)
class Sample:
    """A prompt, or a user's message, and how the answer is drawn: greedily if no seed is given."""

    prompt: str
    chat: bool
    seed: int | None = None

    @property
    def settings(self) -> str:
        """The settings in words."""
        how = "greedy" if self.seed is None else f"temperature 0.8, seed {self.seed}"
        return f"{'chat' if self.chat else 'plain text'}, {how}, at most 400 new tokens"


SAMPLES = (
    Sample("Once upon a time, there was a little fox who", chat=False),
    Sample("Write a story about a girl who lost her kite in the forest.", chat=True),
    Sample("Tell me a story about a shy dragon.", chat=True, seed=1),
)


def answer(model: Any, tokenizer: Any, sample: Sample) -> str:
    """Return what the model writes for ``sample``, without the tokens that end it."""
    if sample.chat:
        messages = [{"role": "user", "content": sample.prompt}]
        inputs = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
    else:
        inputs = tokenizer(sample.prompt, return_tensors="pt", return_token_type_ids=False)
    drawn: dict[str, object] = {"do_sample": False, "temperature": None, "top_p": None}
    if sample.seed is not None:
        torch.manual_seed(sample.seed)
        drawn = {"do_sample": True, "temperature": 0.8, "top_p": 1.0, "top_k": 0}
    written = model.generate(**inputs, **drawn, max_new_tokens=400)
    new = written[0, inputs["input_ids"].shape[1] :]
    return str(tokenizer.decode(new, skip_special_tokens=True))


def quoted(text: str) -> str:
    """Return ``text`` as a block that Markdown leaves unchanged."""
    return f"```text\n{text}\n```"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(args.out)
    tokenizer = AutoTokenizer.from_pretrained(args.out)
    samples = "\n\n".join(
        f"**Prompt:** `{sample.prompt}`  \n**Settings:** {sample.settings}\n\n"
        + quoted(answer(model, tokenizer, sample))
        for sample in SAMPLES
    )
    raw = Tokenizer.from_file(str(args.out / "tokenizer.json"))
    per_token, per_byte = held_out_loss(model, raw)
    progress = torch.load(args.run / "checkpoint.pt", weights_only=True)["progress"]
    facts = {
        "samples": samples,
        "parameters": f"{model.num_parameters():,}",
        "bytes": f"{(args.out / 'model.safetensors').stat().st_size:,}",
        "per_token": f"{per_token:.4f}",
        "per_byte": f"{per_byte:.4f}",
        "held_out_seed": str(HELD_OUT_SEED),
        "held_out_documents": str(HELD_OUT_DOCUMENTS),
        "tokens": f"{progress['seen']:,}",
        "documents": f"{progress['next_document']:,}",
        "steps": f"{progress['step']:,}",
        "minutes": f"{progress['seconds'] / 60:.0f}",
    }
    text = Template(CARD.read_text(encoding="utf-8")).substitute(facts)
    (args.out / "README.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
