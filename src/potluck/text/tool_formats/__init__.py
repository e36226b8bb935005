"""Tool call formats of models: those that are data in ``formats``, others in modules of their own.

``choice`` identifies a model's format by its chat template. ``chat_format`` combines a tool call
format with a reasoning format: it creates the parser of an output, and the grammar that outputs
must match where calls are required or guaranteed. All parsers read from ``stream``.
"""

from potluck.text.tool_formats.choice import FORMAT_NAMES, choose_output_format

__all__ = ["FORMAT_NAMES", "choice", "choose_output_format"]
