"""Child processes that may crash, hang or use too much memory."""
