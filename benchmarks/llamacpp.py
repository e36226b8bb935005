"""llama.cpp as a peer: a user's own build of ``llama-bench``, or the package ``xllamacpp``.

``llama-bench`` measures one sequence, ``llama-batched-bench`` beside it several; a
``llama-completion`` beside them says what instructions the build was made for. Formats of their
output: ``tools/llama-bench`` and ``tools/batched-bench`` of llama.cpp.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from comparison import Rates, Setting
from peer_process import Outcome, Run, measured, output_of

_BATCH_TOKENS = 2048
_MICROBATCH_TOKENS = 512
"""llama.cpp's defaults, named so that a build with others does the same: a prompt of 512 is one."""
_SPARE_TOKENS = 64
"""Additional context per sequence, because llama.cpp rounds each sequence's share down."""
_FEATURE = re.compile(r"(\w+) = 1\b")
_CHILD = Path(__file__).with_name("xllamacpp_child.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """The known facts about a build. ``features`` is None if no other program reports them."""

    name: str
    commit: str
    compiler: str
    features: tuple[str, ...] | None

    @property
    def has_amx(self) -> bool:
        """Whether integer products use the matrix unit."""
        return self.features is not None and "AMX_INT8" in self.features


class Peer(Protocol):
    """A way to run llama.cpp."""

    def describe(self, model: Path) -> Build:
        """Describe the build. Raise ``RunFailedError`` if it cannot even start."""
        ...

    def run(self, model: Path, setting: Setting, *, flash_attention: bool, num_repeats: int) -> Run:
        """Measure in a process of its own; a failure is in its rates."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaBench:
    """An executable ``llama-bench`` and what was built beside it.

    ``repacks``: weights are brought into the order of its kernels, as by default. llama.cpp 0.3.36
    ends when it repacks a model with latent attention.
    """

    executable: Path
    timeout_seconds: float
    repacks: bool = True

    def describe(self, model: Path) -> Build:
        """Describe the build by ``--version`` and the log of ``llama-completion``."""
        version = output_of(
            [str(self.executable), "--version"], self.timeout_seconds, with_errors=True
        )
        commit = re.search(r"commit (\w+)|\((\w{7,})\)", version)
        compiler = re.search(r"built with (.+)", version)
        return Build(
            name=self.executable.name,
            commit="unknown" if commit is None else commit[1] or commit[2],
            compiler="unknown" if compiler is None else compiler[1],
            features=self._features(model),
        )

    def run(self, model: Path, setting: Setting, *, flash_attention: bool, num_repeats: int) -> Run:
        """Run ``llama-bench``, or for several sequences ``llama-batched-bench``; they do not
        sample.
        """
        if setting.is_sampled:
            outcome = Outcome(rates=Rates(failures=("llama-bench does not sample",)))
            return Run(command=(self.executable.name,), outcome=outcome)
        if setting.num_sequences == 1:
            command = self._one_sequence(model, setting, flash_attention, num_repeats)
            return measured(command, parse_llama_bench, self.timeout_seconds)
        command = self._several_sequences(model, setting, flash_attention, num_repeats)
        return measured(command, parse_batched_bench, self.timeout_seconds)

    def _one_sequence(
        self, model: Path, setting: Setting, flash_attention: bool, num_repeats: int
    ) -> list[str]:
        return [
            *(str(self.executable), "-m", str(model), "-o", "json"),
            *("-p", str(setting.num_prompt_tokens), "-n", str(setting.num_decode_tokens)),
            *("-d", str(setting.depth_tokens), "-t", str(setting.num_threads)),
            *("-b", str(_BATCH_TOKENS), "-ub", str(_MICROBATCH_TOKENS)),
            *("-fa", str(int(flash_attention)), "-ngl", "0", "-r", str(num_repeats)),
            *(() if self.repacks else ("--repack", "0")),
        ]

    def _several_sequences(
        self, model: Path, setting: Setting, flash_attention: bool, num_repeats: int
    ) -> list[str]:
        count = setting.num_sequences
        return [
            str(self.executable.with_name("llama-batched-bench")),
            *("-m", str(model), "--output-format", "jsonl"),
            *("-c", str(count * (setting.context_tokens + _SPARE_TOKENS))),
            *("-npp", str(setting.num_prompt_tokens), "-ntg", str(setting.num_decode_tokens)),
            *("-npl", ",".join([str(count)] * num_repeats), "-t", str(setting.num_threads)),
            *("-b", str(_BATCH_TOKENS), "-ub", str(_MICROBATCH_TOKENS)),
            *("-fa", "on" if flash_attention else "off", "-ngl", "0"),
            *self._without_repacking,
        ]

    @property
    def _without_repacking(self) -> tuple[str, ...]:
        """The option that turns repacking off in all programs except ``llama-bench``."""
        return () if self.repacks else ("--no-repack",)

    def _features(self, model: Path) -> tuple[str, ...] | None:
        beside = self.executable.with_name("llama-completion")
        if not beside.exists():
            return None
        command = [str(beside), "-m", str(model), "-no-cnv", "-p", "a", "-n", "1", "-ngl", "0"]
        command += self._without_repacking
        return parse_features(output_of(command, self.timeout_seconds, with_errors=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Xllamacpp:
    """The package ``xllamacpp``, whose server runs in a separate process."""

    timeout_seconds: float

    def describe(self, model: Path) -> Build:
        """Describe the build as the package reports it; ``model`` is not needed."""
        output = json.loads(output_of([sys.executable, str(_CHILD)], self.timeout_seconds))
        return Build(
            name=f"xllamacpp {output['version']}",
            commit=output["commit"],
            compiler=output["compiler"],
            features=parse_features(output["system_info"]),
        )

    def run(self, model: Path, setting: Setting, *, flash_attention: bool, num_repeats: int) -> Run:
        """Run through the server of the package."""
        case = {
            "model": str(model),
            "num_threads": setting.num_threads,
            "flash_attention": flash_attention,
            "num_prompt_tokens": setting.depth_tokens + setting.num_prompt_tokens,
            "num_decode_tokens": setting.num_decode_tokens,
            "num_sequences": setting.num_sequences,
            "num_repeats": num_repeats,
            "is_sampled": setting.is_sampled,
        }
        command = [sys.executable, str(_CHILD), json.dumps(case)]
        run = measured(command, parse_child, self.timeout_seconds)
        shown = json.dumps(case | {"model": model.name})
        return replace(run, command=("python", _CHILD.name, shown))


def parse_llama_bench(printed: str) -> Outcome:
    """Parse ``llama-bench -o json``: a test has a prompt or a generation, and its samples."""
    rates = Rates()
    for test in json.loads(printed):
        samples = tuple(float(each) for each in test["samples_ts"])
        if test["n_gen"] == 0:
            rates += Rates(prefill=samples)
        elif test["n_prompt"] == 0:
            rates += Rates(decode=samples)
    return Outcome(rates=rates)


def parse_batched_bench(printed: str) -> Outcome:
    """Parse ``llama-batched-bench --output-format jsonl``: speeds of all sequences together."""
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return Outcome(
        rates=Rates(
            prefill=tuple(float(line["speed_pp"]) for line in lines),
            decode=tuple(float(line["speed_tg"]) for line in lines),
        )
    )


def parse_child(printed: str) -> Outcome:
    """Parse the output of ``xllamacpp_child.py``, which llama.cpp's own output may precede."""
    output: dict[str, Any] = json.loads(printed.strip().rpartition("\n")[2])
    return Outcome(rates=Rates(prefill=tuple(output["prefill"]), decode=tuple(output["decode"])))


def parse_features(printed: str) -> tuple[str, ...] | None:
    """Parse the features of ``llama_print_system_info``: ``AVX2 = 1 | AMX_INT8 = 1 | …``."""
    line = next((each for each in printed.splitlines() if "SSE3 = " in each), None)
    if line is None:
        line = next((each for each in printed.splitlines() if "NEON = " in each), None)
    if line is None:
        return None
    return tuple(_FEATURE.findall(line.partition("CPU :")[2]))
