"""The one error of this package."""


class BuildError(Exception):
    """A wheel cannot be built; the message ends with what a tool said, where one failed."""
