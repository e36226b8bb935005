"""A simulation of a host's dynamic linker."""
