"""Where this user's caches are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def cache_path(environ: Mapping[str, str], name: str) -> Path | None:
    """Return ``$XDG_CACHE_HOME/potluck/NAME``, or the same under ``~/.cache``; None without a home
    directory. Nothing is created.

    The XDG base directory specification has relative paths ignored.
    """
    base = environ.get("XDG_CACHE_HOME", "")
    if base.startswith("/"):
        return Path(base, "potluck", name)
    try:
        return Path.home() / ".cache" / "potluck" / name
    except RuntimeError:
        return None


def hub_cache_folder() -> Path:
    """Where files of the hub land, by huggingface_hub's settings; it need not be there yet."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)
