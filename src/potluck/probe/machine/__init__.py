"""Facts about this machine from files: its CPU, its memory, its limits."""
