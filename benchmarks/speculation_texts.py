"""The prompts of the speculation benchmark: edits of a text in the prompt, and free text."""

from __future__ import annotations

from collections.abc import Mapping

STORY = (
    "The lighthouse keeper, Anna Berg, had lived on the island for thirty years. Every"
    " evening she climbed the one hundred and twelve steps to the lamp room, wiped the salt"
    " from the panes, and lit the great lamp. In winter the storms came from the north, and"
    " the waves broke over the rocks so high that the spray reached her window. She kept a log"
    " of every ship that passed, with its name, its flag and the hour, in a neat round hand."
    " When the Coast Guard told her that the light would be automated, she asked only to keep"
    " the log. They agreed, and every evening she still climbs the steps, though nobody needs"
    " her to, and writes down the ships."
)
CODE = '''def load_settings(path, defaults):
    """Read settings from a file and fill in what is missing."""
    settings = dict(defaults)
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            if "=" not in line:
                raise ValueError(f"{path}:{number}: there is no '=' in {line!r}")
            name, value = line.split("=", 1)
            name = name.strip()
            if name not in defaults:
                raise ValueError(f"{path}:{number}: unknown setting {name!r}")
            settings[name] = value.strip()
    return settings
'''

EDITING: Mapping[str, tuple[str, str]] = {
    "quote": (
        f"Repeat the following text word for word, without any change:\n\n{STORY}",
        STORY,
    ),
    "change a name": (
        "Rewrite the following text with the name Anna Berg replaced by Clara Holm. Change nothing"
        f" else:\n\n{STORY}",
        STORY.replace("Anna Berg", "Clara Holm"),
    ),
    "correct": (
        "Correct the spelling mistakes in the following text and return the corrected text only:"
        f"\n\n{STORY.replace('evening', 'evning').replace('lighthouse', 'lighthose')}",
        STORY,
    ),
    "rename in code": (
        "Rename the variable `settings` to `options` in this Python function, and return the whole"
        f" function and nothing else:\n\n```python\n{CODE}```",
        f"```python\n{CODE.replace('settings', 'options')}```",
    ),
}
"""A message, and what a client might predict."""

FREE: Mapping[str, str] = {
    "story": "Tell me a story about a young fox that learns how to swim.",
    "explanation": "Explain how a refrigerator works.",
    "letter": "Write a letter to my landlord about a broken heater.",
    "history": "What were the main causes of the French Revolution?",
}
