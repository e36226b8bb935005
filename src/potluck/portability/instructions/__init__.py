"""What machine code requires of a CPU."""
