"""Stream tensors from files to engines, under canonical names."""

__all__ = ["canonical", "divided", "load"]
