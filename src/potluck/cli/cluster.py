"""Commands on the running cluster: deploy, undeploy, plan, ps, down."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from potluck.cli.options import (
    ArithmeticOption,
    ContextOption,
    JsonOption,
    MmapOption,
    ModelArgument,
    Quant,
    QuantOption,
    StateOption,
    settings,
    state_directory,
)
from potluck.cli.output import emit_json, note
from potluck.cli.speed_lines import speed_lines
from potluck.cli.tables import deployment_lines, mapped_text, node_lines, stage_lines
from potluck.cluster.agent.control import ask
from potluck.cluster.agent.state import StateDirectory
from potluck.cluster.calls import DEFAULT_RECOVERY_WAIT_SECONDS
from potluck.errors import ParameterError
from potluck.types.arithmetic import ArithmeticChoice
from potluck.types.ranges import require_number

CacheOption = Annotated[
    int | None,
    typer.Option(
        "--cache",
        min=1,
        help="Tokens that all sequences share in the cache. Default: four full contexts.",
        show_default=False,
    ),
]
NameOption = Annotated[
    str | None,
    typer.Option(
        "--name",
        help="What clients call it. Default: MODEL, and the last part of a path.",
        show_default=False,
    ),
]
RecoveryWaitOption = Annotated[
    float | None,
    typer.Option(
        "--recovery-wait",
        metavar="SECONDS",
        help="How long requests wait while machines are lost and the model is not ready. "
        f"Default: {DEFAULT_RECOVERY_WAIT_SECONDS:g}.",
        show_default=False,
    ),
]
SparesOption = Annotated[
    int | None,
    typer.Option(
        "--spares",
        metavar="N",
        help="Keep every stage's weights ready on N further nodes. Default: 0.",
        show_default=False,
    ),
]


def deploy(
    model: ModelArgument,
    name: NameOption = None,
    context: ContextOption = None,
    cache: CacheOption = None,
    quant: QuantOption = Quant.NONE,
    mmap: MmapOption = False,
    arithmetic: ArithmeticOption = None,
    recovery_wait: RecoveryWaitOption = None,
    spares: SparesOption = None,
    json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Deploy MODEL over the cluster's nodes and wait until it can answer."""
    socket = state_directory(state).control_socket
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    result: dict[str, Any] = {}
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("placing", total=None)
        try:
            request = _request(model, name, context, cache, quant, mmap=mmap, arithmetic=arithmetic)
            request |= _recovery(recovery_wait, spares)
            for document in ask(socket, "deploy", request):
                result = document.get("result") or document["event"]
                bar.update(
                    task,
                    description=str(result["reason"]),
                    completed=result["done_bytes"],
                    total=result["total_bytes"] or None,
                )
        except KeyboardInterrupt:
            bar.stop()
            note("interrupted: what was deployed so far is being undone")
            raise typer.Exit(130) from None
    if json:
        emit_json({"schema": "potluck.deploy/1", **result})
        return
    note(f"{result['model_id']} is ready on {len(result['stages'])} stages")
    _print_lines(stage_lines(result))


def plan(
    model: ModelArgument,
    context: ContextOption = None,
    cache: CacheOption = None,
    quant: QuantOption = Quant.NONE,
    mmap: MmapOption = False,
    arithmetic: ArithmeticOption = None,
    json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Show what of MODEL would go where, and why; nothing is loaded."""
    request = _request(model, None, context, cache, quant, mmap=mmap, arithmetic=arithmetic)
    result = _result(state_directory(state), "plan", request)
    if json:
        emit_json({"schema": "potluck.plan/1", **result})
        return
    _print_lines(stage_lines(result))
    print(
        f"{result['num_layers']} layers in proportion to what each unit may use (potluck ps);\n"
        f"the cache is for {result['cache_tokens']} tokens{mapped_text(result)}"
    )


def undeploy(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As potluck ps shows it.")],
    state: StateOption = None,
) -> None:
    """Stop serving a model and free its memory."""
    result = _result(state_directory(state), "undeploy", {"name": name})
    note(f"{result['model_id']} is no longer deployed")


def ps(json: JsonOption = False, state: StateOption = None) -> None:
    """Show nodes, units, deployments and stages."""
    result = _result(state_directory(state), "state", {})
    if json:
        emit_json(result)
        return
    _print_lines(node_lines(result))
    for deployment in result["deployments"]:
        print()
        _print_lines(deployment_lines(deployment))
        _print_lines(speed_lines(deployment))
    if not result["deployments"]:
        print("\nnothing is deployed; potluck deploy MODEL")


def down(state: StateOption = None) -> None:
    """Hand this node's requests and stages over to the others, and stop its agent."""
    for document in ask(state_directory(state).control_socket, "down", {}):
        if "event" in document:
            note("draining: requests and stages are handed over to the other nodes")
    note("this node has left the cluster")


def _request(
    model: str,
    name: str | None,
    context: int | None,
    cache: int | None,
    quant: Quant,
    *,
    mmap: bool,
    arithmetic: ArithmeticChoice | None,
) -> dict[str, object]:
    """What the agent is asked; a path is made absolute, for other processes to read it."""
    if name is not None and not name.strip():
        raise ParameterError("name", "--name is empty", hint="leave it out, or give a name")
    path = Path(model).expanduser()
    is_path = model != "demo" and path.exists()
    return {
        "model": str(path.resolve()) if is_path else model,
        "model_id": name or (_name_of(path.resolve()) if is_path else model),
        "context_tokens": context,
        "cache_tokens": cache,
        "quantization": None if quant.quantization is None else quant.quantization.value,
        "is_mapped": mmap,
        "arithmetic": (arithmetic or settings().arithmetic).value,
    }


def _recovery(wait_seconds: float | None, spares: int | None) -> dict[str, object]:
    """What the agent is asked of recovery. Raises ``ParameterError``."""
    chosen = settings()
    if wait_seconds is None:
        wait_seconds = chosen.recovery_wait_seconds
    asked: dict[str, object] = {"num_spares": chosen.spares if spares is None else spares}
    require_number("spares", asked["num_spares"])
    if wait_seconds is not None:
        require_number("recovery_wait", wait_seconds)
        asked["recovery_wait_seconds"] = wait_seconds
    return asked


def _name_of(path: Path) -> str:
    return path.stem if path.suffix == ".gguf" else path.name


def _result(state: StateDirectory, method: str, params: dict[str, object]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for document in ask(state.control_socket, method, params):
        result = document.get("result") or {}
    return result


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
