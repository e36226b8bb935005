"""Small roots of old and new systems, to run builds in: from the distributions' own packages.

A root is a folder with a C library, what a minimal installation has beside it, and sometimes a
Python. Nothing of it is installed: packages are unpacked, and their scripts do not run.
"""
