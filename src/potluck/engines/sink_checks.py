"""Check that a sink receives each of a program's weights once and in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from potluck.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from potluck.types.tensor import TensorInfo


def check_begin(
    shapes: Mapping[str, tuple[int, ...]], info: TensorInfo, missing: Container[str]
) -> None:
    """Raise ``EngineError`` unless ``info`` is a tensor of ``shapes`` that is still ``missing``."""
    if info.name not in shapes:
        raise weights_refused(f"the program does not use the tensor {info.name}")
    if info.shape != shapes[info.name]:
        raise weights_refused(f"{info.name} is {info.shape}, but must be {shapes[info.name]}")
    if info.name not in missing:
        raise weights_refused(f"{info.name} is written twice")


def check_rows(
    info: TensorInfo, num_written: int, start_row: int, end_row: int, data: memoryview
) -> None:
    """Raise ``EngineError`` unless ``data`` is the rows after the ``num_written`` first ones."""
    if start_row != num_written or not start_row <= end_row <= info.num_rows:
        raise weights_refused(
            f"rows {start_row} to {end_row} of {info.name} after row {num_written}"
        )
    if data.nbytes != (end_row - start_row) * info.row_bytes:
        raise weights_refused(f"{data.nbytes} bytes for {end_row - start_row} rows of {info.name}")


def check_whole(info: TensorInfo, num_written: int) -> None:
    """Raise ``EngineError`` unless all rows were written."""
    if num_written < info.num_rows:
        raise weights_refused(f"{info.name} ends after row {num_written}")


def weights_refused(problem: str) -> EngineError:
    """Return the error that a sink raises."""
    return EngineError(
        f"cannot take the weights: {problem}", hint="this is a defect in Potluck; please report it"
    )
