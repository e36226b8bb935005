"""Measure a mixture-of-experts model in less memory than its weights need, with ``--mmap``.

    python benchmarks/mapped_experts.py MODEL.gguf --folder FOLDER [--tokens 32] > JSON

``potluck run --mmap`` decodes in a control group (v1) whose memory is each of these shares of the
model's file, after a first start outside any that packs the weights. Before each the kernel is told
to forget the packed file, as memory counts for the group that it was read in. Reported are tokens
per second, and the share of the experts used that were in memory when they were needed. Routers of
random weights choose evenly, which is the worst case for what is kept in memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from circumstances import circumstances
from command_line import documented_parser

_GROUPS = Path("/sys/fs/cgroup/memory")


def main() -> None:
    """Measure, and print one JSON object."""
    parser = documented_parser(__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--shares", type=float, nargs="+", default=[1.2, 0.75, 0.5])
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, required=True, help="for the packed file")
    arguments = parser.parse_args()
    num_bytes = arguments.model.stat().st_size
    command = (
        *(sys.executable, "-m", "potluck", "run", str(arguments.model), "--mmap", "--json"),
        *("-p", "Once upon a time", "-n", str(arguments.tokens), "--context", "512"),
        *("--threads", str(arguments.threads), "--seed", "1"),
    )
    os.environ["XDG_CACHE_HOME"] = str(arguments.folder)
    _run(command)
    rows = []
    for share in arguments.shares:
        _forget(arguments.folder)
        with _memory_limit(int(share * num_bytes)) as group:
            enter = ("sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh")
            document = _run((*enter, *command))
        experts = document["experts"]
        rows.append(
            {
                "share_of_file": share,
                "limit_bytes": int(share * num_bytes),
                "decode_tokens_per_second": document["timings"]["decode_tokens_per_second"],
                "experts_in_memory": experts["num_in_memory"] / max(1, experts["num_used"]),
            }
        )
        print(json.dumps(rows[-1]), file=sys.stderr)
    print(
        json.dumps(
            {
                "circumstances": circumstances(),
                "file_bytes": num_bytes,
                "num_tokens": arguments.tokens,
                "rows": rows,
            },
            indent=2,
        )
    )


def _forget(folder: Path) -> None:
    for path in folder.rglob("*.packed"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _run(command: tuple[str, ...]) -> Any:
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode != 0:
        raise SystemExit(completed.stderr)
    return json.loads(completed.stdout)


@contextmanager
def _memory_limit(num_bytes: int) -> Iterator[Path]:
    group = _GROUPS / f"potluck-experts-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(num_bytes))
        yield group
    finally:
        group.rmdir()


if __name__ == "__main__":
    main()
