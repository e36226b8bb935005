"""What GPU code requires of CUDA, the driver and the devices."""
