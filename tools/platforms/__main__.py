"""``python -m tools.platforms``: ask the index, write ``platforms.json`` and the page."""

from __future__ import annotations

import datetime
import tomllib
from pathlib import Path

from tools.platforms.index import PackageIndex, configured_index
from tools.platforms.page import page
from tools.platforms.survey import survey

_ROOT = Path(__file__).parents[2]
_DATA = Path(__file__).with_name("platforms.json")
_PAGE = _ROOT / "docs" / "reference" / "platforms.md"

if __name__ == "__main__":
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    made = survey(project["dependencies"], PackageIndex(configured_index()), today)
    _DATA.write_text(made.to_json(), encoding="utf-8")
    _PAGE.parent.mkdir(parents=True, exist_ok=True)
    _PAGE.write_text(page(made), encoding="utf-8")
    print(f"wrote {_DATA.relative_to(_ROOT)} and {_PAGE.relative_to(_ROOT)}")
