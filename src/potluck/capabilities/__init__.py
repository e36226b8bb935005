"""What this node can do, as schedulers ask for it (``potluck.types.capabilities``)."""

from potluck.capabilities.ask import device_capabilities

__all__ = ["device_capabilities"]
