"""Code about GPUs that detectors share: the PCI bus, AMD's driver, and OpenCL."""
