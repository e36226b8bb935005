"""The software for an invited machine: two lines to type, an installer, and compatible wheels."""
