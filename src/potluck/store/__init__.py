"""Bytes of model files on this disk, by content: stored, hashed, pruned.

``ContentStore`` is where they are looked up. A ``Blob`` is a file in the store, whole or in part; a
``LocalFile`` is elsewhere on this disk and is only read. ``KnownFiles`` hashes files once. Nothing
here depends on networks or on where bytes come from.
"""

__all__ = ["blob", "content_store", "local_file"]
