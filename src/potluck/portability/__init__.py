"""Check which builds load on which host before anything is installed.

Requirements are read from ELF files, and hosts are described by data: nothing from either is
executed.
"""

__all__ = ["checks", "finding", "hosts", "linking", "planning", "shipped_toml", "wheels"]
