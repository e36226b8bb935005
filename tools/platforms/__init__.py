"""Makes ``docs/reference/platforms.md``: where Potluck's dependencies can be installed.

``python -m tools.platforms`` asks the package index that pip is configured with, and writes what it
found to ``platforms.json`` here, and the page from that.
"""
