"""The native engine, on the core's kernels, and the accounting of its work."""
