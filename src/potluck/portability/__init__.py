"""Which builds load on which host, told before anything is installed.

Needs are read from ELF files, hosts are descriptions: nothing of either is executed.
"""
