"""How models write tool calls: one module for each format on the wire.

``choice`` tells a model's format by its chat template. ``chat_format`` puts a format of calls and
one of thoughts together: it makes the parser of an output, and the grammar that outputs must match
where calls are demanded or guaranteed. ``stream`` is what all parsers read from.
"""

from potluck.text.tool_formats.choice import FORMAT_NAMES, choose_output_format

__all__ = ["FORMAT_NAMES", "choose_output_format"]
