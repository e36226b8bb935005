"""The ``potluck`` command as its users meet it: a process, its output, its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from support.processes.command import assert_refused, run_command
from support.schemas import validate_document

import potluck
from potluck.kernels import available_isas


def run_json(name: str, *arguments: str) -> dict[str, Any]:
    completed = run_command(*arguments, "--json")
    assert completed.returncode == 0, completed.stderr
    return validate_document(json.loads(completed.stdout), name)


PROMPT = ("-p", "Once upon a time, there was a little fox who", "--temperature", "0", "-n", "24")


def test_text_goes_to_stdout_and_figures_to_stderr() -> None:
    completed = run_command("run", "demo", *PROMPT)
    assert completed.returncode == 0
    assert len(completed.stdout.split()) > 5
    assert completed.stdout.endswith("\n")
    (figures,) = completed.stderr.splitlines()
    assert "prefill" in figures
    assert "decode 24 tokens" in figures
    assert figures.endswith("; sampling: greedy (temperature 0)")


def test_what_is_recommended_is_shown_with_what_was_asked_for() -> None:
    completed = run_command("run", "demo", "-p", "Once", "-n", "1", "--top-k", "20")
    (figures,) = completed.stderr.splitlines()
    assert figures.endswith("; sampling: temperature 0.8, top-k 20, top-p 0.95")


def test_json_holds_what_the_text_run_prints() -> None:
    document = run_json("run", "run", "demo", *PROMPT, "--top-logprobs", "3")
    assert document["text"] + "\n" == run_command("run", "demo", *PROMPT).stdout
    assert document["finish_reason"] == "length"
    assert len(document["tokens"]) == 24
    for token in document["tokens"]:
        assert len(token["top"]) == 3
        # Greedy: the chosen token is the likeliest.
        assert token["top"][0] == {"id": token["id"], "logprob": token["logprob"]}
    data = b"".join(bytes(token["bytes"]) for token in document["tokens"])
    assert data.decode(errors="replace") == document["text"]


def test_stages_change_nothing_but_the_cut() -> None:
    whole = run_json("run", "run", "demo", *PROMPT)
    cut = run_json("run", "run", "demo", *PROMPT, "--stages", "5")
    assert cut["tokens"] == whole["tokens"]
    bounds = [(stage["start_layer"], stage["end_layer"]) for stage in cut["stages"]]
    assert [end for _, end in bounds[:-1]] == [start for start, _ in bounds[1:]]
    assert len(bounds) == 5


def test_a_seed_repeats_a_text() -> None:
    arguments = ("run", "demo", "-p", "The fox", "-n", "30", "--temperature", "1.2")
    first = run_json("run", *arguments)
    again = run_json("run", *arguments, "--seed", str(first["sampling"]["seed"]), "--stages", "2")
    other = run_json("run", *arguments)
    assert again["tokens"] == first["tokens"]
    assert other["tokens"] != first["tokens"]


def test_stop_strings_end_the_text_before_them() -> None:
    whole = run_json("run", "run", "demo", *PROMPT)["text"]
    stop = whole.split()[3]
    document = run_json("run", "run", "demo", *PROMPT, "--stop", stop)
    assert document["text"] == whole[: whole.index(stop)]
    assert document["finish_reason"] == "stop"


def test_a_prompt_can_be_piped_in() -> None:
    completed = run_command("run", "demo", "-n", "5", "--temperature", "0", stdin="The fox")
    assert completed.returncode == 0
    assert (
        completed.stdout
        == run_command("run", "demo", "-n", "5", "--temperature", "0", "-p", "The fox").stdout
    )


def test_an_answer_through_the_chat_template() -> None:
    prompt = "Tell me a story about a fox."
    completed = run_command("run", "demo", "--chat", "-p", prompt, "--temperature", "0")
    assert completed.returncode == 0
    with potluck.Model.open("demo") as model:
        message = potluck.ChatMessage(role="user", content=prompt)
        assert completed.stdout == model.chat([message], temperature=0.0).result().text + "\n"


def test_bench_measures() -> None:
    shape = ("--prompt", "32", "--decode", "8", "--depth", "20", "--sequences", "3")
    document = run_json("bench", "bench", "demo", *shape, "--repeats", "2", "--stages", "2")
    assert len(document["decode_tokens_per_second"]) == 2
    assert len(document["limits"]["read_bytes_per_second"]) == 2
    for phase in ("prefill", "decode"):
        ops = {each["op"]: each["share"] for each in document[phase]["ops"]}
        assert sum(ops.values()) == pytest.approx(1)
        assert {"attn.q+k+v", "mlp.down", "attention", "head", "sampling", "outside the core"} <= {
            *ops
        }
    weights = document["weights_bytes"]
    # Each step reads all weights but the norms and the other stage's copy of the tied embedding.
    per_step = document["decode"]["bytes_per_token"] * 3 / 2
    assert 0.8 * weights < per_step < 1.2 * weights


@pytest.mark.parametrize(
    ("arguments", "setting", "is_drafted"),
    [((), "small.gguf", True), (("--draft", "ngram"), "off", True), ((), "off", False)],
)
def test_bench_drafts_as_its_option_or_the_setting_says(
    arguments: tuple[str, ...], setting: str, is_drafted: bool
) -> None:
    """A setting may name a model, for commands that load it."""
    shape = ("--prompt", "8", "--decode", "8", "--repeats", "1")
    completed = run_command(
        "bench", "demo", *shape, *arguments, "--json", env={"POTLUCK_DRAFT": setting}
    )
    assert completed.returncode == 0, completed.stderr
    assert (json.loads(completed.stdout)["drafted"] is not None) == is_drafted


def test_arithmetic_is_exact_where_nothing_is_faster_and_says_so() -> None:
    arguments = ("run", "demo", *PROMPT)
    scalar = {"POTLUCK_ISA": "scalar"}
    exact = run_command(*arguments, env=scalar)
    fast = run_command(*arguments, "--arithmetic", "fast", env=scalar)
    assert (fast.returncode, fast.stdout) == (0, exact.stdout)
    message = "potluck: using exact arithmetic: the instruction set scalar has no fast kernels"
    assert fast.stderr.splitlines()[0] == message
    assert "exact arithmetic" not in exact.stderr


def test_exact_arithmetic_has_the_same_bits_on_every_instruction_set() -> None:
    """``demo`` is in BF16: token ids and log-probabilities, to the last digit."""
    command = ("run", "demo", *PROMPT, "--json")
    tokens = [
        json.loads(run_command(*command, env={"POTLUCK_ISA": isa}).stdout)["tokens"]
        for isa in available_isas()
    ]
    assert all(each == tokens[0] for each in tokens)


def test_bench_has_a_table() -> None:
    # More sequences than the tokens of a step, which are as many as the context has.
    shape = ("--prompt", "8", "--decode", "2", "--sequences", "9")
    completed = run_command("bench", "demo", *shape, "--repeats", "1")
    assert completed.returncode == 0
    lines = completed.stdout.splitlines()
    assert lines[0].split() == ["TOKENS/S", "LEAST", "MOST", "REACHED"]
    assert [line.split()[0] for line in lines[1:3]] == ["prefill", "decode"]
    assert any(line.startswith("bandwidth: ") for line in lines)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("arguments", "code", "message", "hint"),
    [
        (("run",), 2, "Missing argument", "--help"),
        (("run", "./nowhere", "-p", "x"), 2, "no model found at ./nowhere", "hub id"),
        (("run", "demo", "-p", "x", "--stages", "13"), 2, "13 stages", "1 to 12"),
        (("run", "demo", "-p", "x", "--context", "1000000"), 2, "context of 1000000", "supports"),
        (("run", "demo", "-p", "x", "--temperature", "-1"), 2, "temperature", "temperature"),
        (("run", "demo", "-p", "x", "--threads", "0"), 2, "--threads", "--help"),
        (("run", "demo", "-p", "x", "-n", "0"), 2, "integer from 1", "max_tokens"),
        (("run", "demo", "-p", "x", "--system", "y"), 2, "--system", "--chat"),
        (("run", "demo", "-p", "x " * 4000), 2, "the context size is", "shorten"),
        (("frobnicate",), 2, "frobnicate", "--help"),
        (("bench", "demo", "--prompt", "9999"), 2, "0 + 9999 tokens do not fit", "2 to 2048"),
        (
            ("bench", "demo", "--depth", "90", "--context", "100"),
            2,
            "90 + 512 tokens do not fit in a context of 100",
            "--context",
        ),
        (
            ("bench", "demo", "--draft", "small.gguf"),
            2,
            "--draft small.gguf: bench does not measure draft models",
            "ngram or off",
        ),
    ],
)
def test_a_wrong_use_is_one_line_and_a_hint(
    arguments: tuple[str, ...], code: int, message: str, hint: str
) -> None:
    assert_refused(run_command(*arguments), code, message, hint)


def test_an_unknown_instruction_set_is_named() -> None:
    completed = run_command("run", "demo", "-p", "x", "-n", "1", env={"POTLUCK_ISA": "sse9"})
    assert_refused(completed, 2, "'sse9' is not available", "scalar")


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_every_instruction_set_tells_the_same_story(isa: str) -> None:
    from potluck.kernels import available_isas

    if isa not in available_isas():
        pytest.skip(f"not shown: this CPU has no {isa}")
    expected = run_command("run", "demo", *PROMPT, env={"POTLUCK_ISA": "scalar"}).stdout
    assert run_command("run", "demo", *PROMPT, env={"POTLUCK_ISA": isa}).stdout == expected


def test_debug_shows_the_traceback() -> None:
    completed = run_command("--debug", "run", "./nowhere", "-p", "x")
    assert completed.returncode == 1
    assert "Traceback" in completed.stderr


def test_it_runs_without_a_home_and_on_one_core() -> None:
    script = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from potluck.cli.main import main\n"
        "main(['run', 'demo', '-p', 'The fox', '-n', '3'])"
    )
    completed = subprocess.run(
        [sys.executable, "-c", script],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr


def test_a_closed_pipe_ends_it_quietly() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "potluck", "run", "demo", "-p", "The fox"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
        assert process.wait(60) != 0


def redirected(redirection: str) -> tuple[str, ...]:
    return ("sh", "-c", f'exec "$@" {redirection}', "sh")


@pytest.mark.parametrize(
    "arguments", [("run", "demo", *PROMPT), ("run", "demo", *PROMPT, "--json")]
)
def test_a_full_disk_is_said(arguments: tuple[str, ...]) -> None:
    completed = run_command(*arguments, prefix=redirected(">/dev/full"))
    assert_refused(completed, 1, "No space left on device", "disk space")


def test_without_standard_streams() -> None:
    completed = run_command("run", "demo", prefix=redirected("<&-"))
    assert_refused(completed, 2, "no standard input", "-p")
    expected = run_command("run", "demo", *PROMPT).stdout
    completed = run_command("run", "demo", *PROMPT, prefix=redirected("2>&-"))
    assert (completed.returncode, completed.stdout) == (0, expected), "figures are no text"
    assert run_command("run", "demo", *PROMPT, prefix=redirected(">&-")).returncode == 0


def test_without_arguments_it_helps() -> None:
    completed = run_command()
    assert completed.returncode == 0
    assert completed.stdout == run_command("--help").stdout


def test_one_token_has_no_rate() -> None:
    completed = run_command("run", "demo", "-p", "The fox", "-n", "1")
    assert "; decode 1 token; sampling: " in completed.stderr


def test_importing_potluck_is_light() -> None:
    script = (
        "import sys, potluck; potluck.__version__\n"
        "heavy = {'numpy', 'tokenizers', 'rich', 'typer', 'jinja2', 'msgspec'}\n"
        "heavy &= sys.modules.keys()\n"
        "print(sorted(heavy))"
    )
    completed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert completed.stdout == "[]\n"


@pytest.mark.parametrize("command", ["run", "bench"])
def test_a_backend_that_works_nowhere_here_is_refused(command: str) -> None:
    completed = run_command(command, "demo", "--backend", "tinygrad:QCOM")
    message = "tinygrad:QCOM does not work on any device of this machine"
    assert_refused(completed, 2, message, "the CPU is used if no backend is given")
    unknown = run_command(command, "demo", "--backend", "tinygrad:METAL")
    message = "unknown backend tinygrad:METAL"
    assert_refused(unknown, 2, message, "native, tinygrad:CUDA")
