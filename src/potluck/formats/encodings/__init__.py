"""Encodings of safetensors models: quantized weights stored as several tensors each.

``config.json`` describes the encoding under ``quantization_config``. ``encoding`` reads that,
``source`` shows each weight as one tensor of a ``TensorFormat``, and the other modules decode (ADR
52). These load NumPy, which a process that only reads configurations does not need.
"""

from potluck.formats.encodings.encoding import Encoding, read_encoding

__all__ = ["Encoding", "encoding", "read_encoding", "source"]
