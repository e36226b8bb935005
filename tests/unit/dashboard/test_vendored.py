"""The vendored packages, without network: ``tools/vendor_page.py`` compares them with npm."""

import hashlib
import json

import pytest

from tools import vendor_page

RECORD = json.loads((vendor_page.FOLDER / vendor_page.RECORD).read_text("utf-8"))["packages"]


def sha256(name: str) -> str:
    return hashlib.sha256((vendor_page.FOLDER / name).read_bytes()).hexdigest()


def test_the_record_is_of_the_pinned_packages() -> None:
    pinned = [
        (each.name, each.version, each.license, each.archive_sha256, [f.name for f in each.files])
        for each in vendor_page.PACKAGES
    ]
    assert pinned == [
        (
            each["name"],
            each["version"],
            each["license"],
            each["archive_sha256"],
            [file["file"] for file in each["files"]],
        )
        for each in RECORD
    ]


def test_every_file_is_as_recorded_and_no_other_is_there() -> None:
    recorded = {vendor_page.RECORD}
    for package in RECORD:
        assert sha256(package["license_file"]) == package["license_sha256"]
        recorded.add(package["license_file"])
        for file in package["files"]:
            assert sha256(file["file"]) == file["sha256"], file["file"]
            recorded.add(file["file"])
    paths = (path for path in vendor_page.FOLDER.rglob("*") if path.is_file())
    assert {path.relative_to(vendor_page.FOLDER).as_posix() for path in paths} == recorded


def test_every_licence_is_allowed_and_its_text_is_there() -> None:
    phrases = {
        "MIT": "Permission is hereby granted, free of charge",
        "Apache-2.0": "Apache License",
    }
    for package in RECORD:
        text = (vendor_page.FOLDER / package["license_file"]).read_text("utf-8")
        assert package["license"] in vendor_page.ALLOWED_LICENSES
        assert phrases[package["license"]] in text, package["name"]


def test_edits_replace_imports_and_drop_source_maps() -> None:
    file = vendor_page.VendoredFile(
        source="a.mjs",
        name="a.js",
        replacements=(vendor_page.PREACT,),
        appended="export default a;\n",
    )
    content = b'import{h}from"preact";\n//# sourceMappingURL=a.mjs.map\n'
    assert vendor_page.edited(file, content) == (
        b'import{h}from"./preact.js";\nexport default a;\n'
    )
    with pytest.raises(vendor_page.VendoringError, match="does not contain"):
        vendor_page.edited(file, b"export{}")


def test_differences_name_missing_changed_and_superfluous_files() -> None:
    record = (vendor_page.FOLDER / vendor_page.RECORD).read_bytes()
    lines = vendor_page.differences(
        {vendor_page.RECORD: record, "preact.js": b"", "absent.js": b""}, vendor_page.FOLDER
    )
    assert "absent.js is missing" in lines
    assert "preact.js differs from what was published" in lines
    assert "htm.js belongs to no package" in lines
    assert not any(line.startswith(vendor_page.RECORD) for line in lines)


def test_a_licence_that_the_package_does_not_offer_is_refused() -> None:
    package = vendor_page.PACKAGES[-1]
    vendor_page.check_license(package, b'{"license": "(MPL-2.0 OR Apache-2.0)"}')
    with pytest.raises(vendor_page.VendoringError, match="has the licence MIT"):
        vendor_page.check_license(package, b'{"license": "MIT"}')
