"""Readers of ELF files."""
