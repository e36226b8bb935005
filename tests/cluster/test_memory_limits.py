"""Limits that an agent is under: what it may use, what is placed on it, and what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.agents import AgentProcess, Document, Fleet
from support.sparse_models import SparseModel

from potluck import Model
from potluck.catalog import describe_model
from potluck.cluster.coordinator.planning import model_cost
from potluck.loading import StageSize
from potluck.types.cluster import ModelCost

MIB = 2**20
CONTEXT = 256

WIDE = SparseModel(
    hidden_size=1024,
    intermediate_size=256,
    num_layers=8,
    num_heads=8,
    num_kv_heads=2,
    head_dim=128,
    vocab_size=30_000,
    max_context_tokens=1024,
    has_tied_head=False,
    stored="BF16",
)
"""The embedding is 59 MiB, as is the head; a layer 6.5."""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path) as fleet:
        yield fleet


def cost_of(model: Path) -> ModelCost:
    size = StageSize(
        context_tokens=CONTEXT,
        num_blocks=CONTEXT // 16,
        max_step_tokens=CONTEXT,
        num_threads=1,
    )
    return model_cost(describe_model(str(model)), size)


def ask_json(agent: AgentProcess, command: str, model: Path) -> Document:
    options = ["--context", str(CONTEXT), "--cache", str(CONTEXT), "--json"]
    completed = agent.command_line(command, str(model), *options)
    assert completed.returncode == 0, completed.stderr
    document: Document = json.loads(completed.stdout)
    return document
