"""The capabilities of this node, in the form that schedulers use
(``potluck.types.capabilities``).
"""

from potluck.capabilities.ask import device_capabilities

__all__ = ["device_capabilities"]
