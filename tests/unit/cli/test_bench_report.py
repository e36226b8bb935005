"""The table of ``potluck bench``, made from its document."""

from __future__ import annotations

from typing import Any

import msgspec
from support.schemas import validate_document

from potluck.cli.bench_report import BenchDocument, DraftedDocument, SampledDocument, bench_lines
from potluck.cli.report import LoadDocument
from potluck.types.arithmetic import Arithmetic


def document(**changes: Any) -> BenchDocument:
    """Of a unit that is not native: no limits, and no times by op."""
    load = LoadDocument(read_bytes=0, seconds=0.1, weights_bytes={"f16": 9}, remarks=())
    plain = BenchDocument(
        version="1",
        model="m",
        machine="x86_64",
        unit_id="x/tinygrad:CL",
        isa="CL",
        num_threads=1,
        num_stages=1,
        weights_bytes=9,
        loads=(load,),
        prompt_tokens=512,
        decode_tokens=128,
        depth_tokens=0,
        num_sequences=1,
        arithmetic=None,
        fast_arithmetic=None,
        prefill_tokens_per_second=(100.0, 300.0, 120.0),
        decode_tokens_per_second=(10.0, 30.0, 12.0),
        sampling=SampledDocument(temperature=0.8, top_p=0.95),
        sampled_tokens_per_second=(9.0, 29.0, 11.0),
        drafted=None,
        limits=None,
        prefill=None,
        decode=None,
    )
    made = msgspec.structs.replace(plain, **changes)
    validate_document(made)
    return made


def test_medians_stand_beside_the_least_and_the_most() -> None:
    lines = "\n".join(bench_lines(document())).splitlines()
    assert [line.split() for line in lines[1:3]] == [
        ["prefill", "120.0", "100.0", "300.0"],
        ["decode", "12.0", "10.0", "30.0"],
    ]
    assert lines[3].split()[:5] == ["decode,", "sampled", "11.0", "9.0", "29.0"]
    assert lines[3].endswith("temperature 0.8, top-p 0.95")
    assert "x/tinygrad:CL does not use the native backend" in lines[-1]


def test_drafts_have_a_row_with_their_gain() -> None:
    drafted = DraftedDocument(
        drafts_per_step=7,
        tokens_per_second=(31.0, 50.0, 36.0),
        num_drafted=336,
        num_accepted=330,
        gain=(3.1, 1.7, 3.0),
    )
    (row,) = (line for line in bench_lines(document(drafted=drafted)) if "drafted" in line)
    assert row.split()[:5] == ["decode,", "drafted", "36.0", "31.0", "50.0"]
    assert row.endswith("3.00 times; drafted 336, right 330")
    assert not any("drafted" in line for line in bench_lines(document()))


def test_the_arithmetic_is_said_and_what_would_be_faster() -> None:
    assert not any("arithmetic" in line for line in bench_lines(document()))  # it has its own
    exact = list(bench_lines(document(arithmetic=Arithmetic.EXACT)))
    assert "arithmetic: exact, bit-identical on every CPU" in exact
    assert not any(line.startswith("faster") for line in exact)
    could_be = document(arithmetic=Arithmetic.EXACT, fast_arithmetic=Arithmetic.AVX512_BF16)
    assert "faster for these weights: avx512_bf16 (--arithmetic fast)" in list(
        bench_lines(could_be)
    )
    fast = list(bench_lines(document(arithmetic=Arithmetic.AVX512_BF16)))
    assert "arithmetic: avx512_bf16, bit-identical on CPUs that have it" in fast
