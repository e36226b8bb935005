"""One file for each make of device."""
