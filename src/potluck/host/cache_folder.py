"""Where this user's caches are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def cache_folder(environ: Mapping[str, str]) -> Path | None:
    """``$XDG_CACHE_HOME/potluck``, or ``~/.cache/potluck``; None without a home. Nothing is made.

    The XDG base directory specification has relative paths ignored.
    """
    base = environ.get("XDG_CACHE_HOME", "")
    if base.startswith("/"):
        return Path(base) / "potluck"
    try:
        return Path.home() / ".cache" / "potluck"
    except RuntimeError:
        return None


def hub_cache_folder() -> Path:
    """Where files of the hub land, by huggingface_hub's settings; it need not be there yet."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)
