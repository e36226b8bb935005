"""The cases of the self-test of backends."""
