"""The errors of this package."""

NOT_DOWNLOADED = "a package cannot be downloaded"


class BuildError(Exception):
    """A wheel cannot be built; the message ends with the output of the tool that failed."""


class DownloadError(BuildError):
    """A file that a build requires cannot be downloaded now."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{NOT_DOWNLOADED}: {reason}")
