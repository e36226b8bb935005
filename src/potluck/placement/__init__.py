"""Which unit gets which layers. Pure functions over ``potluck.types.cluster``."""

from potluck.placement.proportional import place

__all__ = ["place"]
