"""``potluck wheel plan``: versions of packages that install and load on given hosts.

It reads the metadata of an index and those parts of wheels that the check needs; nothing is
installed.
"""
