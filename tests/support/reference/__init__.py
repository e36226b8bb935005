"""The reference engine: the specification of every op, in NumPy."""
