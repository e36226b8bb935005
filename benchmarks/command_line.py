"""The command lines of benchmarks."""

from __future__ import annotations

import argparse


def documented_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help shows the docstring ``doc`` as it is written."""
    return argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
