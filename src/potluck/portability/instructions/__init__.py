"""Requirements of machine code on a CPU."""
