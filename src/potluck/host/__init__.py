"""Facts about this machine and its operating system, and child processes that are watched."""
