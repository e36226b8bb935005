"""Writes the tables of README.md and README.zh-CN.md, between their markers.

    python -m tools.readme_tables

The results come from ``benchmarks/results``, and what works from the records of the tests
(``docs/reference/models.json``), the survey of platforms, and the CPUs and GPUs on which the
committed benchmarks ran. Every configuration in which a comparison lost is in the table, whether or
not it was chosen as a row.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from potluck.engines.backends import BACKENDS
from potluck.models.family import all_families
from potluck.types.backend import DeviceKind
from potluck.types.tensor import TensorFormat
from tools.platforms.page import floor
from tools.platforms.survey import read_survey

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
COMPARISONS = ("vs_llamacpp-1b.json", "vs_llamacpp-0.6b.json", "vs_llamacpp-3b.json")
PEERS = "peers.json"
KERNEL_RUNS = ("kernels.json", "kernels-amx.json", "kernels-formats.json")
GPU_RUNS = ("gpu-small.json", "gpu-1b.json", "gpu-8b.json", "gpu-h100.json")
PAGES = ("README.md", "README.zh-CN.md")

INSTRUCTION_SETS: Mapping[str, Mapping[str, str]] = {
    "x86_64": {"avx2": "AVX2", "avx512": "AVX-512", "avx512_bf16": "BF16", "amx": "AMX"},
    "aarch64": {"neon": "NEON", "dotprod": "SDOT", "i8mm": "I8MM"},
}
"""By architecture, the names of the instruction sets in ``cpp/kernels``."""

INTERFACES: Mapping[str, str] = {
    "cuda": "CUDA",
    "kfd": "KFD",
    "kgsl": "kgsl",
    "opencl": "OpenCL",
}
"""The names of the interfaces through which backends use GPUs (``BackendSpec.api``)."""

_WIDTH = 100
_CHOSEN = (
    ("Llama-3.2-1B", "decode", "Q4_K_M"),
    ("Llama-3.2-1B", "prefill", "Q4_K_M"),
    ("Llama-3.2-1B", "decode, 8 sequences", "Q4_K_M"),
    ("Llama-3.2-1B", "decode, a core busy", "Q8_0"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One comparison: what was measured, on both sides, in tokens per second."""

    shape: str
    claim: str
    type_name: str
    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        """Return how many times as fast as the other program Potluck is."""
        return self.ours / self.theirs


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """The phrases of one language."""

    claims: Mapping[str, str]
    results_head: str
    peers_head: str
    slower: str
    gain: str
    conditions: str
    peer_conditions: str
    support_head: str
    support: tuple[str, ...]
    on_hardware: str
    partly_emulated: str
    emulated: str
    software_gpus: str
    families: str
    joined: str
    width: int


ENGLISH = Words(
    claims={
        "decode": "one stream",
        "prefill": "prompt of 512 tokens",
        "decode, 8 sequences": "8 streams together",
        "decode, a core busy": "one stream, one of two cores busy",
        "one": "one node with one core, one stream",
        "prompt": "the same, prompt of 512 tokens",
        "two": "two nodes with one core each, one stream",
    },
    results_head="| tokens per second | Potluck | llama.cpp | ratio |",
    peers_head="| tokens per second | Potluck | llama.cpp | distributed-llama |",
    slower="{ratio} (slower)",
    gain="speed-up from the second node",
    conditions=(
        "Shapes of published models with random weights, the same GGUF files for both programs, "
        "alternating runs on one machine ({cpu}, {threads} threads, {date}); medians. llama.cpp "
        "{commit} was built for that CPU. BF16 was computed in fast arithmetic. Every comparison "
        "that Potluck lost is listed."
    ),
    peer_conditions=(
        "× is Potluck's rate divided by the other one. All three in one run "
        "({rounds}; {cpu}, {date}): Llama-3.2-1B shape in Q4_0, greedy, after 512 tokens; two "
        "nodes by tensor parallelism."
    ),
    support_head="| | works | tested |",
    support=(
        "| models | {families} families ([list](docs/reference/models.md)) | "
        "logits compared with `transformers` |",
        "| weights | safetensors and GGUF, {formats} formats kept as stored | "
        "kernel and parity tests |",
        "| x86-64 | {x86_64}; chosen at run time | {x86_64_tested} |",
        "| aarch64 | {aarch64}; chosen at run time | {aarch64_tested} |",
        "| GPUs | {on_gpus} of the families, through tinygrad | {gpus_tested} |",
        "| Linux | glibc {floors} or newer; Python {pythons} | survey of dependencies |",
    ),
    on_hardware="on {names}",
    partly_emulated="{names} on real CPUs, the rest under emulation",
    emulated="under emulation only",
    software_gpus="{names} emulated on a CPU; not yet on real GPUs",
    families="Families: {names}.",
    joined=", ",
    width=_WIDTH,
)

CHINESE = Words(
    claims={
        "decode": "单路生成",
        "prefill": "512 个 token 的提示",
        "decode, 8 sequences": "8 路同时生成",
        "decode, a core busy": "单路生成，两个核中一个被占用",
        "one": "一个节点，一个核，单路生成",
        "prompt": "同上，512 个 token 的提示",
        "two": "两个节点，各一个核，单路生成",
    },
    results_head="| 每秒 token 数 | Potluck | llama.cpp | 比值 |",
    peers_head="| 每秒 token 数 | Potluck | llama.cpp | distributed-llama |",
    slower="{ratio}（较慢）",
    gain="第二个节点带来的加速",
    conditions=(
        "采用已发布模型的形状、随机权重，双方使用同一批 GGUF 文件，在同一台机器上交替运行"
        "\n（{cpu}，{threads} 线程，{date}），取中位数。llama.cpp {commit} 针对该 CPU 编译。\n"
        "BF16 使用快速算术。这些测量中 Potluck 较慢的项全部列出。"
    ),
    peer_conditions=(
        "× 为 Potluck 的速度除以对方的速度。三者在同一次运行中测量（{rounds}；{cpu}，{date}）：\n"
        "Llama-3.2-1B 形状，Q4_0 权重，在 512 个 token 的提示之后贪心解码；两个节点使用张量并行。"
    ),
    support_head="| | 支持 | 测试 |",
    support=(
        "| 模型 | {families} 个模型族（[列表](docs/reference/models.md)） | "
        "与 `transformers` 比较 logits |",
        "| 权重 | safetensors 与 GGUF，其中 {formats} 种格式按存储形式计算 | 内核测试与对照测试 |",
        "| x86-64 | {x86_64}，运行时选择 | {x86_64_tested} |",
        "| aarch64 | {aarch64}，运行时选择 | {aarch64_tested} |",
        "| GPU | 其中 {on_gpus} 个模型族，通过 tinygrad | {gpus_tested} |",
        "| Linux | glibc {floors} 或更新；Python {pythons} | 全部依赖的调查 |",
    ),
    on_hardware="在 {names} 上",
    partly_emulated="{names} 在真实 CPU 上，其余在模拟器中",
    emulated="仅在模拟器中",
    software_gpus="在 CPU 上模拟的 {names}；尚未在真实 GPU 上测试",
    families="模型族：{names}。",
    joined="、",
    width=0,
)
LANGUAGES = dict(zip(PAGES, (ENGLISH, CHINESE), strict=True))


def compared(documents: Mapping[str, Any]) -> Iterator[Row]:
    """Yield every row of the comparisons with llama.cpp that has both sides and counts."""
    for name in COMPARISONS:
        for shape in documents[name]["shapes"]:
            for row in shape["rows"]:
                if row["counts"] and row["ours"] and row["theirs"]:
                    yield Row(
                        shape=shape["shape"],
                        claim=row["claim"],
                        type_name=row["type_name"],
                        ours=row["ours"],
                        theirs=row["theirs"],
                    )


def shown(documents: Mapping[str, Any]) -> list[Row]:
    """Return the chosen rows and those that were lost, in that order."""
    rows = list(compared(documents))
    by_key = {(row.shape, row.claim, row.type_name): row for row in rows}
    chosen = [by_key[key] for key in _CHOSEN]
    return chosen + [row for row in rows if row.ratio < 1 and row not in chosen]


def results(documents: Mapping[str, Any], words: Words) -> str:
    """Return the tables of results, each with the conditions under which it holds."""
    first = documents[COMPARISONS[0]]
    build = first["shapes"][0]["builds"]["best"]
    command = first["shapes"][0]["runs"][0]["command"]
    lines = [words.results_head, "|---|--:|--:|--:|"]
    lines += [
        f"| {row.shape} {row.type_name}, {words.claims[row.claim]} | {row.ours:.1f} | "
        f"{row.theirs:.1f} | {_ratio(row.ratio, words)} |"
        for row in shown(documents)
    ]
    conditions = words.conditions.format(
        cpu=first["cpu"],
        threads=command[command.index("--threads") + 1],
        date=first["time"].partition("T")[0],
        commit=build["commit"],
    )
    return "\n".join(
        [*lines, "", _wrapped(conditions, words), "", *_peers(documents[PEERS], words)]
    )


def _peers(document: Mapping[str, Any], words: Words) -> Iterator[str]:
    """Yield the table of Potluck and two other programs in one run."""
    measured = document["types"]["Q4_0"]
    ratios = measured["ratios"]
    rates = ratios["tokens_per_second"]
    yield words.peers_head
    yield "|---|--:|--:|--:|"
    for key, nodes, kind in (
        ("one", "x1", "greedy decode"),
        ("prompt", "x1", "prefill"),
        ("two", "x2", "greedy decode"),
    ):
        cells = [f"{rates[f'potluck {nodes}'][kind]:.1f}"]
        for program in ("llama.cpp", "distributed-llama"):
            theirs = rates.get(f"{program} {nodes}")
            if theirs is None:
                cells.append("–")
            else:
                ratio = _ratio(ratios[f"over {program} {nodes}"][kind], words)
                cells.append(f"{theirs[kind]:.1f}, {ratio}")
        yield f"| {words.claims[key]} | {' | '.join(cells)} |"
    gain, theirs = (ratios[name]["greedy decode"] for name in ("gain", "peer's gain"))
    ratio = _ratio(gain / theirs, words)
    yield f"| {words.gain} | ×{gain:.2f} | – | ×{theirs:.2f}, {ratio} |"
    yield ""
    count = len(measured["rounds"])
    rounds = {0: f"{count} 轮"}.get(words.width, f"{count} round" + "s" * (count > 1))
    yield _wrapped(
        words.peer_conditions.format(
            rounds=rounds,
            cpu=document["cpu"],
            date=document["time"].partition("T")[0],
        ),
        words,
    )


def _ratio(ratio: float, words: Words) -> str:
    text = f"×{ratio:.2f}"
    return words.slower.format(ratio=text) if ratio < 1 else text


def _wrapped(text: str, words: Words) -> str:
    if not words.width:
        return text
    return textwrap.fill(text, words.width, break_on_hyphens=False, break_long_words=False)


def support(words: Words) -> str:
    """Return the table of what works."""
    record, published = (
        json.loads((ROOT / "docs" / "reference" / name).read_text(encoding="utf-8"))
        for name in ("models.json", "published-models.json")
    )
    survey = read_survey((ROOT / "tools" / "platforms" / "platforms.json").read_text("utf-8"))
    floors = dict.fromkeys(f"{floor(each)[0]} ({each.machine})" for each in survey.platforms)
    pythons = list(dict.fromkeys(each.python for each in survey.platforms))
    gpu = next(each for each in BACKENDS if each.engine and not each.abilities.is_built_in)
    native = [
        family.name
        for family in all_families()
        if any(each.endswith("/native") for each in record[family.name]["shown"])
    ]
    kernel_runs, gpu_runs = (
        [json.loads((RESULTS / name).read_text(encoding="utf-8")) for name in names]
        for names in (KERNEL_RUNS, GPU_RUNS)
    )
    figures: dict[str, object] = {
        "families": len(native),
        "formats": sum(each.has_kernels for each in TensorFormat),
        "on_gpus": sum(set(record[name]["features"]) <= gpu.abilities.features for name in native),
        "floors": words.joined.join(floors),
        "pythons": f"{pythons[0]}–{pythons[-1]}",
        "gpus_tested": gpus_tested(gpu_runs, words),
    }
    for architecture, names in INSTRUCTION_SETS.items():
        figures[architecture] = words.joined.join(names.values())
        figures[f"{architecture}_tested"] = cpus_tested(architecture, kernel_runs, words)
    rows = [row.format(**figures) for row in words.support]
    brands = dict.fromkeys(_brand(published[name]) for name in native)
    named = _wrapped(words.families.format(names=words.joined.join(brands)), words)
    return "\n".join([words.support_head, "|---|---|---|", *rows, "", named])


def cpus_tested(architecture: str, runs: Iterable[Mapping[str, Any]], words: Words) -> str:
    """Return on which CPUs the kernels of an architecture ran, according to their benchmarks."""
    names = INSTRUCTION_SETS[architecture]
    ran: dict[str, str] = {}
    cpus: dict[str, None] = {}
    for run in runs:
        here = {row["isa"] for row in run["results"]} & names.keys()
        ran |= {isa: names[isa] for isa in names if isa in here}
        if here:
            cpus[_cpu(run["cpu"])] = None
    if not ran:
        return words.emulated
    if ran.keys() == names.keys():
        return words.on_hardware.format(names=words.joined.join(cpus))
    return words.partly_emulated.format(names=words.joined.join(ran.values()))


def gpus_tested(runs: Iterable[Mapping[str, Any]], words: Words) -> str:
    """Return on which GPUs a backend worked, according to the benchmarks of backends."""
    interfaces = {each.name: each.api for each in BACKENDS if DeviceKind.GPU in each.kinds}
    units = [
        unit
        for run in runs
        for unit in run["units"]
        if unit["works"] and unit["backend"] in interfaces
    ]
    real = dict.fromkeys(unit["device"] for unit in units if not unit["is_software"])
    if real:
        return words.on_hardware.format(names=words.joined.join(real))
    emulated = dict.fromkeys(INTERFACES[interfaces[unit["backend"]]] for unit in units)
    return words.software_gpus.format(names=words.joined.join(emulated))


def _cpu(name: str) -> str:
    """Return a CPU's name without trademarks: ``Intel Xeon``."""
    return re.sub(r"\(R\)|\(TM\)| Processor", "", name).strip()


def _brand(published: str) -> str:
    """Return the name that a family's published models begin with, without sizes and versions."""
    name = re.match(r"[^\d(,]*", published)
    assert name is not None
    return re.sub(r"( MoE.*|[- ][A-Z]|[- ])$", "", name[0])


def with_blocks(text: str, blocks: Mapping[str, str]) -> str:
    """Return ``text`` with the content of each block between its markers."""
    for name, content in blocks.items():
        pattern = rf"(<!-- {name}: [^\n]*-->\n).*?(\n<!-- end of {name} -->)"
        replacement = "\\1" + content.replace("\\", r"\\") + "\\2"
        text, count = re.subn(pattern, replacement, text, flags=re.S)
        if count != 1:
            raise ValueError(f"{count} blocks named {name}, not one")
    return text


def page(name: str) -> str:
    """Return the text of a README as it should be."""
    documents = {
        each: json.loads((RESULTS / each).read_text(encoding="utf-8"))
        for each in (*COMPARISONS, PEERS)
    }
    words = LANGUAGES[name]
    blocks = {"results": results(documents, words), "support": support(words)}
    return with_blocks((ROOT / name).read_text(encoding="utf-8"), blocks)


def main() -> None:
    """Write both pages."""
    for name in PAGES:
        (ROOT / name).write_text(page(name), encoding="utf-8")


if __name__ == "__main__":
    main()
