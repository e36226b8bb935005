"""Values that are remembered, and forgotten."""

from __future__ import annotations

from potluck.portability.memory import Memory


def test_what_was_not_asked_for_the_longest_is_forgotten() -> None:
    made: list[str] = []
    memory: Memory[str] = Memory(2)

    def get(key: str) -> str:
        def make() -> str:
            made.append(key)
            return key.upper()

        return memory.get(key, make)

    assert [get(key) for key in ("a", "b", "a", "c", "a", "b")] == ["A", "B", "A", "C", "A", "B"]
    assert made == ["a", "b", "c", "b"]
