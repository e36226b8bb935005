"""The version of this build, for those who may not import the package's root."""

__version__ = "0.1.0"
