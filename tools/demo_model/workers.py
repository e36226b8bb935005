"""Two (or more) one-threaded processes that share a step's gradient work.

One process with two threads waits at a barrier after every operation, so it runs at the pace of the
slower core; on a machine that does other things too that costs more than half of the speed.  Here
every process has one thread and takes the next piece of the batch as soon as it is free.  Weights,
batch and gradients lie in shared memory; only a few numbers travel between the processes.
"""

from __future__ import annotations

import multiprocessing as mp
import queue
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def loss_of(model: Any, batch: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of the next token, in nats."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=batch[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())


def _work(
    config: LlamaConfig, weights: torch.Tensor, gradient: torch.Tensor, tasks: Any, results: Any
) -> None:
    """Take pieces of batches and add up their gradient until None comes."""
    torch.set_num_threads(1)
    model = LlamaForCausalLM(config)
    bind(model, weights, gradient)
    parent = mp.parent_process()
    while parent is not None and parent.is_alive():
        try:
            task = tasks.get(timeout=10)
        except queue.Empty:
            continue  # look whether the trainer is still there
        if task is None:
            return
        loss = loss_of(model, task[0]) * task[1]
        loss.backward()
        results.put(float(loss.detach()))


def bind(model: torch.nn.Module, weights: torch.Tensor, gradient: torch.Tensor) -> None:
    """Let every parameter and its gradient be a view into two flat shared tensors."""
    offset = 0
    for parameter in model.parameters():
        size = parameter.numel()
        parameter.data = weights[offset : offset + size].view_as(parameter)
        parameter.grad = gradient[offset : offset + size].view_as(parameter)
        offset += size


class Crew:
    """The processes, and the shared tensors between them and the trainer."""

    def __init__(self, model: LlamaForCausalLM, count: int) -> None:
        """Move ``model``'s weights into shared memory and start ``count`` processes."""
        context = mp.get_context("spawn")
        flat = torch.cat([p.detach().flatten() for p in model.parameters()])
        weights = flat.share_memory_()
        self.gradients = [torch.zeros_like(flat).share_memory_() for _ in range(count)]
        bind(model, weights, self.gradients[0])
        self._tasks: Any = torch.multiprocessing.get_context("spawn").Queue()
        self._results: Any = context.Queue()
        self._processes = [
            context.Process(
                target=_work,
                args=(model.config, weights, gradient, self._tasks, self._results),
                daemon=True,
            )
            for gradient in self.gradients
        ]
        for process in self._processes:
            process.start()

    def gradient(self, batch: torch.Tensor, rows: int) -> float:
        """Leave the batch's gradient in the model's; return the loss.  ``rows`` make a piece."""
        for gradient in self.gradients:
            gradient.zero_()
        pieces = batch.split(rows)
        for piece in pieces:
            self._tasks.put((piece, len(piece) / len(batch)))
        loss = 0.0
        for _ in pieces:
            loss += float(self._results.get(timeout=600))
        for other in self.gradients[1:]:
            self.gradients[0] += other
        return loss

    def close(self) -> None:
        """Send the processes home."""
        for _ in self._processes:
            self._tasks.put(None)
        for process in self._processes:
            process.join(timeout=30)
