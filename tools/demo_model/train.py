"""Trains the demo model on a CPU.

    python -m tools.demo_model.train RUN_FOLDER --tokens 3000000

``RUN_FOLDER`` must hold the ``tokenizer.json`` that ``tools.demo_model.tokenizer`` wrote.  A
checkpoint is kept there; the same command goes on from it.  Every document is new: the grammar
writes them while the model trains, so nothing is seen twice.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from .documents import BOS, EOS, HELD_OUT_DOCUMENTS, HELD_OUT_SEED, PAD, document
from .workers import Crew, loss_of


@dataclass(frozen=True)
class Phase:
    """A stretch of training with one shape of batch, worked on in pieces of ``piece`` rows.

    ``until`` is the share of all tokens at which it ends.
    """

    until: float
    rows: int
    window: int
    piece: int


@dataclass(frozen=True)
class Plan:
    """All parameters of a training run."""

    tokens: int
    minutes: float = math.inf
    seed: int = 1
    peak_rate: float = 4e-3
    warmup_steps: int = 60
    decay_share: float = 0.5
    weight_decay: float = 0.1
    clip: float = 1.0
    phases: tuple[Phase, ...] = (Phase(0.75, 6, 320, 1), Phase(1.0, 2, 1024, 1))

    def share(self, seen: int, seconds: float) -> float:
        """Return the completed fraction of the run, by tokens or time, whichever is greater."""
        return max(seen / self.tokens, seconds / (60 * self.minutes))

    def phase(self, share: float) -> Phase:
        """Return the phase at a given fraction of the run."""
        return next((phase for phase in self.phases if share < phase.until), self.phases[-1])

    def rate(self, step: int, share: float) -> float:
        """Return the learning rate: a short warm-up, a plateau, then linear decay to nearly 0."""
        left = max(0.0, 1.0 - share)
        return self.peak_rate * min(
            1.0, (step + 1) / self.warmup_steps, left / self.decay_share + 0.01
        )


@dataclass
class Progress:
    """The progress of a run; saved with every checkpoint."""

    step: int = 0
    seen: int = 0
    next_document: int = 0
    seconds: float = 0.0


def model_config(tokenizer: Tokenizer) -> LlamaConfig:
    """Return the architecture: small, but with every part that a large model has."""
    return LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=12,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.token_to_id(BOS),
        eos_token_id=tokenizer.token_to_id(EOS),
        pad_token_id=tokenizer.token_to_id(PAD),
        attn_implementation="sdpa",
    )


def pack(
    tokenizer: Tokenizer, seed: int, first: int, rows: int, window: int
) -> tuple[torch.Tensor, int]:
    """Fill ``rows`` windows (plus one token to predict), each beginning at a document's start."""
    packed: list[list[int]] = []
    for _ in range(rows):
        row: list[int] = []
        while len(row) <= window:
            row += tokenizer.encode(document(seed, first), add_special_tokens=False).ids
            first += 1
        packed.append(row[: window + 1])
    return torch.tensor(packed), first


def held_out_loss(model: Any, tokenizer: Tokenizer) -> tuple[float, float]:
    """Return the loss on documents of another seed, each alone, in nats per token and per byte."""
    nats, tokens, size = 0.0, 0, 0
    for index in range(HELD_OUT_DOCUMENTS):
        text = document(HELD_OUT_SEED, index)
        ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False).ids])
        predicted = ids.shape[1] - 1
        with torch.no_grad():
            nats += float(loss_of(model, ids)) * predicted
        tokens += predicted
        size += len(text.removeprefix(BOS).encode())
    return nats / tokens, nats / size


def _optimizers(model: LlamaForCausalLM, plan: Plan) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices inside the layers, and AdamW for the embedding and the norms.

    Muon reaches the same loss with far fewer tokens, and tokens are what a small CPU lacks.
    """
    inner = [p for p in model.model.layers.parameters() if p.dim() > 1]
    chosen = {id(p) for p in inner}
    others = [p for p in model.parameters() if id(p) not in chosen]
    return [
        torch.optim.Muon(
            inner, lr=plan.peak_rate, weight_decay=plan.weight_decay, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(
            others, lr=plan.peak_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        ),
    ]


def _save(
    folder: Path, model: torch.nn.Module, optimizers: list[torch.optim.Optimizer], at: Progress
) -> None:
    """Write the checkpoint aside and move it into place, so a crash leaves the old one whole."""
    aside = folder / "checkpoint.pt.new"
    state = {
        "model": model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "progress": asdict(at),
    }
    torch.save(state, aside)
    aside.replace(folder / "checkpoint.pt")


def train(folder: Path, plan: Plan, workers: int, save_every: int) -> None:
    """Run (or go on with) the training in ``folder`` until the plan's tokens are seen."""
    torch.manual_seed(plan.seed)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = LlamaForCausalLM(model_config(tokenizer))
    optimizers = _optimizers(model, plan)
    at = Progress()
    if (folder / "checkpoint.pt").exists():
        state = torch.load(folder / "checkpoint.pt", weights_only=True)
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        at = Progress(**state["progress"])
    crew = Crew(model, workers)
    before, started = at.seconds, time.monotonic()
    while (share := plan.share(at.seen, at.seconds)) < 1.0:
        phase = plan.phase(share)
        rate = plan.rate(at.step, share)
        batch, at.next_document = pack(
            tokenizer, plan.seed, at.next_document, phase.rows, phase.window
        )
        loss = crew.gradient(batch, phase.piece)
        torch.nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
        at.step += 1
        at.seen += phase.rows * phase.window
        at.seconds = before + time.monotonic() - started
        if at.step % 20 == 0:
            if not math.isfinite(loss):
                raise RuntimeError(f"the loss is {loss} at step {at.step}")
            line = {**asdict(at), "loss": round(loss, 4), "rate": rate}
            print(json.dumps(line), flush=True)
        if at.step % save_every == 0:
            _save(folder, model, optimizers, at)
    _save(folder, model, optimizers, at)
    crew.close()
    per_token, per_byte = held_out_loss(model, tokenizer)
    print(json.dumps({"held_out_nats_per_token": per_token, "held_out_nats_per_byte": per_byte}))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=3_000_000)
    parser.add_argument(
        "--minutes",
        type=float,
        default=math.inf,
        help="end after this much training time at the latest, the learning rate following",
    )
    parser.add_argument("--rate", type=float, default=Plan.peak_rate)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--save-every", type=int, default=100)
    args = parser.parse_args()
    torch.set_num_threads(1)
    plan = Plan(tokens=args.tokens, minutes=args.minutes, peak_rate=args.rate)
    train(args.folder, plan, workers=args.workers, save_every=args.save_every)


if __name__ == "__main__":
    main()
