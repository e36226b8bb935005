from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

import msgspec
import pytest
from support.portability.described_hosts import described_host
from support.portability.gpu_libraries import elf_file, shared_object

from potluck.portability.cuda.fat_binary import CudaNeeds
from potluck.portability.elf.image import open_image
from potluck.portability.features.findings import (
    Build,
    FileFacts,
    feature_findings,
    file_facts,
    toolkit_of_number,
)
from potluck.portability.features.rules import FeatureRules, rule_files, rules_for
from potluck.portability.finding import Finding, Severity
from potluck.portability.hosts.host import Host
from potluck.portability.shipped_toml import parse_toml

HOST = described_host()


def facts(
    machine: str = "x86_64", results: Mapping[str, int] | None = None, toolkit: tuple[int, ...] = ()
) -> FileFacts:
    results = results or {}
    return FileFacts(machine=machine, exports=frozenset(results), results=results, toolkit=toolkit)


def build(version: str = "1.0", **files: FileFacts) -> Build:
    return Build(
        version=version,
        files={PurePosixPath(f"lib/{name}.so"): each for name, each in files.items()},
    )


def rules(when: str, *, functions: str = "[]", message: str = "m", fix: str = "") -> FeatureRules:
    text = f"""
schema = "potluck.features/1"
distribution = "some-package"
functions = {functions}
documents = {{ a = {{ title = "A", url = "https://a", read = "all" }} }}
[[rule]]
name = "n"
severity = "note"
document = "a"
message = "{message}"
fix = "{fix}"
when = {when}
"""
    return parse_toml(text, FeatureRules)


def holds(
    when: str,
    built: Build,
    host: Host = HOST,
    *,
    functions: str = "[]",
    findings: tuple[Finding, ...] = (),
) -> bool:
    return bool(feature_findings(rules(when, functions=functions), built, host, findings))


@pytest.mark.parametrize(
    ("when", "built", "expected"),
    [
        ("{}", build(), True),
        ("{ version = '>=1.9,<1.14' }", build("1.10.0"), True),
        ("{ version = '>=1.9,<1.14' }", build("1.19.0"), False),
        ("{ version = '<1.0' }", build("0.10.0rc0"), True),
        ("{ version = '<1.0' }", build(""), False),
        ("{ machine = ['aarch64'] }", build(a=facts("aarch64")), True),
        ("{ machine = ['aarch64'] }", build(a=facts()), False),
        ("{ has_file = 'lib/a*.so' }", build(a=facts()), True),
        ("{ has_file = 'lib/a*.so' }", build(b=facts()), False),
        ("{ lacks_file = 'lib/a*.so' }", build(b=facts()), True),
        ("{ lacks_file = 'lib/a*.so' }", build(a=facts()), False),
        ("{ toolkit = '>=12.4' }", build(a=facts(toolkit=(12, 6)), b=facts()), True),
        ("{ toolkit = '>=12.4' }", build(a=facts(toolkit=(12, 3))), False),
        ("{ toolkit = '>=12.4' }", build(a=facts(toolkit=(12,))), False),
        ("{ toolkit = '<12.4' }", build(a=facts(toolkit=(12,))), False),
        ("{ toolkit = '<13' }", build(a=facts(toolkit=(12,))), True),
        ("{ toolkit = '<13' }", build(a=facts()), False),
        ("{ version = '<2', toolkit = '<13' }", build("1.0", a=facts()), False),
    ],
)
def test_conditions_on_the_build(when: str, built: Build, expected: bool) -> None:
    assert holds(when, built) is expected


@pytest.mark.parametrize(
    ("when", "results", "expected"),
    [
        ("{ exports = ['f', 'g'] }", {"g": 1}, True),
        ("{ exports = ['f', 'g'] }", {}, False),
        ("{ lacks_exports = ['f', 'g'] }", {}, True),
        ("{ lacks_exports = ['f', 'g'] }", {"f": 1}, False),
        ("{ returns = { functions = ['f', 'g'], number = 0 } }", {"g": 0}, True),
        ("{ returns = { functions = ['f', 'g'], number = 0 } }", {"g": 1}, False),
        ("{ returns = { functions = ['f', 'g'], number = 0 } }", {}, False),
    ],
)
def test_conditions_on_functions(when: str, results: dict[str, int], expected: bool) -> None:
    built = build(a=facts(), b=facts(results=results))
    assert holds(when, built, functions="['f', 'g']") is expected


@pytest.mark.parametrize(
    ("when", "host", "expected"),
    [
        ("{ host_cuda = '<12.4' }", described_host(driver=(535, 54, 3)), True),
        ("{ host_cuda = '<12.4' }", described_host(driver=(535, 54, 3), cuda=(12, 6)), False),
        ("{ host_cuda = '<12.4' }", HOST, False),
        ("{ has_driver = true }", described_host(driver=(390, 46)), True),
        ("{ has_driver = true }", HOST, False),
        ("{ has_driver = false }", HOST, True),
        ("{ has_driver = false }", described_host(is_complete=False), False),
        ("{ gpu = '<7.5' }", described_host(gpus=[("a", (8, 6)), ("b", (6, 1))]), True),
        ("{ gpu = '<7.5' }", described_host(gpus=[("a", (12, 0)), ("c", None)]), False),
        ("{ host_lacks = ['libOpenCL.so*'] }", HOST, True),
        ("{ host_lacks = ['libOpenCL.so*'] }", described_host(libraries=["libOpenCL.so.1"]), False),
        ("{ host_lacks = ['libOpenCL.so*'] }", described_host(is_complete=False), False),
        ("{ host_lacks = ['a.so'] }", HOST, False),
        ("{ cpu_lacks = ['avx2', 'fma'] }", described_host(cpu_features=["fma"]), True),
        ("{ cpu_lacks = ['avx2'] }", described_host(cpu_features=["avx2"]), False),
        ("{ cpu_lacks = ['avx2'] }", HOST, False),
    ],
)
def test_conditions_on_the_host(when: str, host: Host, expected: bool) -> None:
    assert holds(when, build(a=facts()), host) is expected


@pytest.mark.parametrize(
    ("file", "severity", "expected"),
    [
        ("lib/a.so", Severity.FATAL, True),
        ("lib/a.so", Severity.LIMIT, False),
        ("lib/b.so", Severity.FATAL, False),
    ],
)
def test_a_file_that_does_not_load(file: str, severity: Severity, expected: bool) -> None:
    before = Finding(code="missing-version", severity=severity, message="m", file=file)
    assert holds("{ fails_to_load = 'lib/a.so' }", build(), findings=(before,)) is expected


def test_what_is_known_is_filled_in() -> None:
    message = "{version} {toolkit} {driver} {cuda} {gpus} {missing}"
    when = "{ gpu = '<7.5', cpu_lacks = ['avx2', 'fma'] }"
    host = described_host(
        driver=(535, 54, 3),
        gpus=[("A", (6, 1)), ("B", (8, 6)), ("A", (6, 1))],
        cpu_features=["fma"],
    )
    built = build("1.2", a=facts(toolkit=(12, 4)))
    (finding,) = feature_findings(rules(when, message=message, fix="not {cuda}"), built, host, ())
    assert finding.message == "1.2 12.4 535.54.3 12.2 A avx2"
    assert finding.fix == "not 12.2"
    assert finding.code == "feature-n"


def test_facts_are_read_of_a_file() -> None:
    text = """
schema = "potluck.features/1"
distribution = "some-package"
functions = ["is_on", "is_absent"]
toolkit_functions = ["toolkit"]
documents = { a = { title = "A", url = "https://a", read = "all" } }
[[rule]]
name = "n"
severity = "note"
document = "a"
message = "m"
when = { exports = ["is_on", "is_absent"] }
"""
    ruleset = parse_toml(text, FeatureRules)
    code = {"is_on": "b8 01 00 00 00 c3", "toolkit": "b8 f0 32 00 00 c3", "other": "31 c0 c3"}
    data = shared_object({}, {name: bytes.fromhex(text) for name, text in code.items()})
    elf = elf_file(exports=tuple(code))
    cuda = CudaNeeds(toolkit=(12, 9), evidence="its compiler", modules=(), uses_driver=True)
    found = file_facts(ruleset, elf, open_image(data), cuda)
    assert found.exports == {"is_on", "toolkit"}
    assert found.results == {"is_on": 1, "toolkit": 13040}
    assert found.toolkit == (13, 4)
    assert msgspec.json.decode(msgspec.json.encode(found), type=FileFacts) == found

    without = open_image(shared_object({}, {"toolkit": bytes.fromhex("31 c0 c3")}))
    assert file_facts(ruleset, elf_file(exports=["toolkit"]), without, cuda).toolkit == (12, 9)
    assert file_facts(ruleset, elf_file(), without, None).toolkit == ()


def test_the_number_of_a_toolkit() -> None:
    assert toolkit_of_number(13040) == (13, 4)
    assert toolkit_of_number(11080) == (11, 8)


WARP_13 = {
    "wp_is_cuda_enabled": 1,
    "wp_is_mathdx_enabled": 1,
    "wp_is_cuda_compatibility_enabled": 1,
}
WARP_OLD_CPU = {"is_cuda_enabled": 0, "is_mathdx_enabled": 0}


@pytest.mark.parametrize(
    ("version", "results", "toolkit", "host", "lacks"),
    [
        ("1.19.0", WARP_13, (13, 4), described_host(driver=(616, 0)), set()),
        ("1.19.0", WARP_13, (13, 4), HOST, set()),
        (
            "1.19.0",
            WARP_13,
            (13, 4),
            described_host(cuda=(13, 4), gpus=[("GTX 1080", (6, 1))]),
            {"CUDA"},
        ),
        (
            "1.10.0",
            WARP_13,
            (12, 8),
            described_host(driver=(535, 54, 3), gpus=[("RTX 3060", (8, 6))]),
            {"capture_if and capture_while in CUDA graphs", "tile_fft and tile_ifft on CPUs"},
        ),
        (
            "1.19.0",
            {**WARP_13, "wp_is_mathdx_enabled": 0},
            (12, 0),
            described_host(driver=(616, 0)),
            {
                "capture_if and capture_while in CUDA graphs",
                "tile_fft of other sizes than powers of two on GPUs",
            },
        ),
        (
            "1.7.0",
            WARP_OLD_CPU,
            (),
            HOST,
            {"CUDA", "tile_fft and tile_ifft on CPUs", "tile_fft and tile_ifft on GPUs"},
        ),
        (
            "1.6.2",
            {"is_cuda_enabled": 1, "is_mathdx_enabled": 0},
            (11, 8),
            HOST,
            {
                "tile_matmul, tile_fft and tile_cholesky on CPUs",
                "tile_matmul, tile_fft and tile_cholesky on GPUs",
            },
        ),
    ],
)
def test_what_warp_lacks(
    version: str, results: dict[str, int], toolkit: tuple[int, ...], host: Host, lacks: set[str]
) -> None:
    shipped = rules_for("warp-lang")
    assert shipped is not None
    files = {
        PurePosixPath("warp/bin/warp.so"): facts(results=results, toolkit=toolkit),
        PurePosixPath("warp/bin/warp-clang.so"): facts(),
    }
    findings = feature_findings(shipped, Build(version=version, files=files), host, ())
    limits = {finding.feature for finding in findings if finding.severity is Severity.LIMIT}
    assert limits == lacks


def test_warp_does_not_start_where_one_of_its_libraries_does_not_load() -> None:
    shipped = rules_for("warp-lang")
    assert shipped is not None
    name = "warp/bin/warp-clang.so"
    files = {PurePosixPath(name): facts()}
    before = Finding(code="missing-version", severity=Severity.FATAL, message="m", file=name)
    findings = feature_findings(shipped, Build(version="1.19.0", files=files), HOST, [before])
    assert [each.feature for each in findings] == ["all of Warp"]


def test_rules_for_what_has_no_libraries_of_its_own() -> None:
    shipped = rules_for("tinygrad")
    assert shipped is not None
    host = described_host(libraries=["libOpenCL.so.1", "libLLVM-14.so.1"])
    findings = feature_findings(shipped, Build(version="0.14.0", files={}), host, ())
    assert {finding.code for finding in findings} == {"feature-no-cuda", "feature-cpu-compiler"}


def test_advice_for_a_jetson_names_jetpack() -> None:
    """Rules of every distribution: NVIDIA's driver is not installed on a Jetson by itself."""
    jetson = described_host(machine="aarch64", tegra_release=(35, 2, 1))
    for name in rule_files():
        own = rules_for(name)
        assert own is not None
        for rule in own.rule:
            if "NVIDIA's driver" in rule.fix:
                assert "JetPack" in rule.jetson_fix
    own = rules_for("warp-lang")
    assert own is not None
    built = build("1.19.0", warp=facts("aarch64", toolkit=(13, 4)))
    found = feature_findings(own, built, jetson, ())
    codes = {each.code: each for each in found}
    assert "feature-cuda-13-build" not in codes  # which names a driver's number
    assert "JetPack" in codes["feature-driver-without-graph-conditionals"].fix
    elsewhere = feature_findings(own, built, described_host(), ())
    assert "feature-cuda-13-build" in {each.code for each in elsewhere}
