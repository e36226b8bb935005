"""Measure how long a model's weights take to reach boards: METHODOLOGY, "Weights".

    python benchmarks/weights.py [--origin hub|owner] [--shape 100M] [--boards 14]
        [--uplink MBIT] [--link MBIT] [--cap MIB] [--no-store] [--again] [--output FILE]

Makes a model with random weights (in the folder --work, used again) and starts agents on this
machine, each in a network namespace and in a control group of its own. With ``--origin hub`` nobody
has the model, and a hub that counts what it sends is behind an uplink of ``--uplink`` Mbit/s; with
``--origin owner`` only the first board has it. Then deploys it, and asks for 8 tokens. ``--again``
undeploys it, takes the hub away and deploys it once more.

Needs root, iproute2 and version 1 of the kernel's memory controller.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from circumstances import write_result
from command_line import documented_parser
from fourteen_boards import (
    Board,
    BoardResult,
    Drill,
    NoControlGroupsError,
    await_boards,
    connect_here,
    make_model,
    memory_group,
    sampling,
    start_board,
)
from model_shapes import SHAPES, weights_bytes
from support.network.fake_hub import FakeHub, serve_hub
from support.network.netns import (
    Host,
    lan,
    limit_rate,
    limit_received_rate,
    opened_on,
    use_cubic,
)

from potluck.cluster.network.trust.secret import generate_secret
from potluck.errors import PotluckError
from potluck.host.child_environment import SECRET_VARIABLE
from potluck.types.quantities import format_bytes, format_rate

MODEL_ID = "bench/model"
PORT = 7333

_ROOT = Path(__file__).resolve().parents[1]
_WORK = _ROOT / "build" / "weights"
_START_SECONDS = 180.0
_MEGABIT = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measurement. Rates are in bits per second; 0 means no limit."""

    origin: str
    shape: str
    num_boards: int
    uplink_bits_per_second: int
    link_bits_per_second: int
    cap_bytes: int
    keeps: bool = True


@dataclass(slots=True, kw_only=True)
class ReceivingBoardResult(BoardResult):
    """``received_bytes`` and ``sent_bytes`` are those of the board's interface."""

    received_bytes: int = 0
    sent_bytes: int = 0
    stored_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class WeightsResult:
    """``hub_bytes`` were sent by the hub in bodies, ``repeated_bytes`` of them not for the first
    time; ``uplink_bytes`` is what its interface sent, with everything around them.

    ``least_seconds`` is how long the needed bytes take over the narrowest place that they must
    pass once, at the rate that it is limited to.
    """

    case: Case
    model_bytes: int
    boards: list[ReceivingBoardResult]
    deploy_seconds: float | None = None
    least_seconds: float | None = None
    hub_bytes: int = 0
    repeated_bytes: int = 0
    uplink_bytes: int = 0
    answer_seconds: float | None = None
    num_tokens: int = 0
    text: str = ""
    again_seconds: float | None = None
    again_text: str = ""
    failure: str = ""
    events: list[str] = field(default_factory=list)

    @property
    def ratio(self) -> float | None:
        """The time of the deployment divided by the minimum time."""
        if not self.deploy_seconds or not self.least_seconds:
            return None
        return self.deploy_seconds / self.least_seconds


def main() -> None:
    """Measure one case, print what came of it, write the document."""
    parser = documented_parser(__doc__)
    parser.add_argument("--origin", choices=("hub", "owner"), default="hub")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="100M")
    parser.add_argument("--boards", type=int, default=14)
    parser.add_argument("--uplink", type=int, default=50, metavar="MBIT", help="0: no limit")
    parser.add_argument("--link", type=int, default=1000, metavar="MBIT", help="0: no limit")
    parser.add_argument("--cap", type=int, default=512, metavar="MIB", help="memory of a board")
    parser.add_argument(
        "--no-store", action="store_true", help="boards keep nothing on their disks"
    )
    parser.add_argument("--again", action="store_true", help="deploy once more, without the hub")
    parser.add_argument("--work", type=Path, default=_WORK, help="folder for the model")
    parser.add_argument("--logs", type=Path, help="folder for what the agents write")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    case = Case(
        origin=arguments.origin,
        shape=arguments.shape,
        num_boards=arguments.boards,
        uplink_bits_per_second=arguments.uplink * _MEGABIT,
        link_bits_per_second=arguments.link * _MEGABIT,
        cap_bytes=arguments.cap * 2**20,
        keeps=not arguments.no_store,
    )
    drill = Drill(name=case.shape, shape=SHAPES[case.shape], cap_bytes=case.cap_bytes)
    model = make_model(drill, arguments.work.resolve())
    try:
        result = measure(case, model, is_repeated=arguments.again, logs=arguments.logs)
    except NoControlGroupsError as error:
        raise SystemExit(f"not shown: {error}") from error
    for line in result_lines(result):
        print(line)
    results = {
        "num_cpus": os.cpu_count(),
        "ratio": result.ratio,
        **asdict(result),
    }
    write_result(arguments.output, "potluck.benchmark.weights/1", results)
    sys.exit(1 if result.failure else 0)


def measure(
    case: Case, model: Path, *, is_repeated: bool, logs: Path | None = None
) -> WeightsResult:
    """Start boards and hub, deploy, ask, and look at what was sent. Leaves nothing running.

    Raises ``NoControlGroupsError``, and ``OSError`` or ``CalledProcessError`` where there can be no
    namespaces.
    """
    result = WeightsResult(
        case=case,
        model_bytes=weights_bytes(model),
        boards=[ReceivingBoardResult(board=index) for index in range(case.num_boards)],
    )
    with ExitStack() as opened:
        directory = Path(opened.enter_context(tempfile.TemporaryDirectory(dir=model.parent)))
        *hosts, hub_host = opened.enter_context(lan(case.num_boards + 1))
        for host in (*hosts, hub_host):
            use_cubic(host)
        for host in hosts:
            if case.link_bits_per_second:
                limit_rate(host, case.link_bits_per_second)
                limit_received_rate(host, case.link_bits_per_second)
        hub = opened.enter_context(_served(model, hub_host))
        if case.uplink_bits_per_second:
            limit_rate(hub_host, case.uplink_bits_per_second)
        groups = [
            opened.enter_context(memory_group(f"weights-{os.getpid()}-{i}", case.cap_bytes))
            for i in range(case.num_boards)
        ]
        boards = _start_boards(
            opened, case, hosts, groups, directory, model, hub.endpoint, debugs=logs is not None
        )
        with sampling(boards) as sampler:
            before = [_traffic(host) for host in hosts]
            uplink_before = _traffic(hub_host)[1]
            sent_before = sum(hub.sent_bytes.values())
            try:
                name = MODEL_ID if case.origin == "hub" else str(model.resolve())
                result.deploy_seconds = boards[0].deploy(name, result.boards)
                for host, start, measured in zip(hosts, before, result.boards, strict=True):
                    received, sent = _traffic(host)
                    measured.received_bytes = received - start[0]
                    measured.sent_bytes = sent - start[1]
                result.uplink_bytes = _traffic(hub_host)[1] - uplink_before
                result.hub_bytes = sum(hub.sent_bytes.values()) - sent_before
                result.repeated_bytes = sum(map(hub.repeated_bytes, hub.sent_ranges))
                result.least_seconds = least_seconds(case, result)
                started = time.monotonic()
                result.text, result.num_tokens = _complete(boards[0], hosts[0])
                result.answer_seconds = time.monotonic() - started
                if is_repeated:
                    _repeat(boards, hosts, hub_host, name, result)
            except (PotluckError, OSError, RuntimeError) as error:
                result.failure = str(error)
        if logs is not None:
            logs.mkdir(parents=True, exist_ok=True)
            for index, board in enumerate(boards):
                shutil.copyfile(board.log, logs / f"{index}.log")
        for board, into in zip(boards, result.boards, strict=True):
            sampler.report(board, into)
            into.stored_bytes = _stored_bytes(directory / str(into.board))
        if result.failure:
            for failed in boards:
                tail = failed.log.read_text(encoding="utf-8").splitlines()[-30:]
                result.events += [f"{failed.log.parent.name}: {line}" for line in tail]
    return result


def least_seconds(case: Case, result: WeightsResult) -> float | None:
    """Return the time of the needed bytes over the narrowest place; None where no rate is set."""
    stages = [board.read_bytes or 0 for board in result.boards]
    if case.origin == "hub":
        bits = 8 * (result.hub_bytes - result.repeated_bytes)
        if case.uplink_bits_per_second:
            return bits / case.uplink_bits_per_second
        return 8 * max(stages) / case.link_bits_per_second if case.link_bits_per_second else None
    if not case.link_bits_per_second:
        return None
    # All that the other boards need leaves the owner once.
    return 8 * sum(stages[1:]) / case.link_bits_per_second


def result_lines(result: WeightsResult) -> Iterator[str]:
    """Yield a line for every board, and the overall result."""
    yield (
        f"{'board':>5} {'layers':>9} {'plan':>9} {'read':>9} {'received':>9} {'sent':>9} "
        f"{'stored':>9} {'worker':>9} {'board':>9} {'seconds':>7} {'kills':>5}"
    )
    for each in result.boards:
        cells = each.cells(
            *(each.plan_bytes, each.read_bytes, each.received_bytes, each.sent_bytes),
            *(each.stored_bytes, each.worker_peak_bytes, each.board_peak_bytes),
        )
        yield f"{cells} {each.num_kills:5}"
    yield (
        f"the hub sent {format_bytes(result.hub_bytes)}, {format_bytes(result.repeated_bytes)} of "
        f"it again; its interface {format_bytes(result.uplink_bytes)}; "
        f"the model has {format_bytes(result.model_bytes)}"
    )
    if result.deploy_seconds is not None:
        rate = format_rate(result.model_bytes / result.deploy_seconds, "B/s")
        yield f"deployed in {result.deploy_seconds:.1f} s ({rate})"
    if result.ratio is not None:
        yield f"{result.ratio:.2f} times the {result.least_seconds:.1f} s of the needed bytes"
    if result.answer_seconds is not None:
        yield f"{result.num_tokens} tokens in {result.answer_seconds:.1f} s"
    if result.again_seconds is not None:
        same = "the same text" if result.again_text == result.text else "ANOTHER TEXT"
        yield f"again without the hub in {result.again_seconds:.1f} s, {same}"
    if result.failure:
        yield from result.events
        yield f"failed: {result.failure}"


# The hub and the boards.


@contextlib.contextmanager
def _served(model: Path, host: Host) -> Iterator[FakeHub]:
    """Serve the files of a model on a host, from memory maps."""

    def listen() -> socket.socket:
        return socket.create_server((host.ip, 0), backlog=128)

    with ExitStack() as opened:
        files: dict[str, bytes] = {}
        for path in sorted(model.iterdir()):
            if path.suffix in (".json", ".safetensors"):
                file = opened.enter_context(path.open("rb"))
                mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
                files[path.name] = mapped  # type: ignore[assignment]
        yield opened.enter_context(serve_hub({MODEL_ID: files}, listener=opened_on(host, listen)))


def _start_boards(
    opened: ExitStack,
    case: Case,
    hosts: list[Host],
    groups: list[Path],
    directory: Path,
    model: Path,
    endpoint: str,
    *,
    debugs: bool,
) -> list[Board]:
    """Start agents, and wait until all of them see one another. The first one serves clients."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(_ROOT / "src"),
        "HF_ENDPOINT": endpoint,
        "HF_HUB_DISABLE_TELEMETRY": "1",
        SECRET_VARIABLE: generate_secret(),
    }
    boards: list[Board] = []
    for index, (host, group) in enumerate(zip(hosts, groups, strict=True)):
        folder = directory / str(index)
        options = [
            *("up", "--threads", "1"),
            *("--listen", f"{host.ip}:{PORT}"),
            *(["--join", f"{hosts[0].ip}:{PORT}"] if boards else []),
            *(["--no-http"] if boards else ["--http", "127.0.0.1:0"]),
        ]
        agent_command = (sys.executable, "-m", "potluck", *(["--debug"] if debugs else []))
        # In a network namespace /sys is another one, without the control groups.
        with_groups = 'mount -t cgroup -o memory none /sys/fs/cgroup && exec "$@"'
        hidden = _hidden(case, model, index)
        command = host.command("sh", "-c", with_groups, "sh", *hidden, *agent_command, *options)
        own = {"HF_HOME": str(folder / "hf"), "XDG_CACHE_HOME": str(folder / "cache")}
        if not case.keeps:
            own["POTLUCK_WEIGHTS_STORE"] = "0"
        board = start_board(index, group, folder, command, {**environment, **own})
        opened.callback(board.end)
        boards.append(board)
        # One by one: all of them together would keep a small machine so busy that some fail to join
        # in time.
        await_boards(boards, _START_SECONDS)
    return boards


def _hidden(case: Case, model: Path, board: int) -> tuple[str, ...]:
    """Return a command prefix that hides the model's folder from an agent; empty for its owner."""
    if case.origin == "owner" and board == 0:
        return ()
    cover = f'mount -t tmpfs -o size=4k none "{model}" && exec "$@"'
    return ("unshare", "--mount", "sh", "-c", cover, "sh")


def _repeat(
    boards: list[Board], hosts: list[Host], hub_host: Host, name: str, result: WeightsResult
) -> None:
    """Deploy what is in the stores by now, with no hub to ask."""
    boards[0].ask("undeploy", name="model")
    subprocess.run(
        ["ip", "-n", hub_host.namespace, "link", "set", "eth0", "down"], check=True, timeout=20
    )
    result.again_seconds = boards[0].deploy(name)
    result.again_text, _ = _complete(boards[0], hosts[0])


def _complete(board: Board, host: Host) -> tuple[str, int]:
    """Ask for an answer on ``host``; return its text and its number of tokens."""
    return board.complete(lambda port: opened_on(host, lambda: connect_here(port)))


def _traffic(host: Host) -> tuple[int, int]:
    """Return the bytes that a host's interface has received and sent."""
    counters = Path("/sys/class/net/eth0/statistics")
    command = host.command("cat", str(counters / "rx_bytes"), str(counters / "tx_bytes"))
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    received, sent = map(int, done.stdout.split())
    return received, sent


def _stored_bytes(folder: Path) -> int:
    """Return the disk space of a board's store of weights, in bytes."""
    store = folder / "cache" / "potluck" / "weights"
    return sum(path.stat().st_blocks * 512 for path in store.rglob("*") if path.is_file())


if __name__ == "__main__":
    main()
