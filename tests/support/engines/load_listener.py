"""Notes what a worker tells while it loads."""

from __future__ import annotations


class RecordingLoadListener:
    """A ``LoadListener``; ``progress`` has what it was told of loading."""

    def __init__(self) -> None:
        self.progress: list[tuple[int, int]] = []
        self.num_warm_ups = 0

    def fetching(self, done_bytes: int, total_bytes: int) -> None:
        pass

    def loading(self, done_bytes: int, total_bytes: int) -> None:
        self.progress.append((done_bytes, total_bytes))

    def warming_up(self) -> None:
        self.num_warm_ups += 1
