import re
from pathlib import Path

from potluck.dashboard.assets import assets

STATIC = Path(__file__).parents[3] / "src" / "potluck" / "dashboard" / "static"
MOST_BYTES = 400_000


def own_texts() -> dict[str, str]:
    return {
        path: asset.content.decode()
        for path, asset in assets().items()
        if not path.startswith("vendor/")
    }


def test_every_file_of_the_folder_is_an_asset() -> None:
    files = {path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file()}
    assert files == set(assets())
    assert assets()["index.html"].media_type.startswith("text/html")
    assert assets()["app.js"].media_type.startswith("text/javascript")


def test_the_page_is_small() -> None:
    package = STATIC.parent.rglob("*")
    sizes = [path.stat().st_size for path in package if path.is_file() and path.suffix != ".pyc"]
    assert sum(sizes) <= MOST_BYTES


def test_every_import_and_link_names_an_asset() -> None:
    pattern = re.compile(r'(?:from\s*|import\s*|import\(\s*)"(\.[^"]+)"')
    for path, asset in assets().items():
        if path.endswith(".js"):
            for target in pattern.findall(asset.content.decode()):
                resolved = (STATIC / path).parent.joinpath(target).resolve()
                assert resolved.relative_to(STATIC).as_posix() in assets(), (path, target)
    links = re.findall(r'(?:src|href)="page/([^"]+)"', own_texts()["index.html"])
    assert "app.js" in links
    assert "style.css" in links
    assert set(links) <= set(assets())


def test_the_index_has_no_inline_script_or_style_which_its_policy_forbids() -> None:
    index = own_texts()["index.html"]
    assert re.findall(r"<script(?![^>]* src=)", index) == []
    assert re.findall(r"<style| style=| on[a-z]+=", index) == []


def test_nothing_is_loaded_from_another_host() -> None:
    for path, text in own_texts().items():
        loads = re.findall(r'(?:src|href)="https?:|url\(|@import|import\("?https?:', text)
        assert loads == [], path
