"""The web page that every node's HTTP server offers: its files, and nothing else.

The page is plain ES modules and CSS in ``static``; there is no build step. What it shows comes from
the HTTP API. The packages in ``static/vendor`` are put there by ``tools/vendor_page.py``.
"""

__all__ = ["assets"]
