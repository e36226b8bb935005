"""What is read from llama.cpp's tools, and what becomes of runs that fail."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest
from comparison import Limits, Rates, Setting
from llamacpp import (
    LlamaBench,
    parse_batched_bench,
    parse_child,
    parse_features,
    parse_llama_bench,
)
from peer_process import Outcome, RunFailedError, measured, published
from potluck_bench import parse_bench

PLAIN = Setting(type_name="Q8_0", num_threads=2, num_prompt_tokens=512, num_decode_tokens=48)

FAKE = """#!{python}
import json, sys
arguments = sys.argv[1:]
if arguments == ["--version"]:
    print("version: 0.5.0-dev (build 1, commit 0c1e570)", file=sys.stderr)
    print("built with GNU 12.2.0 for Linux x86_64", file=sys.stderr)
else:
    value = dict(zip(arguments[::2], arguments[1::2]))
    tests = [(int(value["-p"]), 0), (0, int(value["-n"]))]
    print(json.dumps([
        {{"n_prompt": prompt, "n_gen": gen, "samples_ts": [prompt + gen + int(value["-fa"])]}}
        for prompt, gen in tests if prompt or gen
    ]))
"""


def fake_build(directory: Path) -> LlamaBench:
    """An executable that answers like llama-bench: as many tokens per second as it was asked for,
    and one more with flash attention.
    """
    path = directory / "llama-bench"
    path.write_text(FAKE.format(python=sys.executable))
    path.chmod(0o755)
    return LlamaBench(executable=path, timeout_seconds=30)


def test_a_build_without_a_tool_that_tells_its_features(tmp_path: Path) -> None:
    build = fake_build(tmp_path).describe(tmp_path / "model.gguf")
    assert (build.commit, build.compiler) == ("0c1e570", "GNU 12.2.0 for Linux x86_64")
    assert build.features is None
    assert not build.has_amx


def test_a_run(tmp_path: Path) -> None:
    bench = fake_build(tmp_path)
    run = bench.run(tmp_path / "m.gguf", PLAIN, flash_attention=True, num_repeats=3)
    assert run.outcome.rates == Rates(prefill=(513.0,), decode=(49.0,))
    assert run.command[:3] == ("llama-bench", "-m", "m.gguf")


def test_a_run_without_repacking(tmp_path: Path) -> None:
    bench = dataclasses.replace(fake_build(tmp_path), repacks=False)
    run = bench.run(tmp_path / "m.gguf", PLAIN, flash_attention=True, num_repeats=3)
    assert run.command[-2:] == ("--repack", "0")
    assert run.outcome.rates == Rates(prefill=(513.0,), decode=(49.0,))


def test_samples_of_llama_bench() -> None:
    tests = [
        {"n_prompt": 512, "n_gen": 0, "samples_ts": [130.5, 132.25]},
        {"n_prompt": 0, "n_gen": 48, "samples_ts": [39.5]},
    ]
    outcome = parse_llama_bench(json.dumps(tests))
    assert outcome.rates == Rates(prefill=(130.5, 132.25), decode=(39.5,))


def test_samples_of_several_sequences() -> None:
    printed = (
        'main: some line\n{"pp": 16, "tg": 8, "pl": 8, "speed_pp": 183.28, "speed_tg": 61.98}\n'
        '{"pp": 16, "tg": 8, "pl": 8, "speed_pp": 180.5, "speed_tg": 60.25}\n\n'
    )
    assert parse_batched_bench(printed).rates == Rates(
        prefill=(183.28, 180.5), decode=(61.98, 60.25)
    )


def test_samples_of_the_package() -> None:
    printed = 'something llama.cpp says\n{"prefill": [118.5], "decode": [43.5, 44.0]}\n'
    assert parse_child(printed).rates == Rates(prefill=(118.5,), decode=(43.5, 44.0))


def test_features() -> None:
    line = "system_info: n_threads = 1 / 2 | CPU : SSE3 = 1 | AVX512 = 0 | AMX_INT8 = 1 | "
    assert parse_features(f"main: build = 1\n{line}\n") == ("SSE3", "AMX_INT8")
    assert parse_features("CPU : NEON = 1 | DOTPROD = 1 | ") == ("NEON", "DOTPROD")
    assert parse_features("nothing of that kind") is None


def test_samples_and_limits_of_ours() -> None:
    document = {
        "prefill_tokens_per_second": [477.0],
        "decode_tokens_per_second": [40.0, 41.0],
        "sampled_tokens_per_second": [39.0, 40.0],
        "limits": {
            "read_bytes_per_second": [40e9, 42e9, 43e9],
            "peaks": [
                {"operands": "f32", "operations_per_second": [1e11]},
                {"operands": "int8", "operations_per_second": [2e12, 3e12]},
            ],
        },
        "decode": {
            "fraction_of_bound": [0.8],
            "ops": [{"op": "mlp.down", "share": 0.75}, {"op": "rope", "share": 0.25}],
        },
    }
    assert parse_bench(json.dumps(document), is_fast=False) == Outcome(
        rates=Rates(prefill=(477.0,), decode=(40.0, 41.0), outside=(0.25,), of_bandwidth=(0.8,)),
        limits=Limits(read_bytes_per_second=42e9, int8_operations_per_second=2.5e12),
    )
    sampled = parse_bench(json.dumps(document), is_fast=False, is_sampled=True).rates
    assert sampled == Rates(prefill=(477.0,), decode=(39.0, 40.0), outside=(0.25,))


def test_exact_arithmetic_does_not_pass_for_fast() -> None:
    document = {"isa": "avx512", "arithmetic": "exact"}
    with pytest.raises(RunFailedError, match="avx512 has no fast arithmetic"):
        parse_bench(json.dumps(document), is_fast=True)


@pytest.mark.parametrize(
    ("script", "failure"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "ended with -4"),
        ("raise SystemExit('error: no such file')", "ended with 1: error: no such file"),
        ("print('no JSON')", "its output cannot be read (JSONDecodeError"),
        ("print('[{}]')", "its output cannot be read (KeyError: 'samples_ts')"),
        ("print('[]')", "it measured nothing"),
    ],
)
def test_what_goes_wrong_is_a_failure(script: str, failure: str) -> None:
    run = measured([sys.executable, "-c", script], parse_llama_bench, 30)
    (message,) = run.outcome.rates.failures
    assert message.startswith(failure)


def test_a_process_that_hangs_and_one_that_is_not_there() -> None:
    hung = measured([sys.executable, "-c", "while True: pass"], parse_llama_bench, 0.1)
    assert hung.outcome.rates.failures == ("gave no answer within 0.1 s",)
    absent = measured(["/nowhere/llama-bench"], parse_llama_bench, 1)
    assert absent.outcome.rates.failures == ("there is no llama-bench",)


def test_commands_are_published_without_directories() -> None:
    assert published(["/home/me/llama-bench", "-m", "/data/m.gguf", "-p", "512"]) == (
        "llama-bench",
        "-m",
        "m.gguf",
        "-p",
        "512",
    )
