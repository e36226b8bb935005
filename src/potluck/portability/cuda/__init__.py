"""Requirements of GPU code on CUDA, the driver and the devices."""
