"""The native backend, tried out and measured: what ``potluck.probe.trials`` runs in a child.

Everything goes through ``NativeEngine`` and so through the kernels, the runner and the threads that
serve models. Prints what it computed, and judges nothing.
"""

from __future__ import annotations

import json
import sys

from potluck.errors import PotluckError


def main(arguments: list[str]) -> None:
    """Carry out one of the commands of ``potluck.probe.trials``, and print its document."""
    try:
        document = _document(arguments)
    except ImportError as error:
        document = {"refused": f"{error}"}
    except PotluckError as error:
        document = {"refused": error.message}
    print(json.dumps(document))  # noqa: T201 - the answer of a child process


def _document(arguments: list[str]) -> dict[str, object]:
    match arguments:
        case ["variants", _, _]:
            from potluck.kernels import available_isas

            return {"variants": available_isas()}
        case ["self-test", _, _, *isas]:
            from potluck.engines.native_self_test import self_test
            from potluck.kernels import available_isas

            return {"results": {isa: self_test(isa) for isa in isas or available_isas()}}
        case ["measure", _, _, isa, num_threads, max_weights_bytes]:
            from potluck.engines.native_measure import measure

            figures = measure(isa, int(num_threads), int(max_weights_bytes), _print_progress)
            return {"figures": figures}
    return {"refused": f"no such command: {' '.join(arguments)}"}


def _print_progress(fraction: float) -> None:
    print(json.dumps({"progress": round(fraction, 3)}), flush=True)  # noqa: T201 - see main


if __name__ == "__main__":
    main(sys.argv[1:])
