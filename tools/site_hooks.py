"""Hooks of MkDocs: pages from outside ``docs``, and links that leave it.

Links in the documents are relative paths, so that they work wherever the repository is read. On
the site, links to documents outside ``docs`` lead to their pages, and links to other files, such
as sources, become plain text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
OUTSIDE = (
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "GLOSSARY.md",
    "benchmarks/METHODOLOGY.md",
)
_SITE_PATHS = {path: posixpath.basename(path) for path in OUTSIDE} | {"README.md": "index.md"}
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add all decisions to the navigation."""
    decisions = sorted(path.name for path in (ROOT / "docs" / "adr").glob("*.md"))
    assert isinstance(config.nav, list)
    config.nav[-1]["Design"].append({"Decisions": [f"adr/{name}" for name in decisions]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents outside ``docs``."""
    for path in OUTSIDE:
        files.append(File.generated(config, _SITE_PATHS[path], abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return a page's text with links that fit the site."""
    uri = page.file.src_uri
    source = next((path for path in OUTSIDE if _SITE_PATHS[path] == uri), f"docs/{uri}")

    def fitted(link: re.Match[str]) -> str:
        text, target = link[1], link[2]
        if "://" in target or target.startswith("#"):
            return link[0]
        path, separator, anchor = target.partition("#")
        named = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if named == "docs/adr":
            named = "docs/adr/0001-record-decisions.md"
        on_site = _SITE_PATHS.get(named, named.removeprefix("docs/"))
        if files.get_file_from_path(on_site) is None:
            if not (ROOT / named).exists():
                return link[0]  # which fails the build
            return text
        relative = posixpath.relpath(on_site, posixpath.dirname(uri) or ".")
        return f"[{text}]({relative}{separator}{anchor})"

    return _LINK.sub(fitted, markdown)
