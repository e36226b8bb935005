"""The APIs that clients use, one package for each."""
