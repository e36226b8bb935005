"""Find the devices of this machine, and test and measure which backends work on them."""
