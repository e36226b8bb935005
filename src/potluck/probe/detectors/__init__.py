"""One module per vendor of devices."""
