"""Link speeds to other nodes: measured with a few frames, within a strict budget.

``exchange`` is the measurement protocol, ``figures`` combines several measurements, and
``schedule`` decides which link is measured next and limits the cost. Only ``exchange`` does I/O and
reads a clock; the others are pure.
"""
