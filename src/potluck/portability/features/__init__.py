"""Rules about which features of a project work on a host."""
