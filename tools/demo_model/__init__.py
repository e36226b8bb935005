"""Everything needed to remake Potluck's built-in model ``demo`` from nothing."""
