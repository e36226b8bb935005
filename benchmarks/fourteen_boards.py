"""Fourteen boards too small for any part of the model but their own: METHODOLOGY, "Boards".

    python benchmarks/fourteen_boards.py [--small] [--naive] [--output FILE]

Makes a model in bf16 in the shape of Llama-3-8B (16 GB, in the folder --work, used again), starts
14 agents on this machine, each with its worker in a control group of 1.5 GiB without swap, deploys
the model, and asks for 8 tokens. Nothing may be killed. With ``--naive`` each stage also asks for
the embedding and the head, and something must be. ``--small``: 1 GB on boards of 272 MiB.

Needs root, and version 1 of the kernel's memory controller.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from circumstances import write_result
from command_line import documented_parser
from model_shapes import SHAPES, Shape, stored_bytes, weights_bytes
from processes import UNEVICTABLE, memory_bytes
from random_hugging_face import write_hugging_face
from token_stream import NO_END, post_json

from potluck.cli.placing import result_of
from potluck.cluster.agent.state import StateDirectory
from potluck.cluster.network.trust.secret import generate_secret
from potluck.errors import PotluckError
from potluck.host.child_environment import SECRET_VARIABLE
from potluck.types.quantities import format_bytes

NUM_BOARDS = 14
NUM_TOKENS = 8
CONTEXT_TOKENS = 256
MARGIN_BYTES = 48 * 2**20
"""The largest excess of a worker's peak memory over its plan."""

MAX_LOSSES = 3

NOT_SHOWN = 3
"""The exit status if control groups cannot be created."""

SMALL = Shape(
    hidden_size=1024,
    intermediate_size=3584,
    num_layers=32,
    num_heads=8,
    num_key_value_heads=2,
    head_dim=128,
    vocab_size=46_000,
    has_tied_head=False,
)
"""Llama-3-8B made smaller such that here, too, the embedding or the head is more than three layers
and fills a board."""

_WORK = Path(__file__).resolve().parents[1] / "build" / "fourteen-boards"
_START_SECONDS = 120.0
_ANSWER_SECONDS = 600.0
_SAMPLE_SECONDS = 0.01
_LOOK_SECONDS = 0.05
"""The interval between two searches for new workers."""

_NAIVE_AGENT = (
    "import potluck.cluster.agent.worker_process as worker_process\n"
    "worker_process.WORKER_MODULE = 'greedy_worker'\n"
    "from potluck.cli.main import main\n"
    "main()\n"
)


class NoControlGroupsError(Exception):
    """Control groups of version 1 with a memory limit cannot be created here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """A model, and the boards that it is divided among."""

    name: str
    shape: Shape
    cap_bytes: int


FULL_SIZE = Drill(name="8B", shape=SHAPES["8B"], cap_bytes=1536 * 2**20)
SMALL_SIZE = Drill(name="small", shape=SMALL, cap_bytes=272 * 2**20)


@dataclass(slots=True, kw_only=True)
class BoardResult:
    """The result of one board; unknown values are None. All sizes are in bytes.

    ``worker_peak_bytes``: the largest RssAnon + RssShmem of the worker; ``board_peak_bytes``: of
    worker and agent together.
    """

    board: int
    layers: tuple[int, int] | None = None
    plan_bytes: int | None = None
    read_bytes: int | None = None
    load_seconds: float | None = None
    worker_peak_bytes: int = 0
    board_peak_bytes: int = 0
    num_kills: int = 0

    def cells(self, *sizes: int | None) -> str:
        """Return the beginning of a row of a table: up to the seconds of loading."""
        layers = "" if self.layers is None else f"[{self.layers[0]}, {self.layers[1]})"
        seconds = "" if self.load_seconds is None else f"{self.load_seconds:.1f}"
        shown = " ".join(f"{'' if each is None else format_bytes(each):>9}" for each in sizes)
        return f"{self.board:5} {layers:>9} {shown} {seconds:>7}"


@dataclass(slots=True, kw_only=True)
class CappedBoardResult(BoardResult):
    """``max_usage_bytes`` is the control group's, file pages included; ``num_limit_hits`` counts
    how often it was full, so that the kernel dropped some.
    """

    cap_bytes: int
    max_usage_bytes: int = 0
    num_limit_hits: int = 0


@dataclass(slots=True, kw_only=True)
class DrillResult:
    """``failure`` is the deployment's or the request's message, or empty.

    ``losses``: the seconds after which attempts ended because an agent was considered lost although
    none was killed: it had been silent for a second.
    """

    is_naive: bool
    model_bytes: int
    boards: list[CappedBoardResult]
    deploy_seconds: float | None = None
    answer_seconds: float | None = None
    num_tokens: int = 0
    losses: list[tuple[str, float]] = field(default_factory=list)
    failure: str = ""

    @property
    def num_kills(self) -> int:
        """The number of processes that the kernel killed for lack of memory."""
        return sum(board.num_kills for board in self.boards)

    def complaints(self) -> list[str]:
        """Return why the drill failed to show what it should; empty if it succeeded."""
        if self.is_naive:
            return [] if self.num_kills else ["nothing was killed"]
        found = [self.failure] if self.failure else []
        if self.num_kills:
            found.append(f"{self.num_kills} processes were killed")
        if self.num_tokens != NUM_TOKENS:
            found.append(f"{self.num_tokens} tokens instead of {NUM_TOKENS}")
        for board in self.boards:
            if board.plan_bytes is None:
                found.append(f"board {board.board} got no stage")
            elif board.worker_peak_bytes > board.plan_bytes + MARGIN_BYTES:
                found.append(f"the peak of board {board.board} is above its plan")
        return found


def main() -> None:
    """Run the drill, print a line for every board, write the document."""
    parser = documented_parser(__doc__)
    parser.add_argument("--small", action="store_true", help="1 GB on boards of 272 MiB")
    parser.add_argument("--naive", action="store_true", help="every stage loads both ends too")
    parser.add_argument("--work", type=Path, default=_WORK, help="folder for the model")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    drill = SMALL_SIZE if arguments.small else FULL_SIZE
    model = make_model(drill, arguments.work)
    try:
        result = run_drill(drill, model, is_naive=arguments.naive)
    except NoControlGroupsError as error:
        print(f"not shown: {error}", file=sys.stderr)
        sys.exit(NOT_SHOWN)
    for line in result_lines(result):
        print(line)
    results = {
        "num_kills": result.num_kills,
        **asdict(result),
    }
    write_result(arguments.output, "potluck.benchmark.fourteen_boards/1", results)
    complaints = result.complaints()
    for complaint in complaints:
        print(f"not as it should be: {complaint}", file=sys.stderr)
    sys.exit(1 if complaints else 0)


def make_model(drill: Drill, work: Path) -> Path:
    """Return the folder of the drill's model below ``work``; create the model if it is missing."""
    model = work / f"model-{drill.name}"
    complete = model / "complete"
    made_from = repr(drill.shape) + "\n"
    if complete.exists() and complete.read_text(encoding="utf-8") == made_from:
        return model
    work.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(model, ignore_errors=True)
    needed, free = stored_bytes(drill.shape) + 2**30, shutil.disk_usage(work).free
    if free < needed:
        raise SystemExit(
            f"{format_bytes(needed)} of disk are needed and {format_bytes(free)} are free: "
            "name another folder with --work"
        )
    write_hugging_face(drill.shape, model)
    complete.write_text(made_from, encoding="utf-8")
    return model


def run_drill(drill: Drill, model: Path, *, is_naive: bool) -> DrillResult:
    """Start the boards, deploy, ask, and look at what was used. Leaves nothing running.

    Raises ``NoControlGroupsError``.
    """
    result = DrillResult(
        is_naive=is_naive,
        model_bytes=weights_bytes(model),
        boards=[
            CappedBoardResult(board=index, cap_bytes=drill.cap_bytes) for index in range(NUM_BOARDS)
        ],
    )
    with ExitStack() as opened:
        groups = [
            opened.enter_context(memory_group(f"potluck-{os.getpid()}-{index}", drill.cap_bytes))
            for index in range(NUM_BOARDS)
        ]
        directory = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        boards = _start_boards(opened, groups, directory, is_naive=is_naive)
        sampler = opened.enter_context(sampling(boards))
        while True:
            started = time.monotonic()
            result.failure = ""
            try:
                _deploy_and_ask(boards[0], model, result)
            except (PotluckError, OSError, RuntimeError) as error:
                result.failure = str(error)
            is_loss = result.failure.endswith("was lost") and not any(map(num_kills, groups))
            if not is_loss or len(result.losses) == MAX_LOSSES:
                break
            result.losses.append((result.failure, time.monotonic() - started))
            await_boards(boards, _START_SECONDS)
        for board, into in zip(boards, result.boards, strict=True):
            sampler.report(board, into)
            into.max_usage_bytes = _number(board.group / "memory.max_usage_in_bytes")
            into.num_limit_hits = _number(board.group / "memory.failcnt")
    return result


def result_lines(result: DrillResult) -> Iterator[str]:
    """Yield a line for every board, and the overall result."""
    yield (
        f"{'board':>5} {'layers':>9} {'cap':>9} {'plan':>9} {'worker':>9} {'+ agent':>9} "
        f"{'max usage':>9} {'read':>9} {'seconds':>7} {'hits':>5} {'kills':>5}"
    )
    for each in result.boards:
        cells = each.cells(
            *(each.cap_bytes, each.plan_bytes, each.worker_peak_bytes),
            *(each.board_peak_bytes, each.max_usage_bytes, each.read_bytes),
        )
        yield f"{cells} {each.num_limit_hits:5} {each.num_kills:5}"
    for loss, seconds in result.losses:
        yield f"tried again: {loss} after {seconds:.1f} s"
    if result.failure:
        yield f"failed: {result.failure}"
    if result.deploy_seconds is not None:
        yield f"deployed {format_bytes(result.model_bytes)} in {result.deploy_seconds:.1f} s"
    if result.answer_seconds is not None:
        yield f"{result.num_tokens} tokens in {result.answer_seconds:.1f} s"
    yield f"killed by the kernel: {result.num_kills}"


# Boards.


def connect_here(port: int) -> socket.socket:
    """Connect to a port of this host."""
    return socket.create_connection(("127.0.0.1", port), timeout=_ANSWER_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """An agent in a control group of its own."""

    group: Path
    state: StateDirectory
    agent: subprocess.Popen[bytes]
    log: Path

    def end(self) -> None:
        """Kill the agent and wait for its end."""
        self.agent.kill()
        self.agent.wait()

    def ask(self, method: str, **params: object) -> Any:
        """Call the agent over its control socket, and return the result."""
        return result_of(self.state, method, params)

    def deploy(self, model: str, results: Sequence[BoardResult] = ()) -> float:
        """Deploy ``model`` and return the seconds that it took.

        The stage of each board is recorded in its result, if ``results`` are given.
        """
        started = time.monotonic()
        deployed = self.ask(
            "deploy",
            model=model,
            model_id="model",
            context_tokens=CONTEXT_TOKENS,
            objective="memory",
        )
        seconds = time.monotonic() - started
        stages = {stage["node_id"]: stage for stage in deployed["stages"]}
        for result in results:
            if stage := stages.get(node_id(result.board)):
                result.layers = (stage["start_layer"], stage["end_layer"])
                result.plan_bytes = stage["num_bytes"]
                result.read_bytes = stage["read_bytes"]
                result.load_seconds = stage["load_seconds"]
        return seconds

    def complete(self, connect: Callable[[int], socket.socket] = connect_here) -> tuple[str, int]:
        """Have the model continue a text. Return the answer's text and its number of tokens.

        ``connect`` opens a connection to a port of the host of the agent that serves HTTP.
        """
        (address,) = filter(None, (node.get("http_address") for node in self.ask("state")["nodes"]))
        port = int(address.rpartition(":")[2])
        body = {
            "model": "model",
            "prompt": "The old boat",
            "max_tokens": NUM_TOKENS,
            "temperature": 0,
            "logit_bias": NO_END,
        }
        answer = post_json(connect(port), "/v1/completions", body)
        return answer["choices"][0]["text"], answer["usage"]["completion_tokens"]

    def state_of_cluster(self) -> Any:
        """Return the cluster as this agent sees it, or None until the agent answers."""
        if self.agent.poll() is not None:
            raise RuntimeError(f"an agent did not start: {self.log.read_text(encoding='utf-8')}")
        try:
            return self.ask("state")
        except PotluckError:
            return None


def memory_controller() -> Path:
    """Return the mount point of version 1 of the memory controller. Raise ``NoControlGroupsError``
    if there is none.
    """
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split()[:3]
        if kind == "cgroup" and "memory" in options.split(","):
            return Path(before.split()[4])
    raise NoControlGroupsError("version 1 of the kernel's memory controller is not mounted here")


@contextmanager
def memory_group(name: str, cap_bytes: int) -> Iterator[Path]:
    """Create a control group limited to ``cap_bytes`` and no swap; end its processes afterwards.

    Raises ``NoControlGroupsError``.
    """
    group = memory_controller() / name
    try:
        group.mkdir()
    except OSError as error:
        raise NoControlGroupsError(f"{group} cannot be made: {error.strerror}") from error
    try:
        (group / "memory.limit_in_bytes").write_text(str(cap_bytes), encoding="ascii")
        (group / "memory.swappiness").write_text("0", encoding="ascii")
        with contextlib.suppress(FileNotFoundError):  # a kernel that does not account for swap
            (group / "memory.memsw.limit_in_bytes").write_text(str(cap_bytes), encoding="ascii")
        yield group
    finally:
        _end_all(group)


def _end_all(group: Path) -> None:
    """Kill what is in a group, and remove it once the kernel has let go of all of it."""
    deadline = time.monotonic() + 20
    while True:
        for pid in _members(group):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def _members(group: Path) -> list[int]:
    return [int(pid) for pid in (group / "cgroup.procs").read_text(encoding="ascii").split()]


def _number(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))


def num_kills(group: Path) -> int:
    """Return how many processes of a group the kernel has killed for lack of memory."""
    for line in (group / "memory.oom_control").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    raise OSError("the kernel does not count what it kills for memory (it does since 4.13)")


def _start_boards(
    opened: ExitStack, groups: list[Path], directory: Path, *, is_naive: bool
) -> list[Board]:
    """Start agents, and wait until all of them see one another. The first one serves clients."""
    root = Path(__file__).resolve().parents[1]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{root / 'src'}:{root / 'benchmarks'}",
        SECRET_VARIABLE: generate_secret(),
    }
    command = [sys.executable, *(["-c", _NAIVE_AGENT] if is_naive else ["-m", "potluck"])]
    boards: list[Board] = []
    join: list[str] = []
    deadline = time.monotonic() + _START_SECONDS
    for index, group in enumerate(groups):
        http_address = ["--no-http"] if boards else ["--http", "127.0.0.1:0"]
        started = [*command, "up", "--threads", "1", *http_address, *join]
        board = start_board(index, group, directory / str(index), started, environment)
        opened.callback(board.end)
        boards.append(board)
        if not join:
            while (seen := boards[0].state_of_cluster()) is None:
                _pause_until(deadline, "the first agent did not start")
            join = ["--join", seen["nodes"][0]["address"]]
    await_boards(boards, _START_SECONDS)
    for board in boards:  # the probe's trials are no part of what is measured
        for name in ("memory.max_usage_in_bytes", "memory.failcnt"):
            (board.group / name).write_text("0", encoding="ascii")
    return boards


def start_board(
    index: int, group: Path, folder: Path, command: Sequence[str], environment: Mapping[str, str]
) -> Board:
    """Run an agent in a control group, with its state and its log in the new folder ``folder``."""
    folder.mkdir()
    state = StateDirectory(folder / "state")
    state.path.mkdir(mode=0o700)
    (state.path / "node-id").write_text(node_id(index) + "\n", encoding="ascii")
    log = folder / "log"
    into_group = f'echo $$ > "{group}/cgroup.procs"; exec "$@"'
    with log.open("wb") as file:
        agent = subprocess.Popen(
            ["sh", "-c", into_group, "sh", *command, "--state", str(state.path)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    return Board(group=group, state=state, agent=agent, log=log)


def await_boards(boards: list[Board], seconds: float) -> None:
    """Wait until the first agent sees all of them, and each knows what it runs on."""
    deadline = time.monotonic() + seconds
    while True:
        seen = boards[0].state_of_cluster()
        measured = [node for node in seen["nodes"] if _is_measured(node)] if seen else []
        if len(measured) == len(boards):
            return
        for board in boards:
            if board.agent.poll() is not None:
                raise RuntimeError(f"an agent ended: {board.log.read_text(encoding='utf-8')}")
        if time.monotonic() > deadline:
            logs = "\n".join(board.log.read_text(encoding="utf-8") for board in boards)
            raise RuntimeError(f"the agents did not find one another:\n{logs}")
        time.sleep(0.2)


def node_id(board: int) -> str:
    """Return the node id of a board's agent."""
    return f"{board:016x}"


def _is_measured(node: Mapping[str, Any]) -> bool:
    return "hardware" in node and node["hardware"]["is_complete"]


def _pause_until(deadline: float, failure: str) -> None:
    if time.monotonic() > deadline:
        raise RuntimeError(failure)
    time.sleep(0.2)


def _deploy_and_ask(board: Board, model: Path, result: DrillResult) -> None:
    """Fill in ``result`` what the deployment says and how long all took."""
    result.deploy_seconds = board.deploy(str(model.resolve()), result.boards)
    started = time.monotonic()
    _, result.num_tokens = board.complete()
    result.answer_seconds = time.monotonic() - started


# Peaks.


@dataclass(slots=True, kw_only=True)
class Sampler:
    """The largest sums of RssAnon and RssShmem so far, by control group."""

    boards: list[Board]
    worker_peaks: dict[Path, int] = field(default_factory=dict)
    board_peaks: dict[Path, int] = field(default_factory=dict)
    is_ending: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Look at every process, all over again, until ``is_ending``."""
        members: dict[Path, list[int]] = {}
        next_look = 0.0
        while not self.is_ending.is_set():
            started = time.monotonic()
            if started >= next_look:
                members = {board.group: _members(board.group) for board in self.boards}
                next_look = started + _LOOK_SECONDS
            for board in self.boards:
                held = {pid: memory_bytes(pid, *UNEVICTABLE) for pid in members[board.group]}
                workers = sum(size for pid, size in held.items() if pid != board.agent.pid)
                self._raise(self.worker_peaks, board, workers)
                self._raise(self.board_peaks, board, sum(held.values()))
            self.is_ending.wait(max(0.0, _SAMPLE_SECONDS - (time.monotonic() - started)))

    def report(self, board: Board, result: BoardResult) -> None:
        """Record in a board's result its peaks and the number of processes that were killed."""
        result.worker_peak_bytes = self.worker_peaks.get(board.group, 0)
        result.board_peak_bytes = self.board_peaks.get(board.group, 0)
        result.num_kills = num_kills(board.group)

    def _raise(self, peaks: dict[Path, int], board: Board, num_bytes: int) -> None:
        peaks[board.group] = max(peaks.get(board.group, 0), num_bytes)


@contextmanager
def sampling(boards: list[Board]) -> Iterator[Sampler]:
    """Sample all processes of the boards in a thread, every 10 ms, until the block ends."""
    sampler = Sampler(boards=boards)
    thread = threading.Thread(target=sampler.run, name="sampler")
    thread.start()
    try:
        yield sampler
    finally:
        sampler.is_ending.set()
        thread.join()


if __name__ == "__main__":
    main()
